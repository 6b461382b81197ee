//! A task's times without a processor: their kinds, by their first events.
//!
//! Not here: reading of context switches (`switches`), and the sums of these times (`rftrace-views`).

use rftrace_format::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, SCHEDULE, SCHEDULE_PREEMPTED};
use rftrace_format::record::{Kind, Record};
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

/// A task's present time without a processor, if it has none: the rule for its beginning and its end, in all views.
///
/// It begins with the first switch out, and further ones change nothing. It ends with the switch in, or else with the task's next call or
/// return, which needs a processor, or with its last record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffCpuSince(Option<(OffCpu, u64)>);

impl OffCpuSince {
    /// Creates the state of a task with this time without a processor.
    pub fn new(since: Option<(OffCpu, u64)>) -> Self {
        Self(since)
    }

    /// Returns the kind and the beginning in nanoseconds; `None` for a task with a processor.
    pub fn get(self) -> Option<(OffCpu, u64)> {
        self.0
    }

    /// Applies the task's next record. Returns the kind and the nanoseconds of the time that it ends.
    pub fn apply(&mut self, record: &Record) -> Option<(OffCpu, u64)> {
        match record.kind {
            Kind::Event if record.addr != SCHED_IN => {
                self.0 = self.0.or(OffCpu::of_event(record.addr).map(|kind| (kind, record.time_ns)));
                None
            }
            Kind::Event | Kind::Entry | Kind::Exit => self.end(record.time_ns),
            Kind::Lost => None,
        }
    }

    /// Ends the time, and returns its kind and its nanoseconds.
    pub fn end(&mut self, time_ns: u64) -> Option<(OffCpu, u64)> {
        self.0.take().map(|(kind, since_ns)| (kind, time_ns.saturating_sub(since_ns)))
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_time_without_a_processor_ends_at_the_next_call_at_the_latest() {
        let record = |kind, time_ns, addr| Record { time_ns, kind, has_payload: false, payload_at: 0, depth: 0, addr };
        let ended = |last: Record| {
            let mut off_cpu = OffCpuSince::default();
            for (time_ns, addr) in [(10, SCHED_OUT), (14, SCHED_OUT_PREEMPTED), (15, 1_000_000)] {
                assert_eq!(off_cpu.apply(&record(Kind::Event, time_ns, addr)), None);
            }
            (off_cpu.apply(&last), off_cpu.get())
        };
        let wait = (OffCpu::Waiting, 10);
        for last in [(Kind::Event, SCHED_IN), (Kind::Entry, 0x40), (Kind::Exit, 0x40)] {
            assert_eq!(ended(record(last.0, 20, last.1)), (Some(wait), None), "{last:?}");
        }
        assert_eq!(ended(record(Kind::Lost, 20, 1)), (None, Some(wait)), "it may still wait");
    }
}
