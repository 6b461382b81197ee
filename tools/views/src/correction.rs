//! The overhead of recording, and times without it.
//!
//! Each recorded call is slower by the time of its hooks: between its two times, and in the time of its caller. The sums of this overhead are
//! subtracted from sums of times, not from each call: single calls vary around their mean, and would be cut off at 0.
//!
//! Not here: its amount, which was measured when the trace was recorded ([`Trace::correct_times`](rftrace_read::Trace)).

use rftrace_read::CallCost;
use serde::{Deserialize, Serialize};

use crate::stack::{EndedCall, is_hooked};

/// The least time of a call, in picoseconds, unless it was recorded shorter.
const LEAST_CALL_PS: u64 = 1000;

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

    /// A time without it: never less than so many calls take at the least, nor more than it was.
    pub(crate) fn off(self, recorded_ns: u64) -> u64 {
        let least_ns = self.n_calls.saturating_mul(LEAST_CALL_PS) / 1000;
        recorded_ns.saturating_sub((self.ps + 500) / 1000).max(least_ns).min(recorded_ns)
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

    /// Takes them off sums.
    pub(crate) fn off(&self, total_ns: &mut u64, self_ns: &mut u64) {
        *self_ns = self.own.off(*self_ns);
        // The called functions take at least their minimum, too.
        *total_ns = self.total.off(*total_ns).max((*self_ns).min(*total_ns));
    }
}

/// True if both times of a call are those of its hooks.
fn is_recorded(ended: &EndedCall) -> bool {
    ended.has_entry && ended.has_exit && is_hooked(ended.addr)
}

/// The overhead that was subtracted from sums of times for each call, in words; or that nothing was.
#[must_use]
pub fn correction(cost: Option<CallCost>) -> String {
    match cost {
        // As many digits as the measuring has.
        Some(cost) => format!("less {}.{} ns a call for tracing", cost.all_ps() / 1000, cost.all_ps() % 1000 / 100),
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
        Costs::of(Some(COST), &ended).off(&mut total_ns, &mut self_ns);
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
        assert_eq!(correction(Some(COST)), "less 18.5 ns a call for tracing");
        assert_eq!(correction(None), "tracing's own time included");
    }
}
