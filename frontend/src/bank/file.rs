//! The file that all banks are in, as both sides see it: a head, and slots of one size, each the bank of one process.
//!
//! | offset in a slot | what |
//! |---|---|
//! | 0 | [`Slot`] |
//! | 4 KiB | words of the exit records of the functions that were open when the process was forked, outermost first |
//! | 16 KiB | texts: the path of the program, its command line, its maps, functions with entry branches and slots of library calls, functions that are open; each a length in 4 bytes, then so many bytes |
//! | 1 MiB | the table of threads (`host/linux/thread_table.rs`) |
//! | then | requests of the recorder, the rules in force, answers of the process (`request`) |
//! | then | the journal of libraries that were unloaded, and of marks (`journal.rs`), 64 KiB |
//! | then, at a multiple of 64 KiB | chunks |
//!
//! Memory is taken where something is written. Everything that a process writes there is untrusted.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use rftrace::abi::{self, Bank, MAX_CHUNK_BYTES, Noticed};

use super::handover::Requests;
use super::numbers::start_ticks;
use crate::host::linux::thread_table;

/// Tells a file of banks: `\x93RFB\r\n\x1a\n`.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"\x93RFB\r\n\x1a\n");
/// This layout, and that of chunks.
pub(crate) const VERSION: u64 = 11 << 32 | abi::VERSION as u64;

/// Header of the file.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Head {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) n_slots: AtomicU64,
    /// Bytes of the chunks of a slot.
    pub(crate) buffer_bytes: AtomicU64,
    /// Not 0: they are rings, which nobody empties.
    pub(crate) is_ring: AtomicU64,
    /// The process that empties them.
    pub(crate) owner_pid: AtomicU64,
    /// When that was started, as the system tells it.
    pub(crate) owner_started: AtomicU64,
    /// No slot from this number on was ever taken.
    pub(crate) n_seen: AtomicU64,
    /// The slot that is tried first: one of the lowest that may be free.
    pub(crate) next_slot: AtomicU64,
}

/// Returns the process that records `recorded` (a process's own PID), from the first bank of the file that it maps.
/// `read` reads a word at an offset. `None` if the recorder has ended, the bank belongs to another process (a child has
/// its parent's), or there is no bank.
pub fn owner_of(recorded: u32, read: impl Fn(usize) -> Option<u64>) -> Option<u32> {
    let is_bank = read(offset_of!(Head, magic))? == MAGIC && read(offset_of!(Head, version))? == VERSION;
    let is_its = || Some(read(HEAD_BYTES + offset_of!(Slot, pid))? as u32 == recorded);
    let pid = read(offset_of!(Head, owner_pid))? as u32;
    let started = read(offset_of!(Head, owner_started))?;
    (is_bank && is_its()? && start_ticks(pid) == Some(started)).then_some(pid)
}

/// Bytes before the first slot.
pub(crate) const HEAD_BYTES: usize = MAX_CHUNK_BYTES;
/// Where in a slot the words of open functions begin.
pub(crate) const OPEN_AT: usize = 4096;
/// Where the texts do.
pub(crate) const TEXT_AT: usize = 16 << 10;
/// Where the table of threads does.
pub(crate) const THREADS_AT: usize = 1 << 20;
/// Bytes of texts, at the most.
pub(crate) const TEXT_BYTES: usize = THREADS_AT - TEXT_AT;
/// Start of the recorder's requests.
pub(crate) const ASKED_AT: usize = THREADS_AT + thread_table::TABLE_BYTES;
/// Bytes of that, at the most, and of the rules.
pub(crate) const ASKED_BYTES: usize = 16 << 10;
/// Where the rules of the filter in force begin.
pub(crate) const RULES_AT: usize = ASKED_AT + ASKED_BYTES;
/// Where the answer does.
pub(crate) const ANSWER_AT: usize = RULES_AT + ASKED_BYTES;
/// Bytes of that, at the most.
pub(crate) const ANSWER_BYTES: usize = 256 << 10;
/// Where the journal does.
pub(crate) const JOURNAL_AT: usize = ANSWER_AT + ANSWER_BYTES;
/// Bytes of it.
pub(crate) const JOURNAL_BYTES: usize = 64 << 10;
/// Where the chunks begin.
pub(crate) const CHUNKS_AT: usize = (JOURNAL_AT + JOURNAL_BYTES).next_multiple_of(MAX_CHUNK_BYTES);

/// Changes of the shortest call that are told. When there are more, the last one is the least of all since.
pub(crate) const MOST_MINIMA: usize = 64;

/// Header of a slot. Fields are zero unless said otherwise.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// One of [`slot_state`](super::handover::slot_state). A process takes a free one, only the recorder gives it back.
    pub(crate) state: AtomicU32,
    /// The process, as it calls itself.
    pub(crate) pid: AtomicU32,
    /// The process, as its `/proc` calls it, which may be that of its recorder; 0 if it has none.
    pub(crate) pid_in_proc: AtomicU32,
    /// State shared by tracer and recorder.
    pub(crate) bank: Bank,
    /// When the program began to be recorded, by CLOCK_MONOTONIC. A child that was forked goes on with its parent's.
    pub(crate) program_nanos: AtomicU64,
    /// The process that forked this one; 0 if it began otherwise.
    pub(crate) forked_by: AtomicU32,
    /// Bytes of the texts.
    pub(crate) text_bytes: AtomicU32,
    /// When, by CLOCK_MONOTONIC.
    pub(crate) forked_nanos: AtomicU64,
    /// The time stamp counter at the beginning, in ticks.
    pub(crate) first_tsc: AtomicU64,
    /// CLOCK_MONOTONIC at that moment.
    pub(crate) first_nanos: AtomicU64,
    /// Unix time minus CLOCK_MONOTONIC in nanoseconds; 0 if unknown.
    pub(crate) utc_offset_nanos: AtomicI64,
    /// Calls that are shorter than so many ticks are not recorded, from a moment on: both.
    pub(crate) minima: [[AtomicU64; 2]; MOST_MINIMA],
    /// How many of these there are.
    pub(crate) n_minima: AtomicU32,
    /// When the program ended by itself, in ticks.
    pub(crate) end_tsc: AtomicU64,
    /// The thread that was forked, by the tracer's number.
    pub(crate) forked_thread: AtomicU32,
    /// How many functions were open in it.
    pub(crate) n_open: AtomicU32,
    /// Threads that were not recorded, when it ended by itself.
    pub(crate) n_untraced_threads: AtomicU32,
    /// Where the process has mapped the file.
    pub(crate) mapped_at: AtomicU64,
    /// When a snapshot was asked for, in ticks. The recorder makes it 0 when it has copied what is there.
    pub(crate) snapshot_tsc: AtomicU64,
    /// Of a ring: [`ControlShared::first_index`](abi::ControlShared::first_index).
    pub(crate) first_index: AtomicU64,
    /// Where in the process its threads are listed, [`Control::threads`](abi::Control::threads).
    pub(crate) threads_at: AtomicU64,
    /// Notice of a watched function.
    pub(crate) noticed: Noticed,
    /// Bytes of the journal that were ever written, and read.
    pub(crate) journal_written: AtomicU64,
    pub(crate) journal_read: AtomicU64,
    /// Marks, and libraries that were unloaded, for which it had no room.
    pub(crate) n_untold: AtomicU64,
    /// The status of `wait` that it was about to [end](Self::end_tsc) with, and 1 more; 0 if it did not know.
    pub(crate) status: AtomicU32,
    /// Requests of the recorder to the process.
    pub(crate) requests: Requests,
}

const _: () = assert!(size_of::<Slot>() <= OPEN_AT);
const _: () = assert!(OPEN_AT + 8 * abi::RETURN_STACK_ENTRIES <= TEXT_AT);

/// The numbers of notices about a panic of Rust and an exception of C++. No [watch](abi::Watch) has them.
pub const RAISED: [u64; 2] = [u64::MAX - 1, u64::MAX - 2];

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) n_slots: usize,
    pub(crate) buffer_bytes: usize,
}

impl Layout {
    /// The numbers of all slots, in the order in which a process tries them.
    pub(crate) fn tried(self, head: &Head) -> impl Iterator<Item = usize> {
        let first = (head.next_slot.load(Relaxed) as usize).min(self.n_slots);
        (first..self.n_slots).chain(0..first)
    }

    pub(crate) const fn slot_bytes(self) -> usize {
        CHUNKS_AT + self.buffer_bytes.next_multiple_of(MAX_CHUNK_BYTES)
    }

    pub(crate) const fn file_bytes(self) -> usize {
        HEAD_BYTES + self.n_slots * self.slot_bytes()
    }

    /// Where a slot begins.
    pub(crate) const fn slot_at(self, number: usize) -> usize {
        HEAD_BYTES + number * self.slot_bytes()
    }

    pub(crate) const fn chunk_bytes(self) -> usize {
        abi::chunk_bytes(self.buffer_bytes)
    }

    pub(crate) const fn n_chunks(self) -> usize {
        self.buffer_bytes / self.chunk_bytes()
    }
}
