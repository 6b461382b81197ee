//! Live records of processes for a display, beside the written spools: full chunks before they are taken, and from time
//! to time chunks in use.
//!
//! A chunk is taken only after each reader has read it to its end. Neither readers nor programs wait for the display.
//!
//! Not here: reading chunks (`live`), and the use of the records.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rftrace::abi::lease;

use super::collect::{Banks, Tap, Watched};
use super::live::{Moment, Reader, Take, What};
use crate::backend::Chunk;
use crate::clock::ClockPair;

/// An event for the display.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A process with its modules, whenever there are new ones, and the moment of its beginning.
    Process {
        /// The process's own PID, as in all events.
        pid: u32,
        /// The process's PID as this process, the recorder, sees it.
        pid_here: u32,
        /// The path of its program.
        exe: Vec<u8>,
        /// The lines of its maps, the latest last.
        maps: Vec<Vec<u8>>,
        /// The moment of its beginning.
        began: Moment,
    },
    /// Records of a thread, see [`Take::take`].
    Records {
        /// The process.
        pid: u32,
        /// The thread's system id or, if it is unknown, the tracer's number.
        tid: u32,
        /// The number of functions open before them, if records are missing there.
        n_open: Option<usize>,
        /// The records, each a time in ticks and a word.
        records: Vec<(u64, u64)>,
    },
    /// A mark.
    Mark {
        /// The process.
        pid: u32,
        /// The thread, as in [`Records`](Self::Records); the main one for a mark from outside.
        tid: u32,
        /// The time in ticks.
        tsc: u64,
        /// The name of the mark's event in traces.
        name: String,
    },
    /// The end of a thread.
    ThreadEnded {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// All records up to this moment were passed on.
    Until(Moment),
    /// The end of a process.
    Ended {
        /// The process.
        pid: u32,
        /// The moment of the last look at it.
        at: Moment,
        /// The number of its lost calls and returns.
        n_dropped: u64,
    },
}

/// The time between two looks at chunks in use.
const LOOK: Duration = Duration::from_millis(50);

/// A live reader.
struct Told {
    /// Of one process alone.
    pid: Option<u32>,
    readers: HashMap<usize, Reader>,
    /// The number of maps passed on, by slot.
    n_maps: HashMap<usize, usize>,
    /// The number of marks passed on, by slot.
    n_marks: HashMap<usize, usize>,
    looked: Option<Instant>,
    is_due: bool,
    /// Returns whether there is to be more.
    to: Box<dyn FnMut(Seen) -> bool + Send>,
    is_over: bool,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Told {
    fn tell(&mut self, seen: Seen) {
        self.is_over |= !(self.to)(seen);
    }
}

/// Passes on the new records of a slot.
struct Pass<'a> {
    banks: &'a Banks,
    slot: usize,
    pid: u32,
    tap: &'a mut Told,
}

impl Pass<'_> {
    fn tid(&self, thread: u32) -> u32 {
        self.banks.system_tid(self.slot, thread).unwrap_or(thread)
    }
}

impl Take for Pass<'_> {
    fn take(&mut self, thread: u32, n_open: Option<usize>, records: &[(u64, u64)]) {
        let tid = self.tid(thread);
        self.tap.tell(Seen::Records { pid: self.pid, tid, n_open, records: records.to_vec() });
    }

    fn ended(&mut self, thread: u32) {
        let tid = self.tid(thread);
        self.tap.tell(Seen::ThreadEnded { pid: self.pid, tid });
    }
}

impl Told {
    fn tell_marks(&mut self, banks: &Banks, number: usize, watched: &Watched) {
        let marks = &watched.told.marks;
        let n_told = self.n_marks.insert(number, marks.len()).unwrap_or(0);
        for mark in marks.get(n_told..).unwrap_or_default() {
            let tid = mark.thread.map_or(watched.own_pid, |thread| banks.system_tid(number, thread).unwrap_or(thread));
            self.tell(Seen::Mark { pid: watched.own_pid, tid, tsc: mark.tsc, name: mark.event_name() });
        }
    }

    fn tell_of_process(&mut self, banks: &Banks, number: usize, watched: &Watched) {
        let n_maps = watched.maps.n_changes();
        if self.n_maps.insert(number, n_maps) == Some(n_maps) {
            return;
        }
        let [exe, _, own_maps, ..] = banks.texts(number);
        let maps = watched.maps.all().map(<[u8]>::to_vec).chain([own_maps]).collect();
        let slot = banks.slot(number);
        let began = Moment { ticks: slot.first_tsc.load(Relaxed), nanos: slot.first_nanos.load(Relaxed) };
        self.tell(Seen::Process { pid: watched.own_pid, pid_here: watched.pid, exe, maps, began });
    }
}

impl Tap for Told {
    fn read(&mut self, banks: &Banks, number: usize, watched: &Watched, is_over: bool) {
        let pid = watched.own_pid;
        if self.is_over || self.pid.is_some_and(|wanted| wanted != watched.pid) {
            return;
        }
        self.tell_of_process(banks, number, watched);
        self.tell_marks(banks, number, watched);
        let mut reader = self.readers.remove(&number).unwrap_or_default();
        let what = match (is_over, self.is_due) {
            (true, _) => What::Rest,
            (false, true) => What::Written,
            (false, false) => What::Full,
        };
        reader.read(banks, number, what, false, &mut Pass { banks, slot: number, pid, tap: self });
        if is_over {
            self.n_maps.remove(&number);
            self.n_marks.remove(&number);
            let ClockPair { tsc, nanos } = ClockPair::now();
            let at = Moment { ticks: tsc, nanos };
            self.tell(Seen::Ended { pid, at, n_dropped: banks.slot(number).bank.n_lost.load(Relaxed) });
        } else {
            self.readers.insert(number, reader);
        }
    }

    fn go_on(&mut self) -> bool {
        if self.is_due {
            let ClockPair { tsc, nanos } = ClockPair::now();
            self.tell(Seen::Until(Moment { ticks: tsc, nanos }));
            self.looked = Some(Instant::now());
        }
        self.is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        !self.is_over
    }

    fn has_read(&self, number: usize, chunk: &Chunk<'_>) -> bool {
        let index = lease::index(chunk.header.lease.load(Relaxed));
        // One that has ended reads nothing.
        let is_read = |reader: &Reader| reader.has_read(index, chunk.records.len());
        self.is_over || self.readers.get(&number).is_none_or(is_read)
    }
}

impl Banks {
    /// Passes on the calls of a process, or of all, until `to` returns false.
    pub fn tap(&mut self, pid: Option<u32>, to: impl FnMut(Seen) -> bool + Send + 'static) {
        self.taps.push(Box::new(Told {
            pid,
            readers: HashMap::new(),
            n_maps: HashMap::new(),
            n_marks: HashMap::new(),
            looked: None,
            is_due: true,
            to: Box::new(to),
            is_over: false,
        }));
    }

    /// Writes no records to the disk: they are only passed on.
    pub fn keep_nothing(&mut self) {
        self.keeps_nothing = true;
    }

    /// Returns true if no records are written.
    #[must_use]
    pub fn is_nothing_kept(&self) -> bool {
        self.keeps_nothing
    }

    /// Passes on the news of a slot.
    pub(super) fn pass_on(&mut self, number: usize, watched: &Watched, is_over: bool) {
        let mut taps = std::mem::take(&mut self.taps);
        taps.iter_mut().for_each(|tap| tap.read(self, number, watched, is_over));
        self.taps = taps;
    }

    /// A pass over all slots is over.
    pub(super) fn passed_on(&mut self) {
        self.taps.retain_mut(|tap| tap.go_on());
    }

    /// True if all readers have read a chunk of a slot to its end.
    pub(super) fn is_passed_on(&self, number: usize, chunk: &Chunk<'_>) -> bool {
        self.taps.iter().all(|tap| tap.has_read(number, chunk))
    }
}
