//! Thread and process ids that are unique over all sources.

use std::collections::HashSet;

use rftrace_read::{Error, Result};

/// Thread ids that are taken are moved by multiples of this.
const SHIFT: u32 = 100_000;

/// True if uftrace takes it for a thread id: those are positive.
fn is_usable(id: u32) -> bool {
    (1..=i32::MAX.cast_unsigned()).contains(&id)
}

fn no_ids() -> Error {
    Error::Unaligned { reason: "the sources have too many threads: no thread ids are left".to_owned() }
}

/// The ids that are taken.
#[derive(Debug, Default)]
pub(super) struct Ids(HashSet<u32>);

impl Ids {
    /// The number to be added to each of `own`, so that all are free; takes the new ids.
    pub(super) fn shift(&mut self, own: &HashSet<u32>) -> Result<u32> {
        let is_free = |shift: u32| {
            own.iter().all(|id| id.checked_add(shift).is_some_and(|id| is_usable(id) && !self.0.contains(&id)))
        };
        let shift = (0..).map_while(|n: u32| n.checked_mul(SHIFT)).find(|&shift| is_free(shift)).ok_or_else(no_ids)?;
        self.0.extend(own.iter().map(|id| id + shift));
        Ok(shift)
    }

    /// Takes an id that nobody has: `wanted`, or another one.
    pub(super) fn unused(&mut self, wanted: u32) -> Result<u32> {
        let mut candidates = (0..).map_while(|n: u32| wanted.checked_add(n.checked_mul(SHIFT)?));
        let found = candidates.find(|&id| is_usable(id) && !self.0.contains(&id));
        let found =
            found.or_else(|| (1..i32::MAX.cast_unsigned()).find(|id| !self.0.contains(id))).ok_or_else(no_ids)?;
        self.0.insert(found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_taken_ids_is_moved_as_a_whole() {
        let mut ids = Ids::default();
        assert_eq!(ids.shift(&HashSet::from([1, 7])).unwrap(), 0);
        assert_eq!(ids.shift(&HashSet::from([7, 8])).unwrap(), SHIFT);
        assert_eq!(ids.shift(&HashSet::from([7])).unwrap(), 2 * SHIFT, "once more, and none of two sources");
        assert_eq!(ids.shift(&HashSet::from([8])).unwrap(), 0, "8 was moved away");
        // 0 is no thread's.
        assert_eq!(ids.shift(&HashSet::from([0])).unwrap(), SHIFT);
        let most = i32::MAX.cast_unsigned();
        assert_eq!(ids.shift(&HashSet::from([most])).unwrap(), 0);
        let error = ids.shift(&HashSet::from([most])).unwrap_err();
        assert!(error.to_string().contains("no thread ids are left"), "{error}");
    }

    #[test]
    fn an_id_alone_keeps_its_number_if_it_can() {
        let mut ids = Ids::default();
        assert_eq!(ids.unused(5).unwrap(), 5);
        assert_eq!(ids.unused(5).unwrap(), 5 + SHIFT);
        assert_eq!(ids.unused(0).unwrap(), SHIFT);
        // Nothing above it: any other one.
        assert_eq!(ids.unused(u32::MAX).unwrap(), 1);
    }
}
