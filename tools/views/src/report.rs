//! How much time each function took.
//!
//! Not here: how that is shown (`table`).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use rftrace_read::{CallCost, Record, Result, SCHEDULE, Summary, Task, Trace};

use crate::assumed::AssumedFunctions;
use crate::by_value::ByValue;
use crate::correction::{Costs, correction};
use crate::lines::Values;
use crate::spread::Spread;
use crate::stack::{EndedCall, Step};
use crate::stats::TaskStats;
use crate::walk::walk_with_records;

/// The times and calls of one function, over all tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The function's name.
    pub name: String,
    /// What its calls have in common, where they are [told apart by that](ReportOptions::by_value).
    pub values: Option<Box<Values>>,
    /// Where it is in the source, as `path:line`, if [that was read](Trace::read_sources) and is known.
    pub source: Option<String>,
    /// Time in the function and what it called; for a recursive one, only its outermost calls count.
    pub total_ns: u64,
    /// Time in the function alone.
    pub self_ns: u64,
    /// How often it was called.
    pub calls: u64,
    /// The times of single calls, recursive ones too, where they were [asked for](Report::read_spread).
    pub times: Option<Box<CallTimes>>,
}

impl Row {
    /// The arguments and the result that its calls have in common.
    pub fn texts(&self) -> [Option<&str>; 2] {
        let values = self.values.as_deref();
        let arguments = values.and_then(|values| values.arguments.as_deref());
        [arguments, values.and_then(|values| values.result.as_deref())]
    }

    /// What the row is of: the function's name, or a call with the values.
    pub fn label(&self) -> Cow<'_, str> {
        match &self.values {
            None => Cow::Borrowed(&self.name),
            Some(values) => Cow::Owned(values.call(&self.name)),
        }
    }
}

/// What is in a report.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReportOptions {
    /// Whether there are the times of single calls, in [`Row::times`].
    pub spread: bool,
    /// Functions whose calls have several rows. Of more than one that is for a function the first counts.
    pub by_value: Vec<ByValue>,
}

/// The times of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// With what they called.
    pub total: Spread,
    /// In the function alone.
    pub own: Spread,
}

/// The most rows. Programs have fewer functions; where addresses have no names there may be any number of them.
const MAX_ROWS: usize = 1 << 20;

/// The row of all that came when there were as many.
const OTHERS: &str = "(other functions)";

/// The functions of a trace with their times.
///
/// A call whose entry or exit is not among the records counts for the time between the first and the last record that
/// it spans. Time without a processor, where that was recorded, is a row of its own, `linux:schedule`, and no function's
/// own time.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    tasks: Vec<TaskStats>,
    summary: Summary,
    /// How long tasks were without a processor, in all, if that was recorded.
    waited_ns: Option<u64>,
    has_sources: bool,
    cost: Option<CallCost>,
}

impl Report {
    /// Reads all records of `trace`.
    ///
    /// # Errors
    ///
    /// A `.dat` file, or `record.txt`, cannot be read.
    pub fn read(trace: &Trace) -> Result<Self> {
        Self::read_with(trace, &ReportOptions::default())
    }

    /// Like [`Report::read`], with the times of single calls in [`Row::times`].
    ///
    /// # Errors
    ///
    /// Those of [`Report::read`].
    pub fn read_spread(trace: &Trace) -> Result<Self> {
        Self::read_with(trace, &ReportOptions { spread: true, ..ReportOptions::default() })
    }

    /// Like [`Report::read`], with what is asked for.
    ///
    /// # Errors
    ///
    /// Those of [`Report::read`].
    pub fn read_with(trace: &Trace, options: &ReportOptions) -> Result<Self> {
        let mut table = Table {
            trace,
            options,
            rows: Vec::new(),
            costs: Vec::new(),
            idx_of_label: HashMap::new(),
            n_open: Vec::new(),
            recent: vec![Recent::default(); N_RECENT],
            nameless_calls: 0,
            waited_ns: None,
        };
        let mut summary = Summary::default();
        let mut tasks = Vec::new();
        for task in trace.tasks() {
            let assumed = AssumedFunctions::new(trace, task);
            let mut calls = TaskCalls { task, open: Vec::new(), assumed };
            let walked = walk_with_records(trace, task, None, |step, _, record| table.apply(&mut calls, step, record))?;
            walked.add_to(&mut summary);
            tasks.push(walked.stats);
        }
        summary.nameless_calls = table.nameless_calls;
        for (row, costs) in table.rows.iter_mut().zip(&table.costs) {
            costs.off(&mut row.total_ns, &mut row.self_ns);
        }
        // All calls of a function may have rows of their own.
        table.rows.retain(|row| row.calls > 0);
        let waited_ns = table.waited_ns.or(trace.has_schedule()?.then_some(0));
        Ok(Self { rows: table.rows, tasks, summary, waited_ns, has_sources: trace.has_sources(), cost: trace.cost() })
    }

    /// The time from the first record to the last one.
    pub fn wall_ns(&self) -> u64 {
        let recorded = || self.tasks.iter().filter(|task| task.records > 0);
        let first_ns = recorded().map(|task| task.first_ns).min();
        let last_ns = recorded().map(|task| task.last_ns).max();
        last_ns.zip(first_ns).map_or(0, |(last_ns, first_ns)| last_ns.saturating_sub(first_ns))
    }

    /// The time for which tasks had a processor, each between its first record and its last one, in all; `None` if context
    /// switches were not recorded.
    pub fn cpu_ns(&self) -> Option<u64> {
        let spans = self.tasks.iter().map(|task| task.last_ns.saturating_sub(task.first_ns));
        let span_ns = spans.fold(0, u64::saturating_add);
        self.waited_ns.map(|waited_ns| span_ns.saturating_sub(waited_ns))
    }

    /// The functions in the order of their first return. Of more than a million the later ones share a row.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// How much was recorded of each task, in the trace's order.
    pub fn tasks(&self) -> &[TaskStats] {
        &self.tasks
    }

    /// How much was read, and the flaws in it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Whether rows tell where functions are in the source, as far as that is known.
    pub fn has_sources(&self) -> bool {
        self.has_sources
    }

    /// In words, what was subtracted for each call from the times of functions, if the trace [has them corrected](Trace::correct_times).
    pub fn correction(&self) -> String {
        correction(self.cost)
    }

    /// All functions' own time.
    pub fn self_ns(&self) -> u128 {
        self.rows.iter().map(|row| u128::from(row.self_ns)).sum()
    }

    /// Puts the rows into an order.
    pub(crate) fn order(&mut self, compare: impl FnMut(&Row, &Row) -> Ordering) {
        self.rows.sort_by(compare);
    }
}

/// How many rows are found without a look at their names.
const N_RECENT: usize = 1024;

/// Where the name of a function lies in the trace, and its row.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    key: (usize, usize),
    idx: usize,
}

struct Table<'t> {
    trace: &'t Trace,
    options: &'t ReportOptions,
    rows: Vec<Row>,
    /// What recording took of the rows' times, if that is subtracted.
    costs: Vec<Costs>,
    idx_of_label: HashMap<String, usize>,
    /// Rows of functions that were called of late, each at a place that the address of its name says.
    recent: Vec<Recent>,
    /// How often each row's function is open in the task that is being read; all are 0 at its end.
    n_open: Vec<u32>,
    nameless_calls: u64,
    waited_ns: Option<u64>,
}

impl Table<'_> {
    fn apply(&mut self, calls: &mut TaskCalls<'_>, step: &Step, record: Option<&Record>) -> Result<()> {
        match *step {
            Step::Assume { .. } => {
                // Calls of it that are within it do not count again.
                let function = calls.assumed.next_function()?;
                let name = function.map(|(addr, seen_ns)| self.trace.function_name(calls.task, seen_ns, addr));
                let idx = name.map(|name| self.row(&name));
                self.enter(calls, idx);
            }
            Step::Enter { addr, time_ns } => {
                let name = self.trace.function_name(calls.task, time_ns, addr);
                self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                let idx = match name {
                    Cow::Borrowed(known) => self.row_of_known(known),
                    Cow::Owned(name) => self.row(&name),
                };
                if self.trace.has_sources() && self.rows[idx].source.is_none() {
                    let source = self.trace.source(calls.task, time_ns, addr);
                    self.rows[idx].source = source.map(|source| source.to_string());
                }
                let idx = self.by_value(idx, calls.task, record)?;
                self.enter(calls, Some(idx));
            }
            // Of those that an exit further out has ended nothing is known.
            Step::Leave(ended) => self.leave(calls, &ended, record.filter(|_| ended.has_exit))?,
            Step::Event { waited_ns: Some(waited_ns), .. } => {
                self.waited_ns = Some(self.waited_ns.unwrap_or(0).saturating_add(waited_ns));
                let idx = self.row(SCHEDULE);
                self.add(idx, [waited_ns; 2], Costs::default(), true);
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok(())
    }

    fn enter(&mut self, calls: &mut TaskCalls<'_>, idx: Option<usize>) {
        calls.open.push(idx);
        if let Some(idx) = idx {
            if idx >= self.n_open.len() {
                self.n_open.resize(idx + 1, 0);
            }
            self.n_open[idx] += 1;
        }
    }

    fn leave(&mut self, calls: &mut TaskCalls<'_>, ended: &EndedCall, record: Option<&Record>) -> Result<()> {
        let idx = match calls.open.pop().flatten() {
            Some(idx) => {
                self.n_open[idx] -= 1;
                idx
            }
            None => match ended.addr {
                Some(addr) => {
                    let name = self.trace.function_name(calls.task, ended.end_ns, addr);
                    self.row(&name)
                }
                None => return Ok(()),
            },
        };
        let is_outermost = self.n_open.get(idx).is_none_or(|count| *count == 0);
        let idx = self.by_value(idx, calls.task, record)?;
        self.add(idx, [ended.total_ns, ended.self_ns], Costs::of(self.trace.cost(), ended), is_outermost);
        Ok(())
    }

    /// The row of a call of those that have one, once it is known by a record what else it has.
    fn by_value(&mut self, idx: usize, task: &Task, record: Option<&Record>) -> Result<usize> {
        let Some(record) = record.filter(|record| record.payload_at != 0) else { return Ok(idx) };
        let row = &self.rows[idx];
        let Some(by_value) = self.options.by_value.iter().find(|by_value| by_value.is_for(&row.name)) else {
            return Ok(idx);
        };
        let more = by_value.of(self.trace, task, record)?;
        let before = row.values.as_ref().and_then(|values| values.arguments.clone());
        let values = Values { arguments: before.or(more.arguments), result: more.result };
        let values = (values != Values::default()).then(|| Box::new(values));
        let row = Row { name: row.name.clone(), values, source: row.source.clone(), ..Row::default() };
        Ok(match self.idx_of_label.get(&*row.label()) {
            Some(&idx) => idx,
            None => self.add_row(row),
        })
    }

    fn add(&mut self, idx: usize, [total_ns, self_ns]: [u64; 2], costs: Costs, is_outermost: bool) {
        if self.trace.cost().is_some() {
            self.costs.resize(self.rows.len(), Costs::default());
            let sums = &mut self.costs[idx];
            sums.own.add(costs.own);
            if is_outermost {
                sums.total.add(costs.total);
            }
        }
        let row = &mut self.rows[idx];
        if is_outermost {
            row.total_ns = row.total_ns.saturating_add(total_ns);
        }
        if self.options.spread {
            let times = row.times.get_or_insert_default();
            times.total.add(total_ns, costs.total);
            times.own.add(self_ns, costs.own);
        }
        row.self_ns = row.self_ns.saturating_add(self_ns);
        row.calls += 1;
    }

    /// The row of a function by its name in the trace, which is found without a look at the text if it was called of late.
    fn row_of_known(&mut self, known: &str) -> usize {
        let key = (known.as_ptr().addr(), known.len());
        let place = (key.0 ^ key.0 >> 12) % N_RECENT;
        if self.recent[place].key != key {
            self.recent[place] = Recent { key, idx: self.row(known) };
        }
        self.recent[place].idx
    }

    fn row(&mut self, name: &str) -> usize {
        match self.idx_of_label.get(name) {
            Some(&idx) => idx,
            None => self.add_row(Row { name: name.to_owned(), ..Row::default() }),
        }
    }

    fn add_row(&mut self, row: Row) -> usize {
        if self.rows.len() >= MAX_ROWS && row.name != OTHERS {
            return self.row(OTHERS);
        }
        let idx = self.rows.len();
        self.idx_of_label.insert(row.label().into_owned(), idx);
        self.rows.push(row);
        idx
    }
}

/// The open functions of the task that is being read, as indices of rows.
struct TaskCalls<'t> {
    task: &'t Task,
    open: Vec<Option<usize>>,
    assumed: AssumedFunctions<'t>,
}
