//! The lines of a replay: the content of a line for a record, or for a call with both of its records.
//!
//! Not here: lines as text with columns (`replay`).

use std::borrow::Cow;
use std::collections::VecDeque;

use rftrace_read::{Kind, OffCpu, Record, Records, Result, SCHED_IN, ShownNames, Task, Trace, Warnings};

use crate::stack::{CallStack, Step};

/// A line of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// The time in nanoseconds; for a whole call or wait, its beginning.
    pub time_ns: u64,
    /// The duration in nanoseconds of the call or wait with its end here, if both ends are recorded.
    pub duration_ns: Option<u64>,
    /// The number of functions open around the line.
    pub depth: usize,
    /// The event.
    pub what: What,
    /// The offsets of the values of the call and of the return in the task's file; 0 for none.
    pub payloads: [u64; 2],
}

/// The values of a call and of its return, as text.
#[derive(serde::Serialize, serde::Deserialize, Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// The arguments, if they are recorded.
    pub arguments: Option<String>,
    /// The result, if it is recorded.
    pub result: Option<String>,
}

impl Values {
    /// Returns the text of a call with these values: `open("/etc/hosts", 0) = 3`.
    pub fn call(&self, name: &str) -> String {
        let parentheses = match &self.arguments {
            Some(arguments) => format!("({arguments})"),
            None if has_parameters(name) => String::new(),
            None => "()".to_owned(),
        };
        let result = self.result.as_ref().map_or_else(String::new, |result| format!(" = {result}"));
        format!("{name}{parentheses}{result}")
    }
}

/// Returns true if a function's name ends with its parameters, or with C++ qualifiers behind them.
fn has_parameters(name: &str) -> bool {
    let is_qualifier = |word| matches!(word, "" | "const" | "volatile" | "&" | "&&");
    name.rsplit_once(')').is_some_and(|(_, behind)| behind.split(' ').all(is_qualifier))
}

/// The event of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A function was entered.
    Enter {
        /// The recorded address in the function.
        addr: u64,
    },
    /// A function was called, and nothing was recorded in the call.
    Call {
        /// The recorded address in the function.
        addr: u64,
    },
    /// A function ended.
    Leave {
        /// The recorded address in the function.
        addr: u64,
        /// True if its exit is recorded.
        has_exit: bool,
        /// True if it was open at the end of the recording.
        did_not_return: bool,
    },
    /// An exit without a matching open function.
    StrayExit {
        /// The recorded address.
        addr: u64,
    },
    /// An event.
    Event {
        /// The event's number.
        id: u64,
        /// The kind of time without a processor, if the event is its beginning or end.
        off_cpu: Option<OffCpu>,
        /// True if the line stands for both ends of that time.
        is_whole: bool,
    },
    /// Records were lost.
    Lost {
        /// The number of lost records.
        count: u64,
    },
}

impl Line {
    /// Returns the address of the entered, called or left function; `None` for other events.
    pub fn function(&self) -> Option<u64> {
        match self.what {
            What::Enter { addr } | What::Call { addr } | What::Leave { addr, .. } | What::StrayExit { addr } => {
                Some(addr)
            }
            What::Event { .. } | What::Lost { .. } => None,
        }
    }

    /// Returns the name of the function or event; empty for an event without a name.
    pub fn name<'t>(&self, trace: &'t Trace, task: &Task) -> Cow<'t, str> {
        match self.what {
            What::Event { off_cpu: Some(kind), is_whole: true, .. } => kind.name().into(),
            What::Event { id, .. } => trace.events().name(id),
            What::Lost { .. } => "".into(),
            _ => self.function().map_or("".into(), |addr| trace.function_name(task, self.time_ns, addr)),
        }
    }

    /// Returns the [name](Self::name) for display: that of a function is one of `names`.
    pub fn shown_name<'n>(&self, name: &'n str, names: &'n mut ShownNames) -> &'n str {
        if self.function().is_some() { names.next(name) } else { name }
    }

    /// Returns the values of the line's call and return.
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

    /// Returns the line's text without indentation: code, and a comment behind it or alone. `name` is the line's
    /// [name](Self::name), or the [shown](Self::shown_name) one.
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
    /// The indentation. During the steps of a record it differs from the depth of `calls`.
    depth: usize,
    steps: Vec<Step>,
}

impl LineMaker {
    /// The open functions.
    pub(crate) fn calls(&self) -> &CallStack {
        &self.calls
    }

    /// Passes on the lines of a record. `next` is the next shown record if it is of the same task. Returns true if the
    /// lines have used it up.
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
                // The end of a wait that no record tells.
                Step::Event { .. } if record.kind != Kind::Event => continue,
                Step::Event { id, off_cpu } => {
                    line.duration_ns = off_cpu.map(|(_, ns)| ns);
                    let is_first = self.calls.off_cpu_since().is_some_and(|(_, since_ns)| since_ns == record.time_ns);
                    let begun = OffCpu::of_event(id).filter(|_| is_first);
                    let is_in = |next: &&Record| next.kind == Kind::Event && next.addr == SCHED_IN;
                    let whole = next.filter(|_| begun.is_some()).filter(is_in);
                    if let Some(next) = whole {
                        takes_next = true;
                        line.duration_ns = Some(next.time_ns.saturating_sub(record.time_ns));
                        self.calls.apply(next, |a, b| a == b, &mut Vec::new());
                    }
                    let off_cpu = begun.or(off_cpu.map(|(kind, _)| kind));
                    line.what = What::Event { id, off_cpu, is_whole: whole.is_some() };
                }
            }
            show(line);
        }
        // A copy needs none of them.
        steps.clear();
        self.steps = steps;
        takes_next
    }

    /// Returns the duration of the call just entered, if its exit comes next.
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

/// An iterator over the lines of one task's replay.
///
/// A clone continues at the same line, so occasional clones are places for a later restart.
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
    /// Creates the lines of one of the trace's tasks.
    pub fn new(trace: &'t Trace, task: &'t Task) -> Self {
        let records = trace.records(task);
        Self { trace, task, records, next: None, has_begun: false, maker: LineMaker::default(), ready: VecDeque::new() }
    }

    /// Returns the addresses of the functions open after the last line, outermost first; `None` for a function without
    /// a recorded entry.
    pub fn open(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.maker.calls().open()
    }

    /// Returns the number of functions, records and lines in the memory of a clone.
    pub fn n_held(&self) -> usize {
        self.maker.calls().n_open() + self.records.n_held() + self.ready.len()
    }

    /// Returns the flaws found so far.
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
