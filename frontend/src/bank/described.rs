//! The bank of a process with the tracer alone, unable to describe itself. The recorder describes it.

use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memmap2::{MmapOptions, MmapRaw};
use rftrace_format::system;

use super::client::write_texts;
use super::file::{
    ANSWER_AT, ASKED_AT, CHUNKS_AT, HEAD_BYTES, Head, Layout, MAGIC, RULES_AT, Slot, TEXT_AT, THREADS_AT, VERSION,
};
use super::handover::slot_state;
use super::numbers::own_number;
use super::request::{answer_in, write_minimum, write_rules};
use crate::clock::{ClockPair, tsc, utc_offset_nanos};
use crate::host::linux::thread_table::{Entry, MAX_THREADS};

/// The bank of such a process, the first one of a file.
#[derive(Debug)]
pub struct Described {
    memory: MmapRaw,
    layout: Layout,
    is_ring: bool,
    /// The beginning of recording, or a moment before.
    first: ClockPair,
}

/// The layout of the file, for mapping it as a whole.
#[derive(Clone, Debug)]
pub struct Places {
    /// The size of the file in bytes.
    pub n_bytes: usize,
    /// The range of the memory for the tracer's records.
    pub chunks: Range<usize>,
    /// The offset of the [`Bank`](rftrace::abi::Bank).
    pub bank: usize,
    /// The offset of the notices of calls.
    pub noticed: usize,
    /// The offset of the table with the system ids of the tracer's threads.
    pub threads: usize,
    /// The size of an entry in that table in bytes. The first eight are the id.
    pub thread_bytes: usize,
    /// The number of entries.
    pub n_threads: usize,
    /// True for a ring, emptied by no recorder: new records replace the oldest.
    pub is_ring: bool,
}

/// Addresses in the process.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    /// The address of the bank's file.
    pub bank: u64,
    /// The address of the tracer's [`Control::threads`](rftrace::abi::Control::threads).
    pub threads: u64,
    /// The address of its switch.
    pub switch: u64,
    /// The minimum duration of recorded calls in ticks.
    pub min_ticks: u64,
    /// The tracer's [`ControlShared::first_index`](rftrace::abi::ControlShared::first_index).
    pub first_index: u64,
}

impl Described {
    /// Opens the bank in the file of a recorder.
    ///
    /// # Errors
    ///
    /// The errors of the system; the file is of another kind.
    pub fn open(file: &File) -> io::Result<Self> {
        let n_bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the file has no bank of this version of rftrace; use the version of the recorder",
            )
        };
        if n_bytes < HEAD_BYTES {
            return Err(bad());
        }
        let memory = MmapOptions::new().len(n_bytes).no_reserve_swap().map_raw(file)?;
        // SAFETY: the mapping is larger; all fields are atomics.
        let head = unsafe { &*memory.as_ptr().cast::<Head>() };
        let layout = Layout {
            n_slots: head.n_slots.load(Relaxed) as usize,
            buffer_bytes: head.buffer_bytes.load(Relaxed) as usize,
        };
        let is_known = head.magic.load(Acquire) == MAGIC && head.version.load(Relaxed) == VERSION;
        if !is_known || layout.n_slots == 0 || layout.file_bytes() != n_bytes {
            return Err(bad());
        }
        let is_ring = head.is_ring.load(Relaxed) != 0;
        Ok(Self { memory, layout, is_ring, first: ClockPair::now() })
    }

    /// Returns the layout of the file.
    #[must_use]
    pub fn places(&self) -> Places {
        let slot = self.layout.slot_at(0);
        let chunks = slot + CHUNKS_AT;
        Places {
            n_bytes: self.layout.file_bytes(),
            chunks: chunks..chunks + self.layout.buffer_bytes,
            bank: slot + offset_of!(Slot, bank),
            noticed: slot + offset_of!(Slot, noticed),
            threads: slot + THREADS_AT,
            thread_bytes: size_of::<Entry>(),
            n_threads: MAX_THREADS,
            is_ring: self.is_ring,
        }
    }

    fn slot(&self) -> &Slot {
        // SAFETY: the slot lies in the mapping, aligned to 64 KiB; it consists of atomics.
        unsafe { &*self.at(0).cast::<Slot>() }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.layout.slot_at(0) + offset)
    }

    /// Describes the process with the folder `folder` in `/proc`. It records into the bank from now on, with these
    /// rules.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn begin(&self, folder: &Path, tracer: Tracer, rules: &str) -> io::Result<()> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the process has ended");
        let root = fs::read_link(folder.join("root"))?.into_os_string().into_vec();
        let exe = seen_in(&root, &fs::read_link(folder.join("exe"))?.into_os_string().into_vec());
        let command_line = system::read(folder.join("cmdline"))?;
        let maps = system::read(folder.join("maps"))?;
        let maps: Vec<Vec<u8>> = maps.split(|&byte| byte == b'\n').map(|line| seen_in(&root, line)).collect();
        let maps = maps.join(&b'\n');
        let slot = self.slot();
        slot.state.store(slot_state::TAKEN, Relaxed);
        slot.pid.store(own_number(folder).ok_or_else(gone)?, Relaxed);
        slot.program_nanos.store(self.first.nanos, Relaxed);
        slot.first_tsc.store(self.first.tsc, Relaxed);
        slot.first_nanos.store(self.first.nanos, Relaxed);
        slot.utc_offset_nanos.store(utc_offset_nanos().unwrap_or(0), Relaxed);
        slot.mapped_at.store(tracer.bank, Relaxed);
        slot.requests.switch_at.store(tracer.switch, Relaxed);
        slot.threads_at.store(tracer.threads, Relaxed);
        slot.first_index.store(tracer.first_index, Relaxed);
        write_minimum(slot, tracer.min_ticks);
        // SAFETY: the texts of the slot, which lies in the mapping.
        unsafe {
            write_texts(slot, self.at(TEXT_AT), [&exe, &command_line, &maps, &[], &[]]);
            write_rules(slot, self.at(RULES_AT), rules);
        }
        slot.state.store(slot_state::IN_USE, Release);
        Ok(())
    }

    /// Stores the rules in force, and the minimum duration of recorded calls in ticks.
    pub fn tell_rules(&self, rules: &str, min_ticks: u64) {
        write_minimum(self.slot(), min_ticks);
        // SAFETY: the texts of the slot, which lies in the mapping.
        unsafe { write_rules(self.slot(), self.at(RULES_AT), rules) };
    }

    /// Answers a pending request for the process. An error is the reason why nothing was done.
    pub fn answer(&self, answer: impl FnOnce(&str) -> Result<Vec<u8>, String>) {
        // SAFETY: the slot lies in the mapping; nothing in the process answers there.
        unsafe { answer_in(self.slot(), (self.at(ASKED_AT), self.at(ANSWER_AT)), answer) };
    }

    /// Marks the end of the recording, with the number of unrecorded threads.
    pub fn end(&self, n_untraced_threads: u32) {
        let slot = self.slot();
        slot.n_untraced_threads.store(n_untraced_threads, Relaxed);
        slot.end_tsc.store(tsc::ticks(), Relaxed);
    }
}

/// Returns a line with a path at its end, as a process with this root directory sees it: the form of its modules'
/// names.
fn seen_in(root: &[u8], line: &[u8]) -> Vec<u8> {
    let (before, path) = line.split_at(line.iter().position(|&byte| byte == b'/').unwrap_or(line.len()));
    let seen = path.strip_prefix(root).filter(|seen| root != b"/" && seen.starts_with(b"/"));
    [before, seen.unwrap_or(path)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_another_root_directory() {
        let seen = |root: &str, line: &str| String::from_utf8(seen_in(root.as_bytes(), line.as_bytes())).unwrap();
        assert_eq!(
            seen("/jail", "400000-401000 r-xp 00000000 fe:00 7 /jail/a b"),
            "400000-401000 r-xp 00000000 fe:00 7 /a b"
        );
        assert_eq!(
            seen("/jail", "400000-401000 r-xp 00000000 fe:00 7 /jailed/a"),
            "400000-401000 r-xp 00000000 fe:00 7 /jailed/a"
        );
        assert_eq!(seen("/jail", "7ff0-7fff rw-p 00000000 00:00 0 [stack]"), "7ff0-7fff rw-p 00000000 00:00 0 [stack]");
        assert_eq!(seen("/", "/bin/a"), "/bin/a");
    }
}
