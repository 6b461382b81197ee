//! Events: their numbers, the names in `events.txt`, and the counters in `extern.dat`.

use alloc::string::String;
use core::fmt;
use core::ops::Range;

use crate::text::Seconds;

/// The event numbers that a trace names in `events.txt`.
pub const USER_EVENTS: Range<u64> = 1_000_000..2_000_000;

/// The number of the event for an innermost open function that never returned. Its exit follows, at the end of the
/// task's records. This event has the same number, one of [`USER_EVENTS`], and the same name in all traces.
pub const DID_NOT_RETURN: u64 = 1_500_000;
/// The name of [`DID_NOT_RETURN`].
pub const DID_NOT_RETURN_NAME: &str = "rftrace:did_not_return";

/// Returns the number for an event with this name, if `n_others` other names have numbers already.
pub fn user_event(name: &str, n_others: usize) -> u64 {
    if name == DID_NOT_RETURN_NAME { DID_NOT_RETURN } else { USER_EVENTS.start + n_others as u64 }
}

/// The number of the event in which a task gets a processor.
pub const SCHED_IN: u64 = 200_001;
/// The number of the event in which a task gives up its processor.
pub const SCHED_OUT: u64 = 200_002;
/// The number of the event in which a task loses its processor to another task.
pub const SCHED_OUT_PREEMPTED: u64 = 200_007;

/// The name for a task's time without a processor: from [`SCHED_OUT`] to the next [`SCHED_IN`].
pub const SCHEDULE: &str = "linux:schedule";
/// The name for such a time that begins with [`SCHED_OUT_PREEMPTED`].
pub const SCHEDULE_PREEMPTED: &str = "linux:schedule (pre-empted)";

const FIRST_BUILTIN: u64 = 100_000;
const FIRST_PERF: u64 = 200_000;
const EXTERNAL: u64 = 2_000_000;

/// Names from [`FIRST_BUILTIN`] + 1 on.
const BUILTIN: [&str; 13] = [
    "read:proc/statm",
    "read:page-fault",
    "diff:proc/statm",
    "diff:page-fault",
    "read:pmu-cycle",
    "diff:pmu-cycle",
    "read:pmu-cache",
    "diff:pmu-cache",
    "read:pmu-branch",
    "diff:pmu-branch",
    "watch:cpu",
    "watch:var",
    "callsite",
];

/// Names from [`FIRST_PERF`] + 1 on.
const PERF: [&str; 8] = [
    "linux:sched-in",
    "linux:sched-out",
    SCHEDULE,
    "linux:task-new",
    "linux:task-exit",
    "linux:task-name",
    "linux:sched-out (pre-empted)",
    SCHEDULE_PREEMPTED,
];

/// Returns the name of an event that has the same name in all traces; `None` for others, which include [`USER_EVENTS`].
pub fn fixed_name(id: u64) -> Option<&'static str> {
    let fixed = |table: &'static [&'static str], first: u64| {
        let idx = usize::try_from(id.checked_sub(first + 1)?).ok()?;
        table.get(idx).copied()
    };
    match id {
        EXTERNAL => Some("external-data"),
        1_000_000.. => None,
        FIRST_PERF.. => fixed(&PERF, FIRST_PERF),
        _ => fixed(&BUILTIN, FIRST_BUILTIN),
    }
}

/// A line of `events.txt`: the name of an event, in the form `provider:name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLine<'a> {
    /// The event's number, one of [`USER_EVENTS`].
    pub id: u64,
    /// The event's name.
    pub name: &'a str,
}

impl<'a> EventLine<'a> {
    /// Parses a line; `None` for lines of another kind.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (id, name) = line.strip_prefix("EVENT: ")?.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, name })
    }
}

impl fmt::Display for EventLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "EVENT: {} {}", self.id, self.name)
    }
}

/// Converts `name` to an event name for `events.txt`: uftrace reads two words with a colon between them and no blank.
pub fn event_name(name: &str) -> String {
    const MAX_CHARS: usize = 200;
    let mut clean: String = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).take(MAX_CHARS).collect();
    if !clean.contains(':') {
        clean.insert_str(0, "event:");
    }
    clean
}

/// A line of `extern.dat`: the value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CounterLine<'a> {
    /// The time in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The counter's name. Writing drops control characters and cuts after 200 characters.
    pub name: &'a str,
    /// The counter's value from this time on.
    pub value: f64,
}

impl fmt::Display for CounterLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: String = self.name.chars().filter(|c| !c.is_control()).take(200).collect();
        writeln!(f, "{} {name} {}", Seconds(self.time_ns), self.value)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_line_names_an_event() {
        let line = EventLine { id: 1_000_000, name: "rftrace:lost_1_call" };
        assert_eq!(line.to_string(), "EVENT: 1000000 rftrace:lost_1_call\n");
        assert_eq!(EventLine::parse("EVENT: 1000000 rftrace:lost_1_call"), Some(line));
        for bad in ["", "EVENT:", "EVENT: x y", "EVENT: 5", "SESS"] {
            assert_eq!(EventLine::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn fixed_names() {
        assert_eq!(fixed_name(SCHED_IN), Some("linux:sched-in"));
        assert_eq!(fixed_name(SCHED_OUT_PREEMPTED), Some("linux:sched-out (pre-empted)"));
        assert_eq!(fixed_name(100_013), Some("callsite"));
        assert_eq!(fixed_name(2_000_000), Some("external-data"));
        for id in [0, 100_000, 100_014, 200_000, 200_009, 1_000_000, 2_000_001, u64::MAX] {
            assert_eq!(fixed_name(id), None, "{id}");
        }
    }

    #[test]
    fn names_and_counters_as_uftrace_reads_them() {
        assert_eq!(event_name("kvm exit"), "event:kvm_exit");
        assert_eq!(event_name("kvm:exit"), "kvm:exit");
        let line = CounterLine { time_ns: 1_500_000_000, name: "cpu\n0", value: 2.5 };
        assert_eq!(line.to_string(), "1.500000000 cpu0 2.5\n");
    }
}
