//! Calls of other modules' functions by the program: their slots get the addresses of stubs.
//!
//! A stub leads to the hook, and the hook to the function, as for a function with a branch; but no code is changed, and
//! the function is recorded only at the program's calls. Records name it by its slot, so each import is one function,
//! even if its address has other names.
//!
//! Not here: the stubs (`entry`), and other uses of a slot's contents (`pointers`).
//!
//! **Invariant**: leave a slot alone if its contents serve anything except calls: the address of a function is the same
//! everywhere.

use std::ffi::{CString, c_void};
use std::io;
use std::mem;
use std::slice;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::entry_outcome::{EntryBranches, LeftOut, WholeReason};
use super::installed::{self, Part, Slot};
use super::module::Image;
use super::named::Module;
use super::pointers::{authenticates_slots, used_otherwise};
use super::poke::Pages;
use super::sites::Site;
use super::slots;
use super::switches::Switch;
use super::wanted::{is_of_runtime, looks_at_its_caller};
use crate::elf::imports::{Import, SLOT_BYTES, imports_of};

/// A slot that gets a stub.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Its identity: the slot.
    pub(super) site: Site,
    /// The target of the calls.
    pub(super) function: usize,
}

/// The stub of such a slot.
#[derive(Debug)]
pub(super) struct Stub {
    pub(super) start: usize,
    /// The target of calls behind it.
    pub(super) goes_on: &'static AtomicUsize,
    pub(super) switch: Switch,
}

/// Leads the program's slots for functions of other modules to stubs from `make`; adds the result. Returns the stubs'
/// switches.
pub(super) fn lead_calls(
    module: &Module<'_>,
    part: &mut Part,
    outcome: &mut EntryBranches,
    make: impl FnOnce(&[Call], &[Pages]) -> Result<Vec<Option<Stub>>, (WholeReason, io::Error)>,
) -> Vec<Switch> {
    let mut switches = Vec::new();
    let image = module.image;
    if are_there(outcome) {
        return switches;
    }
    let Some(file) = &module.file else { return switches };
    let mut imports = imports_of(file);
    imports.retain(|import| !is_of_runtime(import.name));
    let link_address = module.link_address(image.start());
    let place = |import: &Import<'_>| image.start() + import.address.saturating_sub(link_address) as usize;
    let leave = |part: &mut Part, outcome: &mut EntryBranches, import: &Import<'_>, reason| {
        let left_out = LeftOut {
            module: module.name.clone(),
            address: import.address,
            name: String::from_utf8_lossy(import.name).into_owned(),
            reason,
        };
        part.calls_left_out.push(left_out.clone());
        outcome.calls_left_out.push(left_out);
    };
    let (mut calls, mut chosen) = (Vec::new(), Vec::new());
    for (import, function) in imports.iter().zip(examine(image, &imports, place)) {
        match function {
            Ok(function) => {
                let address = place(import);
                let site = Site { address, child_ip: address, module: image.start(), has_arguments: true };
                calls.push(Call { site, function });
                chosen.push(import);
            }
            Err(reason) => leave(part, outcome, import, reason),
        }
    }
    if calls.is_empty() {
        return switches;
    }
    let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error));
    let made = pages.and_then(|pages| Ok((make(&calls, &pages)?, pages)));
    let (stubs, pages, refused) = match made {
        Ok((stubs, pages)) => (stubs, pages, None),
        Err(refused) => (calls.iter().map(|_| None).collect(), Vec::new(), Some(refused)),
    };
    for ((import, Call { site, function }), stub) in chosen.into_iter().zip(calls).zip(stubs) {
        let place = site.address;
        let filled = match (stub, &refused) {
            (Some(stub), _) => slots::store(&pages, place, stub.start)
                .map(|()| stub)
                .map_err(|error| (WholeReason::NotWritable, error.to_string())),
            (None, Some((reason, error))) => Err((*reason, error.to_string())),
            (None, None) => Err((WholeReason::Instruction, String::new())),
        };
        match filled {
            Ok(Stub { start, goes_on, switch }) => {
                switches.push(switch);
                part.sites.push(site);
                part.sizes.push(SLOT_BYTES as usize);
                part.slots.push(Slot { place, stub: start, function, goes_on });
                outcome.library_calls += 1;
            }
            Err((reason, error)) => {
                outcome.refusal = Some(error);
                leave(part, outcome, import, reason);
            }
        }
    }
    switches
}

/// True if there are stubs for them, from an earlier choice: those are taken then. Their slots are filled from outside.
fn are_there(outcome: &mut EntryBranches) -> bool {
    for part in installed::parts() {
        outcome.library_calls += part.slots.len();
        outcome.calls_left_out.extend_from_slice(&part.calls_left_out);
    }
    outcome.library_calls + outcome.calls_left_out.len() > 0
}

/// Returns the functions of the slots, or the reason why they are not recorded. `address` returns a slot's place in
/// memory.
fn examine<'f>(
    image: &Image<'_>,
    imports: &[Import<'f>],
    address: impl Fn(&Import<'f>) -> usize,
) -> Vec<Result<usize, WholeReason>> {
    let others = imports.iter().filter(|import| !import.is_for_calls).map(&address);
    let pointed_to = used_otherwise(image, &others.collect::<Vec<_>>());
    let has_signed_slots = authenticates_slots(image);
    let examine = |import: &Import<'f>| {
        let slot = address(import);
        if has_signed_slots && import.is_for_calls {
            return Err(WholeReason::Authenticated);
        }
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
            // The program's jump through the slot stands for the function, so that its address is the same everywhere.
            Some(function) if image.contains(function) => Err(WholeReason::Pointer),
            Some(function) => Ok(function),
        }
    };
    imports.iter().map(examine).collect()
}

/// Returns the dynamic linker's function for an import.
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

/// True if the library with this function gives its functions versions.
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
