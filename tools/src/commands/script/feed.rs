//! Steps of a trace that a script gets, and their names.
//!
//! Not here: the sending (`python`).

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_read::{Error, Kind as RecordKind, Record, Summary, Task, Trace};
use rftrace_views::{Step, walk_all};

use super::python::{Happening, Kind, Python, Wanted};

/// The reason why the script did not get all steps.
#[derive(Debug)]
pub(super) enum Stop {
    /// The script has ended, or wants nothing.
    Ended,
    /// A file of the trace cannot be read.
    Unreadable(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Tells a script of a trace.
#[derive(Debug)]
pub(super) struct Feed<'t> {
    trace: &'t Trace,
    python: &'t mut Python,
    wanted: Wanted,
    /// Known functions, by the places of their names: the number of the name, or `None` if the script does not want them.
    functions: HashMap<(usize, usize), Option<u32>>,
    /// The numbers of events' names.
    events: HashMap<u64, u32>,
    /// How many functions are open in each task.
    depths: Vec<u32>,
    nameless_calls: u64,
}

impl<'t> Feed<'t> {
    pub(super) fn new(trace: &'t Trace, python: &'t mut Python, wanted: Wanted) -> Self {
        Self {
            trace,
            python,
            wanted,
            functions: HashMap::new(),
            events: HashMap::new(),
            depths: vec![0; trace.tasks().len()],
            nameless_calls: 0,
        }
    }

    /// Tells all.
    pub(super) fn run(mut self) -> Result<Summary, Stop> {
        let trace = self.trace;
        let mut summary = walk_all(trace, |idx, record, step| self.tell(idx, record, step))?;
        summary.nameless_calls = self.nameless_calls;
        Ok(summary)
    }

    fn tell(&mut self, idx: usize, record: &Record, step: &Step) -> Result<(), Stop> {
        let task = &self.trace.tasks()[idx];
        let depth = &mut self.depths[idx];
        let (kind, depth, addr, duration_ns) = match *step {
            Step::Assume { .. } => {
                *depth += 1;
                return Ok(());
            }
            Step::Enter { addr, .. } => {
                *depth += 1;
                (Kind::Entry, *depth - 1, addr, 0)
            }
            Step::Leave(ended) => {
                *depth = depth.saturating_sub(1);
                // No record names it.
                let Some(addr) = ended.addr else { return Ok(()) };
                (Kind::Exit, *depth, addr, ended.total_ns)
            }
            Step::Event { id, .. } => {
                // As it was recorded, which is what uftrace tells.
                let kind = if record.has_payload { Kind::EventWithData } else { Kind::Event };
                (kind, u32::from(record.depth), id, 0)
            }
            Step::StrayExit { .. } | Step::Lost { .. } => return Ok(()),
        };
        let name = match kind {
            Kind::Entry | Kind::Exit => self.function(task, record.time_ns, addr, kind),
            Kind::Event | Kind::EventWithData => self.event(addr),
        };
        let Some(name) = name else { return Ok(()) };
        let happening = Happening { kind, tid: task.tid(), depth, name, time_ns: record.time_ns, duration_ns, addr };
        // Of a function that an exit further out has ended nothing is known.
        let is_own = match step {
            Step::Enter { .. } => record.kind == RecordKind::Entry,
            Step::Leave(ended) => ended.has_exit,
            _ => false,
        };
        let values = if is_own { self.trace.values(task, record)? } else { Vec::new() };
        self.python.send(&happening, &values).map_err(|_| Stop::Ended)
    }

    /// The number of a function's name, if the script wants the function's entry or exit.
    fn function(&mut self, task: &Task, time_ns: u64, addr: u64, kind: Kind) -> Option<u32> {
        let trace = self.trace;
        let name = trace.function_name(task, time_ns, addr);
        let is_entry = matches!(kind, Kind::Entry);
        let is_nameless = matches!(name, Cow::Owned(_));
        self.nameless_calls += u64::from(is_nameless && is_entry);
        if !(if is_entry { self.wanted.entries } else { self.wanted.exits }) {
            return None;
        }
        let functions = &self.wanted.functions;
        let is_wanted = |name: &str| functions.is_empty() || functions.iter().any(|function| function.matches(name));
        if is_nameless {
            // There may be any number of them. Scripts get uftrace's names.
            return is_wanted(&format!("<{addr:x}>")).then_some(Happening::NAMELESS);
        }
        let place = (name.as_ptr() as usize, name.len());
        *self.functions.entry(place).or_insert_with(|| is_wanted(&name).then(|| self.python.name(&name)))
    }

    fn event(&mut self, id: u64) -> Option<u32> {
        let trace = self.trace;
        self.wanted.events.then(|| match trace.events().known(id) {
            Some(name) => *self.events.entry(id).or_insert_with(|| self.python.name(name)),
            None => Happening::NAMELESS,
        })
    }
}
