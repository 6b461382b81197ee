//! A task's times without a processor: their kinds, by their first events.
//!
//! Not here: reading of context switches (`switches`), and the sums of these times (`rftrace-views`).

use rftrace_format::events::{SCHED_OUT, SCHED_OUT_PREEMPTED, SCHEDULE, SCHEDULE_PREEMPTED};
use serde::{Deserialize, Serialize};

/// The kind of a task's time without a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OffCpu {
    /// The task waits: it gave up its processor.
    Waiting,
    /// The task could run, but another task has its processor.
    Preempted,
}

impl OffCpu {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Waiting, Self::Preempted];

    /// Returns the kind of the time from an event on; `None` for an event with another meaning.
    pub fn of_event(id: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.event() == id)
    }

    /// Returns the kind with this name; `None` for functions.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the number of the first event of such a time. [`SCHED_IN`](crate::SCHED_IN) ends it.
    pub fn event(self) -> u64 {
        match self {
            Self::Waiting => SCHED_OUT,
            Self::Preempted => SCHED_OUT_PREEMPTED,
        }
    }

    /// Returns the name of such times in all views: uftrace's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => SCHEDULE,
            Self::Preempted => SCHEDULE_PREEMPTED,
        }
    }
}

#[cfg(test)]
mod tests {
    use rftrace_format::events::SCHED_IN;

    use super::*;

    #[test]
    fn kinds_by_event_and_by_name() {
        assert_eq!([SCHED_OUT, SCHED_OUT_PREEMPTED].map(OffCpu::of_event), OffCpu::ALL.map(Some));
        assert_eq!(OffCpu::ALL.map(OffCpu::name), ["linux:schedule", "linux:schedule (pre-empted)"]);
        for kind in OffCpu::ALL {
            assert_eq!((OffCpu::of_event(kind.event()), OffCpu::of_name(kind.name())), (Some(kind), Some(kind)));
        }
        assert_eq!((OffCpu::of_event(SCHED_IN), OffCpu::of_name("main")), (None, None));
    }
}
