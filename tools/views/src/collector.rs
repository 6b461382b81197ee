//! Rows with the sums of tasks' calls: by function, or by call path.
//!
//! Not here: these rows (`collect`, `ways`), and the sources of calls (`between`, `blocking`).

use rftrace_read::{CallCost, Functions, Kept, OffCpu, Record, Result, Task, Trace};
use serde::{Deserialize, Serialize};

use crate::assumed::AssumedFunctions;
use crate::correction::{Cost, Costs};
use crate::keys::Last;
use crate::rows::CallTimes;
use crate::stack::{EndedCall, Step};

/// The sums of a row's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallSums {
    /// The time of calls outside of other calls of the row.
    pub(crate) total_ns: u64,
    pub(crate) self_ns: u64,
    pub(crate) calls: u64,
    /// The number of them still open at the end of the recording.
    pub(crate) did_not_return: u64,
    /// The overhead of recording in that, if it is subtracted.
    pub(crate) costs: Costs,
}

impl CallSums {
    /// Returns the sums of one call outside of other calls of the row; `cost` is subtracted from its times.
    pub(crate) fn of(cost: Option<CallCost>, ended: &EndedCall) -> Self {
        let &EndedCall { total_ns, self_ns, did_not_return, .. } = ended;
        let costs = Costs::of(cost, ended);
        Self { total_ns, self_ns, calls: 1, did_not_return: did_not_return.into(), costs }
    }

    /// Returns the sums of a time without a processor.
    pub(crate) fn of_off_cpu(ns: u64) -> Self {
        Self { total_ns: ns, self_ns: ns, calls: 1, ..Self::default() }
    }

    /// The same, if it is within another call of the row.
    pub(crate) fn within(self) -> Self {
        Self { total_ns: 0, costs: Costs { total: Cost::default(), ..self.costs }, ..self }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.calls += other.calls;
        self.did_not_return += other.did_not_return;
        self.costs.add(other.costs);
    }
}

/// The times of tasks without a processor, in nanoseconds, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OffCpuTimes {
    pub(crate) waiting_ns: u64,
    pub(crate) preempted_ns: u64,
}

impl OffCpuTimes {
    /// One such time.
    pub(crate) fn of(kind: OffCpu, ns: u64) -> Self {
        match kind {
            OffCpu::Waiting => Self { waiting_ns: ns, ..Self::default() },
            OffCpu::Preempted => Self { preempted_ns: ns, ..Self::default() },
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.waiting_ns = self.waiting_ns.saturating_add(other.waiting_ns);
        self.preempted_ns = self.preempted_ns.saturating_add(other.preempted_ns);
    }
}

/// The open functions of the current task, as indices of rows.
pub(crate) struct TaskCalls<'t> {
    pub(crate) task: &'t Task,
    pub(crate) open: Vec<Option<usize>>,
    pub(crate) assumed: AssumedFunctions<'t>,
    pub(crate) functions: Functions<'t>,
}

impl<'t> TaskCalls<'t> {
    /// None yet.
    pub(crate) fn new(trace: &'t Trace, task: &'t Task) -> Self {
        let (assumed, functions) = (AssumedFunctions::new(trace, task), Functions::new(trace, task));
        Self { task, open: Vec::new(), assumed, functions }
    }
}

/// Rows for adding calls one by one.
pub(crate) trait Collector<'t> {
    /// The kind of results kept for parts of a trace.
    const KEPT: Kept;
    /// The maximum number of kept rows.
    const MAX_KEPT: usize;

    /// None yet; with the times of single calls, if they are asked for and there are such.
    fn new(trace: &'t Trace, has_times: bool) -> Self;
    fn trace(&self) -> &'t Trace;
    fn has_times(&self) -> bool;

    /// Takes a step into account, with its record.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read, or there are too many rows.
    fn apply(&mut self, calls: &mut TaskCalls<'_>, step: &Step, record: Option<&Record>) -> Result<()>;
    /// Opens a function with this name and address, and without nameless calls so far.
    fn enter_known(&mut self, calls: &mut TaskCalls<'_>, name: &str, addr: u64);
    /// Closes the innermost open function. Returns its row, if it is known, and whether it is the only open one of that
    /// row.
    fn close(&mut self, calls: &mut TaskCalls<'_>, ended: &EndedCall) -> Option<(usize, bool)>;
    /// Closes open functions down to this number.
    fn truncate(&mut self, calls: &mut TaskCalls<'_>, n_open: usize);

    /// Adds a call.
    fn add(&mut self, row: usize, call: CallSums, is_outermost: bool);
    /// Adds the sums of other calls.
    fn add_sums(&mut self, row: usize, sums: CallSums, times: Option<Box<CallTimes>>);
    /// Adds sums outside of rows: calls without names, and the task's time without a processor.
    fn add_uncounted(&mut self, nameless_calls: u64, off_cpu: Option<OffCpuTimes>);

    /// The row of a key, at the end of the way of another row.
    fn row_of(&mut self, around: Option<usize>, last: Last<&str>) -> usize;
    /// Returns the number of rows. They are in the order of their first occurrence.
    fn n_rows(&self) -> usize;
    /// The key of a row.
    fn key(&self, row: usize) -> (Option<usize>, Last<&str>);
    /// Takes the additions to a row.
    fn take(&mut self, row: usize) -> (CallSums, Option<Box<CallTimes>>);
    /// Returns the sums outside of rows.
    fn uncounted(&self) -> (u64, Option<OffCpuTimes>);
}
