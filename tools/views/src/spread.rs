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
    min: Extreme,
    max: Extreme,
    /// The number of calls of each occurring length, the shortest first: see [`length_class`].
    lengths: Vec<(u16, u64)>,
}

/// The least or the largest time of several calls, with all of the overhead and without any. They may be those of two calls.
///
/// A part of the overhead leaves a time between both, in proportion. So the least is never above the mean, nor the largest below it, whatever
/// the part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Extreme {
    recorded_ns: u64,
    /// Negative if more was measured than the call took.
    corrected_ps: i128,
    share: Share,
}

impl Extreme {
    fn of(recorded_ns: u64, cost: Cost) -> Self {
        Self { recorded_ns, corrected_ps: cost.signed_off(recorded_ns), share: Share::default() }
    }

    /// The extreme of both, by `choose` for each time.
    fn with(self, other: Self, choose: impl Fn(i128, i128) -> i128) -> Self {
        let recorded_ns = choose(self.recorded_ns.into(), other.recorded_ns.into()) as u64;
        Self { recorded_ns, corrected_ps: choose(self.corrected_ps, other.corrected_ps), ..self }
    }

    fn ns(self) -> u64 {
        Cost::between(self.recorded_ns, self.corrected_ps).limited(self.share).off(self.recorded_ns)
    }
}

impl Spread {
    /// Adds a call, less the overhead of recording.
    pub(crate) fn add(&mut self, recorded_ns: u64, cost: Cost) {
        self.cost.add(cost);
        self.add_extremes([Extreme::of(recorded_ns, cost); 2]);
        self.sum_ns = self.sum_ns.saturating_add(recorded_ns);
        self.count += 1;
        let class = length_class(cost.off(recorded_ns));
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
        self.add_extremes([other.min, other.max]);
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

    /// Adds the extremes of other calls, which are not yet counted.
    fn add_extremes(&mut self, [min, max]: [Extreme; 2]) {
        let is_first = self.count == 0;
        self.min = if is_first { min } else { self.min.with(min, i128::min) };
        self.max = if is_first { max } else { self.max.with(max, i128::max) };
    }

    /// Limits the subtracted overhead to this share.
    pub(crate) fn limit(&mut self, share: Share) {
        self.cost = self.cost.limited(share);
        (self.min.share, self.max.share) = (share, share);
    }

    /// Returns the mean in nanoseconds; 0 without calls.
    pub fn average_ns(&self) -> u64 {
        let average_ns = self.cost.off(self.sum_ns).checked_div(self.count).unwrap_or(0);
        // Each time is rounded by itself.
        average_ns.max(self.min_ns()).min(self.max_ns())
    }

    /// Returns the minimum in nanoseconds; 0 without calls.
    pub fn min_ns(&self) -> u64 {
        self.min.ns()
    }

    /// Returns the maximum in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max.ns()
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
        found.unwrap_or(0).max(self.min_ns()).min(self.max_ns())
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

    /// Less overhead is in a trace than was measured.
    #[test]
    fn a_part_of_the_overhead_is_taken_off_all_alike() {
        let cost = |ps| Cost::between(u64::MAX, i128::from(u64::MAX) * 1000 - ps);
        let half = Share::of([(1016, {
            // 16 calls, which take 1 ns each at the least
            let mut all = Cost::default();
            (0..16).for_each(|_| all.add(cost(125_000)));
            all
        })]);
        let mut one = Spread::default();
        one.add(1000, cost(200_500));
        one.limit(half);
        let expected = one.cost.off(1000);
        assert!((899..=900).contains(&expected), "{expected}");
        assert_eq!([one.min_ns(), one.average_ns(), one.max_ns(), one.percentile_ns(50)], [expected; 4]);
        // Its parts change places.
        let mut two = Spread::default();
        two.add(100, cost(90_000));
        two.add(50, cost(30_000));
        let is_between = |it: &Spread| it.min_ns() <= it.average_ns() && it.average_ns() <= it.max_ns();
        assert_eq!((two.min_ns(), two.average_ns(), two.max_ns()), (10, 15, 20));
        two.limit(half);
        assert!(is_between(&two) && (30..=35).contains(&two.min_ns()), "{two:?}");
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
