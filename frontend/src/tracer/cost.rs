//! Overhead of the hooks, measured with functions that do nothing.
//!
//! Not here: these functions, one for each kind of hook (`rftrace-preload`).

use core::sync::atomic::Ordering::Acquire;

use rftrace::abi::kind;
use rftrace_format::cost::CallCost;

use super::{Tracer, switch};
use crate::backend;
use crate::clock::ClockPair;
use crate::clock::tsc::ticks;

/// The number of runs of the functions. A round with a preemption is not the median.
const ROUNDS: usize = 41;
/// Rounds before those: caches, and how fast the processor runs.
const WARM_UP: usize = 8;

/// Calls and times of one round.
struct Round {
    calls: u64,
    /// From the first call's begin to the last one's end.
    all_ticks: u64,
    /// Between entries and exits.
    inside_ticks: u64,
}

impl Tracer {
    /// Measures the overhead of a recorded call. `hooked` calls, `n_calls` times, a function that is empty except for
    /// its hook; `plain` calls one without a hook as often. Older records are lost, and no other thread may record.
    ///
    /// Returns `None` if the overhead cannot be measured. For libraries that are preloaded into other programs.
    #[doc(hidden)]
    pub fn measure_cost(&self, n_calls: u64, hooked: impl Fn(u64), plain: impl Fn(u64)) -> Option<CallCost> {
        let first = ClockPair::now();
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + ROUNDS {
            let plain_ticks = {
                let start = ticks();
                plain(n_calls);
                ticks().wrapping_sub(start)
            };
            let recorded = self.record_round(|| hooked(n_calls))?;
            // A round may have gone beyond the buffer.
            if round >= WARM_UP && recorded.calls == n_calls {
                inside.push(recorded.inside_ticks);
                outside.push(recorded.all_ticks.saturating_sub(recorded.inside_ticks + plain_ticks));
            }
        }
        let rate = first.clock_to(ClockPair::now()).nanos_per_2_32_ticks;
        let ps_of_call = |round_ticks: u64| {
            let ps = (u128::from(round_ticks) * u128::from(rate) * 1000) >> 32;
            u64::try_from(ps / u128::from(n_calls.max(1))).unwrap_or(u64::MAX)
        };
        Some(CallCost { inside_ps: ps_of_call(median(inside)?), outside_ps: ps_of_call(median(outside)?) })
    }

    fn record_round(&self, run: impl FnOnce()) -> Option<Round> {
        switch::enable();
        let start = ticks();
        run();
        let end = ticks();
        switch::disable();
        let mut round = Round { calls: 0, all_ticks: end.wrapping_sub(start), inside_ticks: 0 };
        let mut n_exits = 0;
        for chunk in backend::chunks() {
            let taken_tsc = chunk.header.taken_tsc.load(Acquire);
            for (tsc, word) in chunk.records.iter().filter_map(|record| record.read(taken_tsc)) {
                if !(start..=end).contains(&tsc) {
                    continue;
                }
                // The exits' sum less that of the entries, whatever belongs together.
                match word & kind::MASK {
                    kind::ENTRY => {
                        round.calls += 1;
                        round.inside_ticks = round.inside_ticks.wrapping_sub(tsc - start);
                    }
                    kind::EXIT => {
                        n_exits += 1;
                        round.inside_ticks = round.inside_ticks.wrapping_add(tsc - start);
                    }
                    _ => {}
                }
            }
        }
        if n_exits != round.calls {
            round.calls = 0;
        }
        backend::reset();
        self.is_current().then_some(round)
    }
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
