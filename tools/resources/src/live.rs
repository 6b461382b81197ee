//! The live blocks while events are read: allocated and not released.
//!
//! Not here: counting them (`account`).

use std::collections::{HashMap, HashSet};

use rftrace_format::resources::{Action, Kind, Resource};
use rftrace_read::{Error, Result};

use crate::merge::Event;
use crate::own;
use crate::recording::Recording;

/// The most that may be there at a time: more are an error.
const MAX_LIVE: usize = 1 << 25;

/// A process, by its number in the recording, and an address, a descriptor or a thread.
pub(crate) type Place = (u32, u64);

/// The live things of a resource, in all processes. `T` is the data kept of each: of a block of memory, a descriptor or a thread.
pub(crate) struct Live<'r, T> {
    recording: &'r Recording,
    blocks: HashMap<Place, T>,
    /// Which stacks are the tracer's, and what it has taken.
    is_own: Vec<bool>,
    own: HashSet<Place>,
    /// Threads that were given up before the thread that has begun them could say so, and when.
    early: HashMap<Place, u64>,
    /// Threads whose numbers others got before the thread that has joined them could say so.
    late: HashMap<Place, u32>,
    /// How often something is held, where that is more than once.
    references: HashMap<Place, u64>,
}

/// A change by an event.
pub(crate) enum Change<T> {
    /// Something is taken, in place of something else: of what was not given back where it is seen, if that is odd.
    Taken {
        replaced: Option<T>,
        is_odd: bool,
    },
    /// A thread is begun that was given up before.
    TakenAndGivenBack,
    /// Something is given back.
    GivenBack(T),
    /// The child of a fork gives back what its parent has taken, or somebody what nobody has taken.
    Inherited,
    Unknown,
    /// A release failed: the thing was not there.
    Failed,
    /// Nothing that counts: the tracer takes or gives back something of its own.
    Nothing,
}

impl<'r, T> Live<'r, T> {
    pub(crate) fn new(recording: &'r Recording) -> Self {
        Self {
            recording,
            blocks: HashMap::new(),
            is_own: own::stacks(recording),
            own: HashSet::new(),
            early: HashMap::new(),
            late: HashMap::new(),
            references: HashMap::new(),
        }
    }

    /// Takes the next event; `of` says what is to be known of what it takes.
    pub(crate) fn follow(&mut self, event: &Event, of: impl FnOnce() -> T) -> Change<T> {
        let place = (event.process, event.address);
        let resource = event.resource;
        match event.action {
            // It is told that it was there, and gone at once.
            Action::Note if matches!(resource, Resource::Specified(_)) => Change::TakenAndGivenBack,
            Action::Note => Change::Nothing,
            Action::Failure => Change::Failed,
            Action::Release => self.release(resource, place, event),
            Action::Allocation => {
                if self.is_own.get(event.stack as usize) == Some(&true) {
                    self.own.insert(place);
                    return Change::Nothing;
                }
                // A place that the program has got is no longer the tracer's.
                self.own.remove(&place);
                if self.early.get(&place).is_some_and(|&ticks| ticks >= event.began) {
                    self.early.remove(&place);
                    return Change::TakenAndGivenBack;
                }
                // Another reference to the same: it stays with the stack that took the first one.
                if resource.is_counted() && self.blocks.contains_key(&place) {
                    *self.references.entry(place).or_insert(1) += 1;
                    return Change::Nothing;
                }
                let replaced = self.blocks.insert(place, of());
                if replaced.is_some() && resource == Resource::Thread {
                    *self.late.entry(place).or_default() += 1;
                }
                let is_usual = matches!(event.kind, Kind::Dup2 | Kind::Dup3) || resource == Resource::Thread;
                Change::Taken { is_odd: replaced.is_some() && !is_usual, replaced }
            }
        }
    }

    fn release(&mut self, resource: Resource, place: Place, event: &Event) -> Change<T> {
        if self.own.remove(&place) {
            return Change::Nothing;
        }
        if let Some(late) = self.late.get_mut(&place) {
            *late -= 1;
            if *late == 0 {
                self.late.remove(&place);
            }
            return Change::Nothing;
        }
        if let Some(references) = self.references.get_mut(&place) {
            *references -= 1;
            if *references == 1 {
                self.references.remove(&place);
            }
            return Change::Nothing;
        }
        if let Some(block) = self.blocks.remove(&place) {
            return Change::GivenBack(block);
        }
        if resource == Resource::Thread {
            self.early.insert(place, event.ticks);
            return Change::Nothing;
        }
        if resource.has_others() {
            return Change::Nothing;
        }
        let process = self.recording.processes().get(&event.process);
        if process.is_some_and(|process| process.parent != 0) { Change::Inherited } else { Change::Unknown }
    }

    /// How many threads were given up that nobody has begun.
    pub(crate) fn n_early(&self) -> u64 {
        self.early.len() as u64
    }

    /// All live things.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Place, &T)> {
        self.blocks.iter().map(|(&place, block)| (place, block))
    }

    /// Those of a process within a range, in order.
    fn within(&self, process: u32, first: u64, last: u64) -> Vec<u64> {
        let places = self.blocks.keys().chain(&self.own);
        let is_within = |&&(of, what): &&Place| of == process && (first..=last).contains(&what);
        let mut found: Vec<u64> = places.filter(is_within).map(|&(_, what)| what).collect();
        found.sort_unstable();
        found
    }

    /// True if there is room for more.
    fn has_room(&self) -> bool {
        self.blocks.len() + self.own.len() + self.early.len() + self.references.len() <= MAX_LIVE
    }
}

/// The end of the events to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The end of the recording.
    End,
    /// This number of nanoseconds after the beginning.
    Nanos(u64),
    /// This number of events.
    Events(u64),
}

/// Follows the events of a resource, of one process if that is wanted, up to some time: `each` is told all of them. Returns what is there
/// then.
///
/// # Errors
///
/// Those of [`Recording::events`] and of `each`; or there is too much at a time.
pub(crate) fn follow<'r, T>(
    recording: &'r Recording,
    resource: Resource,
    until: Until,
    pid: Option<u32>,
    mut each: impl FnMut(&mut Live<'r, T>, &Event) -> Result<()>,
) -> Result<Live<'r, T>> {
    let is_wanted = |event: &Event| {
        event.resource == resource
            && pid.is_none_or(|pid| recording.processes().get(&event.process).is_some_and(|p| p.pid == pid))
    };
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
            result = match event.kind {
                Kind::CloseRange => {
                    let all = live.within(event.process, event.address, event.bytes).into_iter();
                    all.map(|address| Event { address, ..event.clone() }).try_for_each(|one| each(&mut live, &one))
                }
                _ => each(&mut live, event),
            };
            if result.is_ok() && !live.has_room() {
                let reason = format!(
                    "more than {MAX_LIVE} blocks at the same time; choose one process (--pid), or an earlier time (--at)"
                );
                result = Err(Error::Export(reason.into()));
            }
        }
        is_before && result.is_ok()
    })?;
    result.map(|()| live)
}
