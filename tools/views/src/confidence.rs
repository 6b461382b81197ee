//! The test of Mann and Whitney: the probability of a difference between two groups of values from one source.
//!
//! The statistic is the number of pairs with a larger value in the second group. Its distribution is counted, not
//! approximated, and depends on the sizes of the groups alone. An equal pair counts half, rounded to the middle: ties
//! never make a difference more certain.

use std::cmp::Ordering;

/// The test for groups of given sizes.
#[derive(Debug)]
pub(crate) struct MannWhitney {
    /// The probability of at most so many pairs in order, by their number.
    at_most: Vec<f64>,
}

impl MannWhitney {
    /// Counts the orders of all values of two groups, in as many steps as the square of the number of pairs.
    pub(crate) fn new([first, second]: [usize; 2]) -> Self {
        // By the size of the second group: the number of orders for each number of pairs. The first group grows.
        let mut orders = vec![vec![1.0]; second + 1];
        for of_first in 1..=first {
            for of_second in 1..=second {
                let (smaller, rest) = orders.split_at_mut(of_second);
                // The largest value is of the first group and in no pair, or of the second and in one with each of the first.
                rest[0].resize(of_first * of_second + 1, 0.0);
                for (number, found) in smaller[of_second - 1].iter().zip(&mut rest[0][of_first..]) {
                    *found += number;
                }
            }
        }
        let orders = orders.pop().unwrap_or_default();
        let all: f64 = orders.iter().sum();
        let at_most = orders.iter().scan(0.0, |sum, number| {
            *sum += number / all;
            Some(*sum)
        });
        Self { at_most: at_most.collect() }
    }

    /// The probability of a difference at least as large as that of these groups, to either side.
    pub(crate) fn p(&self, first: &[u64], second: &[u64]) -> f64 {
        // In halves.
        let of_pair = |(a, b): (&u64, &u64)| match a.cmp(b) {
            Ordering::Less => 2,
            Ordering::Equal => 1,
            Ordering::Greater => 0,
        };
        let in_order: usize = first.iter().flat_map(|a| second.iter().map(move |b| of_pair((a, b)))).sum();
        let all = 2 * first.len() * second.len();
        let number = in_order.min(all - in_order).div_ceil(2);
        self.at_most.get(number).map_or(1.0, |at_most| (2.0 * at_most).min(1.0))
    }

    /// The minimum probability for groups of these sizes.
    pub(crate) fn least(&self) -> f64 {
        self.at_most.first().map_or(1.0, |at_most| (2.0 * at_most).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(first: &[u64], second: &[u64]) -> f64 {
        MannWhitney::new([first.len(), second.len()]).p(first, second)
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-12
    }

    #[test]
    fn probabilities_of_published_tables() {
        // Groups apart: 2 of all orders.
        assert!(is_near(p(&[1, 2, 3], &[4, 5, 6]), 2.0 / 20.0));
        assert!(is_near(p(&[9, 8, 7, 6], &[4, 5, 3, 2]), 2.0 / 70.0));
        assert!(is_near(p(&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]), 2.0 / 252.0));
        // One pair out of order: U is 1. The critical value for 5 and 5 at 0.05 is 2, for 8 and 8 it is 13.
        assert!(is_near(p(&[1, 2, 3, 4, 6], &[5, 7, 8, 9, 10]), 4.0 / 252.0));
        let of_8 = MannWhitney::new([8, 8]);
        assert!(2.0 * of_8.at_most[13] < 0.05 && 2.0 * of_8.at_most[14] > 0.05);
        let of_5 = MannWhitney::new([5, 5]);
        assert!(2.0 * of_5.at_most[2] < 0.05 && 2.0 * of_5.at_most[3] > 0.05);
        assert!(is_near(of_5.least(), 2.0 / 252.0));
        assert!(is_near(of_5.at_most[25], 1.0));
    }

    #[test]
    fn all_orders_have_the_probability_that_is_told() {
        // Of all 35 choices of 3 among 7 values.
        let test = MannWhitney::new([3, 4]);
        let mut found = Vec::new();
        for chosen in 0_u32..128 {
            if chosen.count_ones() == 3 {
                let (first, second): (Vec<u64>, Vec<u64>) = (0..7).partition(|number| chosen >> number & 1 == 1);
                found.push(test.p(&first, &second));
            }
        }
        for &level in &found {
            let as_far = found.iter().filter(|&&p| p <= level + 1e-12).count();
            assert!(is_near(as_far as f64 / 35.0, level), "{level}");
        }
    }

    #[test]
    fn ties_make_nothing_certain() {
        assert!(is_near(p(&[7; 6], &[7; 6]), 1.0));
        assert!(p(&[1, 1, 1, 2], &[2, 3, 3, 3]) >= p(&[1, 1, 1, 2], &[3, 3, 3, 3]));
        assert!(is_near(p(&[], &[1]), 1.0) && is_near(p(&[1], &[2]), 1.0));
    }
}
