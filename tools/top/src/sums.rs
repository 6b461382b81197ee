//! The sums of each function in an interval, from records.
//!
//! The open functions of each thread are known. A call that is open at the end of an interval counts in it up to that
//! moment: a function that runs for ten seconds has a second in each of ten intervals, and its end in the last one.
//! Memory grows with the number of seen functions and of open calls. Both have limits, as a program may write any
//! records.
//!
//! Not here: names, and the open functions after missing records (the caller of [`Sums::set_open`]).

use std::collections::HashMap;
use std::ops::AddAssign;

use rftrace::abi::{ADDRESS_SHIFT, RETURN_STACK_ENTRIES, kind, state};

/// The calls and times of a function, in ticks; in an [`Interval`] in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of calls that began.
    pub calls: u64,
    /// The number of calls that ended and whose beginning is known.
    pub ended: u64,
    /// The total duration of those calls.
    pub ended_time: u64,
    /// The time in the function alone.
    pub own_time: u64,
    /// The time in the function and its calls. Recursive calls count once.
    pub total_time: u64,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        // Times are what a program has written.
        self.calls = self.calls.saturating_add(other.calls);
        self.ended = self.ended.saturating_add(other.ended);
        self.ended_time = self.ended_time.saturating_add(other.ended_time);
        self.own_time = self.own_time.saturating_add(other.own_time);
        self.total_time = self.total_time.saturating_add(other.total_time);
    }
}

/// The sums of an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The length of the interval in nanoseconds.
    pub nanos: u64,
    /// The functions that ran, by the address in their records, with times in nanoseconds.
    pub functions: Vec<(u64, Sum)>,
    /// The number of entries and exits.
    pub n_records: u64,
    /// The number of calls beyond the deepest recorded level.
    pub n_deep: u64,
    /// The number of threads with records, or with open recorded functions.
    pub n_threads: u64,
}

/// The number of a function that was open before records began, and is not known.
const UNKNOWN: u32 = u32::MAX;

/// Functions that are open in a thread, at the most: what a return stack has, and those whose exits are missing; and in all threads.
const MOST_OPEN: usize = 4 * RETURN_STACK_ENTRIES;
const MOST_OPEN_IN_ALL: usize = 1 << 21;

/// Functions, and threads, that are told apart.
const MOST_FUNCTIONS: usize = 1 << 20;
const MOST_THREADS: usize = 1 << 16;

/// Functions whose numbers are found without a search, a power of two: few functions make most of the calls.
const KNOWN: usize = 1024;

/// The sums of a recorded process.
#[derive(Debug)]
pub struct Sums {
    /// Of each function, by its number.
    sums: Vec<Sum>,
    addresses: Vec<u64>,
    numbers: HashMap<u64, u32>,
    known: Box<[(u64, u32); KNOWN]>,
    threads: HashMap<u32, Thread>,
    /// Functions that are open, in all threads.
    n_open: usize,
    /// When the interval began, in ticks and nanoseconds.
    since: (u64, u64),
    n_records: u64,
    n_deep: u64,
    /// Threads of this interval that are forgotten again.
    n_ended: u64,
}

/// A thread, at the last of its records that was read.
#[derive(Debug, Default)]
struct Thread {
    open: Vec<Frame>,
    /// Until then its time is counted.
    counted_until: u64,
    /// True if it recorded something in this interval.
    has_recorded: bool,
    /// Exits that are to come of functions on a stack that was left: they have not returned.
    n_left: u64,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    function: u32,
    /// True if the function is not open further out too.
    is_outermost: bool,
    /// When it began; `None` if that is not known.
    began: Option<u64>,
    /// From then on its total time is not counted yet.
    counted_until: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            sums: Vec::new(),
            addresses: Vec::new(),
            numbers: HashMap::new(),
            known: Box::new([(0, UNKNOWN); KNOWN]),
            threads: HashMap::new(),
            n_open: 0,
            since: (0, 0),
            n_records: 0,
            n_deep: 0,
            n_ended: 0,
        }
    }
}

impl Sums {
    /// Begins the first interval at a moment in ticks and nanoseconds. Earlier records count in it.
    pub fn begin(&mut self, now: (u64, u64)) {
        self.since = now;
    }

    /// Adds records of a thread, each a time and a word. With `n_open`, records are missing before them, and this
    /// number of functions was open then.
    pub fn take(&mut self, thread: u32, n_open: Option<usize>, records: &[(u64, u64)]) {
        let Some(mut own) = self.thread(thread) else { return };
        if let Some(n_open) = n_open {
            self.close_to(&mut own, n_open, false);
            let n_missing = n_open.min(RETURN_STACK_ENTRIES).saturating_sub(own.open.len());
            for _ in 0..n_missing {
                self.push(&mut own, Frame { function: UNKNOWN, is_outermost: false, began: None, counted_until: 0 });
            }
        }
        own.has_recorded |= !records.is_empty();
        for &(tsc, word) in records {
            self.record(&mut own, tsc, word);
        }
        self.threads.insert(thread, own);
    }

    /// Ends a thread: no function is open in it.
    pub fn ended(&mut self, thread: u32) {
        if let Some(mut own) = self.threads.remove(&thread) {
            self.close_to(&mut own, 0, false);
            self.n_ended += u64::from(own.has_recorded);
        }
    }

    /// Returns the threads with open functions.
    pub fn with_open(&self) -> impl Iterator<Item = u32> {
        self.threads.iter().filter(|(_, thread)| !thread.open.is_empty()).map(|(&number, _)| number)
    }

    /// Sets the open functions of a thread after missing exits, by address, outermost first.
    pub fn set_open(&mut self, thread: u32, addresses: &[u64]) {
        let Some(mut own) = self.threads.remove(&thread) else { return };
        let is_same = |(frame, address): &(&Frame, &u64)| {
            frame.function == UNKNOWN || self.addresses.get(frame.function as usize) == Some(*address)
        };
        let n_same = own.open.iter().zip(addresses).take_while(is_same).count();
        self.close_to(&mut own, n_same, false);
        self.threads.insert(thread, own);
    }

    /// Ends the interval, and begins the next one. `now` is in ticks and nanoseconds.
    pub fn end_interval(&mut self, now: (u64, u64)) -> Interval {
        let (ticks, nanos) = (now.0.saturating_sub(self.since.0), now.1.saturating_sub(self.since.1));
        self.since = now;
        let mut n_threads = std::mem::take(&mut self.n_ended);
        let mut threads = std::mem::take(&mut self.threads);
        for thread in threads.values_mut() {
            self.count(thread, now.0);
            for frame in thread.open.iter_mut().filter(|frame| frame.is_outermost) {
                let time = now.0.saturating_sub(frame.counted_until);
                frame.counted_until = frame.counted_until.max(now.0);
                let sum = &mut self.sums[frame.function as usize];
                sum.total_time = sum.total_time.saturating_add(time);
            }
            n_threads += u64::from(thread.has_recorded || !thread.open.is_empty());
        }
        // A thread without open functions can be forgotten: its next records tell all that is needed.
        threads.retain(|_, thread| std::mem::take(&mut thread.has_recorded) || !thread.open.is_empty());
        self.threads = threads;
        let in_nanos = |time: u64| (u128::from(time) * u128::from(nanos) / u128::from(ticks.max(1))) as u64;
        let sums = self.addresses.iter().zip(&mut self.sums).filter(|(_, sum)| **sum != Sum::default());
        let functions = sums.map(|(&address, sum)| {
            let Sum { calls, ended, ended_time, own_time, total_time } = std::mem::take(sum);
            let [ended_time, own_time, total_time] = [ended_time, own_time, total_time].map(in_nanos);
            (address, Sum { calls, ended, ended_time, own_time, total_time })
        });
        Interval {
            nanos,
            functions: functions.collect(),
            n_records: std::mem::take(&mut self.n_records),
            n_deep: std::mem::take(&mut self.n_deep),
            n_threads,
        }
    }

    /// A thread, which is put back when its records are taken. `None`: there are too many.
    fn thread(&mut self, number: u32) -> Option<Thread> {
        let known = self.threads.remove(&number);
        if known.is_none() && self.threads.len() >= MOST_THREADS {
            return None;
        }
        Some(known.unwrap_or_default())
    }

    fn record(&mut self, thread: &mut Thread, tsc: u64, word: u64) {
        let field = word >> ADDRESS_SHIFT;
        let word_kind = word & kind::MASK;
        if word_kind != kind::EXIT {
            thread.n_left = 0;
        }
        match word_kind {
            kind::ENTRY => {
                self.count(thread, tsc);
                let function = self.number(field);
                self.n_records += 1;
                if word & kind::POINT != 0 {
                    // Its return is not recorded.
                    self.sums[function as usize].calls += 1;
                } else {
                    let is_again = word & kind::AGAIN != 0;
                    self.sums[function as usize].calls += u64::from(!is_again);
                    self.enter(thread, function, is_again);
                }
            }
            kind::EXIT if word & (kind::LEFT | state::HIDDEN) != 0 => {}
            kind::EXIT => {
                self.count(thread, tsc);
                self.n_records += 1;
                self.leave(thread, field);
            }
            kind::LOST => self.n_deep = self.n_deep.saturating_add(field),
            _ if word & kind::VALUES == kind::VALUES => {}
            _ if word & kind::SUSPENDED != 0 => thread.n_left = (word & kind::FUNCTIONS_MASK) / kind::FUNCTIONS_ONE,
            _ if word & (kind::RESUMED | kind::CORE | kind::NEW_THREAD) != 0 => {}
            // Functions were left meanwhile.
            _ => {
                self.count(thread, tsc);
                self.close_to(thread, field as usize, false);
            }
        }
    }

    /// Counts a thread's time for the innermost function.
    fn count(&mut self, thread: &mut Thread, tsc: u64) {
        let time = tsc.saturating_sub(thread.counted_until);
        if let Some(top) = thread.open.last()
            && let Some(sum) = self.sums.get_mut(top.function as usize)
        {
            sum.own_time = sum.own_time.saturating_add(time);
        }
        thread.counted_until = thread.counted_until.max(tsc);
    }

    fn enter(&mut self, thread: &mut Thread, function: u32, is_again: bool) {
        if thread.open.len() >= MOST_OPEN {
            self.close_to(thread, 0, false);
        }
        let is_outermost = !thread.open.iter().any(|frame| frame.function == function);
        let now = thread.counted_until;
        let began = (!is_again).then_some(now);
        self.push(thread, Frame { function, is_outermost, began, counted_until: now });
    }

    /// Where there are too many already, its time is its caller's.
    fn push(&mut self, thread: &mut Thread, frame: Frame) {
        if self.n_open < MOST_OPEN_IN_ALL {
            self.n_open += 1;
            thread.open.push(frame);
        }
    }

    fn leave(&mut self, thread: &mut Thread, address: u64) {
        let is_return = thread.n_left == 0;
        thread.n_left = thread.n_left.saturating_sub(1);
        let function = self.number(address);
        // Functions above it ended without a record.
        let is_it = |frame: &Frame| frame.function == function || frame.function == UNKNOWN;
        if let Some(place) = thread.open.iter().rposition(is_it) {
            self.close_to(thread, place, is_return);
        }
    }

    /// Closes all but the outermost `n_open` functions, at the last time that is known. They have returned or, if not, are only not known
    /// to be open any more.
    fn close_to(&mut self, thread: &mut Thread, n_open: usize, is_return: bool) {
        let now = thread.counted_until;
        self.n_open -= thread.open.len().saturating_sub(n_open);
        for frame in thread.open.drain(n_open.min(thread.open.len())..) {
            let Some(sum) = self.sums.get_mut(frame.function as usize) else { continue };
            if frame.is_outermost {
                sum.total_time = sum.total_time.saturating_add(now.saturating_sub(frame.counted_until));
            }
            if let Some(began) = frame.began.filter(|_| is_return) {
                sum.ended += 1;
                sum.ended_time = sum.ended_time.saturating_add(now.saturating_sub(began));
            }
        }
    }

    /// The number of the function that has this address in its records.
    fn number(&mut self, address: u64) -> u32 {
        // Functions are aligned to 16 bytes, mostly.
        let place = (address >> 4) as usize % KNOWN;
        let (known, number) = self.known[place];
        if known == address && number != UNKNOWN {
            return number;
        }
        let number = match self.numbers.get(&address) {
            Some(&number) => number,
            // A program does not have so many: the others are one, without a name.
            None if self.addresses.len() >= MOST_FUNCTIONS && address != 0 => return self.number(0),
            None => {
                let number = self.addresses.len() as u32;
                self.addresses.push(address);
                self.sums.push(Sum::default());
                self.numbers.insert(address, number);
                number
            }
        };
        self.known[place] = (address, number);
        number
    }
}
