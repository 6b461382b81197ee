//! Unwind information made at run time: the format of its entries, and their announcement to unwinders.
//!
//! **Limit**: libgcc before 13 takes a mutex for each frame it looks up once something is registered. A signal handler
//! may then wait for ever if it unwinds amid an unwinding of its thread, as in all programs with a just-in-time
//! compiler.
//!
//! Sources: DWARF 5 section 6.4, LSB 5.0 10.6 (`.eh_frame`).

use std::arch::asm;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

/// Appends a CIE with these rules: its contents depend on the processor (the column of the return address) and on the reader.
pub(super) fn append_cie(bytes: &mut Vec<u8>, return_address: u8, augmentation: &[u8], rules: &[u8]) {
    append(bytes, |bytes| {
        bytes.extend_from_slice(&0u32.to_le_bytes()); // a CIE
        bytes.push(1); // version
        bytes.extend_from_slice(augmentation);
        bytes.push(1); // code alignment
        bytes.push(0x78); // data alignment: -8
        bytes.push(return_address);
        bytes.push(1); // length of the augmentation's data:
        bytes.push(0); // addresses are absolute
        bytes.extend_from_slice(rules);
    });
}

/// Appends an FDE without rules of its own, behind the CIE at `common`. Returns its place.
pub(super) fn append_fde(bytes: &mut Vec<u8>, common: usize, range: &Range<usize>) -> usize {
    let description = bytes.len();
    append(bytes, |bytes| {
        let distance = bytes.len() - common;
        bytes.extend_from_slice(&(distance as u32).to_le_bytes());
        bytes.extend_from_slice(&range.start.to_le_bytes());
        bytes.extend_from_slice(&range.len().to_le_bytes());
        bytes.push(0); // length of the augmentation's data
    });
    description
}

/// Appends an entry: its length, the output of `write`, and NOPs up to a multiple of 8.
pub(super) fn append(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    write(bytes);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let length = (bytes.len() - start - 4) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The address of an optional symbol. A program without unwinder has none of these.
macro_rules! weak {
    ($name:literal) => {{
        let address: *const c_void;
        // SAFETY: reads an entry of the global offset table, which is 0 if nobody defines the symbol.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("mov {}, [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, pure, readonly, preserves_flags),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("adrp {address}, :got:", $name),
                concat!("ldr {address}, [{address}, :got_lo12:", $name, "]"),
                address = out(reg) address,
                options(nostack, pure, readonly, preserves_flags),
            );
        }
        address
    }};
}

/// Registers a section `.eh_frame` with its descriptions at these places, one of them with the code at `first`.
pub(super) fn register_section(first: usize, section: Vec<u8>, descriptions: &[usize]) {
    /// Result of `_Unwind_Find_FDE` for a function.
    #[repr(C)]
    struct Bases([*const c_void; 3]);

    type Register = unsafe extern "C" fn(*const u8);
    type Find = unsafe extern "C" fn(*const c_void, *mut Bases) -> *const c_void;

    let registrar = weak!("__register_frame");
    if registrar.is_null() {
        return;
    }
    // The unwinder has the address of the leaked section, so leak checkers say nothing.
    let bytes: &'static [u8] = Vec::leak(section);
    // SAFETY: the function's type in every unwinder that has it.
    let register: Register = unsafe { std::mem::transmute(registrar) };
    // LLVM's takes one description, libgcc's a section.
    if weak!("__unw_add_dynamic_fde").is_null() {
        // SAFETY: a whole section with an end, which is never freed.
        unsafe { register(bytes.as_ptr()) };
    } else {
        for &description in descriptions {
            // SAFETY: a description, which is never freed.
            unsafe { register(bytes[description..].as_ptr()) };
        }
    }
    // libgcc before 13 sorts what is new when it is first looked for, and calls malloc. Better now than in a signal handler.
    let find = weak!("_Unwind_Find_FDE");
    if !find.is_null() {
        // SAFETY: the function's type in every unwinder that has it.
        let find: Find = unsafe { std::mem::transmute(find) };
        let mut bases = Bases([ptr::null(); 3]);
        // SAFETY: only looks; `bases` is writable.
        unsafe { find(first as *const c_void, &raw mut bases) };
    }
}
