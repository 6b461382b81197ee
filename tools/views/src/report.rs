//! How much time each function took.
//!
//! Not here: how it is summed up (`sums`), and how it is shown (`table`).

use std::cmp::Ordering;

use rftrace_read::{CallCost, Result, Summary, Trace};

use crate::correction::{Share, correction};
use crate::rows::{ReportOptions, Row};
use crate::stats::TaskStats;
use crate::sums::{self, Sums};

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
    share: Share,
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

    /// Like [`Report::read`], with what is asked for. Where single calls are, and rows are of functions, it is [kept](rftrace_read::Kept).
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

    /// True if rows tell where functions are in the source, as far as that is known.
    pub fn has_sources(&self) -> bool {
        self.has_sources
    }

    /// In words, what was subtracted for each call from the times of functions, if the trace [has them corrected](Trace::correct_times).
    pub fn correction(&self) -> String {
        correction(self.cost, self.share)
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
