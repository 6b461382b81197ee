//! Systems with recorded calls of the hooks only: no function has a branch, and no slot leads to a stub.

use std::iter;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::entry_outcome::{Ends, EntryBranches, EntryWay};
use super::sites::Site;
use crate::Error;

/// True if functions without a hook were requested.
pub(crate) struct Choice(bool);

impl Choice {
    pub(crate) fn parse<'p>(mut patterns: impl Iterator<Item = &'p str>, _except: Vec<String>) -> Result<Self, Error> {
        Ok(Self(patterns.next().is_some()))
    }

    pub(crate) fn patchable(self, has_patchable: bool) -> Self {
        Self(self.0 || has_patchable)
    }

    pub(crate) fn ends(self, _ends: Ends) -> Self {
        self
    }

    pub(crate) fn library_calls(self, has_library_calls: bool) -> Self {
        Self(self.0 || has_library_calls)
    }
}

/// True if any [`Choice`] was true.
static ARE_ENTRIES_WANTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn install(choice: Choice, _way: EntryWay) {
    ARE_ENTRIES_WANTED.fetch_or(choice.0, Relaxed);
}

pub(crate) fn outcome() -> EntryBranches {
    let mut outcome = EntryBranches::nothing();
    let are_wanted = ARE_ENTRIES_WANTED.load(Relaxed);
    outcome.refusal =
        are_wanted.then(|| "rftrace records functions without a hook only on Linux on x86-64 and aarch64".to_owned());
    outcome
}

/// Returns the hooked functions without a call of the tracer, in the module at an address.
pub(crate) fn functions_in(_module: u64) -> impl Iterator<Item = (u64, u64)> {
    iter::empty()
}

/// None.
pub(crate) fn sites() -> impl Iterator<Item = Site> {
    iter::empty()
}
