//! A choice of records: some functions, a range of time, a minimum duration.
//!
//! A task's records pass through a [`Chooser`]. It leaves out whole calls, entry and exit, and counts depths anew. So a
//! reader of records sees the chosen part without further work.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rftrace_format::events::SCHED_IN;
use rftrace_format::record::{Kind, Record};
use rftrace_pattern::Pattern;

use crate::off_cpu::{OffCpu, OffCpuSince};

/// The chosen part of a trace. All conditions must hold.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Choice {
    /// The only shown functions, with their calls; empty for all functions.
    pub below: Vec<Pattern>,
    /// The functions to leave out with their calls.
    pub not_below: Vec<Pattern>,
    /// The maximum number of levels, from the outermost function on, or from those in `below`.
    pub depth: usize,
    /// The minimum duration of calls, and of times without a processor, in nanoseconds.
    pub min_ns: u64,
    /// The shown time, in nanoseconds of the trace's clock. Functions open at its beginning are entered then; those
    /// open at its end return then. Times without a processor begin and end with it too.
    pub times: Range<u64>,
}

impl Default for Choice {
    /// Everything.
    fn default() -> Self {
        Self { below: Vec::new(), not_below: Vec::new(), depth: usize::MAX, min_ns: 0, times: 0..u64::MAX }
    }
}

impl Choice {
    /// True if it leaves something out.
    pub(crate) fn is_part(&self) -> bool {
        !self.is_of_times() || self.times != (0..u64::MAX)
    }

    /// True if it leaves out nothing but times.
    fn is_of_times(&self) -> bool {
        let Self { below, not_below, depth, min_ns, times: _ } = self;
        below.is_empty() && not_below.is_empty() && *depth == usize::MAX && *min_ns == 0
    }

    /// The times, if nothing else is left out.
    pub(crate) fn times_alone(&self) -> Option<Range<u64>> {
        self.is_of_times().then(|| self.times.clone())
    }
}

/// The trace's knowledge about a task's records.
pub(crate) trait Names {
    /// The name of the function at an address, borrowed if it has one.
    fn function(&self, time_ns: u64, addr: u64) -> Cow<'_, str>;
    /// True if two addresses lie in one function.
    fn same_function(&self, time_ns: u64, a: u64, b: u64) -> bool;
    /// Returns true for the event of a loss. Losses are always shown.
    fn is_loss(&self, event: u64) -> bool;
}

/// An open function.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// `None`: its entry is not among the records.
    addr: Option<u64>,
    /// The time of its entry, or of its discovery as an open function.
    entered_ns: u64,
    /// Functions in it may be shown.
    is_in: bool,
    /// It, or one around it, is among `not_below`.
    is_out: bool,
    /// The level below the beginning of the count.
    level: usize,
    is_shown: bool,
    /// The place of its entry among the waiting records, if it waits: the call may turn out to be too short.
    waits_at: Option<usize>,
}

/// The lists of a choice with a function.
#[derive(Debug, Clone, Copy, Default)]
struct Listed {
    below: bool,
    not_below: bool,
}

/// The choice's verdict on functions, by the places of their names. A copy begins empty and finds them anew.
#[derive(Debug, Default)]
struct KnownNames(HashMap<(usize, usize), Listed>);

impl Clone for KnownNames {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Takes a task's records, in order of time, and returns the shown ones.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    choice: Arc<Choice>,
    open: Vec<Frame>,
    /// The number of shown functions among the open ones.
    n_shown: usize,
    /// The shown functions with waiting entries, by their places in `open`. They are the innermost.
    waiting_calls: VecDeque<usize>,
    /// The choice's verdict on functions, by the places of their names.
    listed: KnownNames,
    /// Records to show, unless the call around them turns out to be too short.
    waiting: Vec<Record>,
    chosen: VecDeque<Record>,
    /// The next record's depth is the number of open functions.
    trusts_depth: bool,
    off_cpu: OffCpuSince,
    /// The place of the beginning of a time without a processor among the waiting records, if it waits: the time may be too short. Then
    /// no call waits behind it.
    off_cpu_waits_at: Option<usize>,
    /// The shown time has begun.
    has_begun: bool,
    has_ended: bool,
    last_ns: u64,
}

impl Chooser {
    /// The maximum depth of open functions, and of the search for the function of an exit.
    const MAX_DEPTH: usize = 1 << 19;
    const MAX_SEARCH: usize = 1024;

    pub(crate) fn new(choice: Arc<Choice>) -> Self {
        Self {
            choice,
            open: Vec::new(),
            n_shown: 0,
            waiting_calls: VecDeque::new(),
            listed: KnownNames::default(),
            waiting: Vec::new(),
            chosen: VecDeque::new(),
            trusts_depth: true,
            off_cpu: OffCpuSince::default(),
            off_cpu_waits_at: None,
            has_begun: false,
            has_ended: false,
            last_ns: 0,
        }
    }

    /// True if all is left out until a function in `below` is entered.
    pub(crate) fn is_idle(&self) -> bool {
        !self.choice.below.is_empty() && !self.waits() && self.open.last().is_none_or(|frame| !frame.is_in)
    }

    /// Drops the shown records, for callers that need the open functions alone.
    pub(crate) fn forget_chosen(&mut self) {
        self.chosen.clear();
    }

    /// The open functions, as a copy would begin with: addresses with times of entry.
    pub(crate) fn open(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.open.iter().map(|frame| (frame.addr, frame.entered_ns))
    }

    /// Returns true if the next record's depth is the number of open functions.
    pub(crate) fn trusts_depth(&self) -> bool {
        self.trusts_depth
    }

    /// Goes on elsewhere, with these functions open. Requires that no shown function is open here, or that the shown
    /// time has not begun.
    pub(crate) fn restart(&mut self, open: &[(Option<u64>, u64)], trusts_depth: bool, names: &impl Names) {
        self.open.clear();
        self.n_shown = 0;
        self.trusts_depth = trusts_depth;
        // A task with a record there has a processor.
        self.off_cpu = OffCpuSince::default();
        self.off_cpu_waits_at = None;
        for &(addr, entered_ns) in open.iter().take(Self::MAX_DEPTH) {
            let listed = addr.map_or(Listed::default(), |addr| self.listed(entered_ns, addr, names));
            let frame = self.frame(addr, entered_ns, listed);
            self.n_shown += usize::from(frame.is_shown);
            self.open.push(frame);
        }
    }

    /// If the shown time has begun before this record, open functions count as shown.
    pub(crate) fn begin_before(&mut self, last_ns: u64) {
        self.has_begun |= last_ns >= self.choice.times.start;
    }

    /// Returns true if a record waits for the decision.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.chosen.is_empty()
    }

    /// Returns the number of functions and records in memory.
    pub(crate) fn n_held(&self) -> usize {
        self.open.len() + self.waiting.len() + self.chosen.len()
    }

    /// Returns the next shown record, if it is decided yet.
    pub(crate) fn next(&mut self) -> Option<Record> {
        self.chosen.pop_front()
    }

    /// True if all further records are left out.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The next record of the task.
    pub(crate) fn apply(&mut self, record: Record, names: &impl Names) {
        if self.has_ended {
            return;
        }
        // There may be no record in all the time that is shown: what is open then is so for all of it.
        if !self.has_begun && record.time_ns >= self.choice.times.start && !self.choice.times.is_empty() {
            self.begin();
        }
        if record.time_ns >= self.choice.times.end {
            return self.end();
        }
        self.last_ns = record.time_ns;
        self.release_long(record.time_ns);
        let is_short = self.off_cpu.apply(&record).is_some_and(|(_, ns)| !self.end_off_cpu(ns));
        if matches!(record.kind, Kind::Entry | Kind::Exit) && std::mem::take(&mut self.trusts_depth) {
            let n_open = usize::from(record.depth) + usize::from(record.kind == Kind::Exit);
            self.assume(n_open, record.time_ns);
        }
        match record.kind {
            Kind::Entry => self.enter(&record, names),
            Kind::Exit => self.exit(&record, names),
            Kind::Event if OffCpu::of_event(record.addr).is_some() => self.begin_off_cpu(record),
            Kind::Event => {
                if !is_short && (self.is_visible() || names.is_loss(record.addr)) {
                    self.show(record);
                }
            }
            Kind::Lost => {
                self.trusts_depth = true;
                // Nobody can tell how long what is open takes.
                self.end_off_cpu(u64::MAX);
                self.release(self.waiting_calls.len());
                self.show(record);
            }
        }
    }

    /// Ends the records: shows open calls with a sufficient duration until now.
    pub(crate) fn finish(&mut self) {
        self.release_long(self.last_ns);
        if let Some((_, ns)) = self.off_cpu.end(self.last_ns) {
            self.end_off_cpu(ns);
        }
        self.has_ended = true;
    }

    /// True if events of the innermost function are shown.
    fn is_visible(&self) -> bool {
        self.open.last().map_or(self.choice.below.is_empty(), |frame| frame.is_shown)
    }

    /// Creates the frame of a function at its entry.
    fn frame(&self, addr: Option<u64>, time_ns: u64, listed: Listed) -> Frame {
        let around = self.open.last();
        let was_in = around.map_or(self.choice.below.is_empty(), |frame| frame.is_in);
        let is_out = around.is_some_and(|frame| frame.is_out) || listed.not_below;
        let is_in = was_in || (!is_out && listed.below);
        let level = if was_in { around.map_or(0, |frame| frame.level.saturating_add(1)) } else { 0 };
        let is_shown = is_in && !is_out && level < self.choice.depth;
        Frame { addr, entered_ns: time_ns, is_in, is_out, level, is_shown, waits_at: None }
    }

    /// The choice's verdict on the function at an address.
    fn listed(&mut self, time_ns: u64, addr: u64, names: &impl Names) -> Listed {
        let Choice { below, not_below, .. } = &*self.choice;
        if below.is_empty() && not_below.is_empty() {
            return Listed::default();
        }
        let look = |name: &str| Listed {
            below: below.iter().any(|pattern| pattern.matches(name)),
            not_below: not_below.iter().any(|pattern| pattern.matches(name)),
        };
        match names.function(time_ns, addr) {
            Cow::Borrowed(name) => {
                *self.listed.0.entry((name.as_ptr().addr(), name.len())).or_insert_with(|| look(name))
            }
            Cow::Owned(name) => look(&name),
        }
    }

    fn enter(&mut self, record: &Record, names: &impl Names) {
        if self.open.len() >= Self::MAX_DEPTH {
            return;
        }
        let listed = self.listed(record.time_ns, record.addr, names);
        let frame = self.frame(Some(record.addr), record.time_ns, listed);
        self.open.push(frame);
        if frame.is_shown {
            self.show_entry(self.open.len() - 1, Record { depth: depth(self.n_shown), ..*record });
            self.n_shown += 1;
        }
    }

    /// Shows the entry of the open function at `place`, if it is known to take long enough.
    fn show_entry(&mut self, place: usize, entry: Record) {
        if !self.has_begun {
            return;
        }
        if self.choice.min_ns == 0 {
            return self.chosen.push_back(entry);
        }
        self.open[place].waits_at = Some(self.waiting.len());
        self.waiting_calls.push_back(place);
        self.waiting.push(entry);
    }

    fn exit(&mut self, record: &Record, names: &impl Names) {
        let same = |frame: &Frame| frame.addr.is_none_or(|addr| names.same_function(record.time_ns, addr, record.addr));
        let Some(n_missing) = self.open.iter().rev().take(Self::MAX_SEARCH).position(same) else {
            // It fits nothing: readers tell of that.
            if self.is_visible() {
                self.show(*record);
            }
            return;
        };
        for _ in 0..n_missing {
            self.pop(record.time_ns);
        }
        if let Some(frame) = self.pop(record.time_ns)
            && frame.is_shown
        {
            self.show(*record);
        }
    }

    /// Takes the innermost function off; it is shown no more if it took too short a time.
    fn pop(&mut self, time_ns: u64) -> Option<Frame> {
        let mut frame = self.open.pop()?;
        self.n_shown -= usize::from(frame.is_shown);
        if let Some(place) = frame.waits_at {
            // Whatever took long enough waits no more.
            debug_assert!(time_ns.saturating_sub(frame.entered_ns) < self.choice.min_ns);
            self.waiting.truncate(place);
            self.waiting_calls.pop_back();
            frame.is_shown = false;
        }
        Some(frame)
    }

    /// Sets the number of open functions, in spite of earlier knowledge.
    fn assume(&mut self, n_open: usize, time_ns: u64) {
        while self.open.len() > n_open {
            self.pop(time_ns);
        }
        while self.open.len() < n_open.min(Self::MAX_DEPTH) {
            let frame = self.frame(None, time_ns, Listed::default());
            self.n_shown += usize::from(frame.is_shown);
            self.open.push(frame);
        }
    }

    /// Shows the entries of open functions with a sufficient duration, and the records between them.
    fn release_long(&mut self, now_ns: u64) {
        let is_long = |frame: &Frame| now_ns.saturating_sub(frame.entered_ns) >= self.choice.min_ns;
        let n_long = self.waiting_calls.iter().take_while(|&&place| is_long(&self.open[place])).count();
        if n_long > 0 {
            self.release(n_long);
        }
    }

    /// Shows the entries of the next `n_calls` waiting functions, and the records before the following one.
    fn release(&mut self, n_calls: usize) {
        for place in self.waiting_calls.drain(..n_calls) {
            self.open[place].waits_at = None;
        }
        let next = self.waiting_calls.front().and_then(|&place| self.open[place].waits_at).or(self.off_cpu_waits_at);
        let n_released = next.unwrap_or(self.waiting.len());
        self.chosen.extend(self.waiting.drain(..n_released));
        for &place in &self.waiting_calls {
            let frame = &mut self.open[place];
            frame.waits_at = frame.waits_at.map(|place| place - n_released);
        }
        self.off_cpu_waits_at = self.off_cpu_waits_at.map(|place| place - n_released);
    }

    /// Shows the beginning of a time without a processor, if it is visible and turns out to be long enough.
    fn begin_off_cpu(&mut self, event: Record) {
        if !self.has_begun || !self.is_visible() || self.off_cpu_waits_at.is_some() {
            return;
        }
        self.off_cpu_waits_at = (self.choice.min_ns > 0).then_some(self.waiting.len());
        self.show(event);
    }

    /// Decides about a time without a processor that took so long. Returns true if its end is shown, too.
    fn end_off_cpu(&mut self, ns: u64) -> bool {
        let Some(place) = self.off_cpu_waits_at.take() else { return true };
        let is_long = ns >= self.choice.min_ns;
        if !is_long {
            self.waiting.remove(place);
        }
        if self.waiting_calls.is_empty() {
            self.chosen.extend(self.waiting.drain(..));
        }
        is_long
    }

    /// Shows a record other than an entry, unless a call around it turns out to be too short.
    fn show(&mut self, record: Record) {
        let record = Record { depth: depth(self.n_shown), ..record };
        if !self.has_begun {
            return;
        }
        let waits = !self.waiting_calls.is_empty() || self.off_cpu_waits_at.is_some();
        if waits { self.waiting.push(record) } else { self.chosen.push_back(record) }
    }

    /// Begins the shown time: enters the open functions, and goes on with a time without a processor.
    fn begin(&mut self) {
        self.has_begun = true;
        let time_ns = self.choice.times.start;
        let mut n_around = 0;
        for place in 0..self.open.len() {
            let Frame { addr, is_shown, .. } = self.open[place];
            if let Some(addr) = addr.filter(|_| is_shown) {
                let depth = depth(n_around);
                self.show_entry(
                    place,
                    Record { time_ns, kind: Kind::Entry, has_payload: false, payload_at: 0, depth, addr },
                );
            }
            n_around += usize::from(is_shown);
        }
        if let Some((kind, _)) = self.off_cpu.get() {
            self.begin_off_cpu(event(time_ns, kind.event()));
        }
    }

    /// Ends the shown time, a time without a processor, and the open functions.
    fn end(&mut self) {
        let time_ns = self.choice.times.end;
        self.release_long(time_ns);
        if let Some((_, ns)) = self.off_cpu.end(time_ns)
            && self.end_off_cpu(ns)
            && self.is_visible()
        {
            self.show(event(time_ns, SCHED_IN));
        }
        while let Some(frame) = self.pop(time_ns) {
            if frame.is_shown
                && self.has_begun
                && let Some(addr) = frame.addr
            {
                let depth = depth(self.n_shown);
                self.chosen.push_back(Record {
                    time_ns,
                    kind: Kind::Exit,
                    has_payload: false,
                    payload_at: 0,
                    depth,
                    addr,
                });
            }
        }
        self.has_ended = true;
    }
}

/// An event at an edge of the time.
fn event(time_ns: u64, addr: u64) -> Record {
    Record { time_ns, kind: Kind::Event, has_payload: false, payload_at: 0, depth: 0, addr }
}

fn depth(n_open: usize) -> u16 {
    u16::try_from(n_open).unwrap_or(u16::MAX)
}
