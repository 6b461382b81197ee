//! A trace directory among the sources, and the conversion of its times to the timeline.

use std::collections::HashSet;

use rftrace_format::clock::TscClock;
use rftrace_read::{Result, Trace};

use super::ids::Ids;
use super::offsets::Offsets;

/// A trace directory.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) trace: Trace,
    pub(super) is_guest: bool,
    pub(super) times: Times,
    /// The number added to its thread and process ids, which then no other source has.
    pub(super) shift: u32,
}

/// From a directory's times to those of the timeline.
#[derive(Debug)]
pub(super) enum Times {
    /// They are the timeline's.
    Same,
    /// They are of a clock that went by the time stamp counter.
    Tsc { own: TscClock, offsets: Offsets, reference: TscClock },
    /// They are ticks.
    Ticks { offsets: Offsets, reference: TscClock },
}

impl Times {
    pub(super) fn map(&self, time_ns: u64) -> u64 {
        match self {
            Self::Same => time_ns,
            Self::Tsc { own, offsets, reference } => reference.nanos(offsets.host_ticks(own.ticks(time_ns))),
            Self::Ticks { offsets, reference } => reference.nanos(offsets.host_ticks(time_ns)),
        }
    }
}

impl Source {
    /// Moves the trace's ids out of the way of those that are taken.
    pub(super) fn new(trace: Trace, is_guest: bool, times: Times, ids: &mut Ids) -> Result<Self> {
        let own: HashSet<u32> = trace.tasks().iter().flat_map(|task| [task.pid(), task.tid()]).collect();
        let shift = ids.shift(&own)?;
        Ok(Self { trace, is_guest, times, shift })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_kinds() {
        // The host: 2 ticks a nanosecond, from tick 1000 at 500 ns. The guest: 1 tick a nanosecond, from tick 0, 300 ticks behind.
        let reference = TscClock { tsc: 1000, nanos: 500, nanos_per_2_32_ticks: 1 << 31 };
        let own = TscClock { tsc: 0, nanos: 0, nanos_per_2_32_ticks: 1 << 32 };
        let offsets = Offsets::constant(-300);
        assert_eq!(Times::Same.map(700), 700);
        // Guest's tick 900 is host's tick 1200.
        assert_eq!(Times::Ticks { offsets: offsets.clone(), reference }.map(900), 600);
        assert_eq!(Times::Tsc { own, offsets, reference }.map(900), 600);
        let same = Times::Tsc { own: reference, offsets: Offsets::constant(0), reference };
        assert_eq!(same.map(777), 777);
    }
}
