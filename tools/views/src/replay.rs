//! The calls of all tasks in order of time, as text.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use rftrace_read::{AllRecords, Error, Result, Summary, Task, Trace};

use crate::duration::{Duration, Unit};
use crate::lines::{Line, LineMaker, What};
use crate::stats::TaskStats;

/// From this depth on lines are not indented any further: no tracer records deeper stacks, but a broken file may have them.
const MAX_INDENT: usize = 1024;

/// How to show a replay.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Whether to use colours, by ANSI escape sequences.
    pub color: bool,
}

/// Writes what `trace` recorded, a line for each entry and exit, in order of time.
///
/// A call with nothing in it is one line, `name();`. Others begin with `name() {` and end with `} /* name */`. Events and
/// lost records are comments. Functions that are still open at the end are listed there.
///
/// # Errors
///
/// A `.dat` file cannot be read, or `out` not be written.
pub fn replay(trace: &Trace, options: &ReplayOptions, out: &mut dyn Write) -> Result<Summary> {
    let mut replay = Replay {
        trace,
        printer: Printer { out, color: options.color },
        input: trace.all_records()?,
        makers: trace.tasks().iter().map(|_| LineMaker::default()).collect(),
        stats: trace.tasks().iter().map(TaskStats::new).collect(),
        nameless_calls: 0,
    };
    replay.run()?;

    let mut summary = Summary::new(0, replay.input.warnings());
    summary.nameless_calls = replay.nameless_calls;
    replay.stats.iter().for_each(|task| task.add_to(&mut summary));
    for maker in &replay.makers {
        summary.warnings.merge(maker.calls().warnings());
    }
    Ok(summary)
}

struct Replay<'t, 'o> {
    trace: &'t Trace,
    printer: Printer<'o>,
    input: AllRecords<'t>,
    makers: Vec<LineMaker>,
    stats: Vec<TaskStats>,
    nameless_calls: u64,
}

impl Replay<'_, '_> {
    fn run(&mut self) -> Result<()> {
        writeln!(self.printer.out, "# DURATION     TID     FUNCTION").map_err(Error::Write)?;
        let mut lines = Vec::new();
        while let Some(next) = self.input.next() {
            let (idx, record) = next?;
            let task = &self.trace.tasks()[idx];
            self.stats[idx].add(self.trace, &record);
            let next = self.input.peek().filter(|(next_idx, _)| *next_idx == idx).map(|(_, record)| *record);
            let takes_next =
                self.makers[idx].apply((self.trace, task), &record, next.as_ref(), |line| lines.push(line));
            if takes_next && let Some((_, next)) = self.input.next().transpose()? {
                self.stats[idx].add(self.trace, &next);
            }
            for line in lines.drain(..) {
                self.show(task, &line)?;
            }
        }
        self.show_open().map_err(Error::Write)
    }

    fn show(&mut self, task: &Task, line: &Line) -> Result<()> {
        let name = line.name(self.trace, task);
        if let What::Enter { .. } | What::Call { .. } = line.what {
            self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
        }
        self.printer.line(task, line, &name).map_err(Error::Write)
    }

    fn show_open(&mut self) -> io::Result<()> {
        let mut is_first = true;
        for (task, maker) in self.trace.tasks().iter().zip(&self.makers) {
            let calls = maker.calls();
            let names: Vec<_> =
                calls.open().flatten().map(|addr| self.trace.function_name(task, calls.last_ns(), addr)).collect();
            if names.is_empty() {
                continue;
            }
            if is_first {
                writeln!(self.printer.out, "\n# Still open at the end of the trace, outermost first:")?;
                is_first = false;
            }
            writeln!(self.printer.out, "# [{:6}] {}", task.tid(), names.join(" > "))?;
        }
        Ok(())
    }
}

struct Printer<'o> {
    out: &'o mut dyn Write,
    color: bool,
}

impl Printer<'_> {
    fn line(&mut self, task: &Task, line: &Line, name: &str) -> io::Result<()> {
        self.out.write_all(b" ")?;
        match line.duration_ns.map(Duration) {
            None => write!(self.out, "{:10}", "")?,
            Some(duration) => match duration.unit() {
                Unit::Micros => write!(self.out, "{duration}")?,
                Unit::Millis => self.colored(GREEN, duration)?,
                Unit::Seconds => self.colored(YELLOW, duration)?,
            },
        }
        write!(self.out, " [{:6}] | ", task.tid())?;
        for _ in 0..line.depth.min(MAX_INDENT) {
            self.out.write_all(b"  ")?;
        }
        let (code, comment) = line.text(name);
        self.out.write_all(code.as_bytes())?;
        if let Some(comment) = comment {
            if !code.is_empty() {
                self.out.write_all(b" ")?;
            }
            let color = if matches!(line.what, What::Lost { .. }) { RED } else { GREY };
            self.colored(color, format_args!("/* {comment} */"))?;
        }
        self.out.write_all(b"\n")
    }

    fn colored(&mut self, color: &str, text: impl Display) -> io::Result<()> {
        if self.color { write!(self.out, "\x1b[{color}m{text}\x1b[m") } else { write!(self.out, "{text}") }
    }
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const GREY: &str = "90";
