//! The calls of all tasks in order of time, as text.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use rftrace_read::{
    AllRecords, Error, Kind, Record, Result, SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, SCHEDULE, SCHEDULE_PREEMPTED,
    Summary, Task, Trace,
};

use crate::duration::{Duration, Unit};
use crate::stack::{CallStack, EndedCall, Step};
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
/// lost records are comments, and so are the places of functions in the source, if [they were read](Trace::read_sources). Functions
/// that are still open at the end are listed there.
///
/// # Errors
///
/// A `.dat` file cannot be read, or `out` not be written.
pub fn replay(trace: &Trace, options: &ReplayOptions, out: &mut dyn Write) -> Result<Summary> {
    let mut replay = Replay {
        trace,
        printer: Printer { out, color: options.color },
        input: trace.all_records()?,
        stacks: trace.tasks().iter().map(|_| Stack { calls: CallStack::new(), depth: 0 }).collect(),
        stats: trace.tasks().iter().map(TaskStats::new).collect(),
        nameless_calls: 0,
    };
    replay.run()?;

    let mut summary = Summary::new(0, replay.input.warnings());
    summary.nameless_calls = replay.nameless_calls;
    replay.stats.iter().for_each(|task| task.add_to(&mut summary));
    for stack in &replay.stacks {
        summary.warnings.merge(stack.calls.warnings());
    }
    Ok(summary)
}

struct Replay<'t, 'o> {
    trace: &'t Trace,
    printer: Printer<'o>,
    input: AllRecords<'t>,
    stacks: Vec<Stack>,
    stats: Vec<TaskStats>,
    nameless_calls: u64,
}

struct Stack {
    calls: CallStack,
    /// How far to indent: while the steps of a record are shown, that is not yet the depth of `calls`.
    depth: usize,
}

impl Replay<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let source = if self.trace.has_sources() { " [SOURCE]" } else { "" };
        writeln!(self.printer.out, "# DURATION     TID     FUNCTION{source}").map_err(Error::Write)?;
        let mut steps = Vec::new();
        while let Some(next) = self.next(&mut steps) {
            let (idx, record) = next?;
            for step in steps.drain(..) {
                self.show(idx, &record, &step)?;
            }
        }
        self.show_open().map_err(Error::Write)
    }

    /// Takes the next record and what it does to its task's stack.
    fn next(&mut self, steps: &mut Vec<Step>) -> Option<Result<(usize, Record)>> {
        let (idx, record) = match self.input.next()? {
            Ok(next) => next,
            Err(error) => return Some(Err(error)),
        };
        let (trace, task) = (self.trace, &self.trace.tasks()[idx]);
        self.stats[idx].add(trace, &record);
        let same_function = |a, b| trace.same_function(task, record.time_ns, a, b);
        self.stacks[idx].calls.apply(&record, same_function, steps);
        Some(Ok((idx, record)))
    }

    /// The next record, if it is of the task `idx`.
    fn peek(&self, idx: usize) -> Option<Record> {
        self.input.peek().filter(|(next_idx, _)| *next_idx == idx).map(|(_, record)| *record)
    }

    fn show(&mut self, idx: usize, record: &Record, step: &Step) -> Result<()> {
        let task = &self.trace.tasks()[idx];
        let depth = self.stacks[idx].depth;
        let line = match *step {
            Step::Assume { .. } => {
                self.stacks[idx].depth += 1;
                return Ok(());
            }
            Step::Enter { addr, time_ns } => return self.enter(idx, addr, time_ns),
            Step::Leave(ended) => {
                let depth = depth.saturating_sub(1);
                self.stacks[idx].depth = depth;
                match self.leave(task, depth, &ended) {
                    Some(line) => line,
                    None => return Ok(()),
                }
            }
            Step::StrayExit { addr, time_ns } => {
                let name = self.trace.function_name(task, time_ns, addr);
                Line::comment(depth, format!("{name}: exit without entry"))
            }
            Step::Lost { count } => Line { alarm: true, ..Line::comment(depth, format!("LOST {count} records")) },
            Step::Event { id, waited_ns } => {
                let (name, waited_ns) = self.event(idx, record, id, waited_ns)?;
                Line { duration_ns: waited_ns, ..Line::comment(depth, name) }
            }
        };
        self.printer.line(task, &line).map_err(Error::Write)
    }

    /// A function's entry, or the whole call if the next record is its exit.
    fn enter(&mut self, idx: usize, addr: u64, time_ns: u64) -> Result<()> {
        let task = &self.trace.tasks()[idx];
        let depth = self.stacks[idx].depth;
        let name = self.trace.function_name(task, time_ns, addr);
        self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
        let parentheses = if name.ends_with(')') { "" } else { "()" };
        let is_leaf = self.peek(idx).is_some_and(|next| {
            next.kind == Kind::Exit && self.trace.same_function(task, next.time_ns, addr, next.addr)
        });
        let comment = self.trace.source(task, time_ns, addr).map(|source| source.to_string());
        let mut line = Line { depth, code: format!("{name}{parentheses} {{").into(), comment, ..Line::default() };
        if is_leaf {
            let mut steps = Vec::new();
            self.next(&mut steps).transpose()?;
            line.code = format!("{name}{parentheses};").into();
            line.duration_ns = steps.iter().find_map(|step| match step {
                Step::Leave(ended) => ended.duration_ns(),
                _ => None,
            });
        } else {
            self.stacks[idx].depth += 1;
        }
        self.printer.line(task, &line).map_err(Error::Write)
    }

    /// A function's end; nothing for one that no record names.
    fn leave(&self, task: &Task, depth: usize, ended: &EndedCall) -> Option<Line<'static>> {
        let name = self.trace.function_name(task, ended.end_ns, ended.addr?);
        let note = if ended.has_exit { "" } else { ": exit not recorded" };
        Some(Line {
            duration_ns: ended.duration_ns(),
            depth,
            code: "}".into(),
            comment: Some(format!("{name}{note}")),
            alarm: false,
        })
    }

    /// An event's name and duration. The two halves of a context switch become one, if nothing comes between them.
    fn event(&mut self, idx: usize, record: &Record, id: u64, waited_ns: Option<u64>) -> Result<(String, Option<u64>)> {
        let whole = match id {
            SCHED_OUT => SCHEDULE,
            SCHED_OUT_PREEMPTED => SCHEDULE_PREEMPTED,
            _ => return Ok((self.trace.events().name(id).into_owned(), waited_ns)),
        };
        match self.peek(idx) {
            Some(next) if next.kind == Kind::Event && next.addr == SCHED_IN => {
                self.next(&mut Vec::new()).transpose()?;
                Ok((whole.to_owned(), Some(next.time_ns.saturating_sub(record.time_ns))))
            }
            _ => Ok((self.trace.events().name(id).into_owned(), waited_ns)),
        }
    }

    fn show_open(&mut self) -> io::Result<()> {
        let mut is_first = true;
        for (task, stack) in self.trace.tasks().iter().zip(&self.stacks) {
            let names: Vec<_> = stack
                .calls
                .open()
                .flatten()
                .map(|addr| self.trace.function_name(task, stack.calls.last_ns(), addr))
                .collect();
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

/// One line of the output, without what all lines have.
#[derive(Default)]
struct Line<'a> {
    duration_ns: Option<u64>,
    depth: usize,
    code: Cow<'a, str>,
    comment: Option<String>,
    /// Whether the comment is bad news.
    alarm: bool,
}

impl Line<'_> {
    fn comment(depth: usize, text: String) -> Self {
        Self { depth, comment: Some(text), ..Self::default() }
    }
}

struct Printer<'o> {
    out: &'o mut dyn Write,
    color: bool,
}

impl Printer<'_> {
    fn line(&mut self, task: &Task, line: &Line<'_>) -> io::Result<()> {
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
        self.out.write_all(line.code.as_bytes())?;
        if let Some(comment) = &line.comment {
            if !line.code.is_empty() {
                self.out.write_all(b" ")?;
            }
            self.colored(if line.alarm { RED } else { GREY }, format_args!("/* {comment} */"))?;
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
