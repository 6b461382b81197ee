//! The time of each function.
//!
//! Not here: the summing (`sums`), and the table (`table`).

use std::cmp::Ordering;

use rftrace_read::{CallCost, Result, Summary, Trace};

use crate::correction::{Share, correction};
use crate::rows::{ReportOptions, Row};
use crate::stats::TaskStats;
use crate::sums::{self, Sums};

/// The functions of a trace with their times.
///
/// A call without a recorded entry or exit counts for the time between the first and the last record that it spans.
/// Recorded time without a processor is a row of its own, `linux:schedule`, and not part of any function's own time.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    tasks: Vec<TaskStats>,
    summary: Summary,
    /// How long tasks were without a processor, in all, if that was recorded.
    waited_ns: Option<u64>,
    has_sources: bool,
    cost: Option<CallCost>,
    share: Share,
}

impl Report {
    /// Makes the report of all records of `trace`.
    ///
    /// # Errors
    ///
    /// A `.dat` file, or `record.txt`, cannot be read.
    pub fn read(trace: &Trace) -> Result<Self> {
        Self::read_with(trace, &ReportOptions::default())
    }

    /// Makes a report like [`Report::read`], with the times of single calls in [`Row::times`].
    ///
    /// # Errors
    ///
    /// Those of [`Report::read`].
    pub fn read_spread(trace: &Trace) -> Result<Self> {
        Self::read_with(trace, &ReportOptions { spread: true, ..ReportOptions::default() })
    }

    /// Makes a report like [`Report::read`], with these options. A report with the times of single calls and one row
    /// per function is [kept](rftrace_read::Kept).
    ///
    /// # Errors
    ///
    /// Those of [`Report::read`].
    pub fn read_with(trace: &Trace, options: &ReportOptions) -> Result<Self> {
        let Sums { rows, share, nameless_calls, waited_ns, mut summary, tasks } = sums::kept(trace, options)?;
        summary.nameless_calls = nameless_calls;
        let waited_ns = waited_ns.or(trace.has_schedule()?.then_some(0));
        Ok(Self { rows, tasks, summary, waited_ns, has_sources: trace.has_sources(), cost: trace.cost(), share })
    }

    /// Returns the time from the first record to the last one, in nanoseconds.
    pub fn wall_ns(&self) -> u64 {
        let recorded = || self.tasks.iter().filter(|task| task.records > 0);
        let first_ns = recorded().map(|task| task.first_ns).min();
        let last_ns = recorded().map(|task| task.last_ns).max();
        last_ns.zip(first_ns).map_or(0, |(last_ns, first_ns)| last_ns.saturating_sub(first_ns))
    }

    /// Returns the time for which tasks had a processor in nanoseconds: the sum over all tasks, between the first and
    /// the last record of each. `None` if context switches were not recorded.
    pub fn cpu_ns(&self) -> Option<u64> {
        let spans = self.tasks.iter().map(|task| task.last_ns.saturating_sub(task.first_ns));
        let span_ns = spans.fold(0, u64::saturating_add);
        self.waited_ns.map(|waited_ns| span_ns.saturating_sub(waited_ns))
    }

    /// Returns the rows in the order of the functions' first returns. All functions after a million rows share one.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the counts of each task's records, in the trace's order.
    pub fn tasks(&self) -> &[TaskStats] {
        &self.tasks
    }

    /// Returns the number of records read, and the flaws in them.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns true if rows have source lines, as far as they are known.
    pub fn has_sources(&self) -> bool {
        self.has_sources
    }

    /// Returns a text about the overhead that was subtracted for each call from the functions' times. It says so if
    /// none was subtracted, because times are [not corrected](Trace::correct_times).
    pub fn correction(&self) -> String {
        correction(self.cost, self.share)
    }

    /// Returns the sum of all functions' own times in nanoseconds.
    pub fn self_ns(&self) -> u128 {
        self.rows.iter().map(|row| u128::from(row.self_ns)).sum()
    }

    /// Puts the rows into an order.
    pub(crate) fn order(&mut self, compare: impl FnMut(&Row, &Row) -> Ordering) {
        self.rows.sort_by(compare);
    }
}
