//! How much time each function took, as a table.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use crate::Summary;
use crate::duration::Duration;
use crate::error::{Error, Result};
use crate::events::SCHEDULE;
use crate::stack::{CallStack, Ended, Step};
use crate::stats::TaskStats;
use crate::trace::{Task, Trace};
use crate::warning::Warnings;

/// The times and calls of one function, over all tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The function's name.
    pub name: String,
    /// Time in the function and what it called; for a recursive one, only its outermost calls count.
    pub total_ns: u64,
    /// Time in the function alone.
    pub self_ns: u64,
    /// How often it was called.
    pub calls: u64,
}

/// What the rows of a [`Report`] are sorted by, largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    /// [`Row::total_ns`].
    Total,
    /// [`Row::self_ns`].
    Own,
    /// [`Row::calls`].
    Calls,
}

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
}

impl Report {
    /// Reads all records of `trace`.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn read(trace: &Trace) -> Result<Self> {
        let mut table = Table { trace, rows: Vec::new(), idx_of_name: HashMap::new() };
        let mut summary = Summary { records: 0, warnings: Warnings::default() };
        let mut tasks = Vec::new();
        for task in trace.tasks() {
            tasks.push(table.add_task(task, &mut summary)?);
        }
        Ok(Self { rows: table.rows, tasks, summary })
    }

    /// The functions in the order of their first return.
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

    /// Sorts the rows by `key`, largest first, then by name.
    pub fn sort(&mut self, key: SortKey) {
        let value = |row: &Row| match key {
            SortKey::Total => row.total_ns,
            SortKey::Own => row.self_ns,
            SortKey::Calls => row.calls,
        };
        self.rows.sort_by(|a, b| (Reverse(value(a)), &a.name).cmp(&(Reverse(value(b)), &b.name)));
    }

    /// Writes the rows as a table, at most the first `limit` of them.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, limit: usize, out: &mut dyn Write) -> Result<()> {
        self.write_table(limit, out).map_err(Error::Write)
    }

    fn write_table(&self, limit: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "  Total time   Self time       Calls  Function")?;
        writeln!(out, "  ==========  ==========  ==========  ====================")?;
        for Row { name, total_ns, self_ns, calls } in self.rows.iter().take(limit) {
            writeln!(out, "  {}  {}  {calls:10}  {name}", Duration(*total_ns), Duration(*self_ns))?;
        }
        Ok(())
    }
}

struct Table<'t> {
    trace: &'t Trace,
    rows: Vec<Row>,
    idx_of_name: HashMap<String, usize>,
}

impl Table<'_> {
    fn add_task(&mut self, task: &Task, summary: &mut Summary) -> Result<TaskStats> {
        let mut stats = TaskStats::new(task);
        let mut records = self.trace.records(task);
        let mut stack = CallStack::new();
        let mut calls = TaskCalls { task, open: Vec::new(), n_open: HashMap::new() };
        let mut steps = Vec::new();
        for record in &mut records {
            let record = record?;
            stats.add(self.trace, &record);
            let same_function = |a, b| self.trace.same_function(task, record.time_ns, a, b);
            stack.apply(&record, same_function, &mut steps);
            for step in &steps {
                self.apply(&mut calls, step);
            }
        }
        stack.finish(&mut steps);
        for step in &steps {
            self.apply(&mut calls, step);
        }
        stats.warnings.merge(records.warnings());
        summary.records += stats.records;
        summary.warnings.merge(&stats.warnings);
        summary.warnings.merge(stack.warnings());
        Ok(stats)
    }

    fn apply(&mut self, calls: &mut TaskCalls<'_>, step: &Step) {
        match *step {
            Step::Assume { .. } => calls.open.push(None),
            Step::Enter { addr, time_ns } => {
                let name = self.trace.function_name(calls.task, time_ns, addr);
                let idx = self.row(&name);
                calls.open.push(Some(idx));
                *calls.n_open.entry(idx).or_default() += 1;
            }
            Step::Leave(ended) => self.leave(calls, &ended),
            Step::Event { waited_ns: Some(waited_ns), .. } => {
                let idx = self.row(SCHEDULE);
                self.add(idx, waited_ns, waited_ns);
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
    }

    fn leave(&mut self, calls: &mut TaskCalls<'_>, ended: &Ended) {
        let idx = match calls.open.pop().flatten() {
            Some(idx) => {
                calls.n_open.entry(idx).and_modify(|count| *count -= 1);
                idx
            }
            None => match ended.addr {
                Some(addr) => {
                    let name = self.trace.function_name(calls.task, ended.end_ns, addr);
                    self.row(&name)
                }
                None => return,
            },
        };
        let is_outermost = calls.n_open.get(&idx).is_none_or(|count| *count == 0);
        self.add(idx, if is_outermost { ended.total_ns } else { 0 }, ended.self_ns);
    }

    fn add(&mut self, idx: usize, total_ns: u64, self_ns: u64) {
        let row = &mut self.rows[idx];
        row.total_ns = row.total_ns.saturating_add(total_ns);
        row.self_ns = row.self_ns.saturating_add(self_ns);
        row.calls += 1;
    }

    fn row(&mut self, name: &str) -> usize {
        if let Some(&idx) = self.idx_of_name.get(name) {
            return idx;
        }
        let idx = self.rows.len();
        self.rows.push(Row { name: name.to_owned(), total_ns: 0, self_ns: 0, calls: 0 });
        self.idx_of_name.insert(name.to_owned(), idx);
        idx
    }
}

/// The open functions of the task that is being read, as indices of rows.
struct TaskCalls<'t> {
    task: &'t Task,
    open: Vec<Option<usize>>,
    /// How often each is open.
    n_open: HashMap<usize, usize>,
}
