//! Ticks and nanoseconds: reading both clocks at one moment, and the clock through two such moments.

#[cfg(feature = "std")]
use std::thread;
#[cfg(feature = "std")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "std")]
use super::tsc::ticks;
#[cfg(feature = "std")]
use super::{monotonic_nanos, tsc_hz};

use rftrace_format::clock::TscClock;
#[cfg(target_os = "linux")]
use rftrace_format::text::NANOS_PER_SECOND;

/// The time stamp counter and CLOCK_MONOTONIC at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(all(feature = "std", target_os = "linux"), derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct ClockPair {
    /// Ticks.
    pub(crate) tsc: u64,
    /// Nanoseconds.
    pub(crate) nanos: u64,
}

/// The number of reads of the two clocks for an undisturbed pair.
#[cfg(feature = "std")]
const TRIES: usize = 16;

#[cfg(feature = "std")]
impl ClockPair {
    /// Reads both clocks. Of several tries the one with the shortest time between its two reads of the counter is best.
    pub(crate) fn now() -> Self {
        let one_try = || {
            let before = ticks();
            let nanos = monotonic_nanos();
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

    /// The clock on the line through this and a later pair.
    pub(crate) fn clock_to(self, last: Self) -> TscClock {
        TscClock::between((self.tsc, self.nanos), (last.tsc, last.nanos))
    }

    /// The clock on the line through this with so many ticks per second.
    pub(crate) fn clock_at_rate(self, hz: u64) -> TscClock {
        TscClock::at_rate(self.tsc, self.nanos, hz)
    }
}

/// The clock that starts at the counter's 0, with `hz` ticks a second. It is exact at `tsc`, and near it.
#[cfg(target_os = "linux")]
pub(crate) fn from_start(tsc: u64, hz: u64) -> TscClock {
    let nanos = u128::from(tsc) * u128::from(NANOS_PER_SECOND) / u128::from(hz.max(1));
    TscClock::at_rate(tsc, u64::try_from(nanos).unwrap_or(u64::MAX), hz)
}

/// Unix time minus the monotonic clock in nanoseconds. Of several tries the one with the shortest time around its look at the
/// wall clock is best.
#[cfg(feature = "std")]
pub(crate) fn utc_offset_nanos() -> Option<i64> {
    let one_try = || {
        let before = monotonic_nanos();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let width = monotonic_nanos().saturating_sub(before);
        let unix = i64::try_from(unix.as_nanos()).ok()?;
        Some((width, unix.checked_sub_unsigned(before.saturating_add(width / 2))?))
    };
    (0..TRIES).filter_map(|_| one_try()).min_by_key(|&(width, _)| width).map(|(_, offset)| offset)
}

/// Returns the ticks of a duration, by the system's rate or, without one, by a look at both clocks.
#[cfg(feature = "std")]
pub(crate) fn ticks_in(duration: Duration) -> u64 {
    /// Long enough for a rate right to a thousandth.
    const LOOK: Duration = Duration::from_millis(2);

    if duration.is_zero() {
        return 0;
    }
    let hz = tsc_hz().map(|(hz, _)| hz).unwrap_or_else(|| {
        let first = ClockPair::now();
        thread::sleep(LOOK);
        first.clock_to(ClockPair::now()).hz()
    });
    let ticks = duration.as_nanos().saturating_mul(u128::from(hz)) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_what_the_offset_says() {
        let offset = utc_offset_nanos().expect("there is a wall clock");
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos();
        let computed = i128::from(offset) + i128::from(monotonic_nanos());
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
}
