//! Detects threads in an endless wait for a chunk: other threads have all chunks, and none of these is full.
//!
//! The recorder ends such waits. After the first time they end as soon as no chunk can come.

use std::time::{Duration, Instant};

use rftrace::abi::{chunk_state, lease};

/// Owners may fill their chunks slowly; a longer wait than this harms a thread more than lost calls do.
const PATIENCE: Duration = Duration::from_millis(100);

/// The chunks of one bank, as the recorder has last seen them.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    /// A sum of the leases, if threads have all chunks, and since when it is the same. Each new owner changes it.
    same: Option<(u64, Instant)>,
    is_stuck: bool,
    /// It was so at a time.
    pub(super) was_stuck: bool,
}

impl Occupied {
    /// Looks at the leases of all chunks. Returns true for waiting in vain, false for other waits, and `None` without a
    /// change.
    pub(super) fn look(&mut self, leases: impl Iterator<Item = u64>) -> Option<bool> {
        self.see(sum(leases), Instant::now())
    }

    fn see(&mut self, all: Option<u64>, now: Instant) -> Option<bool> {
        let since = self.same.filter(|&(sum, _)| Some(sum) == all).map_or(now, |(_, since)| since);
        self.same = all.map(|sum| (sum, since));
        let is_stuck = all.is_some() && (self.was_stuck || now - since >= PATIENCE);
        self.was_stuck |= is_stuck;
        (std::mem::replace(&mut self.is_stuck, is_stuck) != is_stuck).then_some(is_stuck)
    }
}

/// Returns the sum of leases without a chunk to take: none is free, and none is full.
fn sum(mut leases: impl Iterator<Item = u64>) -> Option<u64> {
    let is_kept = |lease| matches!(lease::state(lease), chunk_state::OWNED | chunk_state::KEPT | chunk_state::PARTIAL);
    leases.try_fold(0_u64, |sum, lease| is_kept(lease).then(|| sum.wrapping_add(lease)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_when_no_chunk_can_come() {
        let owned = |index| lease::new(index, chunk_state::OWNED);
        let begin = Instant::now();
        let mut occupied = Occupied::default();
        let mut see = |millis: u64, leases: &[u64]| {
            occupied.see(sum(leases.iter().copied()), begin + Duration::from_millis(millis))
        };
        let (all, partial) = ([owned(1), owned(2)], [owned(1), lease::new(2, chunk_state::PARTIAL)]);
        assert_eq!(see(0, &[owned(1), 0]), None);
        assert_eq!(see(1, &all), None);
        assert_eq!(see(90, &[owned(1), owned(3)]), None, "a thread got on");
        assert_eq!(see(100, &all), None);
        assert_eq!(see(199, &all), None);
        assert_eq!(see(200, &all), Some(true));
        assert_eq!(see(201, &all), None);
        assert_eq!(see(202, &[owned(1), lease::new(2, chunk_state::FULL)]), Some(false));
        assert_eq!(see(203, &[lease::new(4, chunk_state::FREE), owned(1)]), None);
        // Not for so long again.
        assert_eq!(see(204, &partial), Some(true));
    }
}
