//! Walks through records: the steps of one task's call stack, and those of all tasks in order of time.

use rftrace_read::{Error, Functions, Record, Summary, Task, Trace, Warnings};

use crate::stack::{CallStack, Step};
use crate::stats::TaskStats;

/// The outcome of a walk through a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// The counts of its records, and the flaws in single records.
    pub stats: TaskStats,
    /// The flaws in their sequence.
    pub misfits: Warnings,
    /// The time in nanoseconds at which functions still open behind the last record end.
    pub end_ns: u64,
}

impl Walked {
    /// Adds the outcome to a summary of all tasks.
    pub fn add_to(&self, summary: &mut Summary) {
        self.stats.add_to(summary);
        summary.warnings.merge(&self.misfits);
    }
}

/// Walks through the records of a task in order of time. It passes each step to `tell`, with the time of its record,
/// until the stack is empty: functions open at the end end with the last record.
///
/// # Errors
///
/// The task's `.dat` file cannot be read, or `tell` fails.
pub fn walk<E: From<Error>>(
    trace: &Trace,
    task: &Task,
    tell: impl FnMut(&Step, u64) -> Result<(), E>,
) -> Result<Walked, E> {
    walk_until(trace, task, None, tell)
}

/// Walks like [`walk`], but only through the records before this time, if one is given. If later records follow, open
/// functions end at this time.
///
/// # Errors
///
/// The errors of [`walk`].
pub fn walk_until<E: From<Error>>(
    trace: &Trace,
    task: &Task,
    until_ns: Option<u64>,
    mut tell: impl FnMut(&Step, u64) -> Result<(), E>,
) -> Result<Walked, E> {
    walk_with_records(trace, task, until_ns, |step, time_ns, _| tell(step, time_ns))
}

/// Walks like [`walk_until`], and passes the record of each step, if it has one.
///
/// # Errors
///
/// The errors of [`walk`].
pub fn walk_with_records<E: From<Error>>(
    trace: &Trace,
    task: &Task,
    until_ns: Option<u64>,
    mut tell: impl FnMut(&Step, u64, Option<&Record>) -> Result<(), E>,
) -> Result<Walked, E> {
    let mut stats = TaskStats::new(task);
    let mut records = trace.records(task);
    let mut stack = CallStack::new();
    let functions = Functions::new(trace, task);
    let mut steps = Vec::new();
    let mut cut_ns = None;
    for record in &mut records {
        let record = record?;
        cut_ns = until_ns.filter(|&until_ns| record.time_ns >= until_ns);
        if cut_ns.is_some() {
            break;
        }
        stats.add(trace, &record);
        stack.apply(&record, |a, b| functions.are_same(record.time_ns, a, b), &mut steps);
        for step in &steps {
            tell(step, record.time_ns, Some(&record))?;
        }
    }
    let end_ns = cut_ns.unwrap_or(stack.last_ns());
    stack.finish(end_ns, &mut steps);
    for step in &steps {
        tell(step, end_ns, None)?;
    }
    stats.warnings.merge(records.warnings());
    Ok(Walked { stats, misfits: stack.warnings().clone(), end_ns })
}

/// Walks through the records of all tasks in order of time. It passes each step to `tell`, with the task's index in
/// [`Trace::tasks`] and the record. Functions that are open at the end stay open.
///
/// ```
/// use rftrace_read::{Error, Trace};
/// use rftrace_views::{Step, walk_all};
///
/// # fn main() -> Result<(), Error> {
/// # let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/directory"));
/// let trace = Trace::open(dir)?;
/// let mut longest_ns = 0;
/// let summary = walk_all(&trace, |_, _, step| {
///     if let Step::Leave(ended) = step {
///         longest_ns = longest_ns.max(ended.total_ns);
///     }
///     Ok::<_, Error>(())
/// })?;
/// println!("{} records, the longest call took {longest_ns} ns", summary.records);
/// # assert!(longest_ns > 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A `.dat` file cannot be read, or `tell` fails.
pub fn walk_all<E: From<Error>>(
    trace: &Trace,
    mut tell: impl FnMut(usize, &Record, &Step) -> Result<(), E>,
) -> Result<Summary, E> {
    let mut records = trace.all_records()?;
    let mut tasks: Vec<_> = trace.tasks().iter().map(|task| (TaskStats::new(task), CallStack::new())).collect();
    let mut steps = Vec::new();
    for next in &mut records {
        let (idx, record) = next?;
        let task = &trace.tasks()[idx];
        let (stats, stack) = &mut tasks[idx];
        stats.add(trace, &record);
        stack.apply(&record, |a, b| trace.same_function(task, record.time_ns, a, b), &mut steps);
        for step in &steps {
            tell(idx, &record, step)?;
        }
    }
    let mut summary = Summary::new(0, records.warnings());
    for (stats, stack) in &tasks {
        stats.add_to(&mut summary);
        summary.warnings.merge(stack.warnings());
    }
    Ok(summary)
}
