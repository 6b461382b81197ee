//! The time of each function.
//!
//! Not here: the summing (`sums`), and the table (`table`).

use std::cmp::Ordering;

use rftrace_read::{CallCost, Result, ShownNames, Summary, Trace};

use crate::collector::OffCpuTimes;
use crate::correction::{Share, correction};
use crate::duration::Duration;
use crate::rows::{ReportOptions, Row};
use crate::stats::TaskStats;
use crate::sums::{self, Sums};

/// The functions of a trace with their times.
///
/// A call without a recorded entry or exit counts for the time between the first and the last record in it. Recorded
/// time without a processor is no part of any function's own time: each of its [kinds](rftrace_read::OffCpu) is a row
/// of its own.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    tasks: Vec<TaskStats>,
    summary: Summary,
    /// The total time of tasks without a processor, if it was recorded.
    off_cpu: Option<OffCpuTimes>,
    has_sources: bool,
    cost: Option<CallCost>,
    share: Share,
    /// True if open calls went on after the last record.
    pub(crate) lacks_end: bool,
    /// The names of a new table.
    names: ShownNames,
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
    /// The errors of [`Report::read`].
    pub fn read_spread(trace: &Trace) -> Result<Self> {
        Self::read_with(trace, &ReportOptions { spread: true, ..ReportOptions::default() })
    }

    /// Makes a report like [`Report::read`], with these options. A report with the times of single calls and one row
    /// per function is [kept](rftrace_read::Kept).
    ///
    /// # Errors
    ///
    /// The errors of [`Report::read`].
    pub fn read_with(trace: &Trace, options: &ReportOptions) -> Result<Self> {
        let Sums { rows, share, nameless_calls, off_cpu, mut summary, tasks } = sums::kept(trace, options)?;
        summary.nameless_calls = nameless_calls;
        let off_cpu = off_cpu.or(trace.has_schedule()?.then(OffCpuTimes::default));
        let (has_sources, cost, names) = (trace.has_sources(), trace.cost(), trace.shown_names());
        let lacks_end = !trace.cut_off()?.is_empty();
        Ok(Self { rows, tasks, summary, off_cpu, has_sources, cost, share, lacks_end, names })
    }

    /// Returns the time from the first record to the last one, in nanoseconds.
    pub fn wall_ns(&self) -> u64 {
        let recorded = || self.tasks.iter().filter(|task| task.records > 0);
        let first_ns = recorded().map(|task| task.first_ns).min();
        let last_ns = recorded().map(|task| task.last_ns).max();
        last_ns.zip(first_ns).map_or(0, |(last_ns, first_ns)| last_ns.saturating_sub(first_ns))
    }

    /// Returns the time of tasks with a processor in nanoseconds: the sum over all tasks, between the first and the
    /// last record of each. `None` if context switches were not recorded.
    pub fn cpu_ns(&self) -> Option<u64> {
        let spans = self.tasks.iter().map(|task| task.last_ns.saturating_sub(task.first_ns));
        let span_ns = spans.fold(0, u64::saturating_add);
        self.off_cpu.map(|times| span_ns.saturating_sub(times.waiting_ns).saturating_sub(times.preempted_ns))
    }

    /// The tracer's measured overhead of a call.
    pub(crate) fn cost(&self) -> Option<CallCost> {
        self.cost
    }

    /// The subtracted overhead of a call in picoseconds.
    pub(crate) fn tracing_ps(&self) -> Option<u64> {
        self.cost.map(|cost| self.share.of_call(cost).all_ps())
    }

    /// Returns the waiting time of tasks, without a processor because they gave it up, in nanoseconds: the sum over all
    /// tasks. `None` if context switches were not recorded.
    pub fn waiting_ns(&self) -> Option<u64> {
        self.off_cpu.map(|times| times.waiting_ns)
    }

    /// Returns the time of pre-empted tasks, without a processor because another task had it, in nanoseconds: the sum
    /// over all tasks. `None` if context switches were not recorded.
    pub fn preempted_ns(&self) -> Option<u64> {
        self.off_cpu.map(|times| times.preempted_ns)
    }

    /// Returns the times without a processor as text, each behind a comma, such as `, waiting 3.500 us, pre-empted 1.000 us`.
    /// Times of 0 are left out.
    pub fn off_cpu(&self) -> String {
        let times = [("waiting", self.waiting_ns()), ("pre-empted", self.preempted_ns())];
        let text = |(word, ns): (&str, Option<u64>)| {
            let ns = ns.filter(|&ns| ns > 0)?;
            Some(format!(", {word} {}", Duration(ns).text()))
        };
        times.into_iter().filter_map(text).collect()
    }

    /// Returns a text about a busy machine, such as `the machine was busy: 3.500 s pre-empted`, if other tasks had the
    /// processor for at least a tenth of the time in which this trace's tasks wanted one.
    pub fn busy_machine(&self) -> Option<String> {
        /// One in so many.
        const LARGE_PART: u64 = 10;

        let (busy_ns, preempted_ns) = (self.cpu_ns()?, self.preempted_ns()?);
        let is_large = preempted_ns > 0 && preempted_ns >= busy_ns.saturating_add(preempted_ns) / LARGE_PART;
        is_large.then(|| format!("the machine was busy: {} pre-empted", Duration(preempted_ns).text()))
    }

    /// Returns the conditions for a comparison of the times with those of another trace: [`Report::correction`], and
    /// [`Report::busy_machine`].
    pub fn conditions(&self) -> String {
        let busy = self.busy_machine().map_or_else(String::new, |busy| format!("; {busy}"));
        self.correction() + &busy
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

    /// Returns a text about the overhead subtracted for each call from the functions' times. It says so if none was
    /// subtracted, because times are [not corrected](Trace::correct_times).
    pub fn correction(&self) -> String {
        correction(self.cost, self.share)
    }

    /// Returns the sum of all functions' own times in nanoseconds. Times without a processor are no function's own.
    pub fn self_ns(&self) -> u128 {
        self.rows.iter().filter(|row| row.is_function()).map(|row| u128::from(row.self_ns)).sum()
    }

    /// Returns the names for a table of these rows.
    pub fn shown_names<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> ShownNames {
        let mut names = self.names.clone();
        names.add_all(rows.into_iter().map(|row| row.name.as_str()));
        names
    }

    /// Puts the rows into an order.
    pub(crate) fn order(&mut self, compare: impl FnMut(&Row, &Row) -> Ordering) {
        self.rows.sort_by(compare);
    }
}

#[cfg(test)]
mod tests {
    use rftrace_read::Warnings;

    use super::*;

    /// The report of a task of 10 us, with these times of waiting and of pre-emption.
    fn report(off_cpu: Option<[u64; 2]>) -> Report {
        let task = TaskStats {
            tid: 7,
            pid: 7,
            records: 2,
            calls: 1,
            lost_calls: 0,
            deep_calls: 0,
            overwritten: false,
            first_ns: 1_000,
            last_ns: 11_000,
            warnings: Warnings::default(),
        };
        Report {
            lacks_end: false,
            names: ShownNames::default(),
            rows: Vec::new(),
            tasks: vec![task],
            summary: Summary::default(),
            off_cpu: off_cpu.map(|[waiting_ns, preempted_ns]| OffCpuTimes { waiting_ns, preempted_ns }),
            has_sources: false,
            cost: None,
            share: Share::default(),
        }
    }

    #[test]
    fn times_with_and_without_a_processor() {
        let times = |report: &Report| [report.cpu_ns(), report.waiting_ns(), report.preempted_ns()];
        let both = report(Some([3_500, 1_000]));
        assert_eq!(times(&both), [Some(5_500), Some(3_500), Some(1_000)]);
        assert_eq!(both.off_cpu(), ", waiting 3.500 us, pre-empted 1.000 us");
        let neither = report(Some([0, 0]));
        assert_eq!((times(&neither), neither.off_cpu()), ([Some(10_000), Some(0), Some(0)], String::new()));
        let unknown = report(None);
        assert_eq!((times(&unknown), unknown.off_cpu()), ([None; 3], String::new()));
    }

    #[test]
    fn a_machine_is_busy_where_a_tenth_of_the_wanted_time_is_pre_empted() {
        let told = |off_cpu| report(off_cpu).busy_machine();
        // 5 us of the 10 are no time in which it wanted a processor.
        assert_eq!(told(Some([5_000, 500])).as_deref(), Some("the machine was busy: 0.500 us pre-empted"));
        for quiet in [Some([5_000, 499]), Some([10_000, 0]), None] {
            assert_eq!(told(quiet), None, "{quiet:?}");
        }
    }
}
