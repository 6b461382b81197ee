//! What is there while events come: which blocks of memory were taken and not given back.
//!
//! Not here: what is counted of them (`account`).

use std::collections::{HashMap, HashSet};

use rftrace_read::{Error, Result};

use crate::merge::Event;
use crate::own;
use crate::recording::Recording;

/// The most blocks of memory at a time: more are an error.
const MAX_LIVE: usize = 1 << 25;

/// The blocks of all processes that are there. `T` is what is to be known of each.
pub(crate) struct Live<'r, T> {
    recording: &'r Recording,
    blocks: HashMap<(u32, u64), T>,
    /// Which stacks are the tracer's, and the blocks that it has taken.
    is_own: Vec<bool>,
    own: HashSet<(u32, u64)>,
}

/// What an event changes.
pub(crate) enum Change<T> {
    /// A block is taken. One at the same address was not given back where it is seen.
    Taken {
        doubled: Option<T>,
    },
    /// A block is given back.
    GivenBack(T),
    /// The child of a fork gives back what its parent has taken, or somebody what nobody has taken.
    Inherited,
    Unknown,
    /// The tracer takes or gives back something of its own.
    Own,
}

impl<'r, T> Live<'r, T> {
    pub(crate) fn new(recording: &'r Recording) -> Self {
        Self { recording, blocks: HashMap::new(), is_own: own::stacks(recording), own: HashSet::new() }
    }

    /// Takes the next event; `of` says what is to be known of a block that it takes.
    pub(crate) fn follow(&mut self, event: &Event, of: impl FnOnce() -> T) -> Change<T> {
        let place = (event.process, event.address);
        if event.kind.is_release() {
            if self.own.remove(&place) {
                return Change::Own;
            }
            let is_child = || self.recording.processes().get(&event.process).is_some_and(|process| process.parent != 0);
            return match self.blocks.remove(&place) {
                Some(block) => Change::GivenBack(block),
                None if is_child() => Change::Inherited,
                None => Change::Unknown,
            };
        }
        if self.is_own.get(event.stack as usize) == Some(&true) {
            self.own.insert(place);
            return Change::Own;
        }
        Change::Taken { doubled: self.blocks.insert(place, of()) }
    }

    /// Whether there is room for more.
    pub(crate) fn has_room(&self) -> bool {
        self.blocks.len() + self.own.len() <= MAX_LIVE
    }
}

/// Up to when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The end.
    End,
    /// So many nanoseconds after the beginning.
    Nanos(u64),
    /// So many events.
    Events(u64),
}

/// Follows the events of a recording, of one process if that is wanted, up to some time: `each` is told all of them.
///
/// # Errors
///
/// Those of [`Recording::events`] and of `each`; or there are too many blocks at a time.
pub(crate) fn follow<'r, T>(
    recording: &'r Recording,
    until: Until,
    pid: Option<u32>,
    mut each: impl FnMut(&mut Live<'r, T>, &Event) -> Result<()>,
) -> Result<()> {
    let is_wanted =
        |event: &Event| pid.is_none_or(|pid| recording.processes().get(&event.process).is_some_and(|p| p.pid == pid));
    let mut live = Live::new(recording);
    let mut n_events = 0;
    let mut result = Ok(());
    recording.events(|event| {
        let is_before = match until {
            Until::End => true,
            Until::Nanos(nanos) => recording.since_start(event.ticks) <= nanos,
            Until::Events(events) => n_events < events,
        };
        if is_before && is_wanted(event) {
            n_events += 1;
            result = each(&mut live, event);
            if result.is_ok() && !live.has_room() {
                let reason = format!(
                    "more than {MAX_LIVE} blocks of memory at the same time; look at one process (--pid), or an earlier time (--at)"
                );
                result = Err(Error::Export(reason.into()));
            }
        }
        is_before && result.is_ok()
    })?;
    result
}
