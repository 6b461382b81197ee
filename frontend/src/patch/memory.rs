//! Memory for code within reach of a module: its possible places, and its mapping.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;
use std::slice;

use super::poke::{self, ProcMem};

/// Returns the places for an area of `bytes` bytes within the distance `reach` of the whole module: directly below the
/// module first, then further away. Above the program is its heap, with room to grow, so there places far away come
/// first.
pub(super) fn places(
    module: &Range<usize>,
    bytes: usize,
    mapped: &[Range<usize>],
    (page, reach): (usize, usize),
) -> Vec<usize> {
    /// The kernel keeps the lowest addresses free.
    const LOWEST: usize = 1 << 16;
    /// Enough to get past other threads' mappings meanwhile.
    const MOST: usize = 16;

    let lowest = module.end.saturating_sub(reach).max(LOWEST).next_multiple_of(page);
    let highest = module.start.saturating_add(reach) / page * page;
    let mut below = Vec::new();
    let mut above = Vec::new();
    let mut free_from = lowest;
    let end = highest..highest;
    for next in mapped.iter().chain([&end]) {
        let free = free_from.max(lowest)..next.start.min(highest);
        free_from = free_from.max(next.end);
        if free.end < free.start || free.end - free.start < bytes {
            continue;
        }
        let list = if free.end <= module.start { &mut below } else { &mut above };
        list.push((free.end - bytes) / page * page);
    }
    below.into_iter().rev().chain(above.into_iter().rev()).take(MOST).collect()
}

/// Maps executable memory at `start` with these contents.
pub(super) fn map_code(start: usize, contents: &[u8]) -> io::Result<()> {
    let readable = libc::PROT_READ | libc::PROT_EXEC;
    let memory = map_data(start, contents.len())?;
    // SAFETY: the range was just mapped, writable, and nobody knows of it.
    unsafe { ptr::copy_nonoverlapping(contents.as_ptr(), memory.cast(), contents.len()) };
    poke::code_was_written(start..start + contents.len());
    // SAFETY: as above.
    if unsafe { libc::mprotect(memory, contents.len(), readable) } == 0 {
        return Ok(());
    }
    let refusal = io::Error::last_os_error();
    // SAFETY: as above.
    unsafe { libc::munmap(memory, contents.len()) };
    // A process may be forbidden to make memory executable, and still be given memory that is so from the beginning.
    let memory = map_at(start, contents.len(), readable).map_err(|_| refusal)?;
    let written = ProcMem::open().and_then(|writer| writer.write(start, contents));
    // SAFETY: as above.
    let read = unsafe { slice::from_raw_parts(memory.cast::<u8>(), contents.len()) };
    if written.is_err() || read != contents {
        // SAFETY: as above.
        unsafe { libc::munmap(memory, contents.len()) };
    }
    written
}

/// Maps zeroed, writable memory at `start`.
pub(super) fn map_data(start: usize, bytes: usize) -> io::Result<*mut c_void> {
    map_at(start, bytes, libc::PROT_READ | libc::PROT_WRITE)
}

fn map_at(start: usize, bytes: usize, protection: i32) -> io::Result<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces no other one.
    let memory = unsafe { libc::mmap(start as *mut c_void, bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if memory as usize != start {
        // A kernel before 4.17 takes the address as a wish.
        // SAFETY: what was just mapped.
        unsafe { libc::munmap(memory, bytes) };
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(memory)
}
