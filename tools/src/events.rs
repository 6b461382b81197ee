//! Events: their numbers and names.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::text;
use crate::warning::{Warning, Warnings};

/// A task got a processor.
pub const SCHED_IN: u64 = 200_001;
/// A task gave up its processor.
pub const SCHED_OUT: u64 = 200_002;
/// A task lost its processor to another one.
pub const SCHED_OUT_PREEMPTED: u64 = 200_007;

/// The name for a task's time without a processor: one [`SCHED_OUT`] and the [`SCHED_IN`] after it.
pub(crate) const SCHEDULE: &str = "linux:schedule";
/// The same after [`SCHED_OUT_PREEMPTED`].
pub(crate) const SCHEDULE_PREEMPTED: &str = "linux:schedule (pre-empted)";

const FIRST_BUILTIN: u64 = 100_000;
const FIRST_PERF: u64 = 200_000;
const FIRST_USER: u64 = 1_000_000;
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

/// The names of events, from a table of fixed ones and the trace's `events.txt`.
#[derive(Debug, Default)]
pub struct EventNames {
    user: HashMap<u64, String>,
}

impl EventNames {
    /// Parses `events.txt`: lines of `EVENT: <number> <provider>:<name>`. Others are counted and ignored.
    pub(crate) fn parse(bytes: &[u8], warnings: &mut Warnings) -> Self {
        let mut user = HashMap::new();
        for (_, line) in text::lines(bytes) {
            let parsed = line.strip_prefix("EVENT: ").and_then(|rest| {
                let (id, name) = rest.split_once(' ')?;
                Some((id.parse().ok()?, name.to_owned()))
            });
            match parsed {
                Some((id, name)) => {
                    user.entry(id).or_insert(name);
                }
                None => warnings.add(Warning::UnknownLine, 1),
            }
        }
        Self { user }
    }

    /// The name of an event, in the form `provider:name`; for an unknown one, the number.
    pub fn name(&self, id: u64) -> Cow<'_, str> {
        match self.known(id) {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("event:{id}")),
        }
    }

    pub(crate) fn known(&self, id: u64) -> Option<&str> {
        let fixed = |table: &'static [&'static str], first: u64| {
            let idx = usize::try_from(id.checked_sub(first + 1)?).ok()?;
            table.get(idx).copied()
        };
        match id {
            EXTERNAL => Some("external-data"),
            FIRST_USER.. => self.user.get(&id).map(String::as_str),
            FIRST_PERF.. => fixed(&PERF, FIRST_PERF),
            _ => fixed(&BUILTIN, FIRST_BUILTIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let mut warnings = Warnings::default();
        let events = EventNames::parse(b"EVENT: 1000000 rftrace:mark\nEVENT: x y\n\n", &mut warnings);
        assert_eq!(warnings.count(Warning::UnknownLine), 2);
        assert_eq!(events.name(1_000_000), "rftrace:mark");
        assert_eq!(events.name(1_000_001), "event:1000001");
        assert_eq!(events.name(100_011), "watch:cpu");
        assert_eq!(events.name(SCHED_IN), "linux:sched-in");
        assert_eq!(events.name(SCHED_OUT), "linux:sched-out");
        assert_eq!(events.name(SCHED_OUT_PREEMPTED), "linux:sched-out (pre-empted)");
        for id in [0, 99_999, 100_000, 100_014, 200_000, 200_009, u64::MAX] {
            assert_eq!(events.name(id), format!("event:{id}"));
        }
    }
}
