//! The calls of one thread as a list of lines, of which few are in memory.
//!
//! There may be 10^9 of them. They are read from the beginning on, as far as somebody goes; what was read is kept as *checkpoints*, from
//! which reading can begin again.

use std::time::Instant;

use rftrace_read::{Pattern, Result, ShownNames, Task, Trace};
use rftrace_views::{Line, TaskLines, What};

use crate::list::{Cursor, Move};

/// So many lines are read at once, and a page is shorter.
const CHUNK: usize = 4096;
/// The most checkpoints; then every second one goes.
const MAX_CHECKPOINTS: usize = 1024;
/// The most functions and records that all of them hold, some 40 bytes each.
const MAX_HELD: usize = 1 << 20;

/// A thread's lines.
#[derive(Debug)]
struct Lines<'t> {
    /// Where each `spacing`th chunk begins.
    checkpoints: Vec<TaskLines<'t>>,
    spacing: usize,
    n_held: usize,
    /// Behind the last line that is known, and how many that are.
    end: TaskLines<'t>,
    n_known: usize,
    is_complete: bool,
    /// The chunks that were read last, with their numbers.
    chunks: Vec<(usize, Vec<Line>)>,
    /// Where the chunk of a number begins: behind the one that was read last.
    behind: Option<(usize, TaskLines<'t>)>,
}

impl<'t> Lines<'t> {
    fn new(trace: &'t Trace, task: &'t Task) -> Self {
        Self {
            checkpoints: Vec::new(),
            spacing: 1,
            n_held: 0,
            end: TaskLines::new(trace, task),
            n_known: 0,
            is_complete: false,
            chunks: Vec::new(),
            behind: None,
        }
    }

    /// Finds out where the next chunk ends.
    fn read_on(&mut self) -> Result<()> {
        let chunk = self.n_known / CHUNK;
        if chunk.is_multiple_of(self.spacing) && self.n_known.is_multiple_of(CHUNK) {
            if self.checkpoints.len() > 1 && (self.checkpoints.len() >= MAX_CHECKPOINTS || self.n_held > MAX_HELD) {
                let mut place = 0;
                self.checkpoints.retain(|_| {
                    place += 1;
                    place % 2 == 1
                });
                self.spacing *= 2;
                self.n_held = self.checkpoints.iter().map(TaskLines::n_held).sum();
            }
            if chunk.is_multiple_of(self.spacing) {
                self.checkpoints.push(self.end.clone());
                self.n_held += self.end.n_held();
            }
        }
        for _ in 0..CHUNK {
            match self.end.next().transpose() {
                Ok(Some(_)) => self.n_known += 1,
                Ok(None) => {
                    self.is_complete = true;
                    return Ok(());
                }
                Err(error) => {
                    self.is_complete = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The lines of a chunk, as far as they are known.
    fn chunk(&mut self, number: usize) -> Result<&[Line]> {
        const KEPT: usize = 3;

        if let Some(place) = self.chunks.iter().position(|(other, _)| *other == number) {
            self.chunks[place..].rotate_left(1);
        } else {
            let lines = self.read_chunk(number)?;
            if self.chunks.len() >= KEPT {
                self.chunks.remove(0);
            }
            self.chunks.push((number, lines));
        }
        Ok(self.chunks.last().map_or(&[], |(_, lines)| lines))
    }

    fn read_chunk(&mut self, number: usize) -> Result<Vec<Line>> {
        let n_lines = self.n_known.saturating_sub(number * CHUNK).min(CHUNK);
        let mut reader = match self.behind.take() {
            Some((next, reader)) if next == number => reader,
            _ => {
                let checkpoint = (number / self.spacing).min(self.checkpoints.len().saturating_sub(1));
                let Some(reader) = self.checkpoints.get(checkpoint) else { return Ok(Vec::new()) };
                let mut reader = reader.clone();
                for _ in checkpoint * self.spacing * CHUNK..number * CHUNK {
                    reader.next().transpose()?;
                }
                reader
            }
        };
        let lines = reader.by_ref().take(n_lines).collect::<Result<Vec<_>>>()?;
        // Lines that are not known yet would be missing behind it.
        self.behind = Some((number + 1, reader)).filter(|_| n_lines == CHUNK);
        Ok(lines)
    }

    fn line(&mut self, number: usize) -> Result<Option<Line>> {
        if number >= self.n_known {
            return Ok(None);
        }
        Ok(self.chunk(number / CHUNK)?.get(number % CHUNK).copied())
    }
}

/// The target of a search among the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Goal {
    /// A call or event with this text in its name.
    Name(String),
    /// The entry of a function around those of this depth.
    Around(usize),
    /// The entry of the function of this depth.
    Beginning(usize),
    /// Its end.
    End(usize),
}

impl Goal {
    /// Looks for it behind the end: names are anywhere, ends of calls are not.
    fn wrapped(self, is_forward: bool) -> Option<Job> {
        let is_anywhere = matches!(self, Self::Name(_));
        let line = if is_forward { 0 } else { usize::MAX };
        is_anywhere.then_some(Job::Find { goal: self, line, is_forward, has_wrapped: true })
    }

    fn is_met(&self, trace: &Trace, task: &Task, line: &Line) -> bool {
        let is_entry = matches!(line.what, What::Enter { .. });
        match self {
            Self::Name(text) => {
                !matches!(line.what, What::Leave { .. }) && line.name(trace, task).contains(text.as_str())
            }
            Self::Around(depth) => is_entry && line.depth < *depth,
            Self::Beginning(depth) => is_entry && line.depth <= *depth,
            Self::End(depth) => matches!(line.what, What::Leave { .. }) && line.depth <= *depth,
        }
    }
}

/// A job that takes longer than a key press may.
#[derive(Debug)]
enum Job {
    GoTo {
        line: usize,
        centers: bool,
    },
    /// `line` is the next one; [`usize::MAX`] stands for the last one, which is not known yet.
    Find {
        goal: Goal,
        line: usize,
        is_forward: bool,
        has_wrapped: bool,
    },
}

/// The state of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Busy,
    Done,
    NotFound,
}

#[derive(Debug)]
pub(crate) struct CallsView<'t> {
    trace: &'t Trace,
    /// The thread, by its place among the trace's.
    pub(crate) task: usize,
    /// When the trace begins: times count from there.
    pub(crate) start_ns: u64,
    pub(crate) cursor: Cursor,
    /// The visible lines, from the cursor's top on.
    pub(crate) seen: Vec<Line>,
    /// Their names as they are shown.
    pub(crate) seen_names: Vec<String>,
    names: ShownNames,
    lines: Lines<'t>,
    job: Option<Job>,
}

impl<'t> CallsView<'t> {
    /// The calls of a thread from the beginning, or with a line of them in the middle.
    pub(crate) fn new(trace: &'t Trace, task: usize, start_ns: u64, line: usize) -> Self {
        Self {
            trace,
            task,
            start_ns,
            cursor: Cursor::default(),
            seen: Vec::new(),
            seen_names: Vec::new(),
            names: trace.shown_names(),
            lines: Lines::new(trace, &trace.tasks()[task]),
            job: Some(Job::GoTo { line, centers: true }),
        }
    }

    /// How many lines are known, and whether there are no more.
    pub(crate) fn known(&self) -> (usize, bool) {
        (self.lines.n_known, self.lines.is_complete)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    pub(crate) fn stop(&mut self) {
        self.job = None;
    }

    pub(crate) fn selected(&self) -> Option<Line> {
        self.seen.get(self.cursor.selected.checked_sub(self.cursor.top)?).copied()
    }

    /// The name of the function that the selected line is of.
    pub(crate) fn selected_function(&self) -> Option<String> {
        let line = self.selected().filter(|line| line.function().is_some())?;
        Some(line.name(self.trace, &self.trace.tasks()[self.task]).into_owned())
    }

    pub(crate) fn go(&mut self, to: Move, page: usize) {
        self.job = Some(Job::GoTo { line: self.cursor.target(to, page), centers: false });
    }

    /// Looks for a text in names of functions and events, below or above.
    pub(crate) fn find(&mut self, text: &str, is_forward: bool) {
        self.look_for(Goal::Name(text.to_owned()), is_forward);
    }

    /// Goes to the function around the selected line.
    pub(crate) fn go_to_parent(&mut self) {
        if let Some(line) = self.selected().filter(|line| line.depth > 0) {
            self.look_for(Goal::Around(line.depth), false);
        }
    }

    /// From a function's entry to its end, and back.
    pub(crate) fn go_to_other_end(&mut self) {
        match self.selected() {
            Some(Line { what: What::Enter { .. }, depth, .. }) => self.look_for(Goal::End(depth), true),
            Some(Line { what: What::Leave { .. }, depth, .. }) => self.look_for(Goal::Beginning(depth), false),
            _ => {}
        }
    }

    fn look_for(&mut self, goal: Goal, is_forward: bool) {
        let selected = self.cursor.selected;
        self.job = match if is_forward { Some(selected + 1) } else { selected.checked_sub(1) } {
            Some(line) => Some(Job::Find { goal, line, is_forward, has_wrapped: false }),
            None => goal.wrapped(is_forward),
        };
    }

    /// Goes on with what is to be done, until it is done or that time has come.
    pub(crate) fn work(&mut self, until: Instant, page: usize) -> Result<Outcome> {
        let result = loop {
            let Some(job) = self.job.take() else { break Ok(Outcome::Done) };
            match self.step(job, page) {
                Ok(Outcome::Busy) if Instant::now() < until => {}
                other => break other,
            }
        };
        let seen = self.look(page);
        result.and_then(|outcome| seen.map(|()| outcome))
    }

    fn step(&mut self, job: Job, page: usize) -> Result<Outcome> {
        match job {
            Job::GoTo { line, centers } => {
                if line.saturating_add(page) >= self.lines.n_known && !self.lines.is_complete {
                    self.job = Some(Job::GoTo { line, centers });
                    self.lines.read_on()?;
                    return Ok(Outcome::Busy);
                }
                self.select(line, centers, page);
                Ok(Outcome::Done)
            }
            Job::Find { goal, mut line, is_forward, has_wrapped } => {
                if line >= self.lines.n_known {
                    if !self.lines.is_complete {
                        self.job = Some(Job::Find { goal, line, is_forward, has_wrapped });
                        self.lines.read_on()?;
                        return Ok(Outcome::Busy);
                    }
                    match self.lines.n_known.checked_sub(1) {
                        Some(last) if !is_forward => line = last,
                        Some(_) if !has_wrapped => return Ok(self.wrap(goal, is_forward)),
                        _ => return Ok(Outcome::NotFound),
                    }
                }
                let (trace, task) = (self.trace, &self.trace.tasks()[self.task]);
                let first = line / CHUNK * CHUNK;
                let chunk = self.lines.chunk(line / CHUNK)?;
                let is_it = |line: &Line| goal.is_met(trace, task, line);
                let found = if is_forward {
                    chunk.iter().skip(line - first).position(is_it).map(|place| line + place)
                } else {
                    chunk.iter().take(line - first + 1).rposition(is_it).map(|place| first + place)
                };
                let next = if is_forward { Some(first + CHUNK.min(chunk.len())) } else { first.checked_sub(1) };
                match (found, next) {
                    (Some(found), _) => {
                        self.select(found, true, page);
                        Ok(Outcome::Done)
                    }
                    (None, Some(next)) if next != line || !is_forward => {
                        self.job = Some(Job::Find { goal, line: next, is_forward, has_wrapped });
                        Ok(Outcome::Busy)
                    }
                    _ if has_wrapped => Ok(Outcome::NotFound),
                    _ => Ok(self.wrap(goal, is_forward)),
                }
            }
        }
    }

    /// Goes on at the other end, if that makes sense.
    fn wrap(&mut self, goal: Goal, is_forward: bool) -> Outcome {
        self.job = goal.wrapped(is_forward);
        if self.job.is_some() { Outcome::Busy } else { Outcome::NotFound }
    }

    fn select(&mut self, line: usize, centers: bool, page: usize) {
        let is_seen = (self.cursor.top..self.cursor.top + page).contains(&line);
        self.cursor.select(line, self.lines.n_known, page);
        if centers && !is_seen {
            self.cursor.center(page);
        }
    }

    /// Takes what is seen into memory.
    fn look(&mut self, page: usize) -> Result<()> {
        self.cursor.fit(page);
        self.seen.clear();
        self.seen_names.clear();
        while self.lines.n_known < self.cursor.top + page && !self.lines.is_complete {
            self.lines.read_on()?;
        }
        for number in self.cursor.top..self.cursor.top + page {
            self.seen.extend(self.lines.line(number)?);
        }
        let task = &self.trace.tasks()[self.task];
        let names = &mut self.names;
        let shown = |line: &Line| line.shown_name(&line.name(self.trace, task), names).to_owned();
        self.seen_names = self.seen.iter().map(shown).collect();
        Ok(())
    }
}

/// Looks for the first call of a function that was called in some way.
#[derive(Debug)]
pub(crate) struct Follow<'t> {
    trace: &'t Trace,
    /// The functions from the outermost one on; from one that fits the pattern on, if there is one.
    path: Vec<String>,
    from: Option<Pattern>,
    /// True if `path` is only the function itself, called from anywhere.
    is_anywhere: bool,
    /// The threads to be looked at, the next one last.
    tasks: Vec<usize>,
    task: usize,
    reader: Option<TaskLines<'t>>,
    n_read: usize,
}

impl<'t> Follow<'t> {
    /// A call of a function from anywhere.
    pub(crate) fn call_of(trace: &'t Trace, name: String, first_task: usize) -> Self {
        Self { is_anywhere: true, ..Self::new(trace, vec![name], None, first_task) }
    }

    /// A call by that path.
    pub(crate) fn new(trace: &'t Trace, path: Vec<String>, from: Option<Pattern>, first_task: usize) -> Self {
        let others = (0..trace.tasks().len()).rev().filter(|&task| task != first_task);
        let tasks = others.chain([first_task]).collect();
        Self { trace, path, from, is_anywhere: false, tasks, task: first_task, reader: None, n_read: 0 }
    }

    /// The name of the function.
    pub(crate) fn name(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// How many lines of the thread it is at were looked at.
    pub(crate) fn n_read(&self) -> usize {
        self.n_read
    }

    /// Looks until that time has come. The thread and the line, when there is such a call.
    pub(crate) fn work(&mut self, until: Instant) -> (Outcome, Option<(usize, usize)>) {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(task) = self.tasks.pop() else { return (Outcome::NotFound, None) };
                self.task = task;
                self.reader = Some(TaskLines::new(self.trace, &self.trace.tasks()[self.task]));
                self.n_read = 0;
                continue;
            };
            // A thread whose file cannot be read has no such call; its list says why.
            let Some(Ok(line)) = reader.next() else {
                self.reader = None;
                continue;
            };
            let number = self.n_read;
            self.n_read += 1;
            if self.is_it(&line) {
                return (Outcome::Done, Some((self.task, number)));
            }
            if number.is_multiple_of(CHUNK) && Instant::now() >= until {
                return (Outcome::Busy, None);
            }
        }
    }

    fn is_it(&self, line: &Line) -> bool {
        let Some(((name, around), reader)) = self.path.split_last().zip(self.reader.as_ref()) else { return false };
        let task = &self.trace.tasks()[self.task];
        let is_entry = matches!(line.what, What::Enter { .. });
        let is_named = match line.what {
            What::Enter { .. } | What::Call { .. } => line.name(self.trace, task) == name.as_str(),
            What::Event { off_cpu: Some(kind), .. } => kind.name() == name.as_str(),
            _ => false,
        };
        if !is_named || self.is_anywhere {
            return is_named;
        }
        let mut open: Vec<_> =
            reader.open().flatten().map(|addr| self.trace.function_name(task, line.time_ns, addr)).collect();
        if is_entry {
            open.pop();
        }
        let first = match &self.from {
            None => Some(0),
            Some(_) if around.is_empty() => Some(open.len()),
            Some(pattern) => open.iter().position(|name| pattern.matches(name)),
        };
        first.is_some_and(|first| open[first..].iter().eq(around))
    }
}
