//! Calls of other modules' functions by the program: the slots through which they go get the addresses of stubs.
//!
//! A stub leads to the hook, and the hook to the function, as where a function has a branch; but no code is changed, and the function is
//! recorded only where the program calls it. Records name it by its slot, so each import is one function, whatever other names
//! its address has.
//!
//! **Invariant**: a slot is left alone if its contents serve anything but calls: the address of a function is the same for all who
//! ask for it.

use std::ffi::{CString, c_void};
use std::mem;
use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use super::WholeReason;
use super::pointers::is_only_called;
use super::wanted::looks_at_its_caller;
use crate::elf::imports::Import;
use crate::patch::module::Image;
use crate::patch::redirect;

/// Instructions that call, or jump to, what a slot holds; behind them stands where it is.
const CALLS: [[u8; 2]; 2] = [[0xff, 0x15], [0xff, 0x25]];
const OPERAND_BYTES: usize = 4;
/// Bytes before the operand of `mov` from a slot to a register.
const LOAD_BYTES: usize = 3;
/// `cmp qword [rip + …], imm8`, without the operands.
const COMPARE: [u8; 3] = [0x48, 0x83, 0x3d];

/// What the functions of the slots are, or why they are not recorded. `address` tells where a slot is in memory.
pub(super) fn examine<'f>(
    image: &Image<'_>,
    imports: &[Import<'f>],
    address: impl Fn(&Import<'f>) -> usize,
) -> Vec<Result<usize, WholeReason>> {
    let others = imports.iter().filter(|import| !import.is_for_calls).map(&address);
    let pointed_to = used_otherwise(image, &others.collect::<Vec<_>>());
    let examine = |import: &Import<'f>| {
        let slot = address(import);
        if looks_at_its_caller(import.name) {
            return Err(WholeReason::Special);
        }
        if pointed_to.contains(&slot) {
            return Err(WholeReason::Pointer);
        }
        if image.bytes(slot..slot + size_of::<usize>()).is_none() {
            return Err(WholeReason::Unreadable);
        }
        let held = redirect::value(slot).load(Relaxed);
        // With lazy binding it leads back to the program until the first call.
        let function = if image.contains(held) { bound(import) } else { Some(held) };
        match function.filter(|&function| function != 0) {
            None => Err(WholeReason::Unbound),
            // The program's jump through the slot stands for the function, so that all who ask have one address.
            Some(function) if image.contains(function) => Err(WholeReason::Pointer),
            Some(function) => Ok(function),
        }
    };
    imports.iter().map(examine).collect()
}

/// What the dynamic linker will find for an import.
fn bound(import: &Import<'_>) -> Option<usize> {
    let name = CString::new(import.name).ok()?;
    // SAFETY: a string that ends with a NUL; nothing is changed but the linker's own message.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let found = match import.version {
        Some(version) if first.is_null() || has_versions(first) => {
            let version = CString::new(version).ok()?;
            // SAFETY: as above.
            unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), version.as_ptr()) }
        }
        // A library without versions, such as an allocator that is preloaded, has whichever is wanted. `dlvsym` does not say so.
        _ => first,
    };
    (!found.is_null()).then_some(found as usize)
}

/// Whether the library with this function gives its functions versions.
fn has_versions(function: *const c_void) -> bool {
    const DT_VERDEF: usize = 0x6fff_fffc;

    // SAFETY: zero is a value of each field.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: writes what it finds.
    if unsafe { libc::dladdr(function, &raw mut info) } == 0 {
        return true;
    }
    let base = info.dli_fbase.cast_const().cast::<u8>();
    // SAFETY: a library is mapped there, from the beginning of its file on, which has so many program headers.
    let headers = unsafe {
        let header = &*base.cast::<libc::Elf64_Ehdr>();
        slice::from_raw_parts(base.add(header.e_phoff as usize).cast::<libc::Elf64_Phdr>(), header.e_phnum.into())
    };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return true };
    let start = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| header.p_vaddr).min();
    let place = base.wrapping_add((dynamic.p_vaddr - start.unwrap_or(0)) as usize).cast::<[usize; 2]>();
    // SAFETY: within a segment, of so many bytes.
    let tags = unsafe { slice::from_raw_parts(place, dynamic.p_memsz as usize / size_of::<[usize; 2]>()) };
    tags.iter().take_while(|[tag, _]| *tag != 0).any(|[tag, _]| *tag == DT_VERDEF)
}

/// Which of these slots the code uses for anything but calls, jumps and to see whether there is such a function. Bytes that only look
/// like such a use count.
fn used_otherwise(image: &Image<'_>, slots: &[usize]) -> Vec<usize> {
    /// Bytes of an instruction behind the operand that names a slot: a number that it is compared with.
    const BEHIND: [usize; 4] = [0, 1, 2, 4];

    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else { return slots };
    let mut used = Vec::new();
    for (start, code) in image.texts() {
        for (at, operand) in code.windows(OPERAND_BYTES).enumerate() {
            let [a, b, c, d] = *operand else { break };
            let distance = i32::from_le_bytes([a, b, c, d]) as isize;
            let named = (start + at + OPERAND_BYTES).wrapping_add_signed(distance);
            if named > last || named + BEHIND[3] < first || at < LOAD_BYTES || !names_by_place(code[at - 1]) {
                continue;
            }
            let before = &code[..at];
            for behind in BEHIND {
                let Ok(place) = slots.binary_search(&(named + behind)) else { continue };
                let is_harmless = match behind {
                    0 => {
                        CALLS.iter().any(|call| before.ends_with(call))
                            || is_only_called(image, start + at - LOAD_BYTES)
                    }
                    _ => behind == 1 && before.ends_with(&COMPARE) && code.get(at + OPERAND_BYTES) == Some(&0),
                };
                if !is_harmless {
                    used.push(slots[place]);
                }
            }
        }
    }
    used
}

/// Whether this byte says of an instruction that its operand is relative to where it is (`ModRM`).
fn names_by_place(byte: u8) -> bool {
    byte & 0xc7 == 0x05
}
