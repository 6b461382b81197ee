//! What time of day it was.

use crate::error::read_file;
use crate::text;
use crate::trace::Trace;

/// A time of a trace's clock, and what time of day that was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallClock {
    /// Nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// Nanoseconds since 1970 at that time.
    pub unix_ns: u64,
}

impl WallClock {
    /// Reads it from `clock.txt`, which rftrace writes, or to the second from `utc_offset` in `info`.
    pub fn of(trace: &Trace) -> Option<Self> {
        let in_seconds = || {
            let offset: u64 = trace.info().get("utc_offset")?.trim().parse().ok()?;
            Some(Self { time_ns: 0, unix_ns: offset.checked_mul(1_000_000_000)? })
        };
        let bytes = read_file(&trace.dir().join("clock.txt")).unwrap_or_default();
        let value = |key: &str| {
            text::lines(&bytes).find_map(|(_, line)| line.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        match (value("first_nanos"), value("first_unix_nanos")) {
            (Some(time_ns), Some(unix_ns)) => Some(Self { time_ns, unix_ns }),
            _ => in_seconds(),
        }
    }

    /// Nanoseconds since 1970 at a time of the trace's clock.
    pub(crate) fn unix_ns(&self, time_ns: u64) -> u64 {
        self.unix_ns.saturating_add(time_ns).saturating_sub(self.time_ns)
    }
}
