//! The records of one process, read while it runs, for a live display. Nothing is written to the disk; only the
//! position in each chunk is kept.
//!
//! Full chunks are read and given back, like in `collect`. A [look](Live::look) also reads the written part of chunks
//! in use: only their reader gives them back, so no other records come into them meanwhile.
//!
//! **Invariant**: the records of a thread are passed on in order, each once. A thread takes a chunk only when the
//! previous one is full.
//!
//! So a pass first finds the latest index, then reads chunks up to that index in order: all earlier records of a thread
//! are among them. Chunks behind one that could not be read to its end wait.
//!
//! Not here: the meaning of the records (the crate `rftrace-top`).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use rftrace::abi::{ADDRESS_SHIFT, chunk_state, kind, lease};

use super::collect::{Banks, Options, PATIENCE};
use super::file::THREADS_AT;
use super::handover::{self, slot_state};
use super::open::OpenFunctions;
use super::pace::Fill;
use super::stuck::Occupied;
use crate::backend::Chunk;
use crate::clock::ClockPair;
use crate::decode::order_times;
use crate::host::linux::thread_table::{Entry, MAX_THREADS};

/// A receiver of records.
pub trait Take {
    /// Receives the next records of a thread (the tracer's number), each a time in ticks and a word. With `n_open`,
    /// records are missing before them, and this number of functions was open then.
    fn take(&mut self, thread: u32, n_open: Option<usize>, records: &[(u64, u64)]);

    /// Reports the end of a thread.
    fn ended(&mut self, thread: u32);
}

/// A moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time stamp counter.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub nanos: u64,
}

/// The bank of one process and its reader.
#[derive(Debug)]
pub struct Live {
    banks: Banks,
    reader: Reader,
    occupied: Occupied,
}

/// The reader's progress in the bank of a process.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Partly read chunks, by their indices.
    begun: HashMap<u64, Begun>,
    /// The last chunk of each thread.
    last: HashMap<u32, u64>,
    /// The records of the current chunk.
    records: Vec<(u64, u64)>,
}

/// The progress in a chunk.
#[derive(Clone, Copy, Debug)]
struct Begun {
    n_read: usize,
    /// The writing thread at that place.
    thread: u32,
    /// The beginning of a gap at that place: later records were written, this one was not.
    hole_since: Option<Instant>,
}

/// Records to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Full chunks.
    Full,
    /// All written records.
    Written,
    /// The same, and nobody writes any more.
    Rest,
}

/// The records that may follow the written ones of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Others.
    Open,
    /// Records reserved by hooks.
    Reserved,
    /// Nothing: records not written by now never will be.
    Written,
}

/// The process has one slot.
const SLOT: usize = 0;

/// The number of records searched for a written one behind an unwritten one.
const MOST_INTERRUPTED: usize = 64;

/// The number of remembered threads: more than there can be at the same time. For a forgotten one, completeness is
/// unknown.
const MOST_THREADS: usize = 1 << 16;

impl Live {
    /// Makes the bank in an empty file in memory. A thread without room waits for `patience` while the reader does
    /// nothing; zero: it does not wait.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn new(file: File, buffer_bytes: usize, patience: Duration) -> io::Result<Self> {
        let options = Options { buffer_bytes, n_slots: 1, patience, most_bytes: 0, is_ring: false, dumped_bytes: 0 };
        // Nothing is written there.
        let banks = Banks::new(file, Path::new("/"), options)?;
        Ok(Self { banks, reader: Reader::default(), occupied: Occupied::default() })
    }

    /// Sets the PID of the process, like [`Banks::set_pid_here`].
    pub fn set_pid_here(&mut self, pid: u32) {
        self.banks.set_pid_here(pid);
    }

    /// Takes the records of full chunks. Returns the number of these chunks.
    pub fn poll(&mut self, to: &mut impl Take) -> Fill {
        self.read(What::Full, to)
    }

    /// Takes all written records. Returns the moment up to which they are complete.
    pub fn look(&mut self, to: &mut impl Take) -> Moment {
        let ClockPair { tsc, nanos } = ClockPair::now();
        self.read(What::Written, to);
        Moment { ticks: tsc, nanos }
    }

    /// Takes the remaining records, as the process does not record any more.
    pub fn finish(&mut self, to: &mut impl Take) -> Moment {
        self.read(What::Rest, to);
        let ClockPair { tsc, nanos } = ClockPair::now();
        Moment { ticks: tsc, nanos }
    }

    /// Returns the number of calls and returns lost because no chunk was free.
    #[must_use]
    pub fn n_dropped(&self) -> u64 {
        self.banks.slot(SLOT).bank.n_lost.load(Relaxed)
    }

    /// Returns the system id of the thread with a number of the tracer, if it is known.
    #[must_use]
    pub fn system_tid(&self, thread: u32) -> Option<u32> {
        self.banks.system_tid(SLOT, thread)
    }

    /// Returns the addresses of the open functions in each thread of a process, outermost first, from its return
    /// stacks.
    #[must_use]
    pub fn open_functions(&self) -> HashMap<u32, Vec<u64>> {
        let slot = self.banks.slot(SLOT);
        let open =
            OpenFunctions::of_process(self.banks.pid_in(SLOT), slot.threads_at.load(Relaxed)).unwrap_or_default();
        let addresses = |words: Vec<u64>| words.into_iter().map(|word| word >> ADDRESS_SHIFT).collect();
        let open = open.known_since(&HashMap::new());
        open.into_iter().map(|(thread, words)| (thread, addresses(words))).collect()
    }

    /// Returns true if a thread has a chunk to write to: then all of its calls are recorded.
    #[must_use]
    pub fn has_chunk(&self, thread: u32) -> bool {
        self.reader.begun.values().any(|begun| begun.thread == thread && begun.n_read < self.n_records())
    }

    fn n_records(&self) -> usize {
        self.banks.chunk(SLOT, 0).records.len()
    }

    fn read(&mut self, what: What, to: &mut impl Take) -> Fill {
        let slot = self.banks.slot(SLOT);
        let mut n_taken = 0;
        if slot.state.load(Acquire) == slot_state::IN_USE {
            slot.bank.beat.fetch_add(1, Relaxed);
            n_taken = self.reader.read(&self.banks, SLOT, what, true, to);
            self.banks.end_vain_waits(SLOT, &mut self.occupied);
        }
        Fill { n_taken, n_chunks: self.banks.layout.n_chunks() }
    }
}

impl Banks {
    /// Returns the system's TID of a process's thread with a number of the tracer, if known.
    pub(super) fn system_tid(&self, slot: usize, thread: u32) -> Option<u32> {
        let number = thread as usize;
        let at = THREADS_AT + number.min(MAX_THREADS) * size_of::<Entry>();
        // SAFETY: the table has so many entries, within the slot, aligned and of atomics.
        (number < MAX_THREADS).then(|| unsafe { &*self.at(slot, at).cast::<Entry>() })?.system_tid()
    }
}

impl Reader {
    /// True if all of the chunk with an index was read.
    pub(super) fn has_read(&self, index: u64, n_records: usize) -> bool {
        self.begun.get(&index).is_some_and(|begun| begun.n_read >= n_records)
    }

    /// Reads the news of a slot. With `gives_back`, frees the chunks just read; returns their number.
    pub(super) fn read(
        &mut self,
        banks: &Banks,
        slot: usize,
        what: What,
        gives_back: bool,
        to: &mut impl Take,
    ) -> usize {
        let Some(newest) = leases(banks, slot).map(|(index, ..)| index).max() else { return 0 };
        let mut found: Vec<(u64, usize, u64)> = leases(banks, slot).filter(|&(index, ..)| index <= newest).collect();
        found.sort_unstable();
        let mut n_taken = 0;
        let mut unread = HashSet::new();
        for &(index, place, lease) in &found {
            let chunk = banks.chunk(slot, place);
            let is_mine = chunk.header.tid.load(Acquire) != 0;
            let waits = !is_mine || unread.contains(&chunk.header.prev_index.load(Relaxed));
            if waits || !self.read_chunk(&chunk, lease, what, to) {
                unread.insert(index);
                continue;
            }
            if gives_back && matches!(lease::state(lease), chunk_state::FULL | chunk_state::WAITING) {
                self.begun.remove(&index);
                handover::make_free(chunk.header, lease);
                n_taken += 1;
            }
        }
        self.begun.retain(|index, _| found.binary_search_by_key(index, |found| found.0).is_ok());
        if self.last.len() > MOST_THREADS {
            self.last.clear();
        }
        n_taken
    }

    /// Passes on the news of a chunk. Returns true at its end.
    fn read_chunk(&mut self, chunk: &Chunk<'_>, lease: u64, what: What, to: &mut impl Take) -> bool {
        let Chunk { header, records } = *chunk;
        let index = lease::index(lease);
        let state = lease::state(lease);
        if what == What::Full && !matches!(state, chunk_state::FULL | chunk_state::WAITING) {
            return false;
        }
        let end = match state {
            chunk_state::KEPT | chunk_state::WAITING if what != What::Rest => End::Reserved,
            chunk_state::OWNED | chunk_state::PARTIAL if what != What::Rest => End::Open,
            _ => End::Written,
        };
        let is_new = !self.begun.contains_key(&index);
        let new = || Begun { n_read: 0, thread: header.tid.load(Relaxed), hole_since: None };
        let mut begun = self.begun.get(&index).copied().unwrap_or_else(new);
        let n_open = (is_new && self.last.get(&begun.thread) != Some(&header.prev_index.load(Relaxed)))
            .then(|| header.depth.load(Relaxed) as usize);
        self.collect(chunk, &mut begun, end);
        // The records are read before the lease is checked.
        fence(Acquire);
        if lease::index(header.lease.load(Relaxed)) != index {
            // Of a ring another thread has it by now: what is missing is seen by the thread's next one.
            self.last.remove(&begun.thread);
            begun.n_read = records.len();
            self.begun.insert(index, begun);
            return true;
        }
        order_times(&mut self.records);
        self.last.insert(begun.thread, index);
        let mut rest = self.records.as_slice();
        let is_of_another = |&(_, word): &(u64, u64)| {
            word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD
                && header.n_adopted.load(Relaxed) > 0
        };
        let mut n_open = n_open;
        while let Some(place) = rest.iter().position(is_of_another) {
            to.take(begun.thread, n_open, &rest[..place]);
            to.ended(begun.thread);
            self.last.remove(&begun.thread);
            begun.thread = (rest[place].1 >> ADDRESS_SHIFT) as u32;
            self.last.insert(begun.thread, index);
            n_open = Some(0);
            rest = &rest[place + 1..];
        }
        if n_open.is_some() || !rest.is_empty() {
            to.take(begun.thread, n_open, rest);
        }
        self.begun.insert(index, begun);
        begun.n_read == records.len()
    }

    /// Takes the new records of a chunk, as far as they are written.
    fn collect(&mut self, chunk: &Chunk<'_>, begun: &mut Begun, end: End) {
        let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
        let written = |place: usize| chunk.records.get(place)?.read(taken_tsc);
        self.records.clear();
        while begun.n_read < chunk.records.len() {
            if let Some(record) = written(begun.n_read) {
                self.records.push(record);
                begun.hole_since = None;
            } else if end != End::Written {
                // A signal may have interrupted the hook that writes here, and its handler be at work. Or never come back.
                let mut behind = begun.n_read + 1..begun.n_read + MOST_INTERRUPTED;
                if end == End::Open && !behind.any(|place| written(place).is_some()) {
                    break;
                }
                if begun.hole_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    break;
                }
                begun.hole_since = None;
            }
            begun.n_read += 1;
        }
        // The tracer counts in the newest one.
        let is_lost = |&(_, word): &(u64, u64)| word & kind::MASK == kind::LOST;
        if end == End::Open && begun.n_read < chunk.records.len() && self.records.last().is_some_and(is_lost) {
            self.records.pop();
            begun.n_read -= 1;
        }
    }
}

/// Returns index, place and lease of each chunk of a slot that is not free.
fn leases(banks: &Banks, slot: usize) -> impl Iterator<Item = (u64, usize, u64)> {
    let mut place = 0;
    let next = move || {
        while place < banks.layout.n_chunks() {
            let lease = banks.chunk(slot, place).header.lease.load(Acquire);
            if lease == 0 {
                // A thread may be about to take it, and others have taken those behind.
                place = banks.next_with_memory(slot, place + 1)?;
                continue;
            }
            place += 1;
            if lease::state(lease) != chunk_state::FREE {
                return Some((lease::index(lease), place - 1, lease));
            }
        }
        None
    };
    std::iter::from_fn(next)
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::sync::atomic::Ordering::Release;

    use rftrace::abi::Record;

    use super::*;

    /// Records passed on: a thread, how many functions were open, and times.
    type Taken = (u32, Option<usize>, Vec<u64>);

    #[derive(Default)]
    struct Taker {
        taken: Vec<Taken>,
        ended: Vec<u32>,
    }

    impl Take for Taker {
        fn take(&mut self, thread: u32, n_open: Option<usize>, records: &[(u64, u64)]) {
            self.taken.push((thread, n_open, records.iter().map(|record| record.0).collect()));
        }

        fn ended(&mut self, thread: u32) {
            self.ended.push(thread);
        }
    }

    /// This test as a process.
    struct Process {
        live: Live,
        taker: Taker,
    }

    impl Process {
        fn new() -> Self {
            // SAFETY: a new file, which is nobody else's.
            let memory = unsafe { File::from_raw_fd(libc::memfd_create(c"live".as_ptr(), libc::MFD_CLOEXEC)) };
            // With chunks of 512 bytes, each of 28 records.
            let live = Live::new(memory, 16 << 10, Duration::ZERO).unwrap();
            live.banks.slot(SLOT).state.store(slot_state::IN_USE, Release);
            Self { live, taker: Taker::default() }
        }

        /// Takes the chunk at a place for a thread, as number `index`.
        fn take(&self, place: usize, (index, prev_index): (u64, u64), thread: u32, depth: u32) {
            let header = self.chunk(place).header;
            assert_eq!(lease::state(header.lease.load(Acquire)), chunk_state::FREE);
            header.taken_tsc.store(index * 100, Relaxed);
            header.prev_index.store(prev_index, Relaxed);
            header.depth.store(depth, Relaxed);
            header.n_adopted.store(0, Relaxed);
            header.tid.store(thread, Relaxed);
            self.give(place, index, chunk_state::OWNED);
        }

        fn give(&self, place: usize, index: u64, state: u64) {
            self.chunk(place).header.lease.store(lease::new(index, state), Release);
        }

        fn chunk(&self, place: usize) -> Chunk<'static> {
            self.live.banks.chunk(SLOT, place)
        }

        fn write(&self, place: usize, record: usize, tsc: u64, word: u64) {
            let Record { tsc: time, word: other } = &self.chunk(place).records[record];
            other.store(word, Relaxed);
            time.store(tsc, Release);
        }

        fn fill(&self, place: usize, first_tsc: u64) {
            for record in 0..self.live.n_records() {
                self.write(place, record, first_tsc + record as u64, 0);
            }
        }

        fn look(&mut self) -> Vec<Taken> {
            self.live.look(&mut self.taker);
            std::mem::take(&mut self.taker.taken)
        }

        fn poll(&mut self) -> (usize, Vec<Taken>) {
            let n_taken = self.live.poll(&mut self.taker).n_taken;
            (n_taken, std::mem::take(&mut self.taker.taken))
        }

        fn state(&self, place: usize) -> u64 {
            lease::state(self.chunk(place).header.lease.load(Acquire))
        }
    }

    #[test]
    fn each_record_is_passed_on_once() {
        let mut process = Process::new();
        process.take(0, (1, 0), 7, 0);
        // Of an earlier owner.
        process.write(0, 0, 3, 0);
        assert_eq!(process.look(), [(7, Some(0), vec![])]);
        process.write(0, 0, 100, 0);
        process.write(0, 1, 101, 0);
        assert_eq!(process.poll(), (0, vec![]));
        assert_eq!(process.look(), [(7, None, vec![100, 101])]);
        assert!(process.live.has_chunk(7));
        assert_eq!(process.look(), []);
        process.fill(0, 100);
        process.give(0, 1, chunk_state::FULL);
        assert_eq!(process.poll(), (1, vec![(7, None, (102..128).collect())]));
        assert_eq!(process.state(0), chunk_state::FREE);
        assert!(!process.live.has_chunk(7));
        // It goes on elsewhere; then something is missing.
        process.take(0, (2, 1), 7, 3);
        process.write(0, 0, 200, 0);
        assert_eq!(process.look(), [(7, None, vec![200])]);
        process.take(1, (5, 4), 7, 2);
        process.write(1, 0, 500, 0);
        process.give(0, 2, chunk_state::FULL);
        assert_eq!(process.look(), [(7, Some(2), vec![500])]);
    }

    #[test]
    fn what_comes_later_waits_for_what_a_hook_is_to_write() {
        let mut process = Process::new();
        process.take(0, (1, 0), 7, 0);
        process.fill(0, 100);
        process.write(0, 20, 0, 0);
        process.give(0, 1, chunk_state::KEPT);
        process.take(3, (2, 1), 7, 0);
        process.write(3, 0, 200, 0);
        process.take(1, (3, 0), 8, 0);
        process.write(1, 0, 300, 0);
        assert_eq!(process.look(), [(7, Some(0), (100..120).collect()), (8, Some(0), vec![300])]);
        assert_eq!(process.look(), []);
        process.write(0, 20, 150, 0);
        // As a handler's records before it, it is not younger than those behind.
        let mut rest: Vec<u64> = (120..128).collect();
        rest[0] = 121;
        assert_eq!(process.look(), [(7, None, rest), (7, None, vec![200])]);
        process.give(0, 1, chunk_state::WAITING);
        assert_eq!(process.poll(), (1, vec![]));
        // A record that is never written delays the others no longer than that.
        process.fill(3, 200);
        process.write(3, 20, 0, 0);
        process.give(3, 2, chunk_state::WAITING);
        assert_eq!(process.look(), [(7, None, (201..220).collect())]);
        let begun = process.live.reader.begun.get_mut(&2).unwrap();
        begun.hole_since = Instant::now().checked_sub(2 * PATIENCE);
        assert_eq!(process.poll(), (1, vec![(7, None, (221..228).collect())]));
    }

    /// The newest LOST record is counted in; and another thread goes on in the chunk of an ended one.
    #[test]
    fn records_that_change_and_threads_that_end() {
        let mut process = Process::new();
        process.take(0, (1, 0), 7, 0);
        process.write(0, 0, 100, 0);
        process.write(0, 1, 101, 1 << ADDRESS_SHIFT | kind::LOST);
        assert_eq!(process.look(), [(7, Some(0), vec![100])]);
        process.write(0, 2, 102, 0);
        assert_eq!(process.look(), [(7, None, vec![101, 102])]);
        process.give(0, 1, chunk_state::PARTIAL);
        assert_eq!(process.look(), []);
        process.chunk(0).header.n_adopted.store(1, Relaxed);
        process.give(0, 1, chunk_state::OWNED);
        process.write(0, 3, 103, 9 << ADDRESS_SHIFT | kind::NEW_THREAD | kind::RESYNC);
        process.write(0, 4, 104, 0);
        assert_eq!(process.look(), [(7, None, vec![]), (9, Some(0), vec![104])]);
        assert_eq!(process.taker.ended, [7]);
        process.fill(0, 100);
        process.give(0, 1, chunk_state::FULL);
        process.take(1, (2, 1), 9, 1);
        process.write(1, 0, 200, 0);
        assert_eq!(process.look(), [(9, None, (105..128).collect()), (9, None, vec![200])]);
        // The process is over.
        process.write(1, 2, 202, 0);
        process.live.finish(&mut process.taker);
        assert_eq!(process.taker.taken, [(9, None, vec![202])]);
    }
}
