//! From chunks to the events of each task.
//!
//! [`records`] are the records in their places; [`task`] finds those of each thread, [`stacks`] those of left and
//! resumed stacks. This module turns a task's records into balanced events: every entry gets an exit, times never go
//! back, depths are true.
//!
//! Not here: the way of chunks out of the tracer (`backend`, `image`), and the writing of events (`uftrace`).

// A test asks for a thread's processor time.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub(crate) mod records;
mod stacks;
pub(crate) mod task;

use std::collections::HashMap;
use std::iter::Peekable;
use std::mem;

use rftrace::abi::{ADDRESS_SHIFT, kind, state};

use crate::backend::{Chunk, exit_word};
use records::{Records, Unpacked};
pub(crate) use task::{Head, Task};
use task::{SEARCHED, Start};

/// Returns all tasks with records in `chunks`, by thread id: first a thread's own, then those of left and resumed
/// stacks. `open` holds the words of the exit records of the functions open in each thread, outermost first, as far as
/// known.
pub(crate) fn tasks<'a>(chunks: impl Iterator<Item = Chunk<'a>>, open: HashMap<u32, Vec<u64>>) -> Vec<Task<'a>> {
    tasks_of(chunks.map(|chunk| (chunk.header.into(), chunk.records.into())), open)
}

/// The same for chunks in any place.
pub(crate) fn tasks_of<'a>(
    chunks: impl Iterator<Item = (Head, Records<'a>)>,
    open: HashMap<u32, Vec<u64>>,
) -> Vec<Task<'a>> {
    stacks::apart(task::of_threads(chunks, open))
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Entry,
    Exit,
    /// The number of calls lost here.
    Lost(u64),
    /// An unknown number of records was overwritten here.
    Gap,
    /// From here on the task runs on this core.
    Core(u64),
    /// The innermost function never returned: the following exit is the end of the known time.
    DidNotReturn,
}

/// An event of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// Ticks.
    pub(crate) tsc: u64,
    /// An address in the function; 0 for a loss.
    pub(crate) address: u64,
    /// Functions open around it.
    pub(crate) depth: usize,
}

/// Receives the number of completely read bytes of records.
pub(crate) type Done<'a> = &'a (dyn Fn(usize) + Sync);

/// The choice of records, and the form of events.
pub(crate) struct Window<'a> {
    /// The beginning of the cycle, in ticks.
    pub(crate) start: u64,
    /// The end of the cycle: open functions are closed then.
    pub(crate) end: u64,
    /// Later records are left out.
    pub(crate) cut: u64,
    /// Returns true for addresses of the tracer itself.
    pub(crate) is_hidden: &'a (dyn Fn(u64) -> bool + Sync),
    /// The minimum durations of shown calls.
    pub(crate) minima: &'a Minima,
    pub(crate) done: Option<Done<'a>>,
}

/// The minimum duration of a call, over time. The tracer takes short calls back itself, as far as it can; the decoder
/// leaves out the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Minima {
    /// The beginning of each minimum, and its ticks; ascending. 0 before.
    changes: Vec<(u64, u64)>,
}

impl Minima {
    /// From `now` on it is `ticks`.
    #[cfg(feature = "std")]
    pub(crate) fn set(&mut self, now: u64, ticks: u64) {
        if self.changes.last().map_or(0, |&(_, last)| last) != ticks {
            self.changes.push((now, ticks));
        }
    }

    /// Forgets all but the last: older records are not read any more.
    #[cfg(feature = "std")]
    pub(crate) fn forget_past(&mut self) {
        if let Some(&last) = self.changes.last() {
            self.changes = vec![last];
        }
    }

    /// Returns the minimum duration for a call with its end at `tsc`.
    fn at(&self, tsc: u64) -> u64 {
        let n_before = self.changes.partition_point(|&(since, _)| since <= tsc);
        n_before.checked_sub(1).map_or(0, |last| self.changes[last].1)
    }
}

/// A function open at the reader's place.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The word of its exit record; 0 if unknown.
    exit_word: u64,
    /// The time of its entry; 0 if unknown.
    entered: u64,
    /// Shown to the user: an entry was or will be passed on, so an exit must follow.
    shown: bool,
}

/// Takes events.
pub(crate) trait Emit {
    /// The reason for a failure.
    type Error;

    /// Takes the next event. `values` are the items recorded with it, see [`rftrace::abi::value`].
    fn emit(&mut self, event: Event, values: &[u8]) -> Result<(), Self::Error>;
}

impl<E, F: FnMut(Event) -> Result<(), E>> Emit for F {
    type Error = E;

    #[inline(always)]
    fn emit(&mut self, event: Event, _values: &[u8]) -> Result<(), E> {
        self(event)
    }
}

/// Walks a task's records and passes the events of the window on, in order.
pub(crate) fn decode<F: Emit>(task: &Task<'_>, window: &Window<'_>, emit: F) -> Result<(), F::Error> {
    let mut decoder = Decoder {
        window,
        emit,
        open: Vec::new(),
        held: Vec::new(),
        values: Vec::new(),
        n_shown: 0,
        n_hidden: 0,
        known: [(0, false); KNOWN],
        last_tsc: 0,
        core: None,
        started: false,
        n_outside: 0,
    };
    let mut records: Vec<(u64, u64)> = Vec::new();
    let mut unpacked = Unpacked::default();
    let mut last_index = None;
    for segment in &task.segments {
        match segment.start {
            Start::Chunk { prev_index, depth } if last_index != Some(prev_index) => {
                decoder.gap(task, depth, last_index.is_none())?;
            }
            Start::Chunk { .. } | Start::Last => {}
            // Those that were open further in have ended since it was left.
            Start::Resumed { depth } => decoder.close_to(depth, decoder.last_tsc)?,
        }
        last_index = Some(segment.index);
        decoder.n_outside = segment.n_outside;
        let timed = segment.unpacked(&mut unpacked);
        if timed.is_ordered() {
            decoder.segment(segment.core, timed.written())?;
        } else {
            records.clear();
            records.extend(timed.written());
            order_times(&mut records);
            decoder.segment(segment.core, records.iter().copied())?;
        }
        if let Some(done) = window.done {
            done(segment.records.n_bytes());
        }
    }
    decoder.finish()
}

/// A signal handler between reserving and writing makes the interrupted record younger than its own: such a record gets
/// the time of the one behind it.
pub(crate) fn order_times(records: &mut [(u64, u64)]) {
    for i in (1..records.len()).rev() {
        records[i - 1].0 = records[i - 1].0.min(records[i].0);
    }
}

/// Returns true if a record is a piece of values.
#[inline(always)]
fn is_values(word: u64) -> bool {
    word & (kind::MASK | kind::VALUES) == kind::RESYNC | kind::VALUES
}

struct Decoder<'a, F> {
    window: &'a Window<'a>,
    emit: F,
    open: Vec<Frame>,
    /// The entries of the innermost shown functions, as far as they may turn out to be too short. They are passed on as soon
    /// as something in them is.
    held: Vec<(Event, Vec<u8>)>,
    /// Values of the record read last, not passed on yet.
    values: Vec<u8>,
    n_shown: usize,
    /// The number of open functions hidden as the tracer's; calls in them are hidden too.
    n_hidden: usize,
    /// Results of `window.is_hidden` for some addresses: few functions make most of the calls. 0 is no function's.
    known: [(u64, bool); KNOWN],
    last_tsc: u64,
    /// The core of the task, as far as it was passed on.
    core: Option<u64>,
    /// A record of the window was seen.
    started: bool,
    /// Open functions of the thread outside of the task.
    n_outside: usize,
}

/// The number of addresses in a decoder's memory, a power of two.
const KNOWN: usize = 256;

/// Code for each record is inlined: this crate is compiled with the program's flags, and in an instrumented build each
/// remaining function costs two hooks.
impl<F: Emit> Decoder<'_, F> {
    /// The records of one chunk, in order.
    fn segment(&mut self, core: u32, records: impl Iterator<Item = (u64, u64)>) -> Result<(), F::Error> {
        let mut records = records.peekable();
        let mut is_first = true;
        while let Some((tsc, word)) = records.next() {
            if let Some(&(_, next)) = records.peek()
                && is_values(next)
            {
                self.collect_values((tsc, word), &mut records);
            }
            if tsc > self.window.cut {
                break;
            }
            self.record(tsc, word)?;
            self.values.clear();
            if is_first && core != 0 {
                self.runs_on(u64::from(core) - 1, tsc)?;
            }
            is_first = false;
        }
        Ok(())
    }

    /// Takes the values behind a record. Values of an absent record have another time.
    #[cold]
    fn collect_values(&mut self, (tsc, word): (u64, u64), records: &mut Peekable<impl Iterator<Item = (u64, u64)>>) {
        let mut n_following = None;
        let n_left = |unit: u64| (unit & kind::FUNCTIONS_MASK) / kind::FUNCTIONS_ONE;
        while n_following != Some(0)
            && let Some((_, unit)) = records.next_if(|&(unit_tsc, unit)| {
                let is_next = n_following.is_none_or(|before: u64| before == n_left(unit) + 1);
                is_values(unit) && unit_tsc == tsc && is_next
            })
        {
            n_following = Some(n_left(unit));
            self.values.extend_from_slice(&unit.to_le_bytes()[2..]);
        }
        let is_call = matches!(word & kind::MASK, kind::ENTRY | kind::EXIT);
        if !is_call || n_following != Some(0) {
            self.values.clear();
        }
    }

    #[inline(always)]
    fn record(&mut self, tsc: u64, word: u64) -> Result<(), F::Error> {
        if tsc >= self.window.start && !self.started {
            self.start(tsc)?;
        }
        let tsc = tsc.max(self.last_tsc);
        self.last_tsc = tsc;
        match word & kind::MASK {
            kind::ENTRY if word & kind::POINT != 0 => self.point(tsc, word >> ADDRESS_SHIFT),
            kind::ENTRY => self.enter(tsc, tsc, exit_word(word)),
            kind::EXIT if word & (kind::LEFT | state::HIDDEN) != 0 => Ok(()),
            kind::EXIT => self.leave(tsc, exit_word(word)),
            kind::LOST => self.rare_event(EventKind::Lost(word >> ADDRESS_SHIFT), tsc, 0),
            kind::RESYNC if word & kind::CORE != 0 => self.runs_on(word >> ADDRESS_SHIFT, tsc),
            // Pieces of values without a record too.
            kind::RESYNC if word & (kind::SUSPENDED | kind::RESUMED) != 0 => Ok(()),
            _ => {
                let open = (word >> ADDRESS_SHIFT) as usize;
                self.close_to(open.saturating_sub(self.n_outside), tsc)
            }
        }
    }

    /// The task runs on this core.
    fn runs_on(&mut self, core: u64, tsc: u64) -> Result<(), F::Error> {
        if self.started && self.core != Some(core) {
            self.core = Some(core);
            self.rare_event(EventKind::Core(core), tsc, 0)?;
        }
        Ok(())
    }

    /// Begins the window with its first record: earlier open functions are entered now.
    fn start(&mut self, tsc: u64) -> Result<(), F::Error> {
        // Those of the first record are not for what is entered again.
        let values = mem::take(&mut self.values);
        self.started = true;
        self.last_tsc = tsc;
        self.n_shown = 0;
        for i in 0..self.open.len() {
            let frame = self.open[i];
            if frame.shown {
                self.hold(tsc, frame.exit_word >> ADDRESS_SHIFT)?;
            }
        }
        self.values = values;
        Ok(())
    }

    /// Enters a function. `entered` is the time that counts for its duration.
    #[inline(always)]
    fn enter(&mut self, tsc: u64, entered: u64, exit_word: u64) -> Result<(), F::Error> {
        let address = exit_word >> ADDRESS_SHIFT;
        let hidden = self.n_hidden > 0 || self.is_hidden(address);
        if hidden {
            self.n_hidden += 1;
        } else {
            self.hold(tsc, address)?;
        }
        self.open.push(Frame { exit_word, entered, shown: !hidden });
        Ok(())
    }

    /// Returns true if a function belongs to the tracer itself.
    #[inline(always)]
    fn is_hidden(&mut self, address: u64) -> bool {
        // Functions are aligned to 16 bytes, mostly.
        let known = &mut self.known[(address >> 4) as usize % KNOWN];
        if known.0 != address {
            *known = (address, (self.window.is_hidden)(address));
        }
        known.1
    }

    /// Enters a shown function: passes that on, or holds it back while the call may be too short.
    #[inline(always)]
    fn hold(&mut self, tsc: u64, address: u64) -> Result<(), F::Error> {
        if self.window.minima.changes.is_empty() {
            self.event(EventKind::Entry, tsc, address)?;
        } else if self.started {
            let event = Event { kind: EventKind::Entry, tsc, address, depth: self.n_shown };
            self.held.push((event, mem::take(&mut self.values)));
        }
        self.n_shown += 1;
        Ok(())
    }

    /// Passes on the events held back.
    fn release(&mut self) -> Result<(), F::Error> {
        self.held.drain(..).try_for_each(|(event, values)| self.emit.emit(event, &values))
    }

    /// Enters a function without a hooked return.
    fn point(&mut self, tsc: u64, address: u64) -> Result<(), F::Error> {
        if self.n_hidden > 0 || self.is_hidden(address) {
            return Ok(());
        }
        self.event(EventKind::Entry, tsc, address)?;
        self.values.clear();
        self.event(EventKind::Exit, tsc, address)
    }

    #[inline(always)]
    fn leave(&mut self, tsc: u64, exit_word: u64) -> Result<(), F::Error> {
        // Mostly it is the innermost function's.
        if self.open.last().is_some_and(|frame| frame.exit_word == exit_word) {
            return self.close_to(self.open.len() - 1, tsc);
        }
        // Exits are recorded innermost first; what lies above the one that matches ended without a record.
        let n_passed_over = self.open.len().saturating_sub(SEARCHED);
        match self.open[n_passed_over..].iter().rposition(|frame| frame.exit_word == exit_word) {
            Some(place) => {
                let place = n_passed_over + place;
                if !self.values.is_empty() && self.open.len() > place + 1 {
                    let values = mem::take(&mut self.values);
                    self.close_to(place + 1, tsc)?;
                    self.values = values;
                }
                self.close_to(place, tsc)
            }
            None => Ok(()),
        }
    }

    /// Closes all functions but the outermost `n_open`, innermost first.
    #[inline(always)]
    fn close_to(&mut self, n_open: usize, tsc: u64) -> Result<(), F::Error> {
        while self.open.len() > n_open {
            let Some(frame) = self.open.pop() else { break };
            if frame.shown {
                self.n_shown -= 1;
                if self.is_too_short(frame, tsc) {
                    self.held.pop();
                } else {
                    self.event(EventKind::Exit, tsc, frame.exit_word >> ADDRESS_SHIFT)?;
                }
            } else if frame.exit_word != 0 {
                self.n_hidden -= 1;
            }
        }
        Ok(())
    }

    /// Returns true if the innermost function, at its end now, is left out.
    #[inline(always)]
    fn is_too_short(&self, frame: Frame, tsc: u64) -> bool {
        // A call whose entry is still held back has nothing in it.
        !self.held.is_empty() && tsc - frame.entered.min(tsc) < self.window.minima.at(tsc)
    }

    /// Records are missing before a chunk: the functions open at its start are `depth`, whichever they are.
    fn gap(&mut self, task: &Task<'_>, depth: usize, first: bool) -> Result<(), F::Error> {
        let tsc = self.last_tsc;
        self.close_to(depth, tsc)?;
        if !first {
            self.rare_event(EventKind::Gap, tsc, 0)?;
        }
        if self.open.len() < depth {
            let known = if first { functions_open_at_start(task, depth) } else { Vec::new() };
            for level in self.open.len()..depth {
                match known.get(level) {
                    Some(&exit_word) if exit_word != 0 => self.enter(tsc, 0, exit_word)?,
                    // Nobody knows which function it is, so neither its entry nor its exit is shown.
                    _ => self.open.push(Frame { exit_word: 0, entered: 0, shown: false }),
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), F::Error> {
        if !self.started {
            return Ok(());
        }
        let end = self.window.end.max(self.last_tsc);
        while let Some(&frame) = self.open.last() {
            if frame.shown && !self.is_too_short(frame, end) {
                self.event(EventKind::DidNotReturn, end, 0)?;
            }
            self.close_to(self.open.len() - 1, end)?;
        }
        Ok(())
    }

    /// Takes an event other than an entry or exit.
    #[cold]
    fn rare_event(&mut self, kind: EventKind, tsc: u64, address: u64) -> Result<(), F::Error> {
        self.event(kind, tsc, address)
    }

    #[inline(always)]
    fn event(&mut self, kind: EventKind, tsc: u64, address: u64) -> Result<(), F::Error> {
        if !self.started {
            return Ok(());
        }
        if !self.held.is_empty() {
            self.release()?;
        }
        self.emit.emit(Event { kind, tsc, address, depth: self.n_shown }, &self.values)
    }
}

/// Returns the functions open at the beginning of a task's oldest remaining chunk, outermost first; 0 where unknown.
///
/// Functions that have returned since have an exit without entry; the others are still on the thread's return stack.
fn functions_open_at_start(task: &Task<'_>, depth: usize) -> Vec<u64> {
    let mut open = vec![0; depth];
    // How many of the unknown functions are still open, and how many were entered since.
    let (mut n_unknown, mut n_known) = (depth, 0usize);
    let mut unpacked = Unpacked::default();
    for segment in &task.segments {
        for (_, word) in segment.unpacked(&mut unpacked).written() {
            match word & kind::MASK {
                kind::ENTRY if word & kind::POINT != 0 => {}
                kind::ENTRY => n_known += 1,
                kind::EXIT if word & (kind::LEFT | state::HIDDEN) != 0 => {}
                kind::EXIT if n_known > 0 => n_known -= 1,
                kind::EXIT if n_unknown > 0 => {
                    n_unknown -= 1;
                    open[n_unknown] = exit_word(word);
                }
                kind::RESYNC if word & (kind::CORE | kind::SUSPENDED | kind::RESUMED) != 0 => {}
                kind::RESYNC => {
                    let left = (word >> ADDRESS_SHIFT) as usize;
                    n_unknown = n_unknown.min(left);
                    n_known = left - n_unknown;
                }
                _ => {}
            }
        }
    }
    for (word, &now) in open.iter_mut().zip(&task.open).take(n_unknown) {
        *word = now;
    }
    open
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU64;

    use rftrace::abi::Record;

    use super::task::Segment;

    use super::*;

    const A: u64 = 0x1000;
    const B: u64 = 0x2000;
    /// A function of the tracer itself.
    const OWN: u64 = 0x9000;

    pub(super) fn enter(tsc: u64, address: u64) -> (u64, u64) {
        (tsc, address << ADDRESS_SHIFT)
    }

    pub(super) fn leave(tsc: u64, address: u64) -> (u64, u64) {
        (tsc, address << ADDRESS_SHIFT | kind::EXIT)
    }

    pub(super) fn resync(tsc: u64, open: u64) -> (u64, u64) {
        (tsc, open << ADDRESS_SHIFT | kind::RESYNC)
    }

    pub(super) fn segment(index: u64, prev_index: u64, depth: usize, records: &[(u64, u64)]) -> Segment<'static> {
        let records: Vec<Record> = records
            .iter()
            .map(|&(tsc, word)| Record { tsc: AtomicU64::new(tsc), word: AtomicU64::new(word) })
            .collect();
        let start = Start::Chunk { prev_index, depth };
        Segment { index, start, taken_tsc: 1, core: 0, n_outside: 0, records: Records::Memory(records.leak()) }
    }

    /// One event a line: time, depth, kind.
    fn outline(segments: Vec<Segment<'_>>, start: u64) -> String {
        outline_with(segments, start, &Minima::default())
    }

    fn outline_with(segments: Vec<Segment<'_>>, start: u64, minima: &Minima) -> String {
        outline_of(&Task { tid: 1, segments, open: Vec::new(), resumes: false }, start, minima)
    }

    pub(super) fn outline_of(task: &Task<'_>, start: u64, minima: &Minima) -> String {
        let is_hidden = |address| address == OWN;
        let window = Window { start, end: 100, cut: u64::MAX, is_hidden: &is_hidden, minima, done: None };
        let mut text = String::new();
        let result = decode(task, &window, |event| {
            let Event { kind, tsc, address, depth } = event;
            let what = match kind {
                EventKind::Entry => format!("+{address:x}"),
                EventKind::Exit => format!("-{address:x}"),
                EventKind::Lost(n) => format!("lost {n}"),
                EventKind::Gap => "gap".to_owned(),
                EventKind::Core(core) => format!("core {core}"),
                // A test of its own has it.
                EventKind::DidNotReturn => return Ok(()),
            };
            text += &format!("{tsc} {depth} {what}\n");
            Ok::<(), Infallible>(())
        });
        result.unwrap();
        text
    }

    #[test]
    fn calls_keep_their_times_and_depths() {
        let records = [enter(1, A), enter(2, B), leave(3, B), leave(4, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n3 1 -2000\n4 0 -1000\n");
    }

    #[test]
    fn open_functions_end_with_the_recording_innermost_first() {
        let records = [enter(1, A), enter(2, B)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n100 1 -2000\n100 0 -1000\n");
    }

    #[test]
    fn functions_that_end_with_the_recording_did_not_return() {
        let records = [enter(1, A), enter(2, B), leave(3, B), enter(80, B), enter(95, A), enter(96, OWN), enter(97, B)];
        let task = Task { tid: 1, segments: vec![segment(1, 0, 0, &records)], open: Vec::new(), resumes: false };
        let minima = at_least(10);
        let is_hidden = |address| address == OWN;
        let window = Window { start: 1, end: 100, cut: u64::MAX, is_hidden: &is_hidden, minima: &minima, done: None };
        let mut kinds = Vec::new();
        let Ok(()) = decode(&task, &window, |event: Event| {
            kinds.push((event.kind, event.depth));
            Ok::<(), Infallible>(())
        });
        let [entry, open, exit] = [EventKind::Entry, EventKind::DidNotReturn, EventKind::Exit];
        let expected = [(entry, 0), (entry, 1), (open, 2), (exit, 1), (open, 1), (exit, 0)];
        assert_eq!(kinds, expected, "what is too short, or the tracer's, is not shown");
    }

    #[test]
    fn reserved_records_that_were_never_written_are_skipped() {
        let records = [enter(1, A), (0, 0), leave(4, A), (0, 0)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n4 0 -1000\n");
    }

    #[test]
    fn an_exit_ends_what_was_called_and_has_none() {
        let records = [enter(1, A), enter(2, B), leave(3, A), leave(4, B)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n3 1 -2000\n3 0 -1000\n");
    }

    #[test]
    fn a_resync_ends_what_was_left_while_recording_was_off() {
        let records = [enter(1, A), enter(2, B), resync(3, 1), enter(7, B), leave(8, B), leave(9, A)];
        assert_eq!(
            outline(vec![segment(1, 0, 0, &records)], 1),
            "1 0 +1000\n2 1 +2000\n3 1 -2000\n7 1 +2000\n8 1 -2000\n9 0 -1000\n"
        );
    }

    #[test]
    fn own_functions_and_their_callees_are_hidden() {
        let records = [enter(1, A), enter(2, OWN), enter(3, B), leave(4, B), leave(5, OWN), enter(6, B), leave(7, B)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n6 1 +2000\n7 1 -2000\n100 0 -1000\n");
    }

    #[test]
    fn a_handler_in_the_middle_of_a_hook_does_not_turn_time_back() {
        // The entry of A was reserved first and stamped last.
        let records = [enter(9, A), enter(4, B), leave(5, B), leave(12, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "4 0 +1000\n4 1 +2000\n5 1 -2000\n12 0 -1000\n");
    }

    #[test]
    fn functions_open_since_an_earlier_cycle_are_entered_again() {
        let records = [enter(1, A), enter(2, B), leave(3, B), enter(11, B), leave(12, B), leave(13, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 10), "11 0 +1000\n11 1 +2000\n12 1 -2000\n13 0 -1000\n");
    }

    #[test]
    fn nothing_of_the_window_is_nothing() {
        assert_eq!(outline(vec![segment(1, 0, 0, &[enter(1, A)])], 10), "");
    }

    #[test]
    fn a_ring_names_the_functions_open_at_its_beginning_by_their_exits() {
        // Two functions are open when the oldest chunk that is left was taken.
        let records = [enter(5, B), leave(6, B), leave(7, B), leave(8, A)];
        assert_eq!(
            outline(vec![segment(7, 6, 2, &records)], 1),
            "5 0 +1000\n5 1 +2000\n5 2 +2000\n6 2 -2000\n7 1 -2000\n8 0 -1000\n"
        );
    }

    #[test]
    fn an_earlier_cycle_that_began_amid_calls_leaves_nothing_behind() {
        let records = [leave(2, B), leave(3, A), enter(11, B), leave(12, B)];
        assert_eq!(outline(vec![segment(7, 6, 2, &records)], 10), "11 0 +2000\n12 0 -2000\n");
        let records = [leave(2, B), leave(3, OWN), enter(11, B), leave(12, B)];
        assert_eq!(outline(vec![segment(7, 6, 2, &records)], 10), "11 0 +2000\n12 0 -2000\n");
    }

    #[test]
    fn an_overwritten_chunk_in_between_is_a_gap() {
        let first = segment(1, 0, 0, &[enter(1, A), enter(2, B)]);
        let second = segment(5, 3, 1, &[enter(7, B), leave(8, B), leave(9, A)]);
        assert_eq!(
            outline(vec![first, second], 1),
            "1 0 +1000\n2 1 +2000\n2 1 -2000\n2 1 gap\n7 1 +2000\n8 1 -2000\n9 0 -1000\n"
        );
    }

    #[test]
    fn a_function_that_was_left_ends_once() {
        let again = leave(5, B).1 | kind::LEFT;
        let records = [enter(1, A), enter(2, B), leave(3, B), (5, again), leave(6, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n3 1 -2000\n6 0 -1000\n");
    }

    #[test]
    fn a_core_is_told_when_it_changes_and_where_the_window_begins() {
        let on = |tsc, core: u64| (tsc, core << ADDRESS_SHIFT | kind::RESYNC | kind::CORE);
        let first = segment(1, 0, 0, &[enter(10, A), on(11, 3), on(12, 3), enter(13, B), leave(14, B)]);
        let second = Segment { core: 4, ..segment(2, 1, 1, &[leave(20, A)]) };
        assert_eq!(outline(vec![first, second], 0), "10 0 +1000\n11 1 core 3\n13 1 +2000\n14 1 -2000\n20 0 -1000\n");
        let alone = Segment { start: Start::Chunk { prev_index: 7, depth: 1 }, ..second };
        assert!(outline(vec![alone], 0).contains("core 3\n"));
    }

    #[test]
    fn lost_calls_are_told_where_they_were() {
        let records = [enter(1, A), (2, 5 << ADDRESS_SHIFT | kind::LOST), leave(3, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 lost 5\n3 0 -1000\n");
    }

    /// The records of values: `bytes` in pieces, at a time.
    fn values(tsc: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
        let pieces = bytes.chunks(6);
        let n_pieces = pieces.len() as u64;
        let word = |(place, piece): (u64, &[u8])| {
            let piece = piece.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            let n_following = (n_pieces - 1 - place) * kind::FUNCTIONS_ONE;
            (tsc, piece << ADDRESS_SHIFT | n_following | kind::VALUES | kind::RESYNC)
        };
        (0..).zip(pieces).map(word).collect()
    }

    /// Takes events with their values.
    struct WithValues<'a>(&'a mut Vec<(EventKind, u64, Vec<u8>)>);

    impl Emit for WithValues<'_> {
        type Error = Infallible;

        fn emit(&mut self, event: Event, values: &[u8]) -> Result<(), Infallible> {
            self.0.push((event.kind, event.address, values.to_vec()));
            Ok(())
        }
    }

    #[test]
    fn values_are_those_of_the_record_before_them() {
        let mut records = vec![enter(1, A)];
        records.extend(values(1, b"arguments"));
        // Filler of a chunk, and values that have lost their record.
        records.push((2, kind::VALUES | kind::RESYNC));
        records.push(enter(3, B));
        records.extend(values(4, b"others"));
        records.push(leave(4, B));
        records.push(values(4, b"an incomplete one")[0]);
        records.push(enter(5, B));
        // Its exit is missing; the result is that of A.
        records.push(leave(6, A));
        records.extend(values(6, b"result"));
        for minima in [Minima::default(), at_least(1)] {
            let task = Task { tid: 1, segments: vec![segment(1, 0, 0, &records)], open: Vec::new(), resumes: false };
            let window =
                Window { start: 0, end: 100, cut: u64::MAX, is_hidden: &|_| false, minima: &minima, done: None };
            let mut seen = Vec::new();
            decode(&task, &window, WithValues(&mut seen)).unwrap();
            let of = |kind, address, values: &[u8]| (kind, address, values.to_vec());
            let expected = [
                of(EventKind::Entry, A, b"arguments\0\0\0"),
                of(EventKind::Entry, B, b""),
                of(EventKind::Exit, B, b""),
                of(EventKind::Entry, B, b""),
                of(EventKind::Exit, B, b""),
                of(EventKind::Exit, A, b"result"),
            ];
            assert_eq!(seen, expected);
        }
    }

    const C: u64 = 0x3000;

    fn at_least(ticks: u64) -> Minima {
        Minima { changes: vec![(0, ticks)] }
    }

    #[test]
    fn what_an_open_function_means_for_its_calls_says_nothing_about_it() {
        let exit = |tsc, address, bits| (tsc, leave(tsc, address).1 | bits);
        let records = [enter(1, A), enter(2, B), exit(3, B, state::IN | state::DEPTH_ONE), exit(4, A, state::OUT)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n3 1 -2000\n4 0 -1000\n");
        // At a ring's beginning too.
        let records = [exit(3, B, state::DEPTH_ONE), exit(3, OWN, state::HIDDEN), leave(4, A)];
        assert_eq!(outline(vec![segment(7, 6, 2, &records)], 1), "3 0 +1000\n3 1 +2000\n3 1 -2000\n4 0 -1000\n");
    }

    #[test]
    fn exits_of_functions_that_were_not_recorded_are_ignored() {
        let hidden = (3, leave(3, A).1 | state::HIDDEN | state::DEPTH_ONE);
        let records = [enter(1, A), enter(2, B), hidden, leave(4, B), leave(5, A)];
        assert_eq!(outline(vec![segment(1, 0, 0, &records)], 1), "1 0 +1000\n2 1 +2000\n4 1 -2000\n5 0 -1000\n");
        let task = Task { tid: 1, segments: vec![segment(1, 0, 0, &records)], open: Vec::new(), resumes: false };
        assert_eq!(task.count_since(1), (4, 0));
        assert!(!task.has_record_since(6));
        let task = Task { tid: 1, segments: vec![segment(1, 0, 0, &[hidden])], open: Vec::new(), resumes: false };
        assert!(!task.has_record_since(1));
    }

    #[test]
    fn a_function_without_a_hooked_return_takes_no_time() {
        let point = |tsc, address| (tsc, enter(tsc, address).1 | kind::POINT);
        let records = [point(1, A), enter(2, A), point(3, B), point(4, OWN), leave(5, A)];
        let segments = vec![segment(1, 0, 0, &records)];
        assert_eq!(outline(segments.clone(), 1), "1 0 +1000\n1 0 -1000\n2 0 +1000\n3 1 +2000\n3 1 -2000\n5 0 -1000\n");
        let task = Task { tid: 1, segments, open: Vec::new(), resumes: false };
        assert_eq!(task.count_since(1), (8, 0));
        // It opens no function: the one that was open at a ring's beginning ends with the exit.
        let records = [point(3, B), leave(5, A)];
        assert_eq!(outline(vec![segment(7, 6, 1, &records)], 1), "3 0 +1000\n3 1 +2000\n3 1 -2000\n5 0 -1000\n");
    }

    #[test]
    fn short_calls_are_left_out_unless_something_is_in_them() {
        let outline = |records: &[_]| outline_with(vec![segment(1, 0, 0, records)], 1, &at_least(10));
        // B is short. C is long, so the calls around it are shown, however short; their times stay in order.
        assert_eq!(outline(&[enter(1, A), enter(2, B), leave(11, B), leave(12, A)]), "1 0 +1000\n12 0 -1000\n");
        assert_eq!(outline(&[enter(1, A), enter(2, B), leave(11, B), leave(10, A)]), "");
        let within = [enter(1, A), enter(2, B), leave(3, B), enter(4, C), leave(14, C), leave(15, A), enter(16, B)];
        assert_eq!(outline(&within), "1 0 +1000\n4 1 +3000\n14 1 -3000\n15 0 -1000\n16 0 +2000\n100 0 -2000\n");
        let point = (3, enter(3, B).1 | kind::POINT);
        assert_eq!(outline(&[enter(1, A), point, leave(4, A)]), "1 0 +1000\n3 1 +2000\n3 1 -2000\n4 0 -1000\n");
        // A call that ends with the recording.
        assert_eq!(outline(&[enter(91, A), enter(92, B)]), "");
        assert_eq!(outline(&[enter(90, A), enter(92, B)]), "90 0 +1000\n100 0 -1000\n");
    }

    #[test]
    fn a_call_has_to_last_as_long_as_when_it_ended() {
        let mut minima = Minima::default();
        minima.set(10, 0);
        minima.set(20, 5);
        minima.set(30, 0);
        let calls = [5, 15, 25, 35].map(|tsc| [enter(tsc, A), leave(tsc + 2, A)]);
        let outline = outline_with(vec![segment(1, 0, 0, calls.as_flattened())], 1, &minima);
        assert_eq!(outline, "5 0 +1000\n7 0 -1000\n15 0 +1000\n17 0 -1000\n35 0 +1000\n37 0 -1000\n");
        minima.forget_past();
        assert_eq!((minima.at(29), minima.at(31)), (0, 0));
        assert_eq!(minima.changes.len(), 1);
    }

    #[test]
    fn the_duration_of_a_call_counts_from_before_the_cycle() {
        let records = [enter(1, A), enter(15, B), leave(16, B), leave(17, A)];
        let outline = |segment| outline_with(vec![segment], 14, &at_least(10));
        assert_eq!(outline(segment(1, 0, 0, &records)), "15 0 +1000\n17 0 -1000\n");
        // When it began is not known.
        assert_eq!(outline(segment(7, 6, 1, &[leave(17, A)])), "17 0 +1000\n17 0 -1000\n");
    }
}
