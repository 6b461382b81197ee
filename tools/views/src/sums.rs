//! The sums of a report, made while a trace is read: several tasks at a time.
//!
//! Not here: the content of a row (`rows`), the assignment of calls to rows (`collect`), and sums of parts (`blocks`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rftrace_read::{Error, Kept, Result, Summary, Task, Trace};
use serde::{Deserialize, Serialize};

use crate::between::sum_up;
use crate::blocking::{LONG_BYTES, Limits};
use crate::blocks::Blocks;
use crate::collect::Table;
use crate::collector::OffCpuTimes;
use crate::correction::Share;
use crate::rows::{ReportOptions, Row};
use crate::stats::TaskStats;
use crate::walk::Walked;

/// The maximum number of reading threads, each with sums of its own: more wait for the disk, or for memory.
const MAX_THREADS: usize = 16;

/// The sums of a trace.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// In the order of first occurrence in a reading of one task after the other.
    pub(crate) rows: Vec<Row>,
    /// The subtracted share of the measured overhead.
    pub(crate) share: Share,
    pub(crate) tasks: Vec<TaskStats>,
    /// But for calls without names.
    pub(crate) summary: Summary,
    pub(crate) nameless_calls: u64,
    pub(crate) off_cpu: Option<OffCpuTimes>,
}

/// The kept sums of a trace, or those read from its records.
///
/// # Errors
///
/// The errors of [`read`].
pub(crate) fn kept(trace: &Trace, options: &ReportOptions) -> Result<Sums> {
    // Rows by value are seldom asked for.
    if !options.by_value.is_empty() || !trace.keeps() {
        return read(trace, options);
    }
    let has_times = |sums: &Sums| sums.rows.iter().all(|row| row.times.is_some());
    let kept = trace.kept(Kept::Report).and_then(|bytes| postcard::from_bytes::<Sums>(&bytes).ok());
    let mut sums = match kept.filter(|sums| !options.spread || has_times(sums)) {
        Some(sums) => sums,
        // Without the times of single calls few records are as quickly read.
        None if !options.spread && trace.records_bytes() < LONG_BYTES => return read(trace, options),
        None => {
            trace.tell_of_index();
            let sums = read(trace, options)?;
            if let Ok(bytes) = postcard::to_stdvec(&sums) {
                trace.keep(Kept::Report, &bytes);
            }
            sums
        }
    };
    if !options.spread {
        sums.rows.iter_mut().for_each(|row| row.times = None);
    }
    Ok(sums)
}

/// Reads all records of `trace`.
///
/// # Errors
///
/// A `.dat` file cannot be read: that of the first such task.
pub(crate) fn read(trace: &Trace, options: &ReportOptions) -> Result<Sums> {
    let blocks = blocks(trace, options, Limits::default())?;
    read_with(trace, options, blocks.as_ref())
}

/// Returns the sums of blocks for reading a part, if it is read by them.
pub(crate) fn blocks(trace: &Trace, options: &ReportOptions, limits: Limits) -> Result<Option<Blocks>> {
    if !options.by_value.is_empty() {
        return Ok(None);
    }
    Blocks::of_part::<Table<'_>>(trace, options.spread, limits)
}

/// Reads all records, or only those without sums of blocks.
pub(crate) fn read_with(trace: &Trace, options: &ReportOptions, blocks: Option<&Blocks>) -> Result<Sums> {
    let n_tasks = trace.tasks().len();
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(n_tasks).clamp(1, MAX_THREADS);
    let next = AtomicUsize::new(0);
    // Each thread takes the next task that nobody has.
    let work = || {
        let mut worker = Worker {
            table: Table::by_values(trace, options.spread, &options.by_value),
            blocks,
            walked: Vec::new(),
            failure: None,
        };
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
    let mut table = tables.next().unwrap_or_else(|| Table::by_values(trace, options.spread, &options.by_value));
    // Functions found by other threads were found in an earlier task than this.
    table.task = usize::MAX;
    tables.for_each(|other| table.merge(other));
    (sums.nameless_calls, sums.off_cpu) = (table.nameless_calls, table.off_cpu);
    (sums.rows, sums.share) = table.into_rows();
    Ok(sums)
}

/// The results of one thread.
struct Worker<'t> {
    table: Table<'t>,
    blocks: Option<&'t Blocks>,
    walked: Vec<(usize, Walked)>,
    /// The unreadable task and its error.
    failure: Option<(usize, Error)>,
}

impl<'t> Worker<'t> {
    fn read(&mut self, idx: usize, task: &'t Task) -> Result<()> {
        self.table.task = idx;
        let walked = sum_up(&mut self.table, task, self.blocks)?;
        self.walked.push((idx, walked));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rftrace_read::{Kind, Record};

    use super::*;

    /// Tasks with functions of their own and common ones, in rows found by several threads in any order.
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
