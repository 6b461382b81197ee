//! A trace's calls, packed for the page.
//!
//! ```text
//! "rfpage1\n"
//! length of the JSON   u32, little-endian
//! JSON                 `Head`
//! of each task, in the order of `Head::tasks`:
//!   events             `TaskHead::bytes`
//!   values             `TaskHead::values`
//! ```
//!
//! An event is two numbers (LEB128): 0 for an exit, or 1 and the index of the function that is entered; then the nanoseconds since
//! the task's event before, the first time since `Head::base`. Entries and exits are balanced, as a call stack has them. A call takes
//! five bytes or so.
//!
//! Few calls have values, so these are apart. Of each depth, from the outermost one on, there is the number of calls with values, and of
//! each of those three numbers: how many calls of this depth are between it and the one before; its arguments and its result, each as an
//! index of `Head::values` plus 1, or 0 for none.

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_read::{Record, SCHEDULE, Summary, Task, Trace};
use rftrace_views::{AssumedFunctions, Step, TaskStats, walk_with_records};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::values::{CallValues, MAX_TEXTS, Texts};

/// The most calls of a page: 1.6 GB in the browser, and some 320 MB here.
pub const MAX_CALLS: u64 = 1 << 26;

/// The most names. Where addresses have none there may be any number of them.
const MAX_FUNCTIONS: usize = 1 << 20;

/// The most bytes of them all.
const MAX_NAMES_BYTES: usize = 256 << 20;

/// What has the calls of all further functions. `rftrace report` calls it the same.
const OTHERS: &str = "(other functions)";

/// A function that no record names. Its callers' own time is right only if its time is known.
const UNKNOWN: &str = "(unknown)";

/// JavaScript counts exactly up to here.
const MAX_NS: u64 = 1 << 53;

const MAGIC: &[u8; 8] = b"rfpage1\n";

/// What a page shows.
#[derive(Debug)]
pub struct Page {
    head: Head,
    /// The events of all tasks, and their values.
    events: Vec<u8>,
    /// How many arguments and results are left out.
    n_lost_values: u64,
    summary: Summary,
}

/// What the page knows before the calls.
#[derive(Debug, Serialize)]
struct Head {
    title: String,
    /// The version of this crate.
    version: &'static str,
    /// Time 0 of the page, in nanoseconds of the trace's clock. A text: it may be more than JavaScript counts.
    base: String,
    /// The first record and the last one, since `base`.
    begin: u64,
    end: u64,
    /// Their names.
    functions: Vec<String>,
    /// What calls have as arguments, and what as results; each text once.
    values: Vec<String>,
    /// Of the functions, time without a processor.
    schedule: Option<usize>,
    tasks: Vec<TaskHead>,
    /// What is to be said of the trace: lines.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TaskHead {
    tid: u32,
    pid: u32,
    name: String,
    process: String,
    /// The length of its events.
    bytes: usize,
    /// The length of its values.
    values: usize,
    /// How many calls it has at each depth.
    depths: Vec<u32>,
}

impl Page {
    /// Packs the part of `trace` that is chosen. No more than `max_calls`, nor more than [`MAX_CALLS`], are taken.
    ///
    /// Calls, and their times, are those of [`Report`](rftrace_views::Report): time without a processor is a call of
    /// `linux:schedule`, and what is open at the end ends with the last record. A function that no record names, which has no row in
    /// a report, is `(unknown)`.
    ///
    /// # Errors
    ///
    /// A file of the trace cannot be read, or there is more than a page holds.
    pub fn read(trace: &Trace, title: &str, max_calls: u64) -> Result<Self> {
        let base_ns = trace.start_ns()?.unwrap_or(0);
        let mut packer = Packer {
            trace,
            base_ns,
            n_calls: 0,
            max_calls: max_calls.min(MAX_CALLS),
            events: Vec::new(),
            functions: Vec::new(),
            names_bytes: 0,
            idx_of_name: HashMap::new(),
            texts: Texts::default(),
            nameless_calls: 0,
        };
        let (mut begin, mut end) = (u64::MAX, 0);
        let mut summary = Summary::default();
        let mut tasks = Vec::new();
        for task in trace.tasks() {
            let (head, stats) = packer.add_task(task, &mut summary)?;
            if stats.records > 0 {
                begin = begin.min(stats.first_ns.saturating_sub(base_ns));
                end = end.max(stats.last_ns.saturating_sub(base_ns));
            }
            if !head.depths.is_empty() {
                tasks.push(head);
            }
        }
        if end >= MAX_NS {
            return Err(Error::TooLong);
        }
        summary.nameless_calls = packer.nameless_calls;
        let schedule = packer.idx_of_name.get(SCHEDULE).copied();
        let head = Head {
            title: title.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            base: base_ns.to_string(),
            begin: begin.min(end),
            end,
            functions: packer.functions,
            values: packer.texts.texts,
            schedule,
            tasks,
            notes: Vec::new(),
        };
        Ok(Self { head, events: packer.events, n_lost_values: packer.texts.n_lost, summary })
    }

    /// Lines that the page shows: what is missing in the trace. What is missing in the page alone is told behind them.
    pub fn set_notes(&mut self, notes: Vec<String>) {
        self.head.notes = notes;
        if self.n_lost_values > 0 {
            let lost = self.n_lost_values;
            self.head
                .notes
                .push(format!("{lost} arguments and results are not in the page: it holds {MAX_TEXTS} different ones"));
        }
    }

    /// How much was read, and the flaws in it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The number of calls.
    pub fn n_calls(&self) -> u64 {
        self.head.tasks.iter().flat_map(|task| &task.depths).map(|&count| u64::from(count)).sum()
    }

    /// All in one piece, but for the events, which follow: they are most of it.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<u8>) {
        let start = self.start();
        (start, self.events)
    }

    /// What is before the events.
    pub(crate) fn start(&self) -> Vec<u8> {
        let json = serde_json::to_vec(&self.head).expect("maps with keys of text, numbers and texts");
        let length = u32::try_from(json.len()).expect("320 MiB of names and values, each byte six at the most");
        [MAGIC.as_slice(), &length.to_le_bytes(), &json].concat()
    }

    pub(crate) fn events(&self) -> &[u8] {
        &self.events
    }
}

struct Packer<'t> {
    trace: &'t Trace,
    base_ns: u64,
    n_calls: u64,
    max_calls: u64,
    events: Vec<u8>,
    functions: Vec<String>,
    names_bytes: usize,
    idx_of_name: HashMap<String, usize>,
    texts: Texts,
    nameless_calls: u64,
}

impl Packer<'_> {
    fn add_task(&mut self, task: &Task, summary: &mut Summary) -> Result<(TaskHead, TaskStats)> {
        let before = self.events.len();
        let trace = self.trace;
        let mut assumed = AssumedFunctions::new(trace, task);
        let mut calls = TaskCalls { last_ns: self.base_ns, n_open: 0, depths: Vec::new(), values: Vec::new() };
        let walked = walk_with_records(trace, task, None, |step, now_ns, record| {
            self.apply(task, &mut calls, &mut assumed, (step, now_ns, record))
        })?;
        walked.add_to(summary);
        let bytes = self.events.len() - before;
        self.pack_values(&calls);
        let head = TaskHead {
            tid: task.tid(),
            pid: task.pid(),
            name: task.name().to_owned(),
            process: task.process_name().to_owned(),
            bytes,
            values: self.events.len() - before - bytes,
            depths: calls.depths,
        };
        Ok((head, walked.stats))
    }

    fn apply(
        &mut self,
        task: &Task,
        calls: &mut TaskCalls,
        assumed: &mut AssumedFunctions<'_>,
        (step, now_ns, record): (&Step, u64, Option<&Record>),
    ) -> Result<()> {
        match *step {
            Step::Assume { time_ns } => {
                let name = match assumed.next_function()? {
                    Some((addr, seen_ns)) => self.trace.function_name(task, seen_ns, addr),
                    None => UNKNOWN.into(),
                };
                let idx = self.function(&name);
                self.enter(calls, time_ns, idx)?;
            }
            Step::Enter { addr, time_ns } => {
                let name = self.trace.function_name(task, time_ns, addr);
                self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                let idx = self.function(&name);
                self.enter(calls, time_ns, idx)?;
                self.add_values(task, calls, record, 0)?;
            }
            Step::Leave(ended) => {
                // Of those that an exit further out has ended nothing is known.
                self.add_values(task, calls, record.filter(|_| ended.has_exit), 1)?;
                self.exit(calls, ended.end_ns);
            }
            // Written when it is over, as it counts only then. Nothing else can have come in it.
            Step::Event { waited_ns: Some(waited_ns), .. } => {
                let idx = self.function(SCHEDULE);
                self.enter(calls, now_ns.saturating_sub(waited_ns), idx)?;
                self.exit(calls, now_ns);
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok(())
    }

    fn enter(&mut self, calls: &mut TaskCalls, time_ns: u64, function: usize) -> Result<()> {
        self.n_calls += 1;
        if self.n_calls > self.max_calls {
            return Err(Error::TooManyCalls { max: self.max_calls });
        }
        if calls.n_open == calls.depths.len() {
            calls.depths.push(0);
        }
        calls.depths[calls.n_open] += 1;
        calls.n_open += 1;
        self.number(function as u64 + 1);
        self.time(calls, time_ns);
        Ok(())
    }

    fn exit(&mut self, calls: &mut TaskCalls, time_ns: u64) {
        calls.n_open -= 1;
        self.number(0);
        self.time(calls, time_ns);
    }

    /// Adds what a record has to the innermost open call: its arguments (0) or its result (1).
    fn add_values(&mut self, task: &Task, calls: &mut TaskCalls, record: Option<&Record>, which: usize) -> Result<()> {
        let Some(record) = record.filter(|record| record.payload_at != 0) else { return Ok(()) };
        let values = self.trace.values(task, record)?;
        if values.is_empty() {
            return Ok(());
        }
        let number = self.texts.number(values.join(", "));
        let depth = calls.n_open - 1;
        let call = calls.depths[depth] - 1;
        calls.values.resize_with(calls.values.len().max(depth + 1), Vec::new);
        let of_depth = &mut calls.values[depth];
        match of_depth.last_mut() {
            Some(last) if last.call == call => last.numbers[which] = number,
            _ => {
                let mut numbers = [0; 2];
                numbers[which] = number;
                of_depth.push(CallValues { call, numbers });
            }
        }
        Ok(())
    }

    fn pack_values(&mut self, calls: &TaskCalls) {
        for of_depth in &calls.values {
            self.number(of_depth.len() as u64);
            let mut next = 0;
            for values in of_depth {
                self.number((values.call - next).into());
                values.numbers.iter().for_each(|&number| self.number(number.into()));
                next = values.call + 1;
            }
        }
    }

    /// Times never go back: not even where a context switch says so.
    fn time(&mut self, calls: &mut TaskCalls, time_ns: u64) {
        let since_ns = time_ns.saturating_sub(calls.last_ns);
        calls.last_ns += since_ns;
        self.number(since_ns);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.events.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.events.push(value as u8);
    }

    fn function(&mut self, name: &str) -> usize {
        if let Some(&idx) = self.idx_of_name.get(name) {
            return idx;
        }
        self.names_bytes += name.len();
        if (self.functions.len() >= MAX_FUNCTIONS || self.names_bytes > MAX_NAMES_BYTES) && name != OTHERS {
            return self.function(OTHERS);
        }
        let idx = self.functions.len();
        self.functions.push(name.to_owned());
        self.idx_of_name.insert(name.to_owned(), idx);
        idx
    }
}

/// Where the task that is read is.
struct TaskCalls {
    /// The time of its last event.
    last_ns: u64,
    n_open: usize,
    depths: Vec<u32>,
    /// Of each depth the calls that have values.
    values: Vec<Vec<CallValues>>,
}
