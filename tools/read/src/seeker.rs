//! Skips the parts of a task's records outside the choice, with an index.
//!
//! Not here: the content of an index (`index`), and other work of a choice (`chosen`).

use std::ops::Range;
use std::sync::Arc;

use crate::chosen::Choice;
use crate::functions::Functions;
use crate::index::{Index, OpenFrame, Place, TaskIndex};

/// The next restart of a reader.
#[derive(Debug, Clone)]
pub(crate) struct Seeker {
    index: Arc<Index>,
    tid: u32,
    /// The reader's next place.
    next: usize,
    /// For each function, whether the choice has it with its calls; `None` without chosen functions.
    chosen: Option<Arc<[bool]>>,
    has_begun: bool,
    /// The chosen time.
    times: Range<u64>,
}

impl Seeker {
    /// For the records of a task, if there is an index of it.
    pub(crate) fn new(index: &Arc<Index>, tid: u32, choice: &Choice, functions: &Functions<'_>) -> Option<Self> {
        let task = index.tasks.get(&tid)?;
        let is_chosen = |&(addr, time_ns): &(u64, u64)| {
            let name = functions.name(time_ns, addr);
            choice.below.iter().any(|pattern| pattern.matches(&name))
        };
        let chosen = (!choice.below.is_empty()).then(|| task.functions.iter().map(is_chosen).collect());
        Some(Self { index: Arc::clone(index), tid, next: 0, chosen, has_begun: false, times: choice.times.clone() })
    }

    fn task(&self) -> &TaskIndex {
        &self.index.tasks[&self.tid]
    }

    /// Returns the place for a reader at `position` to go on, if that is further on. `may_leave` returns true if all is
    /// left out until the entry of a chosen function.
    pub(crate) fn skip(&mut self, position: u64, may_leave: impl FnOnce() -> bool) -> Option<usize> {
        if !std::mem::replace(&mut self.has_begun, true) {
            // Records at the time itself are shown, so it must not be before the place.
            let before = self.task().places.partition_point(|place| place.last_ns < self.times.start);
            if before > 1 {
                self.next = before - 1;
                return Some(self.next);
            }
        }
        let places = &self.index.tasks.get(&self.tid)?.places;
        if places.get(self.next).is_none_or(|place| position < place.position) {
            return None;
        }
        self.next += places[self.next..].partition_point(|place| place.position < position);
        let here = self.next;
        if places.get(here).is_none_or(|place| place.position != position) {
            return None;
        }
        self.next = here + 1;
        if self.chosen.is_none() || !may_leave() {
            return None;
        }
        // The last place is the end of the file. Where the time ends the reader ends, too.
        let is_before_end = |place: usize| places[place + 1].last_ns < self.times.end;
        let left_out =
            (here..places.len() - 1).take_while(|&place| self.is_left_out(place) && is_before_end(place)).count();
        self.next += left_out;
        (left_out > 0).then_some(here + left_out)
    }

    /// True if nothing of a block is shown unless it enters a chosen function.
    fn is_left_out(&self, place: usize) -> bool {
        let task = self.task();
        let Some(chosen) = &self.chosen else { return false };
        let place = &task.places[place];
        !place.must_read && !task.entered[place.entered.clone()].iter().any(|&function| chosen[function as usize])
    }

    /// True if a place is the end of the file.
    pub(crate) fn is_end(&self, place: usize) -> bool {
        place + 1 == self.task().places.len()
    }

    /// Returns a place, and the functions open there.
    pub(crate) fn place(&self, place: usize) -> (&Place, Vec<OpenFrame>) {
        (&self.task().places[place], self.task().open_at(place))
    }
}
