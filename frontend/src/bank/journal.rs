//! The unloaded libraries of a process, with times, and its [marks](Marked). The process writes them to its slot, as
//! occasional looks at its maps miss short-lived libraries.
//!
//! The journal is a ring of bytes. For each library it has 8 bytes each of ticks, first address and last address, 4
//! bytes for the length of its path, and the path, little-endian.
//!
//! Not here: the names of their functions (`host/linux/modules.rs`).

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::client::Bank;
use super::collect::Banks;
use super::file::{JOURNAL_AT, JOURNAL_BYTES, Slot};
use super::told::{self, Marked, Told};
use crate::clock::tsc::ticks;
use crate::elf::file::page_size;
use crate::host::linux::modules::{Unloaded, map_lines_path};

/// The libraries of this process at some moment.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Rises with each unloaded library.
    n_unloaded: u64,
    libraries: Vec<(u64, u64, PathBuf)>,
}

impl Loaded {
    /// Returns the present libraries.
    #[must_use]
    pub fn now() -> Self {
        /// Adds a module.
        unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
            // SAFETY: `dl_iterate_phdr` passes a valid description of a module, and what it was given for `found`.
            let (info, found) = unsafe { (&*info, &mut *found.cast::<Loaded>()) };
            found.n_unloaded = info.dlpi_subs;
            // SAFETY: as above: so many program headers are there, and the name is terminated.
            let (headers, name) = unsafe {
                (slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)), CStr::from_ptr(info.dlpi_name))
            };
            let page = page_size();
            let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
            let start = loads.clone().map(|header| header.p_vaddr & !(page - 1)).min();
            let end = loads.map(|header| header.p_vaddr + header.p_memsz).max();
            // The program itself has no name, and is not unloaded.
            if let (Some(start), Some(end), false) = (start, end, name.is_empty()) {
                let (start, end) = (info.dlpi_addr + start, info.dlpi_addr + end.next_multiple_of(page));
                found.libraries.push((start, end, map_lines_path(name)));
            }
            0
        }
        let mut found = Self::default();
        // SAFETY: the function fits, and gets what it expects.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
        found
    }

    /// Returns the libraries unloaded since then, right after an unload by the calling thread.
    fn unloaded_since(self) -> Vec<Unloaded> {
        let now = Self::now();
        if now.n_unloaded == self.n_unloaded {
            return Vec::new();
        }
        let tsc = ticks();
        let is_gone = |library: &(u64, u64, PathBuf)| !now.libraries.contains(library);
        let gone = self.libraries.into_iter().filter(is_gone);
        gone.map(|(start, end, path)| Unloaded { tsc, start, end, path }).collect()
    }
}

impl Bank {
    /// Records the libraries of `before` that have been unloaded. No other thread may do so meanwhile. Libraries
    /// without room in the journal are counted.
    pub fn tell_unloaded(&self, before: Loaded) {
        for unloaded in before.unloaded_since() {
            // As maps name it.
            let path = fs::canonicalize(&unloaded.path).unwrap_or_else(|_| unloaded.path.clone());
            self.tell_journal(&Unloaded { path, ..unloaded }.encode());
        }
    }

    /// Writes an item for readers of whole items. An item without room is counted.
    pub(super) fn tell_journal(&self, bytes: &[u8]) {
        let Some((slot, journal)) = self.own_slot().zip(self.journal()) else { return };
        let written = slot.journal_written.load(Relaxed);
        let n_used = written.wrapping_sub(slot.journal_read.load(Acquire)) as usize;
        if n_used + bytes.len() > JOURNAL_BYTES {
            slot.n_untold.fetch_add(1, Relaxed);
            return;
        }
        for (offset, byte) in (written..).zip(bytes) {
            journal[offset as usize % JOURNAL_BYTES].store(*byte, Relaxed);
        }
        slot.journal_written.store(written + bytes.len() as u64, Release);
    }
}

impl Banks {
    /// Takes a process's reports since the last call.
    pub(super) fn read_journal(&self, number: usize, slot: &Slot, told: &mut Told) {
        let (written, read) = (slot.journal_written.load(Acquire), slot.journal_read.load(Relaxed));
        if written == read {
            return;
        }
        let n_bytes = (written.wrapping_sub(read) as usize).min(JOURNAL_BYTES);
        // SAFETY: within the slot, and atomics.
        let journal = unsafe {
            slice::from_raw_parts(self.at(number, JOURNAL_AT).cast::<AtomicU8>().cast_const(), JOURNAL_BYTES)
        };
        let place = |offset: usize| read.wrapping_add(offset as u64) as usize % JOURNAL_BYTES;
        let bytes: Vec<u8> = (0..n_bytes).map(|offset| journal[place(offset)].load(Relaxed)).collect();
        told.add(&bytes);
        slot.journal_read.store(written, Release);
    }
}

impl Bank {
    /// Records a mark at the present moment. No other thread may write to the journal meanwhile. A mark without room is
    /// counted.
    pub fn tell_mark(&self, thread: Option<u32>, text: &str) {
        self.tell_journal(&Marked::now(thread, text).encode());
    }
}

impl Banks {
    /// Marks the present moment in a process. Returns true if the process is recorded, and has room for the mark.
    pub fn mark(&mut self, pid: u32, text: &str) -> bool {
        let Some(number) = self.slot_of(pid) else { return false };
        // One that has just begun.
        if self.slots[number].is_none() && self.slot(number).first_tsc.load(Acquire) == 0 {
            return false;
        }
        let mut watched = self.slots[number].take().unwrap_or_else(|| self.watch(number));
        let has_room = watched.told.marks.len() < told::MOST_MARKS;
        if has_room {
            watched.told.marks.push(Marked::now(None, text));
        }
        self.slots[number] = Some(watched);
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unloaded(tsc: u64, start: u64, path: &str) -> Unloaded {
        Unloaded { tsc, start, end: start + 0x1000, path: path.into() }
    }

    #[test]
    fn what_is_told_is_read() {
        let all = [unloaded(1, 0x1000, "/a"), unloaded(2, 0x1000, "/b"), unloaded(3, 0x1000, "/b")];
        let bytes: Vec<u8> = all.iter().flat_map(Unloaded::encode).collect();
        let marks = [(None, "before"), (Some(7), "")];
        let marks = marks.map(|(thread, text)| Marked { tsc: 4, thread, text: text.to_owned() });
        let bytes = [marks[0].encode(), bytes, marks[1].encode()].concat();
        let mut told = Told::default();
        told.add(&bytes);
        assert_eq!((told.unloaded, told.marks), (vec![all[0].clone(), all[2].clone()], marks.to_vec()));
        for length in 0..bytes.len() {
            Told::default().add(&bytes[..length]);
        }
        let mut told = Told::default();
        told.add(&[0xff; 100]);
        assert!(told.unloaded.is_empty() && told.marks.is_empty());
    }

    #[test]
    fn nothing_is_unloaded_here() {
        let loaded = Loaded::now();
        assert!(loaded.libraries.iter().any(|(_, _, path)| path.to_string_lossy().contains("libc.so")));
        assert_eq!(loaded.unloaded_since(), []);
    }
}
