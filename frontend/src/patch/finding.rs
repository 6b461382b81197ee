//! The calls of the hooks in a module in memory, also of another process.

use std::ffi::{CStr, CString, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::module::Image;
use super::sites::{Found, Hook, Site, Targets, find};
use crate::elf::table;

/// The calls of the hooks in an image.
pub(super) fn find_calls(image: &Image<'_>) -> Found {
    find_calls_of(image, &Hook::ALL.map(|hook| (hook.address(), hook)))
}

/// Returns the sites in a module of another process, by address: its `file` for opening at `path`, its address, and the
/// functions of the process called by others at their beginning, by their names. `read` returns the contents of its
/// memory.
pub(crate) fn sites_of_process(
    file: &[u8],
    path: &Path,
    start: u64,
    hooks: &[(&str, u64)],
    read: impl Fn(Range<usize>) -> Vec<u8>,
) -> Vec<Site> {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return Vec::new() };
    let Some(image) = Image::of_process(file, start as usize, &name, read) else { return Vec::new() };
    calls_of(&image, hooks)
}

/// The same in its image.
pub(super) fn calls_of(image: &Image<'_>, hooks: &[(&str, u64)]) -> Vec<Site> {
    let hooks = hooks.iter().filter_map(|&(name, address)| Some((address as usize, Hook::named(name.as_bytes())?)));
    let hooks: Vec<(usize, Hook)> = hooks.collect();
    find_calls_of(image, &hooks).calls.into_iter().map(|call| call.site(image.start())).collect()
}

/// The calls of hooks at these addresses in an image.
fn find_calls_of(image: &Image<'_>, hooks: &[(usize, Hook)]) -> Found {
    let mut targets = Targets { functions: Vec::new(), slots: image.hook_slots() };
    for &(address, hook) in hooks {
        if image.contains(address) {
            targets.functions.push((address, hook));
            targets.slots.extend(image.constant_pointers_to(address).map(|slot| (slot, hook)));
        }
    }
    let mut all = Found::default();
    if targets.functions.is_empty() && targets.slots.is_empty() {
        return all;
    }
    for (address, code) in image.texts() {
        targets.add_linkage(address, code);
    }
    let mut functions = None;
    for (address, code) in image.texts() {
        let found = find(address, code, &targets, |address| start_of(image, &mut functions, address));
        all.calls.extend(found.calls);
        all.n_unconfirmed += found.n_unconfirmed;
    }
    all.calls.sort_unstable_by_key(|call| call.address);
    all
}

/// Returns the beginning of the function around an address. `functions` are those of the file, read on demand.
pub(super) fn start_of(image: &Image<'_>, functions: &mut Option<Vec<Range<usize>>>, address: usize) -> Option<usize> {
    let start = image.function_start(address);
    start.or_else(|| function_around(functions.get_or_insert_with(|| functions_of(image)), address))
}

/// Returns the functions of the module's file: for code without unwind information.
fn functions_of(image: &Image<'_>) -> Vec<Range<usize>> {
    // Of the program: the main thread may have ended, and qemu-user knows the first one alone.
    let program = [c"/proc/self/exe", c"/proc/thread-self/exe"];
    let names = if image.name.is_empty() { &program[..] } else { &[image.name] };
    let read = |name: &&CStr| table::read_symbols(Path::new(OsStr::from_bytes(name.to_bytes()))).ok();
    let Some(table) = names.iter().find_map(read) else { return Vec::new() };
    let functions = table.symbols().iter().filter(|symbol| symbol.is_function);
    let range = |symbol: &table::Symbol| -> Option<Range<usize>> {
        let start = image.start() + usize::try_from(symbol.address).ok()?;
        Some(start..start.checked_add(usize::try_from(symbol.size).ok()?)?)
    };
    functions.filter_map(range).collect()
}

fn function_around(functions: &[Range<usize>], address: usize) -> Option<usize> {
    let after = functions.partition_point(|function| function.start <= address);
    functions[..after].last().filter(|function| function.contains(&address)).map(|function| function.start)
}
