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

use rftrace_read::{OffCpu, Summary, Task, Trace};
use rftrace_views::TaskStats;
use serde::{Serialize, Serializer};

use crate::calls::{Sink, read_calls};
use crate::counters::{Counter, Counters};
use crate::dictionary::Dictionary;
use crate::error::{Error, Result};
use crate::labels::Labels;
use crate::numbers::number;
use crate::values::{CallValues, lost_note};

/// The maximum number of calls of a page. They take 1.6 GB in the browser, and some 320 MB here.
pub const MAX_CALLS: u64 = 1 << 26;

/// JavaScript counts exactly up to here.
pub(crate) const MAX_NS: u64 = 1 << 53;

const MAGIC: &[u8; 8] = b"rfpage1\n";

/// The packed data of a page.
#[derive(Debug)]
pub struct Page {
    head: Head,
    /// The events of all tasks, and their values.
    events: Vec<u8>,
    /// How many arguments and results are left out.
    n_lost_values: u64,
    summary: Summary,
}

/// The data that the page has before the calls.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    pub(crate) title: String,
    /// The version of this crate.
    pub(crate) version: &'static str,
    /// Time 0 of the page, in nanoseconds of the trace's clock. A text: it may be more than JavaScript counts.
    #[serde(rename = "base", serialize_with = "as_text")]
    pub(crate) base_ns: u64,
    /// The first record and the last one, since `base`.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Their names.
    pub(crate) functions: Vec<String>,
    /// Their labels in tables and boxes.
    pub(crate) labels: Labels,
    /// Arguments and results of calls; each text once.
    pub(crate) values: Vec<String>,
    /// Of the functions, those that stand for the time in which tasks waited, and in which they were pre-empted.
    pub(crate) waiting: Option<usize>,
    pub(crate) preempted: Option<usize>,
    pub(crate) tasks: Vec<TaskHead>,
    /// Notes on the trace: lines.
    pub(crate) notes: Vec<String>,
    /// Counters of processes, over time.
    #[serde(skip_serializing_if = "Counters::is_empty")]
    pub(crate) counters: Counters,
    /// How many calls each function has, where the page asks for them (`zoom`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<Vec<u64>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TaskHead {
    pub(crate) tid: u32,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) process: String,
    /// The length of its events.
    pub(crate) bytes: usize,
    /// The length of its values.
    pub(crate) values: usize,
    /// How many calls it has at each depth.
    pub(crate) depths: Vec<u64>,
}

/// The numbers of the functions that stand for times without a processor, as far as there are such.
pub(crate) fn off_cpu(functions: &[String]) -> [Option<usize>; 2] {
    OffCpu::ALL.map(|kind| functions.iter().position(|name| name == kind.name()))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn as_text<S: Serializer>(number: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

impl Head {
    /// The number of calls.
    pub(crate) fn n_calls(&self) -> u64 {
        self.tasks.iter().flat_map(|task| &task.depths).sum()
    }

    pub(crate) fn set_counters(&mut self, counters: Vec<Counter>) {
        let (counters, lost) = Counters::new(counters, self.base_ns, (self.begin, self.end));
        self.counters = counters;
        self.notes.extend(lost);
    }

    /// All that is before the events.
    pub(crate) fn start(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("maps with keys of text, numbers and texts");
        let length = u32::try_from(json.len()).expect("names, labels and values of 704 MiB, each byte six at the most");
        [MAGIC.as_slice(), &length.to_le_bytes(), &json].concat()
    }
}

impl Page {
    /// Packs the chosen part of `trace`. It takes at most `max_calls` calls, and at most [`MAX_CALLS`].
    ///
    /// Calls and times are those of [`Report`](rftrace_views::Report). Time without a processor is a call with the name of
    /// its [kind](OffCpu); open calls end with the last record. A function that no record identifies, which has no row in
    /// a report, is `(unknown)`.
    ///
    /// # Errors
    ///
    /// A file of the trace cannot be read, or the trace has more calls than a page can hold.
    pub fn read(trace: &Trace, title: &str, max_calls: u64) -> Result<Self> {
        let base_ns = trace.start_ns()?.unwrap_or(0);
        let mut packer = Packer {
            trace,
            base_ns,
            n_calls: 0,
            max_calls: max_calls.min(MAX_CALLS),
            events: Vec::new(),
            dictionary: Dictionary::default(),
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
        let (functions, texts) = packer.dictionary.into_parts();
        let [waiting, preempted] = off_cpu(&functions);
        let labels = Labels::new(&functions, trace.shown_names());
        let head = Head {
            title: title.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            base_ns,
            begin: begin.min(end),
            end,
            functions,
            labels,
            values: texts.texts,
            waiting,
            preempted,
            tasks,
            notes: Vec::new(),
            counters: Counters::default(),
            calls: None,
        };
        Ok(Self { head, events: packer.events, n_lost_values: texts.n_lost, summary })
    }

    /// Creates a page of counters alone, for a program whose calls were not recorded.
    pub fn without_calls(title: &str, counters: Vec<Counter>) -> Self {
        let times = || counters.iter().flat_map(|counter| &counter.points).map(|&(time, _)| time);
        let base_ns = times().min().unwrap_or(0);
        let mut head = Head {
            title: title.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            base_ns,
            begin: 0,
            end: times().max().unwrap_or(0).saturating_sub(base_ns),
            functions: Vec::new(),
            labels: Labels::default(),
            values: Vec::new(),
            waiting: None,
            preempted: None,
            tasks: Vec::new(),
            notes: Vec::new(),
            counters: Counters::default(),
            calls: None,
        };
        head.set_counters(counters);
        Self { head, events: Vec::new(), n_lost_values: 0, summary: Summary::default() }
    }

    /// Sets the lines about missing parts of the trace. The page adds lines about parts that only it lacks.
    pub fn set_notes(&mut self, notes: Vec<String>) {
        self.head.notes = notes;
        self.head.notes.extend(lost_note(self.n_lost_values));
    }

    /// Sets counters of processes, shown above the calls. Only values in the page's range of time count. Call it after
    /// [`Page::set_notes`].
    pub fn set_counters(&mut self, counters: Vec<Counter>) {
        self.head.set_counters(counters);
    }

    /// Returns the number of records read, and the flaws in them.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the number of calls.
    pub fn n_calls(&self) -> u64 {
        self.head.n_calls()
    }

    /// All in one piece, but for the events, which follow: they are most of it.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<u8>) {
        let start = self.start();
        (start, self.events)
    }

    /// The data before the events.
    pub(crate) fn start(&self) -> Vec<u8> {
        self.head.start()
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
    dictionary: Dictionary,
}

impl Packer<'_> {
    fn add_task(&mut self, task: &Task, summary: &mut Summary) -> Result<(TaskHead, TaskStats)> {
        let before = self.events.len();
        let mut calls = TaskCalls {
            events: &mut self.events,
            n_calls: &mut self.n_calls,
            max_calls: self.max_calls,
            last: 0,
            n_open: 0,
            depths: Vec::new(),
            values: Vec::new(),
        };
        let (walked, nameless_calls) = read_calls(self.trace, task, self.base_ns, &self.dictionary, &mut calls)?;
        walked.add_to(summary);
        summary.nameless_calls += nameless_calls;
        let TaskCalls { depths, values, .. } = calls;
        let bytes = self.events.len() - before;
        self.pack_values(&values);
        let head = TaskHead {
            tid: task.tid(),
            pid: task.pid(),
            name: task.name().to_owned(),
            process: task.process_name().to_owned(),
            bytes,
            values: self.events.len() - before - bytes,
            depths: depths.into_iter().map(u64::from).collect(),
        };
        Ok((head, walked.stats))
    }

    fn pack_values(&mut self, values: &[Vec<CallValues>]) {
        for of_depth in values {
            number(&mut self.events, of_depth.len() as u64);
            let mut next = 0;
            for values in of_depth {
                number(&mut self.events, (values.call - next).into());
                values.numbers.iter().for_each(|&value| number(&mut self.events, value.into()));
                next = values.call + 1;
            }
        }
    }
}

/// Where the task that is read is.
struct TaskCalls<'p> {
    events: &'p mut Vec<u8>,
    /// Those of all tasks.
    n_calls: &'p mut u64,
    max_calls: u64,
    /// The time of its last event.
    last: u64,
    n_open: usize,
    depths: Vec<u32>,
    /// Of each depth the calls that have values.
    values: Vec<Vec<CallValues>>,
}

impl TaskCalls<'_> {
    fn time(&mut self, time: u64) {
        number(self.events, time - self.last);
        self.last = time;
    }
}

impl Sink for TaskCalls<'_> {
    fn enter(&mut self, time: u64, function: u32) -> Result<()> {
        *self.n_calls += 1;
        if *self.n_calls > self.max_calls {
            return Err(Error::TooManyCalls { max: self.max_calls });
        }
        if self.n_open == self.depths.len() {
            self.depths.push(0);
        }
        self.depths[self.n_open] += 1;
        self.n_open += 1;
        number(self.events, u64::from(function) + 1);
        self.time(time);
        Ok(())
    }

    fn exit(&mut self, time: u64) -> Result<()> {
        self.n_open -= 1;
        number(self.events, 0);
        self.time(time);
        Ok(())
    }

    fn values(&mut self, which: usize, number: u32) {
        let depth = self.n_open - 1;
        let call = self.depths[depth] - 1;
        self.values.resize_with(self.values.len().max(depth + 1), Vec::new);
        let of_depth = &mut self.values[depth];
        match of_depth.last_mut() {
            Some(last) if last.call == call => last.numbers[which] = number,
            _ => {
                let mut numbers = [0; 2];
                numbers[which] = number;
                of_depth.push(CallValues { call, numbers });
            }
        }
    }
}
