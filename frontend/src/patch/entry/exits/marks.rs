//! Possible targets of jumps, and landing places of exceptions: the code there, and behind it, stays in place.
//!
//! Not here: return points. Displacement never goes back over a call.

use std::collections::BTreeSet;

use crate::patch::entry::functions::Functions;
use crate::patch::frames::Landings;
use crate::patch::landings::landing_pads;
use crate::patch::module::Image;

/// Marks of a module.
#[derive(Debug)]
pub(super) struct Marks {
    /// Ascending.
    addresses: Vec<usize>,
    /// Addresses named other than by jumps, ascending.
    named: Vec<usize>,
    /// The beginnings of ranges with unknown landing places of exceptions.
    unknown: BTreeSet<usize>,
}

impl Marks {
    pub(super) fn of(image: &Image<'_>, functions: &Functions) -> Self {
        let mut unknown = BTreeSet::new();
        let mut addresses = functions.targets.clone();
        for range in &functions.ranges {
            addresses.push(range.start);
            let pads = match range.landings {
                Landings::None => Some(Vec::new()),
                Landings::Table(table) => landing_pads(image, table, range.start),
                Landings::Unknown => None,
            };
            match pads {
                Some(pads) => addresses.extend(pads),
                None => _ = unknown.insert(range.start),
            }
        }
        let mut named = functions.named.clone();
        named.extend(image.constant_words().filter(|&word| image.text(word).is_some()));
        named.sort_unstable();
        addresses.extend_from_slice(&named);
        addresses.sort_unstable();
        addresses.dedup();
        Self { addresses, named, unknown }
    }

    /// True if somebody may arrive from `start` on and before `end`.
    pub(super) fn has_any(&self, start: usize, end: usize) -> bool {
        has_any(&self.addresses, start, end)
    }

    /// True if a place there is named other than by a jump.
    pub(super) fn names_any(&self, start: usize, end: usize) -> bool {
        has_any(&self.named, start, end)
    }

    /// Returns true if all marks of the range at an address are known.
    pub(super) fn knows(&self, range: usize) -> bool {
        !self.unknown.contains(&range)
    }
}

fn has_any(addresses: &[usize], start: usize, end: usize) -> bool {
    addresses.get(addresses.partition_point(|&address| address < start)).is_some_and(|&address| address < end)
}
