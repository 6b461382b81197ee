//! The file of all banks, for both sides: a head, and slots of one size, each the bank of one process.
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
//! Memory is taken by the first write. All contents written by a process are untrusted.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use rftrace::abi::{self, Bank, MAX_CHUNK_BYTES, Noticed};

use super::handover::Requests;
use super::numbers::start_ticks;
use crate::host::linux::thread_table;

/// Marks a file of banks: `\x93RFB\r\n\x1a\n`.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"\x93RFB\r\n\x1a\n");
/// The version of this layout, and that of chunks.
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
    /// Not 0: they are rings, and nobody empties them.
    pub(crate) is_ring: AtomicU64,
    /// The emptying process.
    pub(crate) owner_pid: AtomicU64,
    /// That process's start time, as the system reports it.
    pub(crate) owner_started: AtomicU64,
    /// No slot from this number on was ever taken.
    pub(crate) n_seen: AtomicU64,
    /// The first slot to try: one of the lowest that may be free.
    pub(crate) next_slot: AtomicU64,
}

/// Returns the process that records `recorded` (a process's own PID), from the first bank in its mapped file. `read`
/// reads a word at an offset. `None` if the recorder has ended, the bank belongs to another process (a child has its
/// parent's), or there is no bank.
pub fn owner_of(recorded: u32, read: impl Fn(usize) -> Option<u64>) -> Option<u32> {
    let is_bank = read(offset_of!(Head, magic))? == MAGIC && read(offset_of!(Head, version))? == VERSION;
    let is_its = || Some(read(HEAD_BYTES + offset_of!(Slot, pid))? as u32 == recorded);
    let pid = read(offset_of!(Head, owner_pid))? as u32;
    let started = read(offset_of!(Head, owner_started))?;
    (is_bank && is_its()? && start_ticks(pid) == Some(started)).then_some(pid)
}

/// Bytes before the first slot.
pub(crate) const HEAD_BYTES: usize = MAX_CHUNK_BYTES;
/// The offset of the words of open functions in a slot.
pub(crate) const OPEN_AT: usize = 4096;
/// The offset of the texts.
pub(crate) const TEXT_AT: usize = 16 << 10;
/// The offset of the table of threads.
pub(crate) const THREADS_AT: usize = 1 << 20;
/// Bytes of texts, at the most.
pub(crate) const TEXT_BYTES: usize = THREADS_AT - TEXT_AT;
/// Start of the recorder's requests.
pub(crate) const ASKED_AT: usize = THREADS_AT + thread_table::TABLE_BYTES;
/// The maximum size of a request, and of the rules.
pub(crate) const ASKED_BYTES: usize = 16 << 10;
/// The offset of the rules of the filter in force.
pub(crate) const RULES_AT: usize = ASKED_AT + ASKED_BYTES;
/// The offset of the answer.
pub(crate) const ANSWER_AT: usize = RULES_AT + ASKED_BYTES;
/// The maximum size of an answer.
pub(crate) const ANSWER_BYTES: usize = 256 << 10;
/// The offset of the journal.
pub(crate) const JOURNAL_AT: usize = ANSWER_AT + ANSWER_BYTES;
/// Bytes of it.
pub(crate) const JOURNAL_BYTES: usize = 64 << 10;
/// The offset of the chunks.
pub(crate) const CHUNKS_AT: usize = (JOURNAL_AT + JOURNAL_BYTES).next_multiple_of(MAX_CHUNK_BYTES);

/// The maximum number of reported changes of the shortest call. Beyond it, the last one is the minimum of all later
/// ones.
pub(crate) const MOST_MINIMA: usize = 64;

/// Header of a slot. Fields are zero unless said otherwise.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// One of [`slot_state`](super::handover::slot_state). A process takes a free one, only the recorder gives it back.
    pub(crate) state: AtomicU32,
    /// The process, as it calls itself.
    pub(crate) pid: AtomicU32,
    /// The process's PID in its `/proc`, maybe its recorder's `/proc`; 0 if it has none.
    pub(crate) pid_in_proc: AtomicU32,
    /// State shared by tracer and recorder.
    pub(crate) bank: Bank,
    /// The beginning of the program's recording, by CLOCK_MONOTONIC. A forked child keeps its parent's.
    pub(crate) program_nanos: AtomicU64,
    /// The process that forked this one; 0 if it began otherwise.
    pub(crate) forked_by: AtomicU32,
    /// Bytes of the texts.
    pub(crate) text_bytes: AtomicU32,
    /// The time of the fork, by CLOCK_MONOTONIC.
    pub(crate) forked_nanos: AtomicU64,
    /// The time stamp counter at the beginning, in ticks.
    pub(crate) first_tsc: AtomicU64,
    /// CLOCK_MONOTONIC at that moment.
    pub(crate) first_nanos: AtomicU64,
    /// Unix time minus CLOCK_MONOTONIC in nanoseconds; 0 if unknown.
    pub(crate) utc_offset_nanos: AtomicI64,
    /// Pairs: the minimum duration of recorded calls in ticks, and the moment from which it holds.
    pub(crate) minima: [[AtomicU64; 2]; MOST_MINIMA],
    /// The number of these pairs.
    pub(crate) n_minima: AtomicU32,
    /// The time of the program's regular end, in ticks.
    pub(crate) end_tsc: AtomicU64,
    /// The forked thread, by the tracer's number.
    pub(crate) forked_thread: AtomicU32,
    /// The number of functions open in it.
    pub(crate) n_open: AtomicU32,
    /// The number of unrecorded threads at a regular end.
    pub(crate) n_untraced_threads: AtomicU32,
    /// The address of the file in the process.
    pub(crate) mapped_at: AtomicU64,
    /// The time of a requested snapshot, in ticks. The recorder sets it to 0 after its copy.
    pub(crate) snapshot_tsc: AtomicU64,
    /// The [`ControlShared::first_index`](abi::ControlShared::first_index) of a ring.
    pub(crate) first_index: AtomicU64,
    /// The address of the list of threads in the process, [`Control::threads`](abi::Control::threads).
    pub(crate) threads_at: AtomicU64,
    /// Notice of a watched function.
    pub(crate) noticed: Noticed,
    /// The number of bytes ever written to the journal, and read.
    pub(crate) journal_written: AtomicU64,
    pub(crate) journal_read: AtomicU64,
    /// The number of marks and unloaded libraries without room in it.
    pub(crate) n_untold: AtomicU64,
    /// The status of `wait` for its regular [end](Self::end_tsc), plus 1; 0 if it did not know.
    pub(crate) status: AtomicU32,
    /// Requests of the recorder to the process.
    pub(crate) requests: Requests,
}

const _: () = assert!(size_of::<Slot>() <= OPEN_AT);
const _: () = assert!(OPEN_AT + 8 * abi::RETURN_STACK_ENTRIES <= TEXT_AT);

/// The numbers of notices about a panic of Rust and an exception of C++. No [watch](abi::Watch) has them.
pub const RAISED: [u64; 2] = [u64::MAX - 1, u64::MAX - 2];

/// The sizes of all parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) n_slots: usize,
    pub(crate) buffer_bytes: usize,
}

impl Layout {
    /// Returns the numbers of all slots, in the order of a process's tries.
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

    /// Returns the offset of a slot.
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
