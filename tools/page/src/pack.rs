//! A trace's calls, packed for the page.
//!
//! ```text
//! "rfpage1\n"
//! length of the JSON   u32, little-endian
//! JSON                 `Head`
//! events of each task  in the order of `Head::tasks`, `TaskHead::bytes` each
//! ```
//!
//! An event is two numbers (LEB128): 0 for an exit, or 1 and the index of the function that is entered; then the nanoseconds since
//! the task's event before, the first time since `Head::base`. Entries and exits are balanced, as a call stack has them. A call takes
//! five bytes or so.

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_read::{SCHEDULE, Summary, Task, Trace};
use rftrace_views::{AssumedFunctions, Step, TaskStats, walk};
use serde::Serialize;

use crate::error::{Error, Result};

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
    /// The events of all tasks.
    events: Vec<u8>,
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
    /// Of them, time without a processor.
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
            schedule,
            tasks,
            notes: Vec::new(),
        };
        Ok(Self { head, events: packer.events, summary })
    }

    /// Lines that the page shows: what is missing in the trace.
    pub fn set_notes(&mut self, notes: Vec<String>) {
        self.head.notes = notes;
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
        let length = u32::try_from(json.len()).expect("256 MiB of names, each byte six at the most");
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
    nameless_calls: u64,
}

impl Packer<'_> {
    fn add_task(&mut self, task: &Task, summary: &mut Summary) -> Result<(TaskHead, TaskStats)> {
        let before = self.events.len();
        let trace = self.trace;
        let mut assumed = AssumedFunctions::new(trace, task);
        let mut calls = TaskCalls { last_ns: self.base_ns, n_open: 0, depths: Vec::new() };
        let walked = walk(trace, task, |step, now_ns| self.apply(task, &mut calls, &mut assumed, step, now_ns))?;
        walked.add_to(summary);
        let head = TaskHead {
            tid: task.tid(),
            pid: task.pid(),
            name: task.name().to_owned(),
            process: task.process_name().to_owned(),
            bytes: self.events.len() - before,
            depths: calls.depths,
        };
        Ok((head, walked.stats))
    }

    fn apply(
        &mut self,
        task: &Task,
        calls: &mut TaskCalls,
        assumed: &mut AssumedFunctions<'_>,
        step: &Step,
        now_ns: u64,
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
            }
            Step::Leave(ended) => self.exit(calls, ended.end_ns),
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
}
