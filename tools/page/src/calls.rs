//! A task's calls in the page's form: balanced, with names and values, and with times that never decrease.
//!
//! Not here: the use of them (`pack`, `zoom`).

use std::borrow::Cow;

use rftrace_read::{Functions, Record, Task, Trace};
use rftrace_views::{AssumedFunctions, Step, Walked, walk_with_records};

use crate::dictionary::Dictionary;
use crate::error::Result;

/// A function that no record names. Its callers' own time is right only if its time is known.
const UNKNOWN: &str = "(unknown)";

/// How many names are known by where they lie.
const N_RECENT: usize = 1024;

/// A receiver of calls. Times are nanoseconds since a base.
pub(crate) trait Sink {
    /// A function was entered.
    fn enter(&mut self, time: u64, function: u32) -> Result<()>;

    /// The innermost open call ended.
    fn exit(&mut self, time: u64) -> Result<()>;

    /// The innermost open call has arguments (0), or a result (1), by their number.
    fn values(&mut self, which: usize, number: u32);
}

/// Tells all calls of a task. Returns what there was of it, and how many calls were of functions without a name.
pub(crate) fn read_calls(
    trace: &Trace,
    task: &Task,
    base_ns: u64,
    dictionary: &Dictionary,
    sink: &mut impl Sink,
) -> Result<(Walked, u64)> {
    let mut reader = Reader {
        trace,
        task,
        dictionary,
        sink,
        base_ns,
        now: 0,
        functions: Functions::new(trace, task),
        recent: vec![Default::default(); N_RECENT],
        nameless_calls: 0,
    };
    let mut assumed = AssumedFunctions::new(trace, task);
    let walked = walk_with_records(trace, task, None, |step, now_ns, record| {
        reader.apply(&mut assumed, (step, now_ns, record))
    })?;
    Ok((walked, reader.nameless_calls))
}

struct Reader<'t, S> {
    trace: &'t Trace,
    task: &'t Task,
    dictionary: &'t Dictionary,
    sink: &'t mut S,
    base_ns: u64,
    /// The time of the last event, since the base.
    now: u64,
    functions: Functions<'t>,
    /// Where names lie that were met of late, and their numbers, each at a place that its address says.
    recent: Vec<((usize, usize), u32)>,
    nameless_calls: u64,
}

impl<S: Sink> Reader<'_, S> {
    fn apply(
        &mut self,
        assumed: &mut AssumedFunctions<'_>,
        (step, now_ns, record): (&Step, u64, Option<&Record>),
    ) -> Result<()> {
        match *step {
            Step::Assume { time_ns } => {
                let function = match assumed.next_function()? {
                    Some((addr, seen_ns)) => {
                        self.dictionary.function(&self.trace.function_name(self.task, seen_ns, addr))
                    }
                    None => self.dictionary.function(UNKNOWN),
                };
                self.enter(time_ns, function)?;
            }
            Step::Enter { addr, time_ns } => {
                let function = match self.functions.name(time_ns, addr) {
                    Cow::Borrowed(known) => self.known_name(known),
                    Cow::Owned(name) => {
                        self.nameless_calls += 1;
                        self.dictionary.function(&name)
                    }
                };
                self.enter(time_ns, function)?;
                self.values(record, 0)?;
            }
            Step::Leave(ended) => {
                // Of those that an exit further out has ended nothing is known.
                self.values(record.filter(|_| ended.has_exit), 1)?;
                if ended.did_not_return {
                    self.sink.values(1, self.dictionary.text("did not return".to_owned()));
                }
                self.exit(ended.end_ns)?;
            }
            // Told when it is over, as it counts only then. Nothing else can have come in it.
            Step::Event { off_cpu: Some((kind, ns)), .. } => {
                self.enter(now_ns.saturating_sub(ns), self.dictionary.function(kind.name()))?;
                self.exit(now_ns)?;
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok(())
    }

    fn enter(&mut self, time_ns: u64, function: u32) -> Result<()> {
        let time = self.time(time_ns);
        self.sink.enter(time, function)
    }

    fn exit(&mut self, time_ns: u64) -> Result<()> {
        let time = self.time(time_ns);
        self.sink.exit(time)
    }

    /// Times never go back: not even where a context switch says so.
    fn time(&mut self, time_ns: u64) -> u64 {
        self.now = self.now.max(time_ns.saturating_sub(self.base_ns));
        self.now
    }

    /// Tells what a record has of the innermost open call: its arguments or its result.
    fn values(&mut self, record: Option<&Record>, which: usize) -> Result<()> {
        let Some(record) = record.filter(|record| record.payload_at != 0) else { return Ok(()) };
        let values = self.trace.values(self.task, record)?;
        if !values.is_empty() {
            self.sink.values(which, self.dictionary.text(values.join(", ")));
        }
        Ok(())
    }

    /// The number of a name in the trace, which is found without a look at the text if it was met of late.
    fn known_name(&mut self, known: &str) -> u32 {
        let key = (known.as_ptr().addr(), known.len());
        let place = (key.0 ^ key.0 >> 12) % N_RECENT;
        if self.recent[place].0 != key {
            self.recent[place] = (key, self.dictionary.function(known));
        }
        self.recent[place].1
    }
}
