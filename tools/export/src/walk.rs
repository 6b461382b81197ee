//! Reads a trace's records, limited to a range of time and balanced.

use std::borrow::Cow;
use std::collections::HashSet;

use rftrace_read::{DID_NOT_RETURN, Error, Kind, OffCpu, Record, Result, SCHED_IN, SourcePlace, Summary, Task, Trace};
use rftrace_views::{AssumedFunctions, Step, walk_with_records};

use super::{Sink, Track};

/// The part of a trace to export.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The beginning in nanoseconds of the trace's clock. Functions open then are entered then.
    pub from_ns: Option<u64>,
    /// The end, exclusive, in nanoseconds of the trace's clock. Functions open then are left then.
    pub to_ns: Option<u64>,
    /// The ids of the only tasks to export; empty for all tasks.
    pub tids: Vec<u32>,
}

impl ExportOptions {
    /// The chosen tasks.
    pub(crate) fn tasks<'t>(&self, trace: &'t Trace) -> Result<Vec<&'t Task>> {
        let is_known = |tid| trace.tasks().iter().any(|task| task.tid() == tid);
        if let Some(unknown) = self.tids.iter().find(|&&tid| !is_known(tid)) {
            let known: Vec<_> = trace.tasks().iter().map(|task| task.tid().to_string()).take(20).collect();
            let known = known.join(", ");
            return Err(Error::Export(format!("the trace has no task {unknown}; it has {known}").into()));
        }
        let is_chosen = |task: &&Task| self.tids.is_empty() || self.tids.contains(&task.tid());
        Ok(trace.tasks().iter().filter(is_chosen).collect())
    }
}

/// Passes the records of `trace` to `sink`, one task after another.
///
/// Tasks without events in the chosen range are left out. Time without a processor is a function with the name of its
/// [kind](OffCpu). Other events and lost records are instants. Functions identified by no record are left out, as in
/// [`CallTree`](rftrace_views::CallTree).
///
/// The sink is finished even if reading fails, so the records read so far make a valid file.
///
/// # Errors
///
/// A `.dat` file cannot be read, a chosen task does not exist, or the sink fails.
pub fn export(trace: &Trace, options: &ExportOptions, sink: &mut dyn Sink) -> Result<Summary> {
    export_with(trace, options, sink, |_| Ok(()))
}

/// Exports like [`export`]. Before the sink is finished, `more` passes it data from other sources than the calls.
///
/// # Errors
///
/// The errors of [`export`] and of `more`.
pub fn export_with(
    trace: &Trace,
    options: &ExportOptions,
    sink: &mut dyn Sink,
    more: impl FnOnce(&mut dyn Sink) -> Result<()>,
) -> Result<Summary> {
    let result = export_tasks(trace, options, sink).and_then(|summary| more(sink).map(|()| summary));
    match result {
        Err(error @ Error::Write(_)) => Err(error),
        result => sink.finish().and(result),
    }
}

fn export_tasks(trace: &Trace, options: &ExportOptions, sink: &mut dyn Sink) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut named = Vec::new();
    let mut nameless_calls = 0;
    // Names whose places were told. Of functions without names there may be any number, and they have no place.
    let mut located = HashSet::new();
    for task in options.tasks(trace)? {
        let track = Track { pid: task.pid(), tid: task.tid() };
        let mut is_named = false;
        let values = |item: Item| item.recorded().map_or(Ok(Vec::new()), |record| trace.values(task, &record));
        walk(trace, task, options, &mut summary, &mut |item| {
            if !is_named {
                is_named = true;
                if !named.contains(&track.pid) {
                    named.push(track.pid);
                    sink.process(track.pid, task.process_name())?;
                }
                sink.thread(track, task.name())?;
            }
            match item {
                Item::Enter { time_ns, function } => {
                    let name = function.name(trace, task);
                    nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                    if trace.has_sources()
                        && !located.contains(&*name)
                        && let Some(place) = function.source(trace, task)
                    {
                        sink.source(&name, place)?;
                        located.insert(name.to_string());
                    }
                    match &*values(item)? {
                        [] => sink.enter(track, time_ns, &name),
                        arguments => sink.enter_with(track, time_ns, &name, arguments),
                    }
                }
                Item::Exit { time_ns, .. } => match &*values(item)? {
                    [result, ..] => sink.exit_with(track, time_ns, result),
                    [] => sink.exit(track, time_ns),
                },
                Item::SwitchOut { time_ns, kind } => sink.enter(track, time_ns, kind.name()),
                Item::SwitchIn { time_ns } => sink.exit(track, time_ns),
                Item::Event { time_ns, id } => sink.instant(track, time_ns, &trace.events().name(id)),
                Item::Lost { time_ns, count: 1 } => sink.instant(track, time_ns, "LOST 1 record"),
                Item::Lost { time_ns, count } => sink.instant(track, time_ns, &format!("LOST {count} records")),
            }
        })?;
    }
    summary.nameless_calls = nameless_calls;
    Ok(summary)
}

/// An address in a function, and when it was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) addr: u64,
    seen_ns: u64,
    /// The offset of its values in the task's file; 0 for none.
    payload_at: u64,
}

impl Function {
    fn source<'t>(&self, trace: &'t Trace, task: &Task) -> Option<SourcePlace<'t>> {
        trace.source(task, self.seen_ns, self.addr)
    }

    fn name<'t>(&self, trace: &'t Trace, task: &Task) -> Cow<'t, str> {
        trace.function_name(task, self.seen_ns, self.addr)
    }
}

/// An event of a task. Entries and exits are balanced, and so are context switches.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    Enter {
        time_ns: u64,
        function: Function,
    },
    Exit {
        time_ns: u64,
        function: Function,
    },
    /// The task has no processor from now on.
    SwitchOut {
        time_ns: u64,
        kind: OffCpu,
    },
    SwitchIn {
        time_ns: u64,
    },
    Event {
        time_ns: u64,
        id: u64,
    },
    Lost {
        time_ns: u64,
        count: u64,
    },
}

impl Item {
    /// Returns the record of an entry or exit with values.
    pub(crate) fn recorded(self) -> Option<Record> {
        let (kind, Function { addr, seen_ns, payload_at }) = match self {
            Self::Enter { function, .. } => (Kind::Entry, function),
            Self::Exit { function, .. } => (Kind::Exit, function),
            _ => return None,
        };
        let record = Record { time_ns: seen_ns, kind, has_payload: true, payload_at, depth: 0, addr };
        (payload_at != 0).then_some(record)
    }
}

/// Takes an item of a task's timeline.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(Item) -> Result<()>;

/// Passes the items of a task within the chosen range to `emit`.
pub(crate) fn walk(
    trace: &Trace,
    task: &Task,
    options: &ExportOptions,
    summary: &mut Summary,
    emit: Emit<'_>,
) -> Result<()> {
    let from_ns = options.from_ns.unwrap_or(0);
    let mut walk =
        Walk { emit, is_within: false, open: Vec::new(), off_cpu: None, assumed: AssumedFunctions::new(trace, task) };
    let walked = walk_with_records(trace, task, options.to_ns, |step, time_ns, record| {
        if !walk.is_within && time_ns >= from_ns {
            walk.begin(from_ns)?;
        }
        walk.apply(step, time_ns, record.map_or(0, |record| record.payload_at))
    })?;
    // A task without a processor has made no step.
    if !walk.is_within && walked.end_ns >= from_ns {
        walk.begin(from_ns)?;
    }
    walked.add_to(summary);
    Ok(())
}

struct Walk<'t, 'e> {
    emit: Emit<'e>,
    /// True if the range has begun.
    is_within: bool,
    /// The open functions; `None` for those identified by no record.
    open: Vec<Option<Function>>,
    /// The reason for the task's present time without a processor, if any.
    off_cpu: Option<OffCpu>,
    assumed: AssumedFunctions<'t>,
}

impl Walk<'_, '_> {
    fn begin(&mut self, time_ns: u64) -> Result<()> {
        self.is_within = true;
        for function in self.open.iter().copied().flatten() {
            (self.emit)(Item::Enter { time_ns, function })?;
        }
        self.off_cpu.map_or(Ok(()), |kind| (self.emit)(Item::SwitchOut { time_ns, kind }))
    }

    fn apply(&mut self, step: &Step, time_ns: u64, payload_at: u64) -> Result<()> {
        match *step {
            Step::Assume { time_ns } => {
                let function =
                    self.assumed.next_function()?.map(|(addr, seen_ns)| Function { addr, seen_ns, payload_at: 0 });
                self.enter(time_ns, function)
            }
            Step::Enter { addr, time_ns } => self.enter(time_ns, Some(Function { addr, seen_ns: time_ns, payload_at })),
            Step::Leave(ended) => {
                let function = self.open.pop().flatten();
                if ended.did_not_return && function.is_some() {
                    self.pass(Some(Item::Event { time_ns: ended.end_ns, id: DID_NOT_RETURN }))?;
                }
                // Of those that an exit further out has ended nothing is known.
                let payload_at = if ended.has_exit { payload_at } else { 0 };
                let function = function.map(|function| Function { payload_at, ..function });
                self.pass(function.map(|function| Item::Exit { time_ns: ended.end_ns, function }))
            }
            Step::Event { id: SCHED_IN, .. } if self.off_cpu.is_some() => self.switch_in(time_ns),
            Step::Event { id, .. } => match OffCpu::of_event(id) {
                Some(_) if self.off_cpu.is_some() => Ok(()),
                Some(kind) => {
                    self.off_cpu = Some(kind);
                    self.pass(Some(Item::SwitchOut { time_ns, kind }))
                }
                None => self.pass(Some(Item::Event { time_ns, id })),
            },
            Step::Lost { count } => self.pass(Some(Item::Lost { time_ns, count })),
            Step::StrayExit { .. } => Ok(()),
        }
    }

    fn enter(&mut self, time_ns: u64, function: Option<Function>) -> Result<()> {
        self.open.push(function);
        self.pass(function.map(|function| Item::Enter { time_ns, function }))
    }

    /// Ends the time without a processor, if the task has none.
    fn switch_in(&mut self, time_ns: u64) -> Result<()> {
        let kind = self.off_cpu.take();
        self.pass(kind.map(|_| Item::SwitchIn { time_ns }))
    }

    fn pass(&mut self, item: Option<Item>) -> Result<()> {
        match item {
            Some(item) if self.is_within => (self.emit)(item),
            _ => Ok(()),
        }
    }
}
