//! A copy of a program whose calls to `mcount` are NOPs of the same length: what a patched program that does not record
//! can come near to, with the same layout.

use std::fs;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind};

/// `call` with a distance of 32 bits.
const CALL: u8 = 0xe8;
/// `nop dword ptr [rax + rax]`
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Writes the copy; returns how many calls there were.
pub fn write(program: &str, copy: &str) -> Result<usize, String> {
    let failed = |e: std::io::Error| format!("{program}: {e}");
    let mut bytes = fs::read(program).map_err(failed)?;
    let calls = calls(&bytes).map_err(|e| format!("{program}: {e}"))?;
    for &call in &calls {
        bytes[call..call + NOP.len()].copy_from_slice(&NOP);
    }
    // Copied first, for the permissions.
    fs::copy(program, copy).and_then(|_| fs::write(copy, bytes)).map_err(|e| format!("{copy}: {e}"))?;
    Ok(calls.len())
}

/// Where in a file the calls are.
fn calls(bytes: &[u8]) -> Result<Vec<usize>, String> {
    let file = object::File::parse(bytes).map_err(|e| e.to_string())?;
    let is_mcount = |symbol: &object::Symbol<'_, '_>| symbol.is_definition() && symbol.name() == Ok("mcount");
    let mcount = file.symbols().find(is_mcount).ok_or("does not define mcount")?.address();
    let mut calls = Vec::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let Some((offset, _)) = section.file_range() else { continue };
        let code = section.data().map_err(|e| e.to_string())?;
        // Five bytes that would be this call by chance, in the middle of other instructions: one in 2^40.
        for (place, window) in code.windows(NOP.len()).enumerate() {
            let [CALL, distance @ ..] = window else { continue };
            let behind = section.address() + (place + NOP.len()) as u64;
            let distance = i32::from_le_bytes(distance.try_into().map_err(|_| "a call has five bytes")?);
            if behind.wrapping_add_signed(distance.into()) == mcount {
                calls.push(offset as usize + place);
            }
        }
    }
    if calls.is_empty() { Err("does not call mcount".to_owned()) } else { Ok(calls) }
}
