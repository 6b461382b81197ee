//! The overhead of recording, and times without it.
//!
//! The hooks slow each recorded call down: between its two times, and in the time of its caller. The sum of this
//! overhead is subtracted from sums of times, not from each call: single calls vary around their mean, and would be cut
//! off at 0.
//!
//! The measured overhead can exceed the overhead in a trace, because the processor did other work during the
//! measurement, or overlaps hooks with the calls of a short loop. The sums of a trace then limit it: all sums lose the
//! same [share](Share) of it, so a function still takes as long as its parts.
//!
//! Not here: the measurement, by the recorder, with its result in the trace
//! ([`Trace::correct_times`](rftrace_read::Trace)).

use rftrace_read::CallCost;
use serde::{Deserialize, Serialize};

use crate::stack::{EndedCall, is_hooked};

/// The minimum time of a call, in picoseconds, unless a shorter one was recorded.
const LEAST_CALL_PS: u64 = 1000;

/// A function with fewer calls does not limit the overhead: clocks with long ticks say nothing about a few calls.
const MANY_CALLS: u64 = 16;

/// The part of the measured overhead within the limits of a trace's sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Of [`WHOLE`].
    parts: u64,
}

/// All parts of a [`Share`].
const WHOLE: u64 = 1 << 32;

impl Default for Share {
    /// All of it.
    fn default() -> Self {
        Self { parts: WHOLE }
    }
}

impl Share {
    /// Returns the largest share that leaves each function's own time at least as long as the minimum for its calls.
    /// Takes functions' own times and the overhead in these.
    pub(crate) fn of(functions: impl IntoIterator<Item = (u64, Cost)>) -> Self {
        let parts = functions.into_iter().filter(|(_, own)| own.n_calls >= MANY_CALLS).map(|(self_ns, own)| {
            let least_ns = own.least_ns().min(self_ns);
            let most_ps = u128::from(self_ns - least_ns) * 1000;
            (most_ps * u128::from(WHOLE))
                .checked_div(own.ps.into())
                .map_or(WHOLE, |parts| parts.min(WHOLE.into()) as u64)
        });
        Self { parts: parts.min().unwrap_or(WHOLE) }
    }

    fn of_ps(self, ps: u64) -> u64 {
        // A part of a number is no larger than it.
        (u128::from(ps) * u128::from(self.parts) / u128::from(WHOLE)) as u64
    }

    /// This share of the overhead of a call.
    pub(crate) fn of_call(self, cost: CallCost) -> CallCost {
        CallCost { inside_ps: self.of_ps(cost.inside_ps), outside_ps: self.of_ps(cost.outside_ps) }
    }
}

/// The overhead in a time, and the number of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cost {
    ps: u64,
    n_calls: u64,
}

impl Cost {
    pub(crate) fn add(&mut self, other: Self) {
        self.ps = self.ps.saturating_add(other.ps);
        self.n_calls += other.n_calls;
    }

    /// This share of it.
    pub(crate) fn limited(self, share: Share) -> Self {
        Self { ps: share.of_ps(self.ps), ..self }
    }

    /// A time without it: never less than so many calls take at the least, nor more than it was.
    pub(crate) fn off(self, recorded_ns: u64) -> u64 {
        recorded_ns.saturating_sub(self.ps.saturating_add(500) / 1000).max(self.least_ns()).min(recorded_ns)
    }

    /// A call's time without all of it, in picoseconds: negative if more was measured than the call took.
    pub(crate) fn signed_off(self, recorded_ns: u64) -> i128 {
        i128::from(recorded_ns) * 1000 - i128::from(self.ps)
    }

    /// That of a call with these times.
    pub(crate) fn between(recorded_ns: u64, corrected_ps: i128) -> Self {
        let ps = i128::from(recorded_ns) * 1000 - corrected_ps;
        Self { ps: ps.clamp(0, u64::MAX.into()) as u64, n_calls: 1 }
    }

    /// The largest error of a time less so much. What a call costs is measured; how it divides between the call and its caller depends on
    /// both: a time may also have the other half.
    fn unsure_ns(self) -> u64 {
        self.ps.saturating_mul(2) / 1000
    }

    /// The minimum time of these calls, in nanoseconds.
    fn least_ns(self) -> u64 {
        self.n_calls.saturating_mul(LEAST_CALL_PS) / 1000
    }
}

/// The overhead in calls' total time, and in their own time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Costs {
    pub(crate) total: Cost,
    pub(crate) own: Cost,
}

impl Costs {
    /// Of one call; nothing, if nothing is subtracted.
    pub(crate) fn of(cost: Option<CallCost>, ended: &EndedCall) -> Self {
        let Some(cost) = cost else { return Self::default() };
        let inside_ps = if is_recorded(ended) { cost.inside_ps } else { 0 };
        let with = |ps: u64, n_calls| Cost { ps: inside_ps.saturating_add(ps.saturating_mul(n_calls)), n_calls: 1 };
        Self { total: with(cost.all_ps(), ended.n_within), own: with(cost.outside_ps, ended.n_called) }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.total.add(other.total);
        self.own.add(other.own);
    }

    /// Takes this share of them off sums. Returns the largest error of these.
    pub(crate) fn off(&self, share: Share, total_ns: &mut u64, self_ns: &mut u64) -> Unsure {
        let (own, total) = (self.own.limited(share), self.total.limited(share));
        *self_ns = own.off(*self_ns);
        // The called functions take at least their minimum, too.
        *total_ns = total.off(*total_ns).max((*self_ns).min(*total_ns));
        Unsure { total_ns: total.unsure_ns(), own_ns: own.unsure_ns() }
    }
}

/// The largest error of a corrected total time, and of an own time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unsure {
    pub(crate) total_ns: u64,
    pub(crate) own_ns: u64,
}

/// True if both times of a call are those of its hooks.
fn is_recorded(ended: &EndedCall) -> bool {
    ended.has_entry && ended.has_exit && is_hooked(ended.addr)
}

/// Returns a text about the overhead subtracted from sums of times for each call, or about its absence.
pub(crate) fn correction(cost: Option<CallCost>, share: Share) -> String {
    // As many digits as the measuring has.
    let ns = |cost: CallCost| format!("{}.{} ns", cost.all_ps() / 1000, cost.all_ps() % 1000 / 100);
    match cost.map(|cost| (ns(cost), ns(share.of_call(cost)))) {
        Some((measured, less)) if measured == less => format!("less {less} a call for tracing"),
        Some((measured, less)) => {
            format!("less {less} a call for tracing ({measured} measured, but a call takes at least 1 ns)")
        }
        None => "tracing's own time included".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: CallCost = CallCost { inside_ps: 10_500, outside_ps: 8_000 };

    fn call(total_ns: u64, self_ns: u64, n_called: u64, n_within: u64) -> EndedCall {
        let (addr, has_entry, has_exit) = (Some(1), true, true);
        let did_not_return = false;
        EndedCall { addr, end_ns: 0, total_ns, self_ns, n_called, n_within, has_entry, has_exit, did_not_return }
    }

    #[test]
    fn of_a_call_and_what_it_calls() {
        // Two calls, of which one calls one: 200 ns in all, 100 in itself.
        let ended = call(200, 100, 2, 3);
        let (mut total_ns, mut self_ns) = (200, 100);
        Costs::of(Some(COST), &ended).off(Share::default(), &mut total_ns, &mut self_ns);
        assert_eq!((total_ns, self_ns), (200 - 66, 100 - 27));
        assert_eq!(Costs::of(None, &ended), Costs::default());
    }

    #[test]
    fn half_a_call_and_the_kernels() {
        for other in [
            EndedCall { has_exit: false, ..call(50, 50, 0, 0) },
            EndedCall { addr: Some(1 << 47), ..call(50, 50, 0, 0) },
        ] {
            assert_eq!(Costs::of(Some(COST), &other).own.off(50), 50);
        }
    }

    #[test]
    fn sums_are_exact_and_never_below_the_floor() {
        let mut sum = Cost::default();
        for _ in 0..4 {
            sum.add(Costs::of(Some(COST), &call(11, 11, 0, 0)).own);
        }
        assert_eq!(sum.off(52), 10, "52 less 42");
        assert_eq!(sum.off(44), 4, "a nanosecond for each call");
        assert_eq!(sum.off(3), 3, "not more than was recorded");
        assert_eq!(Cost::default().off(7), 7);
        let huge = Cost { ps: u64::MAX - 500, n_calls: u64::MAX };
        assert_eq!(huge.off(5), 5);
    }

    #[test]
    fn in_words() {
        assert_eq!(correction(Some(COST), Share::default()), "less 18.5 ns a call for tracing");
        let half = Share { parts: WHOLE / 2 };
        assert_eq!(
            correction(Some(COST), half),
            "less 9.2 ns a call for tracing (18.5 ns measured, but a call takes at least 1 ns)"
        );
        assert_eq!(correction(None, Share::default()), "tracing's own time included");
    }

    /// A caller of a short function: more was measured than the calls took, as once on a busy machine.
    #[test]
    fn no_more_than_the_trace_holds() {
        const MEASURED: CallCost = CallCost { inside_ps: 13_900, outside_ps: 11_900 };
        const N: u64 = 1_000_000;
        #[derive(Debug)]
        struct Sums {
            total_ns: u64,
            self_ns: u64,
        }
        let leaves = Sums { total_ns: 10 * N, self_ns: 10 * N };
        let caller = Sums { total_ns: 26 * N, self_ns: 16 * N };
        let outer = Sums { total_ns: 26 * N + 900, self_ns: 900 };
        let mut all = [leaves, caller, outer];
        let ps = |inside: u64, outside: u64, n_calls| Cost {
            ps: inside * MEASURED.inside_ps + outside * MEASURED.outside_ps,
            n_calls,
        };
        let costs = [
            Costs { total: ps(N, 0, N), own: ps(N, 0, N) },
            Costs { total: ps(N + 1, N, 1), own: ps(1, N, 1) },
            Costs { total: ps(N + 2, N + 1, 1), own: ps(1, 1, 1) },
        ];
        let share = Share::of(all.iter().zip(costs).map(|(sums, costs)| (sums.self_ns, costs.own)));
        for (sums, costs) in all.iter_mut().zip(costs) {
            costs.off(share, &mut sums.total_ns, &mut sums.self_ns);
        }
        let [leaves, caller, outer] = all;
        assert!(leaves.self_ns.abs_diff(N) <= 1, "a nanosecond for each: {leaves:?}");
        let parts = |sums: &Sums, called: u64| sums.self_ns + called;
        assert!(caller.total_ns.abs_diff(parts(&caller, leaves.total_ns)) <= 1, "{caller:?}");
        assert!(outer.total_ns.abs_diff(parts(&outer, caller.total_ns)) <= 1, "{outer:?} {caller:?}");
        assert_eq!(Share::of([(100, ps(MANY_CALLS - 1, 0, MANY_CALLS - 1))]), Share::default(), "too few calls");
        assert_eq!(Share::of([(0, ps(99, 0, 99))]).of_call(MEASURED), CallCost::default(), "nothing can be subtracted");
    }
}
