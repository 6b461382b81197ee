//! The present stubs, and the branches and slots to them. Nothing is removed while the program lives: a thread may be
//! in a stub.
//!
//! Queries take no lock, so a save in a signal handler finds its data.

use std::iter;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use rftrace_format::branches::Branch;

use super::entry_outcome::{Ends, LeftOut};
use super::sites::Site;
use super::slots;

/// Additions of one pass through the modules.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) sites: Vec<Site>,
    /// The sizes of the functions of `sites`.
    pub(super) sizes: Vec<usize>,
    /// Slots of the program with stubs as targets.
    pub(super) slots: Vec<Slot>,
    /// Functions of other modules called by the program, without such a slot.
    pub(super) calls_left_out: Vec<LeftOut>,
    /// Branches for another writer.
    pub(super) branches: Vec<Branch>,
    /// The way to notice ends of functions.
    pub(super) ends: Ends,
    /// Functions, each with the address and stub of a branch at one of its ends, ascending.
    pub(super) own_ends: Vec<(usize, (u64, u64))>,
    /// The functions with an unnoticed end, ascending.
    pub(super) late: Vec<usize>,
    /// Earlier additions.
    next: Option<&'static Self>,
}

/// A slot for the program's calls of a function of another module.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) place: usize,
    pub(super) stub: usize,
    /// Its earlier value.
    pub(super) function: usize,
    /// The target of calls behind the stub: that function, or its replacement.
    pub(super) goes_on: &'static AtomicUsize,
}

impl Part {
    /// An empty one.
    pub(super) fn new(ends: Ends) -> Self {
        Self { ends, ..Self::default() }
    }
}

impl Slot {
    /// Leads calls on to the replacement of `original`, if that is their function. Returns true if so.
    pub(crate) fn lead(&self, original: usize, function: usize) -> bool {
        let is_it = self.function == original;
        if is_it {
            self.goes_on.store(function, Release);
        }
        is_it
    }

    /// True with a replacement of their function.
    pub(crate) fn is_led(&self) -> bool {
        self.goes_on.load(Acquire) != self.function
    }

    /// Leads calls on to their own function again.
    pub(crate) fn lead_back(&self) {
        self.goes_on.store(self.function, Release);
    }
}

static LAST: AtomicPtr<Part> = AtomicPtr::new(ptr::null_mut());

/// Everything.
pub(super) fn parts() -> impl Iterator<Item = &'static Part> {
    // SAFETY: null, or what `add` has leaked.
    let last: Option<&'static Part> = unsafe { LAST.load(Acquire).as_ref() };
    iter::successors(last, |part| part.next)
}

/// Adds new parts. Only one thread does at a time.
pub(super) fn add(part: Part) {
    if part.sites.is_empty() && part.calls_left_out.is_empty() && part.branches.is_empty() {
        return;
    }
    let part = Box::leak(Box::new(Part { next: parts().next(), ..part }));
    LAST.store(part, Release);
}

/// The functions with a branch, and slots of library calls, as call sites: a filter chooses them by their addresses.
pub(crate) fn sites() -> impl Iterator<Item = Site> {
    parts().flat_map(|part| part.sites.iter().copied())
}

/// The same in the module mapped at `start`, relative to that: address and size.
pub(crate) fn functions_in(start: u64) -> impl Iterator<Item = (u64, u64)> {
    let all = parts().flat_map(|part| part.sites.iter().zip(&part.sizes));
    let own = all.filter(move |(site, _)| site.module as u64 == start);
    own.map(move |(site, &bytes)| (site.address as u64 - start, bytes as u64))
}

/// The slots of library calls, whatever they hold.
pub(crate) fn library_calls() -> impl Iterator<Item = &'static Slot> {
    parts().flat_map(|part| &part.slots)
}

/// Returns the slot at a place, if it leads to its stub.
pub(crate) fn library_call(place: usize) -> Option<&'static Slot> {
    let held = slots::value(place).load(SeqCst);
    library_calls().find(|slot| slot.place == place && slot.stub == held)
}
