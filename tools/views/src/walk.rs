//! From a task's records to the steps of its call stack.

use rftrace_read::{Result, Summary, Task, Trace, Warnings};

use crate::stack::{CallStack, Step};
use crate::stats::TaskStats;

/// What there was of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// How much was recorded, and the flaws in the records themselves.
    pub stats: TaskStats,
    /// The flaws in how they fit together.
    pub misfits: Warnings,
}

impl Walked {
    /// Adds it to the sum of all tasks.
    pub fn add_to(&self, summary: &mut Summary) {
        self.stats.add_to(summary);
        summary.warnings.merge(&self.misfits);
    }
}

/// Goes through the records of a task in order of time, and tells each step that they make, until its stack is empty.
///
/// # Errors
///
/// Its `.dat` file cannot be read.
pub fn walk(trace: &Trace, task: &Task, mut tell: impl FnMut(&Step)) -> Result<Walked> {
    let mut stats = TaskStats::new(task);
    let mut records = trace.records(task);
    let mut stack = CallStack::new();
    let mut steps = Vec::new();
    for record in &mut records {
        let record = record?;
        stats.add(trace, &record);
        stack.apply(&record, |a, b| trace.same_function(task, record.time_ns, a, b), &mut steps);
        steps.iter().for_each(&mut tell);
    }
    stack.finish(&mut steps);
    steps.iter().for_each(&mut tell);
    stats.warnings.merge(records.warnings());
    Ok(Walked { stats, misfits: stack.warnings().clone() })
}
