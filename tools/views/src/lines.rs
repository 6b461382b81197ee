//! The lines of a replay: what a record, or a call of which both records are at hand, is shown as.
//!
//! Not here: lines as text with columns (`replay`).

use std::borrow::Cow;
use std::collections::VecDeque;

use rftrace_read::{
    Kind, Record, Records, Result, SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, SCHEDULE, SCHEDULE_PREEMPTED, Task, Trace,
    Warnings,
};

use crate::stack::{CallStack, Step};

/// A line of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// When it happened; a whole call or wait, when it began.
    pub time_ns: u64,
    /// How long the call or wait took that it ends, where both ends are recorded.
    pub duration_ns: Option<u64>,
    /// How many functions are open around it.
    pub depth: usize,
    /// The event on the line.
    pub what: What,
    /// Where the values of the call are in the task's file, and those of the return; 0 for none.
    pub payloads: [u64; 2],
}

/// The values of a call and of its return, as text.
#[derive(serde::Serialize, serde::Deserialize, Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// The arguments, if any are recorded.
    pub arguments: Option<String>,
    /// The result, if it is recorded.
    pub result: Option<String>,
}

impl Values {
    /// A call of the function with this name, as a replay shows it: `open("/etc/hosts", 0) = 3`.
    pub fn call(&self, name: &str) -> String {
        let parentheses = match &self.arguments {
            Some(arguments) => format!("({arguments})"),
            None if name.ends_with(')') => String::new(),
            None => "()".to_owned(),
        };
        let result = self.result.as_ref().map_or_else(String::new, |result| format!(" = {result}"));
        format!("{name}{parentheses}{result}")
    }
}

/// The event that a line tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A function was entered.
    Enter {
        /// The address in it that was recorded.
        addr: u64,
    },
    /// A function was called, and nothing was recorded in the call.
    Call {
        /// The address in it that was recorded.
        addr: u64,
    },
    /// A function ended.
    Leave {
        /// The address in it that was recorded.
        addr: u64,
        /// True if its exit is among the records.
        has_exit: bool,
        /// True if it was open at the end of the recording.
        did_not_return: bool,
    },
    /// An exit that fits no open function.
    StrayExit {
        /// The address that was recorded.
        addr: u64,
    },
    /// An event.
    Event {
        /// Its number.
        id: u64,
        /// True if it stands for both halves of a context switch.
        is_whole: bool,
    },
    /// Records were lost.
    Lost {
        /// How many.
        count: u64,
    },
}

impl Line {
    /// The address of the function that was entered, called or left.
    pub fn function(&self) -> Option<u64> {
        match self.what {
            What::Enter { addr } | What::Call { addr } | What::Leave { addr, .. } | What::StrayExit { addr } => {
                Some(addr)
            }
            What::Event { .. } | What::Lost { .. } => None,
        }
    }

    /// The name of the function or event; empty for what has none.
    pub fn name<'t>(&self, trace: &'t Trace, task: &Task) -> Cow<'t, str> {
        match self.what {
            What::Event { id: SCHED_OUT, is_whole: true } => SCHEDULE.into(),
            What::Event { id: SCHED_OUT_PREEMPTED, is_whole: true } => SCHEDULE_PREEMPTED.into(),
            What::Event { id, .. } => trace.events().name(id),
            What::Lost { .. } => "".into(),
            _ => self.function().map_or("".into(), |addr| trace.function_name(task, self.time_ns, addr)),
        }
    }

    /// The values of the call and of the return, as far as the line tells of them.
    ///
    /// # Errors
    ///
    /// The task's file cannot be read.
    pub fn values(&self, trace: &Trace, task: &Task) -> Result<Values> {
        let Some(addr) = self.function().filter(|_| self.payloads != [0, 0]) else { return Ok(Values::default()) };
        let read = |kind, payload_at| {
            let record = Record { time_ns: self.time_ns, kind, has_payload: true, payload_at, depth: 0, addr };
            let values = trace.values(task, &record)?;
            Ok((!values.is_empty()).then(|| values.join(", ")))
        };
        let [arguments, result] = self.payloads;
        Ok(Values { arguments: read(Kind::Entry, arguments)?, result: read(Kind::Exit, result)? })
    }

    /// Its text, without indentation: code, and a comment behind that or alone. `name` is that of the line.
    pub fn text(&self, name: &str, values: &Values) -> (String, Option<String>) {
        match self.what {
            What::Enter { .. } => (format!("{} {{", values.call(name)), None),
            What::Call { .. } => (format!("{};", values.call(name)), None),
            What::Leave { has_exit: true, .. } => {
                let end = values.result.as_ref().map_or_else(|| "}".to_owned(), |result| format!("}} = {result};"));
                (end, Some(name.to_owned()))
            }
            What::Leave { did_not_return: true, .. } => ("}".into(), Some(format!("{name}: did not return"))),
            What::Leave { has_exit: false, .. } => ("}".into(), Some(format!("{name}: exit not recorded"))),
            What::StrayExit { .. } => (String::new(), Some(format!("{name}: exit without entry"))),
            What::Event { .. } => (String::new(), Some(name.to_owned())),
            What::Lost { count } => (String::new(), Some(format!("LOST {count} records"))),
        }
    }
}

/// Makes lines of a task's records.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineMaker {
    calls: CallStack,
    /// How far to indent: while the steps of a record are shown, that is not yet the depth of `calls`.
    depth: usize,
    steps: Vec<Step>,
}

impl LineMaker {
    /// The functions that are open.
    pub(crate) fn calls(&self) -> &CallStack {
        &self.calls
    }

    /// Passes on the lines of a record. Of them may be `next`, which comes next of all that is shown and is of the same task: then
    /// it is used up, and true is returned.
    pub(crate) fn apply(
        &mut self,
        (trace, task): (&Trace, &Task),
        record: &Record,
        next: Option<&Record>,
        mut show: impl FnMut(Line),
    ) -> bool {
        let mut steps = std::mem::take(&mut self.steps);
        let same_function = |a, b| trace.same_function(task, record.time_ns, a, b);
        self.calls.apply(record, same_function, &mut steps);
        let mut takes_next = false;
        for step in &steps {
            let mut line = Line {
                time_ns: record.time_ns,
                duration_ns: None,
                depth: self.depth,
                what: What::Lost { count: 0 },
                payloads: [0, 0],
            };
            match *step {
                Step::Assume { .. } => {
                    self.depth += 1;
                    continue;
                }
                Step::Enter { addr, .. } => {
                    let is_exit = |next: &&Record| {
                        next.kind == Kind::Exit && trace.same_function(task, next.time_ns, addr, next.addr)
                    };
                    match next.filter(is_exit) {
                        Some(exit) => {
                            takes_next = true;
                            line.what = What::Call { addr };
                            line.payloads = [record.payload_at, exit.payload_at];
                            line.duration_ns = self.end_call((trace, task), exit);
                        }
                        None => {
                            line.what = What::Enter { addr };
                            line.payloads = [record.payload_at, 0];
                            self.depth += 1;
                        }
                    }
                }
                Step::Leave(ended) => {
                    self.depth = self.depth.saturating_sub(1);
                    line.depth = self.depth;
                    // No record names it.
                    let Some(addr) = ended.addr else { continue };
                    line.what = What::Leave { addr, has_exit: ended.has_exit, did_not_return: ended.did_not_return };
                    line.payloads = [0, if ended.has_exit { record.payload_at } else { 0 }];
                    line.duration_ns = ended.duration_ns();
                }
                Step::StrayExit { addr, .. } => line.what = What::StrayExit { addr },
                Step::Lost { count } => line.what = What::Lost { count },
                Step::Event { id, waited_ns } => {
                    line.duration_ns = waited_ns;
                    let is_in = |next: &&Record| next.kind == Kind::Event && next.addr == SCHED_IN;
                    let whole = next.filter(|_| matches!(id, SCHED_OUT | SCHED_OUT_PREEMPTED)).filter(is_in);
                    if let Some(next) = whole {
                        takes_next = true;
                        line.duration_ns = Some(next.time_ns.saturating_sub(record.time_ns));
                        self.calls.apply(next, |a, b| a == b, &mut Vec::new());
                    }
                    line.what = What::Event { id, is_whole: whole.is_some() };
                }
            }
            show(line);
        }
        // A copy needs none of them.
        steps.clear();
        self.steps = steps;
        takes_next
    }

    /// The exit of the function that was just entered comes next: how long it took.
    fn end_call(&mut self, (trace, task): (&Trace, &Task), exit: &Record) -> Option<u64> {
        let same_function = |a, b| trace.same_function(task, exit.time_ns, a, b);
        let mut steps = Vec::new();
        self.calls.apply(exit, same_function, &mut steps);
        steps.iter().find_map(|step| match step {
            Step::Leave(ended) => ended.duration_ns(),
            _ => None,
        })
    }
}

/// The lines of one task's replay.
///
/// A copy goes on where the original is, so what was copied now and then is where to begin again.
#[derive(Debug, Clone)]
pub struct TaskLines<'t> {
    trace: &'t Trace,
    task: &'t Task,
    records: Records<'t>,
    /// The next record; `None` before the first one and behind the last one.
    next: Option<Record>,
    has_begun: bool,
    maker: LineMaker,
    ready: VecDeque<Line>,
}

impl<'t> TaskLines<'t> {
    /// Those of one of the trace's tasks.
    pub fn new(trace: &'t Trace, task: &'t Task) -> Self {
        let records = trace.records(task);
        Self { trace, task, records, next: None, has_begun: false, maker: LineMaker::default(), ready: VecDeque::new() }
    }

    /// The addresses of the functions that are open after the last line, outermost first; `None` for one whose entry is not among
    /// the records.
    pub fn open(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.maker.calls().open()
    }

    /// How many functions, records and lines a copy would have in memory.
    pub fn n_held(&self) -> usize {
        self.maker.calls().n_open() + self.records.n_held() + self.ready.len()
    }

    /// The flaws met up to here.
    pub fn warnings(&self) -> Warnings {
        let mut warnings = self.records.warnings().clone();
        warnings.merge(self.maker.calls().warnings());
        warnings
    }
}

impl Iterator for TaskLines<'_> {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(Ok(line));
            }
            if !self.has_begun {
                self.has_begun = true;
                match self.records.next().transpose() {
                    Ok(first) => self.next = first,
                    Err(error) => return Some(Err(error)),
                }
            }
            let record = self.next.take()?;
            let mut advance = || self.records.next().transpose();
            self.next = match advance() {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            let ready = &mut self.ready;
            if self.maker.apply((self.trace, self.task), &record, self.next.as_ref(), |line| ready.push_back(line)) {
                self.next = match self.records.next().transpose() {
                    Ok(next) => next,
                    Err(error) => return Some(Err(error)),
                };
            }
        }
    }
}
