//! Ticks to nanoseconds.

#[cfg(feature = "std")]
use std::thread;
#[cfg(feature = "std")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "std")]
use crate::host;
#[cfg(feature = "std")]
use crate::tsc::ticks;

/// The time stamp counter and CLOCK_MONOTONIC at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockPair {
    /// Ticks.
    pub(crate) tsc: u64,
    /// Nanoseconds.
    pub(crate) nanos: u64,
}

/// How often the two clocks are read to find a pair that nothing came between.
#[cfg(feature = "std")]
const TRIES: usize = 16;

#[cfg(feature = "std")]
impl ClockPair {
    /// Reads both clocks. Of several tries the one with the shortest time between its two reads of the counter is best.
    pub(crate) fn now() -> Self {
        let one_try = || {
            let before = ticks();
            let nanos = host::monotonic_nanos();
            let width = ticks().wrapping_sub(before);
            (width, Self { tsc: before.wrapping_add(width / 2), nanos })
        };
        let mut best = one_try();
        for _ in 1..TRIES {
            let next = one_try();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }
}

/// Converts ticks to nanoseconds by the line through two pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    first: ClockPair,
    /// Nanoseconds per tick, times 2^32.
    nanos_per_tick: u64,
}

impl Clock {
    /// The line through `first` and a later pair.
    #[cfg(feature = "std")]
    pub(crate) fn between(first: ClockPair, last: ClockPair) -> Self {
        let ticks = u128::from(last.tsc.saturating_sub(first.tsc).max(1));
        let nanos = u128::from(last.nanos.saturating_sub(first.nanos));
        let nanos_per_tick = u64::try_from((nanos << 32) / ticks).unwrap_or(u64::MAX);
        Self { first, nanos_per_tick }
    }

    /// The line through `first` with so many ticks per second.
    #[cfg(feature = "std")]
    pub(crate) fn at_rate(first: ClockPair, hz: u64) -> Self {
        let nanos_per_tick = (1_000_000_000u128 << 32) / u128::from(hz.max(1));
        Self { first, nanos_per_tick: u64::try_from(nanos_per_tick).unwrap_or(u64::MAX) }
    }

    /// The clock that was 0 when the counter was, and counts `hz` ticks a second. It is exact at `tsc`, and near it.
    #[cfg(target_os = "linux")]
    pub(crate) fn from_start(tsc: u64, hz: u64) -> Self {
        let hz = u128::from(hz.max(1));
        let nanos = u64::try_from(u128::from(tsc) * 1_000_000_000 / hz).unwrap_or(u64::MAX);
        let nanos_per_tick = u64::try_from((1_000_000_000u128 << 32) / hz).unwrap_or(u64::MAX);
        Self { first: ClockPair { tsc, nanos }, nanos_per_tick }
    }

    /// The time of a record. Moments before the first pair are right too.
    pub(crate) fn nanos(&self, tsc: u64) -> u64 {
        let scale = |ticks: u64| ((u128::from(ticks) * u128::from(self.nanos_per_tick)) >> 32) as u64;
        match tsc.checked_sub(self.first.tsc) {
            Some(after) => self.first.nanos.saturating_add(scale(after)),
            None => self.first.nanos.saturating_sub(scale(self.first.tsc - tsc)),
        }
    }

    /// How many nanoseconds 2^32 ticks take: all that a reader needs, beside the first pair, to find a record's ticks again.
    #[cfg(any(feature = "std", all(feature = "import", target_os = "linux")))]
    pub(crate) fn nanos_per_2_32_ticks(&self) -> u64 {
        self.nanos_per_tick
    }

    /// Ticks per second as measured between the pairs.
    pub(crate) fn tsc_hz(&self) -> u64 {
        let per_second = (1_000_000_000u128 << 32) / u128::from(self.nanos_per_tick.max(1));
        u64::try_from(per_second).unwrap_or(u64::MAX)
    }
}

/// Unix time minus the monotonic clock in nanoseconds. Of several tries the one with the shortest time around its look at the
/// wall clock is best.
#[cfg(feature = "std")]
pub(crate) fn utc_offset_nanos() -> Option<i64> {
    let one_try = || {
        let before = host::monotonic_nanos();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let width = host::monotonic_nanos().saturating_sub(before);
        let unix = i64::try_from(unix.as_nanos()).ok()?;
        Some((width, unix.checked_sub_unsigned(before.saturating_add(width / 2))?))
    };
    (0..TRIES).filter_map(|_| one_try()).min_by_key(|&(width, _)| width).map(|(_, offset)| offset)
}

/// How many ticks a duration takes, by what the system says or, if it does not, by a look at both clocks.
#[cfg(feature = "std")]
pub(crate) fn ticks_in(duration: Duration) -> u64 {
    /// Long enough for a rate that is right to a thousandth.
    const LOOK: Duration = Duration::from_millis(2);

    if duration.is_zero() {
        return 0;
    }
    let hz = host::tsc_hz().unwrap_or_else(|| {
        let first = ClockPair::now();
        thread::sleep(LOOK);
        Clock::between(first, ClockPair::now()).tsc_hz()
    });
    let ticks = duration.as_nanos().saturating_mul(u128::from(hz)) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn both_ends_and_beyond_are_exact() {
        let first = ClockPair { tsc: 1_000, nanos: 5_000 };
        let last = ClockPair { tsc: 3_001_000, nanos: 1_005_000 };
        let clock = Clock::between(first, last);
        assert_eq!(clock.nanos(1_000), 5_000);
        assert!(clock.nanos(3_001_000).abs_diff(1_005_000) <= 1);
        assert!(clock.nanos(1_501_000).abs_diff(505_000) <= 1);
        assert_eq!(clock.nanos(0), 4_667);
        assert!(clock.tsc_hz().abs_diff(3_000_000_000) < 10);
    }

    #[test]
    fn a_told_rate_is_kept() {
        let first = ClockPair { tsc: 1_000, nanos: 5_000 };
        let clock = Clock::at_rate(first, 2_500_000_000);
        assert!(clock.nanos(2_500_001_000).abs_diff(1_000_005_000) <= 1);
        assert!(clock.tsc_hz().abs_diff(2_500_000_000) < 10);
        assert_eq!(Clock::at_rate(first, 0).nanos(1_000), 5_000);
    }

    #[test]
    fn the_wall_clock_is_what_the_offset_says() {
        let offset = utc_offset_nanos().expect("there is a wall clock");
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos();
        let computed = i128::from(offset) + i128::from(host::monotonic_nanos());
        let difference = computed - i128::try_from(unix).expect("it is before the year 10^21");
        assert!(difference.abs() < 100_000_000, "{difference} ns");
    }

    #[test]
    fn a_duration_takes_as_many_ticks_as_it_does() {
        assert_eq!(ticks_in(Duration::ZERO), 0);
        assert_eq!(ticks_in(Duration::MAX), u64::MAX);
        let first = ClockPair::now();
        thread::sleep(Duration::from_millis(20));
        let last = ClockPair::now();
        let expected = last.tsc - first.tsc;
        let ticks = ticks_in(Duration::from_nanos(last.nanos - first.nanos));
        assert!(ticks.abs_diff(expected) < expected / 20, "{ticks} and {expected}");
    }

    #[test]
    fn two_equal_pairs_divide_by_nothing() {
        let pair = ClockPair { tsc: 7, nanos: 9 };
        assert_eq!(Clock::between(pair, pair).nanos(7), 9);
    }

    #[test]
    fn a_year_does_not_overflow() {
        let first = ClockPair { tsc: 0, nanos: 0 };
        let year = 365 * 86_400 * 1_000_000_000u64;
        let clock = Clock::between(first, ClockPair { tsc: 3 * year, nanos: year });
        assert!(clock.nanos(3 * year).abs_diff(year) < 20_000_000);
    }
}
