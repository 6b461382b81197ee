//! Follows a value through the code from an instruction on, by all ways of the code except those of exceptions.

use std::collections::BTreeSet;

/// The maximum number of followed instructions.
const MOST: usize = 4096;

/// Effect of an instruction on the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// The value is there behind it, here and at its jump target.
    Keeps { next: Option<usize>, target: Option<usize> },
    /// Any use that is not harmless.
    Uses,
}

impl Does {
    /// The value is nowhere any more.
    pub(super) const ENDS: Self = Self::Keeps { next: None, target: None };
}

/// Returns true if no instruction from `first` on uses the value, until it is gone. `does` returns the effect of the
/// instruction at an address; `None` without one.
pub(super) fn never_uses(first: usize, mut does: impl FnMut(usize) -> Option<Does>) -> bool {
    let mut seen = BTreeSet::new();
    let mut ahead = vec![first];
    while let Some(at) = ahead.pop() {
        if !seen.insert(at) {
            continue;
        }
        match does(at).filter(|_| seen.len() < MOST) {
            Some(Does::Keeps { next, target }) => ahead.extend(next.into_iter().chain(target)),
            Some(Does::Uses) | None => return false,
        }
    }
    true
}
