//! The stacks of the tracer itself, which allocates memory in a program to write the trace.

use std::collections::HashSet;

use rftrace_format::recording::TRACER;
use rftrace_format::resources::{Action, Resource};
use rftrace_format::text::base_name;

use crate::merge::Event;
use crate::names::Names;
use crate::recording::{Frame, Module, Recording};

/// The beginnings of the file names of the C library's parts and of unwinders, which take memory for their callers.
const SYSTEM: [&str; 5] = ["libc.so.", "ld-linux", "libpthread.so.", "libgcc_s.so.", "libunwind.so."];

/// The owner of a frame's code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tracer,
    System,
    Program,
}

impl Owner {
    fn of(module: &Module) -> Self {
        let name = base_name(&module.path);
        match name {
            TRACER => Self::Tracer,
            _ if SYSTEM.iter().any(|system| name.starts_with(system)) => Self::System,
            _ => Self::Program,
        }
    }
}

/// Follows what the tracer has taken.
pub(crate) struct Own {
    stacks: Vec<bool>,
    taken: HashSet<(Resource, u32, u64)>,
}

impl Own {
    pub(crate) fn of(recording: &Recording) -> Self {
        Self { stacks: stacks(recording), taken: HashSet::new() }
    }

    /// True if the next event is the tracer's.
    pub(crate) fn has(&mut self, event: &Event) -> bool {
        let place = (event.resource, event.process, event.address);
        let is_own = self.stacks.get(event.stack as usize) == Some(&true);
        match event.action {
            Action::Allocation if is_own => self.taken.insert(place) || is_own,
            Action::Allocation => {
                // A place that the program has got is no longer the tracer's.
                self.taken.remove(&place);
                false
            }
            Action::Release => self.taken.remove(&place) || is_own,
            Action::Failure | Action::Note => is_own,
        }
    }
}

/// Tells of each stack whether it is the tracer's: whether that has called the C library. Functions of the program that return by a
/// trampoline of the tracer have a frame of it above them, which says nothing.
pub(crate) fn stacks(recording: &Recording) -> Vec<bool> {
    let owners: Vec<Owner> = recording.modules().iter().map(Owner::of).collect();
    let n_stacks = recording.n_stacks();
    if !owners.contains(&Owner::Tracer) {
        return vec![false; n_stacks];
    }
    let mut names = Names::of_recording(recording);
    let owner = |frame: &Frame| frame.module.and_then(|module| owners.get(module as usize)).copied();
    let mut is_trampoline = |frame: Frame| {
        let names = names.of(recording.modules(), frame);
        names.last().is_some_and(|name| name.function.ends_with("_return_trampoline"))
    };
    let mut is_own = |stack: u32| {
        let mut callers = recording.stack(stack).iter().filter(|frame| owner(frame) != Some(Owner::System));
        callers.find_map(|frame| match owner(frame) {
            Some(Owner::Tracer) if is_trampoline(*frame) => None,
            whose => Some(whose == Some(Owner::Tracer)),
        })
    };
    (0..n_stacks as u32).map(|stack| is_own(stack).unwrap_or(false)).collect()
}
