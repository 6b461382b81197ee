//! The end of a program, stored beside its records until a trace is made of them.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rftrace_format::info::Usage;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::store;

use super::run::Ended;

/// The file: a number on each line.
const FILE: &str = "ended.txt";

impl Ended {
    /// Makes room for it in a folder.
    pub(crate) fn reserve(work: &Path) -> io::Result<()> {
        store::reserve(&work.join(FILE))
    }

    /// Writes it into a folder.
    pub(crate) fn keep_in(&self, work: &Path) -> io::Result<()> {
        let usage = &self.usage;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let numbers = [
            self.pid.into(),
            u64::from(self.status.into_raw().cast_unsigned()),
            nanos(self.elapsed),
            nanos(usage.system_time),
            nanos(usage.user_time),
            usage.voluntary_switches,
            usage.involuntary_switches,
            usage.max_resident_kib,
            usage.major_faults,
            usage.minor_faults,
            usage.blocks_read,
            usage.blocks_written,
        ];
        store::fill(&work.join(FILE), &numbers.map(|number| format!("{number}\n")).concat())
    }

    /// Reads the end written into a folder, if it is there.
    pub(crate) fn kept_in(work: &Path) -> Option<Self> {
        let text = opener::read_text(&work.join(FILE), MOST_TEXT).ok()?;
        let numbers: Vec<u64> =
            text.lines().filter(|line| !line.is_empty()).map(|line| line.parse().ok()).collect::<Option<_>>()?;
        let &[pid, status, elapsed, system, user, voluntary, involuntary, resident, major, minor, read, written] =
            numbers.as_slice()
        else {
            return None;
        };
        let usage = Usage {
            system_time: Duration::from_nanos(system),
            user_time: Duration::from_nanos(user),
            voluntary_switches: voluntary,
            involuntary_switches: involuntary,
            max_resident_kib: resident,
            major_faults: major,
            minor_faults: minor,
            blocks_read: read,
            blocks_written: written,
        };
        let status = ExitStatus::from_raw(u32::try_from(status).ok()?.cast_signed());
        Some(Self { pid: u32::try_from(pid).ok()?, status, elapsed: Duration::from_nanos(elapsed), usage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Ended::kept_in(folder.path()).is_none());
        Ended::reserve(folder.path()).unwrap();
        assert!(Ended::kept_in(folder.path()).is_none());
        let ended = Ended {
            pid: 4711,
            status: ExitStatus::from_raw(3 << 8),
            elapsed: Duration::from_nanos(1_500_000_001),
            usage: Usage { max_resident_kib: 77, blocks_written: 9, ..Usage::default() },
        };
        ended.keep_in(folder.path()).unwrap();
        assert_eq!(format!("{:?}", Ended::kept_in(folder.path()).unwrap()), format!("{ended:?}"));
    }
}
