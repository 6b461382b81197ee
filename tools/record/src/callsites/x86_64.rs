//! Calls on x86-64: `e8` and a distance, or `ff 15` and the distance of a pointer.

use std::collections::HashSet;

const CALL: u8 = 0xe8;
const CALL_INDIRECT: [u8; 2] = [0xff, 0x15];
const JUMP_INDIRECT: [u8; 2] = [0xff, 0x25];

/// The target of the 32-bit displacement at `pos`. The instruction ends behind it.
fn target(section: u64, code: &[u8], pos: usize) -> Option<u64> {
    let displacement = i32::from_le_bytes(*code.get(pos..)?.first_chunk()?);
    Some(section.wrapping_add(pos as u64 + 4).wrapping_add_signed(i64::from(displacement)))
}

/// Adds the beginnings of stubs in a procedure linkage table that jump through one of `slots`.
pub(super) fn add_stubs(section: u64, code: &[u8], slots: &HashSet<u64>, stubs: &mut HashSet<u64>) {
    for (pos, _) in code.windows(2).enumerate().filter(|(_, bytes)| *bytes == JUMP_INDIRECT) {
        if target(section, code, pos + 2).is_some_and(|slot| slots.contains(&slot)) {
            let jump = section.wrapping_add(pos as u64);
            // The jump itself, or the `bnd` prefix or the `endbr64` before it.
            stubs.extend([0, 1, 4, 5].map(|before| jump.wrapping_sub(before)));
        }
    }
}

/// The number of calls of the addresses in `direct`, and through `slots`.
pub(super) fn calls(section: u64, code: &[u8], direct: &HashSet<u64>, slots: &HashSet<u64>) -> u64 {
    let is_call = |pos: usize| match code[pos..] {
        [CALL, ..] => target(section, code, pos + 1).is_some_and(|hook| direct.contains(&hook)),
        [a, b, ..] if [a, b] == CALL_INDIRECT => {
            target(section, code, pos + 2).is_some_and(|slot| slots.contains(&slot))
        }
        _ => false,
    };
    (0..code.len()).filter(|&pos| is_call(pos)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_calls() {
        let slots = HashSet::from([0x3000]);
        let mut direct = HashSet::new();
        // 0x1000: jmp *0x3000; 0x1006: endbr64; bnd jmp *0x3000; jmp *0x4000
        let plt = b"\xff\x25\xfa\x1f\0\0\xf3\x0f\x1e\xfa\xf2\xff\x25\xef\x1f\0\0\xff\x25\xe9\x2f\0\0";
        add_stubs(0x1000, plt, &slots, &mut direct);
        assert!(direct.contains(&0x1000) && direct.contains(&0x1006), "{direct:x?}");
        assert!(!direct.contains(&0x1011), "{direct:x?}");

        // call 0x1000; call *0x3000; call 0x1011; a call that is cut
        let code = b"\xe8\xfb\xef\xff\xff\xff\x15\xf5\x0f\0\0\xe8\x01\xf0\xff\xff\xff\x15\0";
        assert_eq!(calls(0x2000, code, &direct, &slots), 2);
        assert_eq!(calls(0x2000, code, &HashSet::new(), &HashSet::new()), 0);
    }
}
