//! The distribution of durations: minimum, maximum, mean and quantiles.

use std::mem;

use serde::{Deserialize, Serialize};

use crate::correction::{Cost, Share};

/// The number of kept bits of a duration, for quantiles: they are right to one part in 32.
const KEPT_BITS: u32 = 5;

/// The durations of calls of one function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    count: u64,
    sum_ns: u64,
    /// The overhead of recording in that.
    cost: Cost,
    min_ns: u64,
    max_ns: u64,
    /// The number of calls of each occurring length, the shortest first: see [`length_class`].
    lengths: Vec<(u16, u64)>,
}

impl Spread {
    /// Adds a call, less the overhead of recording.
    pub(crate) fn add(&mut self, recorded_ns: u64, cost: Cost) {
        self.cost.add(cost);
        let ns = cost.off(recorded_ns);
        self.min_ns = if self.count == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns = self.sum_ns.saturating_add(recorded_ns);
        self.count += 1;
        let class = length_class(ns);
        match self.lengths.binary_search_by_key(&class, |&(class, _)| class) {
            Ok(place) => self.lengths[place].1 += 1,
            Err(place) => self.lengths.insert(place, (class, 1)),
        }
    }

    /// Adds calls counted elsewhere.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.count += other.count;
        self.cost.add(other.cost);
        let mut merged = Vec::with_capacity(self.lengths.len() + other.lengths.len());
        let mut own = mem::take(&mut self.lengths).into_iter().peekable();
        for &(class, count) in &other.lengths {
            while let Some(shorter) = own.next_if(|&(own, _)| own < class) {
                merged.push(shorter);
            }
            let same = own.next_if(|&(own, _)| own == class);
            merged.push((class, count + same.map_or(0, |(_, count)| count)));
        }
        merged.extend(own);
        self.lengths = merged;
    }

    /// Limits the overhead subtracted from the mean to this share.
    pub(crate) fn limit(&mut self, share: Share) {
        self.cost = self.cost.limited(share);
    }

    /// Returns the mean in nanoseconds; 0 without calls.
    pub fn average_ns(&self) -> u64 {
        self.cost.off(self.sum_ns).checked_div(self.count).unwrap_or(0)
    }

    /// Returns the minimum in nanoseconds; 0 without calls.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// Returns the maximum in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the duration in nanoseconds that `percent` of a hundred calls do not exceed, to one part in 32; 0
    /// without calls.
    pub fn percentile_ns(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.lengths.iter().find_map(|&(class, count)| {
            seen += u128::from(count);
            (seen >= wanted).then(|| shortest_of(class))
        });
        found.unwrap_or(0).clamp(self.min_ns.min(self.max_ns), self.max_ns)
    }
}

/// Returns the class of lengths with the same highest bits. It grows with the length, by 1 from class to class.
fn length_class(ns: u64) -> u16 {
    let lost_bits = (u64::BITS - ns.leading_zeros()).saturating_sub(KEPT_BITS + 1);
    // There are 1920.
    ((lost_bits << KEPT_BITS) + (ns >> lost_bits) as u32) as u16
}

/// The shortest of these lengths: the rest of the bits is 0.
fn shortest_of(class: u16) -> u64 {
    let lost_bits = (u32::from(class) >> KEPT_BITS).saturating_sub(1);
    u64::from(class).saturating_sub(u64::from(lost_bits) << KEPT_BITS).checked_shl(lost_bits).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred() {
        let mut spread = Spread::default();
        (1..=100).rev().for_each(|us| spread.add(us * 1000, Cost::default()));
        assert_eq!((spread.min_ns(), spread.average_ns(), spread.max_ns()), (1_000, 50_500, 100_000));
        for (percent, exact) in [(1, 1_000), (50, 50_000), (99, 99_000), (100, 100_000)] {
            let found = spread.percentile_ns(percent);
            assert!((exact - exact / 32..=exact).contains(&found), "{percent}: {found}");
        }
    }

    #[test]
    fn classes_of_lengths() {
        assert_eq!([0, 1, 63, 64, 65, 66, u64::MAX].map(length_class), [0, 1, 63, 64, 64, 65, 1919]);
        for class in 0..1920 {
            let shortest = shortest_of(class);
            assert_eq!(length_class(shortest), class);
            assert_eq!(shortest.checked_sub(1).map(length_class), class.checked_sub(1));
        }
    }

    #[test]
    fn of_two_halves() {
        let (mut whole, mut halves) = (Spread::default(), [Spread::default(), Spread::default()]);
        for us in 1..=100_u64 {
            let cost = Cost::default();
            whole.add(us * 1000, cost);
            halves[us.is_multiple_of(3) as usize].add(us * 1000, cost);
        }
        let mut sum = Spread::default();
        halves.iter().for_each(|half| sum.merge(half));
        sum.merge(&Spread::default());
        assert_eq!(sum, whole);
    }

    #[test]
    fn of_few() {
        let mut spread = Spread::default();
        assert_eq!((spread.average_ns(), spread.percentile_ns(50)), (0, 0));
        spread.add(u64::MAX, Cost::default());
        spread.add(0, Cost::default());
        assert_eq!((spread.min_ns(), spread.max_ns(), spread.percentile_ns(50)), (0, u64::MAX, 0));
        assert!(spread.percentile_ns(99) > u64::MAX / 32 * 31);
    }
}
