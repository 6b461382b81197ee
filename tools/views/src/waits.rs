//! The waits of threads: the waiting functions, and the causes of their ends.
//!
//! Not here: the times of waits (`stack`), and the reading of wakings (`rftrace-read`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use rftrace_read::{Error, Kind, OffCpu, Record, Result, ShownNames, Summary, Task, Trace, Waking};

use crate::assumed::AssumedFunctions;
use crate::duration::Duration;
use crate::stack::Step;
use crate::walk::walk_all;
use crate::words::count;

/// The least duration of a long wait in nanoseconds. Shorter ones are only counted.
const LONG_NS: u64 = 1_000_000;

/// The text for a thread in none of the recorded functions.
const NO_FUNCTION: &str = "(none recorded)";

/// The long waits of a trace by function and cause, with the largest total time first.
#[derive(Debug)]
pub struct Waits {
    rows: Vec<WaitRow>,
    short: WaitTimes,
    has_wakings: bool,
    summary: Summary,
    names: ShownNames,
}

/// The long waits with a common function and a common cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitRow {
    /// The innermost recorded function of the waiting threads.
    pub function: Option<String>,
    /// What ended the waits.
    pub cause: Cause,
    /// Their times.
    pub times: WaitTimes,
}

/// The end of a wait.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A thread of the trace woke the waiting one.
    Thread {
        /// Its innermost recorded function then.
        function: Option<String>,
        /// Its name.
        thread: String,
    },
    /// No thread of the trace woke it, as far as the kernel tells: some kernels are silent on ending threads.
    Outside,
    /// Its end was not recorded: the thread did not run again, or records are missing.
    NoEnd,
    /// Wakings were not recorded.
    Unknown,
}

/// The times of several waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitTimes {
    /// The number of waits.
    pub waits: u64,
    /// Their sum in nanoseconds.
    pub total_ns: u64,
    /// The longest wait in nanoseconds.
    pub longest_ns: u64,
}

impl WaitTimes {
    fn add(&mut self, ns: u64) {
        self.waits += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }
}

impl Cause {
    /// Returns the kind of cause as a word, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Thread { .. } => "thread",
            Self::Outside => "outside",
            Self::NoEnd => "no-end",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the function and the name of the thread that woke the waiting one.
    pub fn waker(&self) -> [Option<&str>; 2] {
        match self {
            Self::Thread { function, thread } => [function.as_deref(), Some(thread)],
            Self::Outside | Self::NoEnd | Self::Unknown => [None, None],
        }
    }

    /// The cause for people.
    fn text(&self, names: &ShownNames) -> String {
        match self {
            Self::Thread { function, thread } => format!("{}, thread {thread}", shown(function.as_ref(), names)),
            Self::Outside => "a timer, a device, an ending thread, or one that is not shown".to_owned(),
            Self::NoEnd => "(no recorded end)".to_owned(),
            Self::Unknown => "unknown".to_owned(),
        }
    }
}

fn shown<'n>(function: Option<&'n String>, names: &'n ShownNames) -> &'n str {
    function.map_or(NO_FUNCTION, |name| names.get(name))
}

/// An open function: an address in it, and a time of its address space.
type Place = Option<(u64, u64)>;

/// A thread during the walk through its records.
struct Thread<'t> {
    task: &'t Task,
    open: Vec<Place>,
    assumed: AssumedFunctions<'t>,
    /// The time of its last waking, and the waking thread and place; `None` for a thread outside of the view.
    woken: Option<(u64, Option<(usize, Place)>)>,
}

impl<'t> Thread<'t> {
    fn new(trace: &'t Trace, task: &'t Task) -> Self {
        Self { task, open: Vec::new(), assumed: AssumedFunctions::new(trace, task), woken: None }
    }

    /// The innermost open function.
    fn place(&self) -> Place {
        self.open.last().copied().flatten()
    }

    fn apply(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Enter { addr, time_ns } => self.open.push(Some((addr, time_ns))),
            Step::Assume { .. } => self.open.push(self.assumed.next_function()?),
            Step::Leave(_) => drop(self.open.pop()),
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok(())
    }
}

impl Waits {
    /// Reads the waits of all threads. `None` if the trace has no context switches, so no waits are known.
    ///
    /// # Errors
    ///
    /// A file of records cannot be read.
    pub fn read(trace: &Trace) -> Result<Option<Self>> {
        let waits = Self::with(trace, trace.wakings()?)?;
        let has_schedule = waits.short.waits > 0 || !waits.rows.is_empty() || trace.has_schedule()?;
        Ok(has_schedule.then_some(waits))
    }

    /// The same with these wakings, in order of time; `None` if they were not recorded.
    fn with(trace: &Trace, wakings: Option<Vec<Waking>>) -> Result<Self> {
        let has_wakings = wakings.is_some();
        let mut wakings = wakings.unwrap_or_default().into_iter().peekable();
        let mut threads: Vec<_> = trace.tasks().iter().map(|task| Thread::new(trace, task)).collect();
        let idx_of: HashMap<u32, usize> = trace.tasks().iter().map(Task::tid).zip(0..).collect();
        let (mut long, mut short) = (HashMap::<_, WaitTimes>::new(), WaitTimes::default());
        let name = |threads: &[Thread<'_>], idx: usize, place: Place| {
            place.map(|(addr, time_ns)| trace.function_name(threads[idx].task, time_ns, addr).into_owned())
        };
        let summary = walk_all(trace, |idx, record, step| {
            while let Some(waking) = wakings.next_if(|waking| waking.time_ns < record.time_ns) {
                let by = idx_of.get(&waking.by).map(|&by| (by, threads[by].place()));
                if let Some(&woken) = idx_of.get(&waking.tid) {
                    threads[woken].woken = Some((waking.time_ns, by));
                }
            }
            match *step {
                Step::Event { off_cpu: Some((OffCpu::Waiting, ns)), .. } if ns < LONG_NS => short.add(ns),
                Step::Event { off_cpu: Some((OffCpu::Waiting, ns)), .. } => {
                    let began_ns = record.time_ns.saturating_sub(ns);
                    let woken = threads[idx].woken.filter(|&(time_ns, _)| time_ns >= began_ns);
                    let cause = match woken {
                        Some((_, Some((by, place)))) => Cause::Thread {
                            function: name(&threads, by, place),
                            thread: threads[by].task.name().to_owned(),
                        },
                        None if !is_switch(record) => Cause::NoEnd,
                        None if !has_wakings => Cause::Unknown,
                        _ => Cause::Outside,
                    };
                    long.entry((name(&threads, idx, threads[idx].place()), cause)).or_default().add(ns);
                }
                _ => threads[idx].apply(step)?,
            }
            Ok::<_, Error>(())
        })?;
        let row = |((function, cause), times)| WaitRow { function, cause, times };
        let mut rows: Vec<_> = long.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let key = |row: &'_ WaitRow| Reverse(row.times.total_ns);
            key(a).cmp(&key(b)).then_with(|| (&a.function, &a.cause).cmp(&(&b.function, &b.cause)))
        });
        let mut names = trace.shown_names();
        names.add_all(rows.iter().flat_map(|row| [row.function.as_deref(), row.cause.waker()[0]]).flatten());
        Ok(Self { rows, short, has_wakings, summary, names })
    }

    /// Returns the rows.
    pub fn rows(&self) -> &[WaitRow] {
        &self.rows
    }

    /// Returns the number and times of shorter waits, which have no rows.
    pub fn short(&self) -> WaitTimes {
        self.short
    }

    /// Returns true if the causes are known: wakings were recorded.
    pub fn has_wakings(&self) -> bool {
        self.has_wakings
    }

    /// Returns the number of records read, and the flaws in them.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Writes a line on all waits, and a table of the first `limit` rows.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, limit: usize, out: &mut dyn Write) -> Result<()> {
        self.write_all(limit, out).map_err(Error::Write)
    }

    fn write_all(&self, limit: usize, out: &mut dyn Write) -> io::Result<()> {
        let number = |times: WaitTimes| format!("{} ({})", count(times.waits), Duration(times.total_ns).text());
        let mut long = WaitTimes::default();
        for WaitTimes { waits, total_ns, .. } in self.rows.iter().map(|row| row.times) {
            long.waits += waits;
            long.total_ns = long.total_ns.saturating_add(total_ns);
        }
        writeln!(out, "  Waits of 1 ms or longer: {}; shorter ones: {}", number(long), number(self.short))?;
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = self.rows.iter().take(limit).collect();
        let title = "Waiting function";
        let function = |row: &WaitRow| shown(row.function.as_ref(), &self.names).to_owned();
        let width = rows.iter().map(|row| function(row).chars().count()).max().unwrap_or(0).max(title.len());
        writeln!(out, "  {:>10}  {:>10}  {:>10}  {title:width$}  Ended by", "Total time", "Longest", "Waits")?;
        let line = "=".repeat(10);
        writeln!(out, "  {line}  {line}  {line}  {}  {}", "=".repeat(width), "=".repeat(20))?;
        for row in rows {
            let WaitTimes { waits, total_ns, longest_ns } = row.times;
            let (total, longest, cause) = (Duration(total_ns), Duration(longest_ns), row.cause.text(&self.names));
            writeln!(out, "  {total}  {longest}  {waits:>10}  {:width$}  {cause}", function(row))?;
        }
        Ok(())
    }
}

/// Returns true for a context switch; a wait may also end with the next call or return.
fn is_switch(record: &Record) -> bool {
    record.kind == Kind::Event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::trace;

    /// The rows of two threads: the second one works while the first one waits.
    fn rows(threads: [&str; 2], wakings: Option<&[(u64, u32, u32)]>) -> (Vec<(String, String, u64)>, WaitTimes) {
        let (_dir, trace) = trace(&threads);
        let waking = |&(time_ns, tid, by): &(u64, u32, u32)| Waking { time_ns: 1000 + time_ns, tid, by };
        let waits = Waits::with(&trace, wakings.map(|wakings| wakings.iter().map(waking).collect())).unwrap();
        let row = |row: &WaitRow| {
            (shown(row.function.as_ref(), &waits.names).to_owned(), row.cause.text(&waits.names), row.times.total_ns)
        };
        (waits.rows.iter().map(row).collect(), waits.short)
    }

    const WAITS: &str = "main( 100 lock( w2000000 ) lock( w3000000 ) read( w999999 ) )";

    #[test]
    fn a_wait_has_the_function_of_the_last_waking_in_it() {
        let threads = [WAITS, "serve( 1000000 open( 900000 unlock( 200000 ) 500000 ) 3000000 )"];
        let by = |function: &str, ns| ("lock".to_owned(), format!("{function}, thread p"), ns);
        let wakings = [(50, 7, 8), (1_000, 7, 9), (1_950_000, 7, 8), (2_000_000, 8, 7), (4_900_000, 7, 8)];
        let (found, short) = rows(threads, Some(&wakings));
        assert_eq!(found, [by("serve", 3_000_000), by("unlock", 2_000_000)]);
        assert_eq!(short, WaitTimes { waits: 1, total_ns: 999_999, longest_ns: 999_999 });
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let outside = Cause::Outside.text(&ShownNames::new(false));
        for (wakings, cause) in [
            (None, "unknown"),
            (Some(&[][..]), &*outside),
            // Before the wait, and by a thread without records.
            (Some(&[(50, 7, 8), (1_000, 7, 9), (3_000_000, 7, 9)][..]), &*outside),
        ] {
            let (found, _) = rows([WAITS, "serve( 6000000 )"], wakings);
            assert_eq!(found, [("lock".to_owned(), cause.to_owned(), 5_000_000)], "{wakings:?}");
        }
    }
}
