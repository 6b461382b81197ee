//! The calls of all tasks in order of time, as text.
//!
//! Not here: the content of a line (`lines`), and the columns (`columns`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};
use std::mem;

use rftrace_format::ending;
use rftrace_read::{AllRecords, Error, OffCpu, Record, Result, SCHED_IN, ShownNames, Summary, Task, Trace};

use crate::columns::ReplayField;
use crate::duration::{Duration, Unit};
use crate::lines::{Line, LineMaker, Values, What};
use crate::stats::TaskStats;

/// From this depth on lines are not indented any further: no tracer records deeper stacks, but a broken file may have them.
const MAX_INDENT: usize = 1024;

/// The options of a replay.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// True to use colours, with ANSI escape sequences.
    pub color: bool,
    /// The columns to the left of the functions. They are always shown in the order of [`ReplayField::ALL`].
    pub fields: Vec<ReplayField>,
    /// True to show a line for each record, with the recorded times and without columns.
    pub is_flat: bool,
    /// The number of levels of each task's indentation beyond the task before it.
    pub task_indent: usize,
    /// The beginning of elapsed time in nanoseconds, see [`Trace::start_ns`].
    pub start_ns: u64,
    /// The number of lines to show from the end, `None` for all. It does not apply to a flat replay.
    pub last: Option<usize>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            color: false,
            fields: ReplayField::USUAL.to_vec(),
            is_flat: false,
            task_indent: 0,
            start_ns: 0,
            last: None,
        }
    }
}

/// Writes the calls of `trace` in order of time, a line for each entry and exit.
///
/// A call without anything in it is one line, `name();`. Other calls begin with `name() {` and end with `} /* name */`.
///
/// Events and lost records are comments, and so are source lines if they [were read](Trace::read_sources). Functions
/// that did not return, or are still open, are listed at the end.
///
/// # Errors
///
/// A `.dat` file cannot be read, or `out` cannot be written.
pub fn replay(trace: &Trace, options: &ReplayOptions, out: &mut dyn Write) -> Result<Summary> {
    let mut options = options.clone();
    options.fields.sort_unstable();
    options.fields.dedup();
    let mut replay = Replay {
        trace,
        printer: Printer { trace, out, options, n_records: 0 },
        input: trace.all_records()?,
        makers: trace.tasks().iter().map(|_| LineMaker::default()).collect(),
        open: vec![Open::default(); trace.tasks().len()],
        stats: trace.tasks().iter().map(TaskStats::new).collect(),
        places: vec![Place::default(); trace.tasks().len()],
        last: VecDeque::new(),
        n_left_out: 0,
        names: trace.shown_names(),
        n_shown_tasks: 0,
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
    open: Vec<Open>,
    stats: Vec<TaskStats>,
    places: Vec<Place>,
    /// The candidates for the last lines.
    last: VecDeque<PlacedLine>,
    n_left_out: u64,
    names: ShownNames,
    n_shown_tasks: usize,
    nameless_calls: u64,
}

/// A line in the tree.
#[derive(Debug, Clone, Copy)]
struct PlacedLine {
    /// The number of its task.
    task: usize,
    line: Line,
    /// The number of tasks shown before its task.
    column: usize,
    /// The time since the task's previous line.
    delta_ns: Option<u64>,
}

/// The place of a task's lines.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The number of tasks shown before this one, if it was shown.
    column: Option<usize>,
    /// The time of its last line.
    last_ns: Option<u64>,
}

/// The calls of a task, by the lines of their entries.
#[derive(Debug, Clone, Default)]
struct Open {
    /// The open calls, outermost first.
    now: Vec<Line>,
    /// The calls without a return, innermost first.
    for_ever: Vec<Line>,
}

impl Open {
    fn apply(&mut self, line: &Line) {
        match line.what {
            What::Enter { .. } => self.now.push(*line),
            What::Leave { did_not_return, .. } => {
                // The entry of one that was open before the trace has no line.
                let entry = self.now.pop_if(|entry| entry.depth >= line.depth);
                self.for_ever.extend(entry.filter(|_| did_not_return));
            }
            _ => {}
        }
    }
}

impl<'t> Replay<'t, '_> {
    fn run(&mut self) -> Result<()> {
        let is_flat = self.printer.options.is_flat;
        self.printer.title().map_err(Error::Write)?;
        let mut lines = Vec::new();
        while let Some(next) = self.input.next() {
            let (idx, record) = next?;
            let task = &self.trace.tasks()[idx];
            self.stats[idx].add(self.trace, &record);
            let next =
                self.input.peek().filter(|(next_idx, _)| *next_idx == idx && !is_flat).map(|(_, record)| *record);
            let takes_next =
                self.makers[idx].apply((self.trace, task), &record, next.as_ref(), |line| lines.push(line));
            if takes_next && let Some((_, next)) = self.input.next().transpose()? {
                self.stats[idx].add(self.trace, &next);
            }
            for line in lines.drain(..) {
                self.show(idx, &record, &line)?;
            }
        }
        self.show_last()?;
        self.show_open().map_err(Error::Write)?;
        self.show_not_returned()
    }

    fn show(&mut self, idx: usize, record: &Record, line: &Line) -> Result<()> {
        let task = &self.trace.tasks()[idx];
        self.open[idx].apply(line);
        if self.printer.options.is_flat {
            let name = self.named(task, line);
            let name = line.shown_name(&name, &mut self.names);
            return self.printer.flat(task, record, line, name).map_err(Error::Write);
        }
        let place = &mut self.places[idx];
        let column = *place.column.get_or_insert_with(|| {
            self.n_shown_tasks += 1;
            self.n_shown_tasks - 1
        });
        let delta_ns = place.last_ns.replace(line.time_ns).map(|last_ns| line.time_ns.saturating_sub(last_ns));
        let placed = PlacedLine { task: idx, line: *line, column, delta_ns };
        let Some(most) = self.printer.options.last else { return self.print(&placed) };
        // The list at the end has them.
        if matches!(line.what, What::Leave { did_not_return: true, .. }) {
            return Ok(());
        }
        self.last.push_back(placed);
        if self.last.len() > most {
            self.last.pop_front();
            self.n_left_out += 1;
        }
        Ok(())
    }

    fn print(&mut self, placed: &PlacedLine) -> Result<()> {
        let task = &self.trace.tasks()[placed.task];
        let name = self.named(task, &placed.line);
        let values = placed.line.values(self.trace, task)?;
        let name = placed.line.shown_name(&name, &mut self.names);
        self.printer.line(task, placed, (name, &values)).map_err(Error::Write)
    }

    /// The name of a line's function or event. Calls without names are counted.
    fn named(&mut self, task: &Task, line: &Line) -> Cow<'t, str> {
        let name = line.name(self.trace, task);
        if let What::Enter { .. } | What::Call { .. } = line.what {
            self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
        }
        name
    }

    /// Prints the last lines, if only those are shown.
    fn show_last(&mut self) -> Result<()> {
        match self.n_left_out {
            0 => {}
            1 => writeln!(self.printer.out, "# 1 line before is left out").map_err(Error::Write)?,
            n => writeln!(self.printer.out, "# {n} lines before are left out").map_err(Error::Write)?,
        }
        for placed in mem::take(&mut self.last) {
            self.print(&placed)?;
        }
        Ok(())
    }

    /// Lists the calls without a return by processes, with the known ends of these.
    fn show_not_returned(&mut self) -> Result<()> {
        let has_open = |(_, open): &(&Task, &Open)| !open.for_ever.is_empty();
        let mut open: Vec<_> = self.trace.tasks().iter().zip(&self.open).filter(has_open).collect();
        open.sort_by_key(|(task, _)| task.pid());
        let is_one = self.trace.tasks().iter().all(|task| task.pid() == self.trace.tasks()[0].pid());
        if open.is_empty() {
            return Ok(());
        }
        let (ends, cut_off) = (self.trace.ends()?, self.trace.cut_off()?);
        let mut last = None;
        for (task, open) in open {
            let pid = task.pid();
            if last.replace(pid) != Some(pid) {
                let process = if is_one { String::new() } else { format!(" in process {pid}") };
                let (what, end) = match cut_off.contains(&pid) {
                    true => ("Had not returned at the last record", None),
                    false => ("Did not return", ends.get(&pid)),
                };
                let ending = end.map_or_else(String::new, |&end| format!(" ({})", ending::in_words(end)));
                writeln!(self.printer.out, "\n# {what}{process}{ending}, outermost first:").map_err(Error::Write)?;
            }
            for (level, line) in open.for_ever.iter().rev().enumerate() {
                let name = line.name(self.trace, task);
                let call = line.values(self.trace, task)?.call(line.shown_name(&name, &mut self.names));
                let source = line.function().and_then(|addr| self.trace.source(task, line.time_ns, addr));
                let source = source.map_or_else(String::new, |source| format!(" /* {source} */"));
                let indent = "  ".repeat(level.min(MAX_INDENT));
                writeln!(self.printer.out, "# [{:6}] {indent}{call}{source}", task.tid()).map_err(Error::Write)?;
            }
        }
        Ok(())
    }

    fn show_open(&mut self) -> io::Result<()> {
        let mut is_first = true;
        for (task, maker) in self.trace.tasks().iter().zip(&self.makers) {
            let calls = maker.calls();
            let name = |addr| {
                let name = self.trace.function_name(task, calls.last_ns(), addr);
                self.names.next(&name).to_owned()
            };
            let names: Vec<_> = calls.open().flatten().map(name).collect();
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
    trace: &'o Trace,
    out: &'o mut dyn Write,
    options: ReplayOptions,
    /// The number of records in a flat replay.
    n_records: u64,
}

impl Printer<'_> {
    fn title(&mut self) -> io::Result<()> {
        if self.options.is_flat {
            return writeln!(self.out);
        }
        if self.options.fields.is_empty() {
            return Ok(());
        }
        let titles: Vec<_> = self.options.fields.iter().map(|field| field.title()).collect();
        let source = if self.trace.has_sources() { " [SOURCE]" } else { "" };
        writeln!(self.out, "#{}   FUNCTION{source}", titles.join(" "))
    }

    fn line(&mut self, task: &Task, placed: &PlacedLine, (name, values): (&str, &Values)) -> io::Result<()> {
        let (line, column, delta_ns) = (&placed.line, placed.column, placed.delta_ns);
        for place in 0..self.options.fields.len() {
            self.out.write_all(b" ")?;
            match self.options.fields[place] {
                ReplayField::Duration => self.duration(line.duration_ns)?,
                ReplayField::Tid => write!(self.out, "[{:6}]", task.tid())?,
                ReplayField::Addr => match line.function().or(context_switch(line)) {
                    Some(addr) => write!(self.out, "{addr:12x}")?,
                    None => write!(self.out, "{:12}", "")?,
                },
                ReplayField::Time => {
                    write!(self.out, "{:8}.{:09}", line.time_ns / 1_000_000_000, line.time_ns % 1_000_000_000)?;
                }
                // Where no time has passed, uftrace shows none.
                ReplayField::Delta => self.duration(delta_ns.filter(|&ns| ns > 0))?,
                ReplayField::Elapsed => {
                    let elapsed_ns = line.time_ns.checked_sub(self.options.start_ns);
                    self.duration(elapsed_ns.filter(|&ns| ns > 0))?;
                }
                ReplayField::Task => write!(self.out, "{:>15}", task.name())?,
                ReplayField::Module => {
                    let module = line.function().and_then(|addr| self.trace.module_name(task, line.time_ns, addr));
                    let module = module.or(context_switch(line).map(|_| "[event]"));
                    write!(self.out, "{:>16}", module.unwrap_or_default())?;
                }
            }
        }
        if !self.options.fields.is_empty() {
            self.out.write_all(b" | ")?;
        }
        let depth = line.depth.saturating_add(column.saturating_mul(self.options.task_indent));
        for _ in 0..depth.min(MAX_INDENT) {
            self.out.write_all(b"  ")?;
        }
        let (code, comment) = line.text(name, values);
        self.out.write_all(code.as_bytes())?;
        let source = match line.what {
            What::Enter { addr } | What::Call { addr } => self.trace.source(task, line.time_ns, addr),
            _ => None,
        };
        if let Some(comment) = comment.or_else(|| source.map(|source| source.to_string())) {
            if !code.is_empty() {
                self.out.write_all(b" ")?;
            }
            let color = if matches!(line.what, What::Lost { .. }) { RED } else { GREY };
            self.colored(color, format_args!("/* {comment} */"))?;
        }
        self.out.write_all(b"\n")
    }

    /// Writes a record, with its details beyond a tree.
    fn flat(&mut self, task: &Task, record: &Record, line: &Line, name: &str) -> io::Result<()> {
        // No record tells of such an end.
        if matches!(line.what, What::Leave { has_exit: false, .. }) {
            return Ok(());
        }
        let (number, tid, depth, time_ns) = (self.n_records, task.tid(), line.depth, record.time_ns);
        self.n_records += 1;
        write!(self.out, "[{number}] ")?;
        match line.what {
            What::Enter { .. } | What::Call { .. } => {
                writeln!(self.out, "==> {tid}/{depth}: ip ({name}), time ({time_ns})")
            }
            What::Leave { .. } | What::StrayExit { .. } => {
                write!(self.out, "<== {tid}/{depth}: ip ({name}), time ({time_ns}")?;
                match line.duration_ns {
                    Some(duration_ns) => writeln!(self.out, ":{duration_ns})"),
                    None => writeln!(self.out, ")"),
                }
            }
            What::Event { .. } => writeln!(self.out, "!!! {tid}: {name} time ({time_ns})"),
            What::Lost { count } => writeln!(self.out, "XXX {tid}: lost {count} records"),
        }
    }

    fn duration(&mut self, ns: Option<u64>) -> io::Result<()> {
        match ns.map(Duration) {
            None => write!(self.out, "{:10}", ""),
            Some(duration) => match duration.unit() {
                Unit::Micros => write!(self.out, "{duration}"),
                Unit::Millis => self.colored(GREEN, duration),
                Unit::Seconds => self.colored(YELLOW, duration),
            },
        }
    }

    fn colored(&mut self, color: &str, text: impl Display) -> io::Result<()> {
        if self.options.color { write!(self.out, "\x1b[{color}m{text}\x1b[m") } else { write!(self.out, "{text}") }
    }
}

/// Returns the number of the event for a context switch; uftrace shows it as an address.
fn context_switch(line: &Line) -> Option<u64> {
    match line.what {
        What::Event { id, .. } if id == SCHED_IN || OffCpu::of_event(id).is_some() => Some(id),
        _ => None,
    }
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const GREY: &str = "90";
