//! A task's call stack, rebuilt from its records.

use rftrace_read::{
    DID_NOT_RETURN, FIRST_KERNEL_ADDRESS, Kind, OffCpu, OffCpuSince, Record, SCHED_IN, Warning, Warnings, inlined,
};
use serde::{Deserialize, Serialize};

/// The maximum depth of the search for an exit's function: uftrace's deepest stack.
const MAX_SEARCH: usize = 1024;

/// The maximum number of open functions: no tracer records a deeper stack.
const MAX_DEPTH: usize = 1 << 19;

/// A change of the stack by a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A function is open without a recorded entry. Its address becomes known at its return.
    Assume {
        /// The time of the first record after its entry.
        time_ns: u64,
    },
    /// A function was entered.
    Enter {
        /// The recorded address in the function.
        addr: u64,
        /// The time in nanoseconds.
        time_ns: u64,
    },
    /// The innermost open function ended.
    Leave(EndedCall),
    /// An exit without a matching open function.
    StrayExit {
        /// The recorded address.
        addr: u64,
        /// The time in nanoseconds.
        time_ns: u64,
    },
    /// An event; or the end of a time without a processor by the next call, by a return, or by the end of the records.
    Event {
        /// The event's number; [`Trace::events`](rftrace_read::Trace::events) has the name.
        id: u64,
        /// The kind and the nanoseconds of the time without a processor, if the event ends one.
        off_cpu: Option<(OffCpu, u64)>,
    },
    /// Records were lost.
    Lost {
        /// The number of lost records.
        count: u64,
    },
}

/// A call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedCall {
    /// The recorded address. `None` for an assumed function closed without an exit.
    pub addr: Option<u64>,
    /// The end in nanoseconds.
    pub end_ns: u64,
    /// The time from the entry, or the assumed entry, to the end, in nanoseconds.
    pub total_ns: u64,
    /// The part spent neither in called functions nor without a processor.
    pub self_ns: u64,
    /// The number of recorded calls made by the function itself.
    pub n_called: u64,
    /// The number of recorded calls within it, on all levels.
    pub n_within: u64,
    /// True if its entry is recorded.
    pub has_entry: bool,
    /// True if its exit is recorded.
    pub has_exit: bool,
    /// True if it was open at the end of the recording, its end here.
    pub did_not_return: bool,
}

impl EndedCall {
    /// Returns the function's duration in nanoseconds, or `None` unless both of its ends are recorded.
    pub fn duration_ns(&self) -> Option<u64> {
        (self.has_entry && self.has_exit).then_some(self.total_ns)
    }
}

/// An open function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frame {
    /// `None` for an assumed function.
    pub(crate) addr: Option<u64>,
    /// The same for the function around it, if it is inlined.
    #[serde(skip)]
    first_addr: Option<u64>,
    pub(crate) start_ns: u64,
    /// The time of its callees, and without a processor.
    pub(crate) children_ns: u64,
    pub(crate) n_called: u64,
    pub(crate) n_within: u64,
    /// An event has said so.
    did_not_return: bool,
}

impl Frame {
    fn new(addr: Option<u64>, first_addr: Option<u64>, start_ns: u64) -> Self {
        Self { addr, first_addr, start_ns, children_ns: 0, n_called: 0, n_within: 0, did_not_return: false }
    }

    /// It ends, without an exit as far as is known here.
    pub(crate) fn end(&self, end_ns: u64) -> EndedCall {
        let total_ns = end_ns.saturating_sub(self.start_ns);
        EndedCall {
            addr: self.addr,
            end_ns,
            total_ns,
            self_ns: total_ns.saturating_sub(self.children_ns),
            n_called: self.n_called,
            n_within: self.n_within,
            has_entry: self.addr.is_some(),
            has_exit: false,
            did_not_return: self.did_not_return,
        }
    }
}

/// The open functions of a task.
///
/// Exits are matched by function, not merely by count, so one missing exit does not spoil the rest. The depth in the
/// records is used only where nothing else is known: at the start and after a loss.
#[derive(Debug, Clone)]
pub struct CallStack {
    frames: Vec<Frame>,
    /// Functions entered beyond [`MAX_DEPTH`], and left out.
    n_too_deep: u64,
    /// True if the next entry's or exit's depth says how many functions are open.
    trusts_depth: bool,
    off_cpu: OffCpuSince,
    last_ns: u64,
    warnings: Warnings,
}

impl Default for CallStack {
    fn default() -> Self {
        Self::new()
    }
}

impl CallStack {
    /// Creates a stack without known functions.
    pub fn new() -> Self {
        Self {
            frames: Vec::new(),
            n_too_deep: 0,
            trusts_depth: true,
            off_cpu: OffCpuSince::default(),
            last_ns: 0,
            warnings: Warnings::default(),
        }
    }

    /// Restores the state behind a record at this time, of records without flaws.
    pub(crate) fn restored(mut frames: Vec<Frame>, off_cpu_since: Option<(OffCpu, u64)>, last_ns: u64) -> Self {
        frames.iter_mut().for_each(|frame| frame.first_addr = frame.addr);
        Self { frames, off_cpu: OffCpuSince::new(off_cpu_since), last_ns, trusts_depth: false, ..Self::new() }
    }

    /// The open functions, outermost first.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The kind and the beginning of the task's present time without a processor, if any.
    pub(crate) fn off_cpu_since(&self) -> Option<(OffCpu, u64)> {
        self.off_cpu.get()
    }

    /// Returns the flaws found so far.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Returns the time of the last record in nanoseconds.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the number of open functions.
    pub fn n_open(&self) -> usize {
        self.frames.len()
    }

    /// Returns the addresses of the open functions, outermost first; `None` for a function without an entry.
    pub fn open(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.frames.iter().map(|frame| frame.addr)
    }

    /// Applies a record, and writes its effects into `steps`. A [`Step::Enter`] is always the last step.
    ///
    /// `same_function` returns true if two addresses lie in one function.
    pub fn apply(&mut self, record: &Record, same_function: impl Fn(u64, u64) -> bool, steps: &mut Vec<Step>) {
        steps.clear();
        let Record { time_ns, addr, .. } = *record;
        self.last_ns = time_ns;
        let off_cpu = self.off_cpu.apply(record);
        self.end_off_cpu(off_cpu.filter(|_| record.kind != Kind::Event), steps);
        if matches!(record.kind, Kind::Entry | Kind::Exit) && self.trusts_depth {
            self.trusts_depth = false;
            let n_open = usize::from(record.depth) + usize::from(record.kind == Kind::Exit);
            self.resync(n_open, time_ns, steps);
        }
        match record.kind {
            Kind::Entry if self.frames.len() >= MAX_DEPTH => {
                self.n_too_deep += 1;
                self.warnings.add(Warning::TooDeep, 1);
            }
            Kind::Exit if self.n_too_deep > 0 => self.n_too_deep -= 1,
            Kind::Entry => {
                let around = self.frames.last().and_then(|frame| frame.first_addr);
                let around = around.filter(|&first| inlined::is_inlined(first, addr, same_function));
                self.warnings.add(Warning::InlinedCall, u64::from(around.is_some()));
                let first_addr = around.or(Some(addr));
                self.frames.push(Frame::new(Some(addr), first_addr, time_ns));
                steps.push(Step::Enter { addr, time_ns });
            }
            Kind::Exit => self.exit(addr, time_ns, same_function, steps),
            Kind::Event if addr == DID_NOT_RETURN => {
                self.frames.last_mut().into_iter().for_each(|frame| frame.did_not_return = true);
            }
            Kind::Event if off_cpu.is_some() => self.end_off_cpu(off_cpu, steps),
            Kind::Event => steps.push(Step::Event { id: addr, off_cpu }),
            Kind::Lost => {
                self.trusts_depth = true;
                self.warnings.add(Warning::LostRecord, addr);
                steps.push(Step::Lost { count: addr });
            }
        }
    }

    /// Closes all open functions at this time.
    pub fn finish(&mut self, end_ns: u64, steps: &mut Vec<Step>) {
        steps.clear();
        let off_cpu = self.off_cpu.end(end_ns);
        self.end_off_cpu(off_cpu, steps);
        while let Some(ended) = self.pop(end_ns) {
            steps.push(Step::Leave(ended));
        }
    }

    fn resync(&mut self, n_open: usize, time_ns: u64, steps: &mut Vec<Step>) {
        self.n_too_deep = 0;
        while self.frames.len() > n_open {
            self.drop_innermost(time_ns, steps);
        }
        while self.frames.len() < n_open {
            self.frames.push(Frame::new(None, None, time_ns));
            steps.push(Step::Assume { time_ns });
        }
    }

    fn exit(&mut self, addr: u64, time_ns: u64, same_function: impl Fn(u64, u64) -> bool, steps: &mut Vec<Step>) {
        let matches = |frame: &Frame| frame.addr.is_none_or(|open| same_function(open, addr));
        let Some(n_missing) = self.frames.iter().rev().take(MAX_SEARCH).position(matches) else {
            self.warnings.add(Warning::StrayExit, 1);
            steps.push(Step::StrayExit { addr, time_ns });
            return;
        };
        for _ in 0..n_missing {
            self.drop_innermost(time_ns, steps);
        }
        if let Some(ended) = self.pop(time_ns) {
            let addr = ended.addr.or(Some(addr));
            steps.push(Step::Leave(EndedCall { addr, has_exit: !ended.did_not_return, ..ended }));
        }
    }

    /// Closes the innermost function without an exit.
    fn drop_innermost(&mut self, time_ns: u64, steps: &mut Vec<Step>) {
        self.warnings.add(Warning::MissingExit, 1);
        steps.extend(self.pop(time_ns).map(Step::Leave));
    }

    fn pop(&mut self, time_ns: u64) -> Option<EndedCall> {
        let frame = self.frames.pop()?;
        let ended = frame.end(time_ns);
        if let Some(parent) = self.frames.last_mut() {
            parent.children_ns = parent.children_ns.saturating_add(ended.total_ns);
            let n_calls = u64::from(is_hooked(frame.addr));
            parent.n_called += n_calls;
            parent.n_within += n_calls + frame.n_within;
        }
        Some(ended)
    }

    /// Takes the end of a time without a processor into account.
    fn end_off_cpu(&mut self, off_cpu: Option<(OffCpu, u64)>, steps: &mut Vec<Step>) {
        if let Some((_, ns)) = off_cpu {
            let around = self.frames.last_mut();
            around.into_iter().for_each(|frame| frame.children_ns = frame.children_ns.saturating_add(ns));
            steps.push(Step::Event { id: SCHED_IN, off_cpu });
        }
    }
}

/// Returns true if hooks record the call of a function: not for functions of the kernel.
pub(crate) fn is_hooked(addr: Option<u64>) -> bool {
    addr.is_some_and(|addr| addr < FIRST_KERNEL_ADDRESS)
}

#[cfg(test)]
mod tests {
    use rftrace_read::{SCHED_OUT, SCHED_OUT_PREEMPTED};

    use super::*;

    fn record(kind: Kind, time_ns: u64, depth: u16, addr: u64) -> Record {
        Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }
    }

    /// All steps of `records`; addresses of one hundred are one function.
    fn steps(records: &[Record]) -> (Vec<Step>, CallStack) {
        let mut stack = CallStack::new();
        let (mut all, mut steps) = (Vec::new(), Vec::new());
        for record in records {
            stack.apply(record, |a, b| a / 100 == b / 100, &mut steps);
            all.append(&mut steps);
        }
        (all, stack)
    }

    fn ended(addr: u64, end_ns: u64, total_ns: u64, self_ns: u64) -> EndedCall {
        EndedCall {
            addr: Some(addr),
            end_ns,
            total_ns,
            self_ns,
            n_called: 0,
            n_within: 0,
            has_entry: true,
            has_exit: true,
            did_not_return: false,
        }
    }

    #[test]
    fn an_event_says_that_a_function_did_not_return() {
        let (found, stack) = steps(&[
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Event, 20, 1, DID_NOT_RETURN),
            record(Kind::Exit, 20, 0, 100),
        ]);
        assert_eq!(
            found[1..],
            [Step::Leave(EndedCall { has_exit: false, did_not_return: true, ..ended(100, 20, 10, 10) })]
        );
        assert!(stack.warnings().is_empty());
    }

    #[test]
    fn nested_calls() {
        let (found, stack) = steps(&[
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Entry, 11, 1, 200),
            record(Kind::Exit, 14, 1, 250),
            record(Kind::Exit, 20, 0, 100),
        ]);
        let expected = [
            Step::Enter { addr: 100, time_ns: 10 },
            Step::Enter { addr: 200, time_ns: 11 },
            Step::Leave(ended(200, 14, 3, 3)),
            Step::Leave(EndedCall { n_called: 1, n_within: 1, ..ended(100, 20, 10, 7) }),
        ];
        assert_eq!(found, expected);
        assert!(stack.warnings().is_empty());
    }

    #[test]
    fn missing_exits_are_made_up() {
        let (found, stack) =
            steps(&[record(Kind::Entry, 10, 0, 100), record(Kind::Entry, 11, 1, 200), record(Kind::Exit, 20, 0, 100)]);
        assert_eq!(found[2], Step::Leave(EndedCall { has_exit: false, ..ended(200, 20, 9, 9) }));
        assert_eq!(found[3], Step::Leave(EndedCall { n_called: 1, n_within: 1, ..ended(100, 20, 10, 1) }));
        assert_eq!(stack.warnings().count(Warning::MissingExit), 1);
    }

    #[test]
    fn stray_exits_change_nothing() {
        let (found, stack) = steps(&[
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Exit, 11, 1, 900),
            record(Kind::Exit, 20, 0, 100),
            record(Kind::Exit, 30, 0, 100),
        ]);
        let expected = [
            Step::Enter { addr: 100, time_ns: 10 },
            Step::StrayExit { addr: 900, time_ns: 11 },
            Step::Leave(ended(100, 20, 10, 10)),
            Step::StrayExit { addr: 100, time_ns: 30 },
        ];
        assert_eq!(found, expected);
        assert_eq!(stack.warnings().count(Warning::StrayExit), 2);
    }

    #[test]
    fn a_trace_that_starts_inside() {
        let (found, stack) = steps(&[record(Kind::Exit, 10, 1, 200), record(Kind::Exit, 15, 0, 100)]);
        let assumed = |addr, end_ns, total_ns| {
            Step::Leave(EndedCall { has_entry: false, ..ended(addr, end_ns, total_ns, total_ns) })
        };
        let expected =
            [Step::Assume { time_ns: 10 }, Step::Assume { time_ns: 10 }, assumed(200, 10, 0), assumed(100, 15, 5)];
        assert_eq!(found, expected);
        assert!(stack.warnings().is_empty());
    }

    #[test]
    fn a_loss_resynchronises() {
        let (found, stack) = steps(&[
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Entry, 11, 1, 200),
            record(Kind::Lost, 12, 0, 5),
            record(Kind::Entry, 13, 1, 300),
            record(Kind::Lost, 14, 0, 2),
            record(Kind::Exit, 15, 2, 400),
        ]);
        assert_eq!(found[2], Step::Lost { count: 5 });
        assert_eq!(found[3], Step::Leave(EndedCall { has_exit: false, ..ended(200, 13, 2, 2) }));
        assert_eq!(found[4], Step::Enter { addr: 300, time_ns: 13 });
        assert_eq!(found[5], Step::Lost { count: 2 });
        assert_eq!(found[6], Step::Assume { time_ns: 15 });
        assert_eq!(found[7], Step::Leave(EndedCall { has_entry: false, ..ended(400, 15, 0, 0) }));
        assert_eq!(stack.open().collect::<Vec<_>>(), [Some(100), Some(300)]);
        assert_eq!(stack.warnings().count(Warning::LostRecord), 7);
    }

    #[test]
    fn time_without_a_processor_is_not_a_functions_own_time() {
        let (found, mut stack) = steps(&[
            record(Kind::Event, 1, 0, SCHED_IN),
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Event, 12, 1, SCHED_OUT),
            record(Kind::Event, 17, 1, SCHED_IN),
            record(Kind::Event, 19, 1, SCHED_OUT_PREEMPTED),
            record(Kind::Event, 20, 1, 1_000_000),
            record(Kind::Event, 22, 1, SCHED_IN),
        ]);
        assert_eq!(found[0], Step::Event { id: SCHED_IN, off_cpu: None });
        assert_eq!(found[3], Step::Event { id: SCHED_IN, off_cpu: Some((OffCpu::Waiting, 5)) });
        assert_eq!(found[5], Step::Event { id: 1_000_000, off_cpu: None });
        assert_eq!(found[6], Step::Event { id: SCHED_IN, off_cpu: Some((OffCpu::Preempted, 3)) });
        let mut rest = Vec::new();
        stack.finish(stack.last_ns(), &mut rest);
        assert_eq!(rest, [Step::Leave(EndedCall { has_exit: false, ..ended(100, 22, 12, 4) })]);
    }

    #[test]
    fn a_wait_ends_with_the_next_call_with_a_return_or_with_the_records() {
        let waited = |ns| Step::Event { id: SCHED_IN, off_cpu: Some((OffCpu::Waiting, ns)) };
        let (found, mut stack) = steps(&[
            record(Kind::Entry, 10, 0, 100),
            record(Kind::Event, 12, 1, SCHED_OUT),
            // Another switch out changes nothing.
            record(Kind::Event, 14, 1, SCHED_OUT_PREEMPTED),
            record(Kind::Entry, 17, 1, 200),
            record(Kind::Event, 18, 2, SCHED_OUT),
            record(Kind::Event, 28, 2, DID_NOT_RETURN),
            record(Kind::Exit, 28, 1, 200),
            record(Kind::Event, 29, 1, SCHED_OUT),
        ]);
        assert_eq!(found[3..5], [waited(5), Step::Enter { addr: 200, time_ns: 17 }]);
        let open = EndedCall { has_exit: false, did_not_return: true, ..ended(200, 28, 11, 1) };
        assert_eq!(found[6..8], [waited(10), Step::Leave(open)]);
        let mut rest = Vec::new();
        stack.finish(33, &mut rest);
        let outer = EndedCall { has_exit: false, n_called: 1, n_within: 1, ..ended(100, 33, 23, 3) };
        assert_eq!(rest, [waited(4), Step::Leave(outer)]);
    }
}
