//! The time of day in a trace.

use rftrace_format::text::NANOS_PER_SECOND;
use rftrace_read::{Trace, read_clock};

/// A moment by the trace's clock and by the time of day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallClock {
    /// The moment in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The moment in nanoseconds since 1970.
    pub unix_ns: u64,
}

impl WallClock {
    /// Reads the moment from rftrace's `clock.txt`, or with a precision of a second from `utc_offset` in `info`. `None`
    /// if the trace has neither.
    pub fn of(trace: &Trace) -> Option<Self> {
        let in_seconds = || {
            let offset = u64::try_from(trace.info().utc_offset()?).ok()?;
            Some(Self { time_ns: 0, unix_ns: offset.checked_mul(NANOS_PER_SECOND)? })
        };
        let file = read_clock(trace.dir()).ok().flatten();
        let known = file.and_then(|file| Some(Self { time_ns: file.clock.nanos, unix_ns: file.unix_nanos? }));
        known.or_else(in_seconds)
    }

    /// Nanoseconds since 1970 at a time of the trace's clock.
    pub(crate) fn unix_ns(&self, time_ns: u64) -> u64 {
        let unix_ns = i128::from(self.unix_ns) + i128::from(time_ns) - i128::from(self.time_ns);
        u64::try_from(unix_ns.max(0)).unwrap_or(u64::MAX)
    }
}
