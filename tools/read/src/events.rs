//! Events: their numbers and names.

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_format::events::{EventLine, USER_EVENTS, fixed_name};

use crate::error::Result;
use crate::lines::Lines;
use crate::warning::{Warning, Warnings};

/// The longest name in bytes; of longer ones the beginning is kept.
const MAX_NAME_BYTES: usize = 4096;

/// The names of events, from the format's fixed names and the trace's `events.txt`.
#[derive(Debug, Default)]
pub struct EventNames {
    user: HashMap<u64, Box<str>>,
    /// The kernel's events, with numbers below all others.
    kernel: HashMap<u64, Box<str>>,
}

impl EventNames {
    /// Reads `events.txt`: lines of `EVENT: <number> <provider>:<name>`. Other lines are counted and ignored; numbers
    /// beyond those of events are not looked up.
    pub(crate) fn read(mut lines: Lines, warnings: &mut Warnings) -> Result<Self> {
        let mut user: HashMap<u64, Box<str>> = HashMap::new();
        while let Some(line) = lines.next()? {
            match EventLine::parse(line) {
                Some(EventLine { id, name }) if USER_EVENTS.contains(&id) => {
                    let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
                    user.entry(id).or_insert_with(|| name.into());
                }
                Some(_) => {}
                None => warnings.add(Warning::UnknownLine, 1),
            }
        }
        Ok(Self { user, kernel: HashMap::new() })
    }

    /// Adds names of the kernel's events.
    pub(crate) fn add_kernel(&mut self, names: Vec<(u64, String)>) {
        self.kernel.extend(names.into_iter().map(|(id, name)| (id, name.into())));
    }

    /// Returns the name of an event, in the form `provider:name`; for an unknown one, the number.
    pub fn name(&self, id: u64) -> Cow<'_, str> {
        match self.known(id) {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("event:{id}")),
        }
    }

    /// Returns the name of an event, or `None` if neither the format nor the trace names it.
    pub fn known(&self, id: u64) -> Option<&str> {
        fixed_name(id).or_else(|| self.user.get(&id).or_else(|| self.kernel.get(&id)).map(AsRef::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use rftrace_format::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};

    use super::*;

    #[test]
    fn names() {
        let mut warnings = Warnings::default();
        let events = {
            let text = b"EVENT: 1000000 rftrace:mark\nEVENT: x y\n\n";
            EventNames::read(Lines::new(std::path::Path::new("e"), Box::new(&text[..])), &mut warnings).unwrap()
        };
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
