//! The sums of a report, while a trace is read: several tasks at a time.
//!
//! Not here: what a row has (`rows`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rftrace_read::{Error, Functions, Kept, Record, Result, SCHEDULE, Summary, Task, Trace};
use serde::{Deserialize, Serialize};

use crate::assumed::AssumedFunctions;
use crate::correction::Costs;
use crate::lines::Values;
use crate::rows::{ReportOptions, Row};
use crate::stack::{EndedCall, Step};
use crate::stats::TaskStats;
use crate::walk::{Walked, walk_with_records};

/// The most rows. Programs have fewer functions; where addresses have no names there may be any number of them.
const MAX_ROWS: usize = 1 << 20;

/// The row of all that came when there were as many.
const OTHERS: &str = "(other functions)";

/// The most threads that read, each with sums of its own: more wait for the disk, or for memory.
const MAX_THREADS: usize = 16;

/// What there is in a trace.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// In the order in which they are found if one task is read after the other.
    pub(crate) rows: Vec<Row>,
    pub(crate) tasks: Vec<TaskStats>,
    /// But for calls without names.
    pub(crate) summary: Summary,
    pub(crate) nameless_calls: u64,
    pub(crate) waited_ns: Option<u64>,
}

/// What is kept of a trace, if it is, or what is read of it.
///
/// # Errors
///
/// Those of [`read`].
pub(crate) fn kept(trace: &Trace, options: &ReportOptions) -> Result<Sums> {
    // Others are as quickly read as they are seldom asked for.
    if !options.spread || !options.by_value.is_empty() || !trace.keeps() {
        return read(trace, options);
    }
    if let Some(sums) = trace.kept(Kept::Report).and_then(|bytes| postcard::from_bytes(&bytes).ok()) {
        return Ok(sums);
    }
    trace.tell_of_index();
    let sums = read(trace, options)?;
    if let Ok(bytes) = postcard::to_stdvec(&sums) {
        trace.keep(Kept::Report, &bytes);
    }
    Ok(sums)
}

/// Reads all records of `trace`.
///
/// # Errors
///
/// A `.dat` file cannot be read: that of the first such task.
pub(crate) fn read(trace: &Trace, options: &ReportOptions) -> Result<Sums> {
    let n_tasks = trace.tasks().len();
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(n_tasks).clamp(1, MAX_THREADS);
    let next = AtomicUsize::new(0);
    // Each thread takes the next task that nobody has.
    let work = || {
        let mut worker = Worker { table: Table::new(trace, options), walked: Vec::new(), failure: None };
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = trace.tasks().get(idx) else { return worker };
            if let Err(error) = worker.read(idx, task) {
                worker.failure = Some((idx, error));
                // Nobody begins another one. Those with lower numbers are at work already.
                next.store(n_tasks, Ordering::Relaxed);
            }
        }
    };
    let mut workers: Vec<Worker<'_>> = thread::scope(|scope| {
        // Where there can be no more threads this one reads all.
        let others: Vec<_> =
            (1..n_threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(others).collect()
    });
    let failures = workers.iter_mut().filter_map(|worker| worker.failure.take());
    if let Some((_, error)) = failures.min_by_key(|&(idx, _)| idx) {
        return Err(error);
    }
    let mut sums = Sums::default();
    let mut walked: Vec<_> = workers.iter_mut().flat_map(|worker| worker.walked.drain(..)).collect();
    walked.sort_unstable_by_key(|&(idx, _)| idx);
    for (_, walked) in walked {
        walked.add_to(&mut sums.summary);
        sums.tasks.push(walked.stats);
    }
    let mut tables = workers.into_iter().map(|worker| worker.table);
    let mut table = tables.next().unwrap_or_else(|| Table::new(trace, options));
    // What others have found they have found in an earlier task than this.
    table.task = usize::MAX;
    tables.for_each(|other| table.merge(other));
    (sums.nameless_calls, sums.waited_ns) = (table.nameless_calls, table.waited_ns);
    sums.rows = table.into_rows();
    Ok(sums)
}

/// How many rows are found without a look at their names.
const N_RECENT: usize = 1024;

/// Where the name of a function lies in the trace, and its row.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    key: (usize, usize),
    idx: usize,
}

/// What one thread has read.
struct Worker<'t> {
    table: Table<'t>,
    walked: Vec<(usize, Walked)>,
    /// The task that could not be read, and why.
    failure: Option<(usize, Error)>,
}

impl Worker<'_> {
    fn read(&mut self, idx: usize, task: &Task) -> Result<()> {
        let table = &mut self.table;
        table.task = idx;
        let assumed = AssumedFunctions::new(table.trace, task);
        let mut calls = TaskCalls { task, open: Vec::new(), assumed, functions: Functions::new(table.trace, task) };
        let trace = table.trace;
        let walked = walk_with_records(trace, task, None, |step, _, record| table.apply(&mut calls, step, record))?;
        self.walked.push((idx, walked));
        Ok(())
    }
}

struct Table<'t> {
    trace: &'t Trace,
    options: &'t ReportOptions,
    rows: Vec<Row>,
    /// What recording took of the rows' times, if that is subtracted.
    costs: Vec<Costs>,
    /// The task, and the number of the row in it, where each was found first.
    found: Vec<(usize, usize)>,
    idx_of_label: HashMap<String, usize>,
    /// Rows of functions that were called of late, each at a place that the address of its name says.
    recent: Vec<Recent>,
    /// The index of the task that is being read.
    task: usize,
    /// How often each row's function is open in the task that is being read; all are 0 at its end.
    n_open: Vec<u32>,
    nameless_calls: u64,
    waited_ns: Option<u64>,
}

impl<'t> Table<'t> {
    fn new(trace: &'t Trace, options: &'t ReportOptions) -> Self {
        Self {
            trace,
            options,
            rows: Vec::new(),
            costs: Vec::new(),
            found: Vec::new(),
            idx_of_label: HashMap::new(),
            recent: vec![Recent::default(); N_RECENT],
            task: 0,
            n_open: Vec::new(),
            nameless_calls: 0,
            waited_ns: None,
        }
    }

    /// Adds what was read of other tasks.
    fn merge(&mut self, other: Table<'_>) {
        self.nameless_calls += other.nameless_calls;
        if let Some(waited_ns) = other.waited_ns {
            self.waited_ns = Some(self.waited_ns.unwrap_or(0).saturating_add(waited_ns));
        }
        let costs = other.costs.into_iter().map(Some).chain(std::iter::repeat(None));
        for ((row, found), costs) in other.rows.into_iter().zip(other.found).zip(costs) {
            let idx = match self.idx_of_label.get(&*row.label()) {
                Some(&idx) => idx,
                None => {
                    let (name, values, source) = (row.name.clone(), row.values.clone(), row.source.clone());
                    self.add_row(Row { name, values, source, ..Row::default() })
                }
            };
            if let Some(costs) = costs {
                self.costs.resize(self.rows.len(), Costs::default());
                self.costs[idx].own.add(costs.own);
                self.costs[idx].total.add(costs.total);
            }
            self.found[idx] = self.found[idx].min(found);
            let sum = &mut self.rows[idx];
            sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
            sum.self_ns = sum.self_ns.saturating_add(row.self_ns);
            sum.calls += row.calls;
            if sum.source.is_none() {
                sum.source = row.source;
            }
            match (&mut sum.times, row.times) {
                (Some(sum), Some(times)) => {
                    sum.total.merge(&times.total);
                    sum.own.merge(&times.own);
                }
                (sum @ None, times) => *sum = times,
                (Some(_), None) => {}
            }
        }
    }

    /// The rows, less what recording took of them, in the order of where they were found.
    fn into_rows(mut self) -> Vec<Row> {
        for (row, costs) in self.rows.iter_mut().zip(&self.costs) {
            costs.off(&mut row.total_ns, &mut row.self_ns);
        }
        // There may be many rows: those of one thread need no second place.
        if !self.found.is_sorted() {
            let mut rows: Vec<_> = self.found.into_iter().zip(self.rows).collect();
            rows.sort_unstable_by_key(|&(found, _)| found);
            self.rows = rows.into_iter().map(|(_, row)| row).collect();
        }
        // All calls of a function may have rows of their own.
        self.rows.retain(|row| row.calls > 0);
        self.rows
    }

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
                let name = calls.functions.name(time_ns, addr);
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
        self.found.push((self.task, idx));
        self.rows.push(row);
        idx
    }
}

/// The open functions of the task that is being read, as indices of rows.
struct TaskCalls<'t> {
    task: &'t Task,
    open: Vec<Option<usize>>,
    assumed: AssumedFunctions<'t>,
    functions: Functions<'t>,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rftrace_read::{Kind, Record};

    use super::*;

    /// Tasks with functions of their own and common ones, whose rows several threads find in any order.
    #[test]
    fn rows_are_in_the_order_of_tasks_however_many_threads_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        fs::write(dir.path().join("info"), info).unwrap();
        let n_tasks = 20_u32;
        let mut lines = String::new();
        let mut expected: Vec<(String, u64)> = Vec::new();
        for task in 0..n_tasks {
            lines += &format!("TASK timestamp=0.000000001 tid={0} pid={0}\n", task + 1);
            // The first tasks take longest, so that the others are read by another thread.
            let n_rounds = if task < 2 { 3_000 } else { 10 };
            let addrs = [0x1000 + u64::from(task % 7), 0x9000, 0x2000 - u64::from(task)];
            let mut records = Vec::new();
            let calls = (0..n_rounds).flat_map(|_| addrs);
            for (number, addr) in (0_u64..).zip(calls) {
                for (kind, time_ns) in [(Kind::Entry, 10 * number), (Kind::Exit, 10 * number + 3)] {
                    let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth: 0, addr };
                    records.extend(record.encode());
                }
            }
            for addr in addrs {
                let name = format!("<{addr:x}>");
                match expected.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, calls)) => *calls += n_rounds,
                    None => expected.push((name, n_rounds)),
                }
            }
            fs::write(dir.path().join(format!("{}.dat", task + 1)), records).unwrap();
        }
        fs::write(dir.path().join("task.txt"), lines).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        let options = ReportOptions { spread: true, ..ReportOptions::default() };
        for _ in 0..5 {
            let sums = read(&trace, &options).unwrap();
            let found: Vec<_> = sums.rows.iter().map(|row| (row.name.clone(), row.calls)).collect();
            assert_eq!(found, expected);
            assert!(sums.rows.iter().all(|row| row.total_ns == 3 * row.calls && row.self_ns == row.total_ns));
            assert!(sums.rows.iter().all(|row| row.times.as_ref().is_some_and(|times| times.total.average_ns() == 3)));
            let tids: Vec<_> = sums.tasks.iter().map(|task| task.tid).collect();
            assert_eq!(tids, (1..=n_tasks).collect::<Vec<_>>());
            assert_eq!(sums.nameless_calls, sums.rows.iter().map(|row| row.calls).sum::<u64>());
        }
    }
}
