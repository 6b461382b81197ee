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
use super::pointers::used_otherwise;
use crate::elf::imports::Import;
use crate::patch::module::Image;
use crate::patch::slots;
use crate::patch::wanted::looks_at_its_caller;

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
        let held = slots::value(slot).load(Relaxed);
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
