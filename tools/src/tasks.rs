//! `task.txt`: which processes and threads there were, and when.

use std::path::Path;

use crate::error::{Error, Result};
use crate::text;
use crate::warning::{Warning, Warnings};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// One line of `task.txt`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TaskLine {
    /// A program was started, and its address space is described in `sid-<sid>.map`.
    Session { time_ns: u64, pid: u32, sid: String, exe_name: String },
    /// A thread. Its name is rftrace's addition, uftrace has none; empty if it is unknown.
    Task { tid: u32, pid: u32, name: String },
    /// A process that another one forked.
    Fork { time_ns: u64, pid: u32, ppid: u32 },
    /// A library that was loaded at run time.
    Dlopen { time_ns: u64, sid: String, base: u64, path: String },
}

/// Parses `task.txt`. Lines of unknown kinds are counted and ignored.
pub(crate) fn parse(path: &Path, bytes: &[u8], warnings: &mut Warnings) -> Result<Vec<TaskLine>> {
    let mut found = Vec::new();
    for (offset, line) in text::lines(bytes) {
        let parsed = match line.get(..4) {
            Some("SESS") => session(&line),
            Some("TASK") => task(&line),
            Some("FORK") => fork(&line),
            Some("DLOP") => dlopen(&line),
            _ => {
                warnings.add(Warning::UnknownLine, 1);
                continue;
            }
        };
        match parsed {
            Some(parsed) => found.push(parsed),
            None => {
                let reason = "not a valid line: it needs `timestamp=` with nine decimals, numbers for `tid=`, `pid=` \
                              and `ppid=`, and 16 hexadecimal digits for `sid=`";
                return Err(Error::malformed(path, offset, reason));
            }
        }
    }
    Ok(found)
}

fn session(line: &str) -> Option<TaskLine> {
    // Some versions write the process as `tid=`.
    let pid = field(line, "pid").or_else(|| field(line, "tid"))?;
    let exe_name = line.split_once("exename=\"").map_or("", |(_, quoted)| quoted.strip_suffix('"').unwrap_or(quoted));
    let (time_ns, pid) = (timestamp(line)?, pid.parse().ok()?);
    Some(TaskLine::Session { time_ns, pid, sid: sid(line)?, exe_name: exe_name.to_owned() })
}

fn task(line: &str) -> Option<TaskLine> {
    timestamp(line)?;
    let name = line.split_once(" comm=\"").map_or("", |(_, quoted)| quoted.strip_suffix('"').unwrap_or(quoted));
    let (tid, pid) = (field(line, "tid")?.parse().ok()?, field(line, "pid")?.parse().ok()?);
    Some(TaskLine::Task { tid, pid, name: name.to_owned() })
}

fn fork(line: &str) -> Option<TaskLine> {
    let pid = field(line, "pid")?.parse().ok()?;
    Some(TaskLine::Fork { time_ns: timestamp(line)?, pid, ppid: field(line, "ppid")?.parse().ok()? })
}

fn dlopen(line: &str) -> Option<TaskLine> {
    let base = u64::from_str_radix(field(line, "base")?, 16).ok()?;
    let (_, quoted) = line.split_once("libname=\"")?;
    let (path, _) = quoted.rsplit_once('"')?;
    Some(TaskLine::Dlopen { time_ns: timestamp(line)?, sid: sid(line)?, base, path: path.to_owned() })
}

fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
}

fn timestamp(line: &str) -> Option<u64> {
    let (seconds, nanos) = field(line, "timestamp")?.split_once('.')?;
    if nanos.len() != 9 {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(u64::from(nanos.parse::<u32>().ok()?))
}

/// A session's name becomes part of a file name, so nothing but what the format allows may pass.
fn sid(line: &str) -> Option<String> {
    let sid = field(line, "sid")?;
    (sid.len() == 16 && sid.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| sid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line() {
        let text = b"SESS timestamp=1.000000002 pid=3 sid=0123456789abcdef exename=\"/a b\"\n\
                     TASK timestamp=1.000000003 tid=4 pid=3\n\
                     TASK timestamp=1.000000003 tid=5 pid=3 comm=\"a pid=9\"\n\
                     FORK timestamp=2.000000000 pid=5 ppid=3\n\
                     DLOP timestamp=2.000000001 tid=5 sid=0123456789abcdef base=7f00 libname=\"/lib/a.so\"\n\
                     NEWS whatever\n";
        let mut warnings = Warnings::default();
        let lines = parse(Path::new("task.txt"), text, &mut warnings).unwrap();
        let sid = || "0123456789abcdef".to_owned();
        assert_eq!(
            lines,
            [
                TaskLine::Session { time_ns: 1_000_000_002, pid: 3, sid: sid(), exe_name: "/a b".into() },
                TaskLine::Task { tid: 4, pid: 3, name: String::new() },
                TaskLine::Task { tid: 5, pid: 3, name: "a pid=9".into() },
                TaskLine::Fork { time_ns: 2_000_000_000, pid: 5, ppid: 3 },
                TaskLine::Dlopen { time_ns: 2_000_000_001, sid: sid(), base: 0x7f00, path: "/lib/a.so".into() },
            ]
        );
        assert_eq!(warnings.count(Warning::UnknownLine), 1);
    }

    #[test]
    fn bad_lines_are_errors_with_their_offset() {
        let first = "TASK timestamp=1.000000003 tid=4 pid=3\n";
        for bad in [
            "TASK timestamp=1.003 tid=4 pid=3",
            "TASK timestamp=1.000000003 tid=x pid=3",
            "FORK timestamp=99999999999999999999.000000000 pid=5 ppid=3",
            "SESS timestamp=1.000000002 pid=3 sid=../../../../etc/ exename=\"\"",
            "SESS timestamp=1.000000002 pid=3 sid=0123 exename=\"\"",
            "DLOP",
        ] {
            let text = format!("{first}{bad}\n");
            let error = parse(Path::new("task.txt"), text.as_bytes(), &mut Warnings::default()).unwrap_err();
            assert!(matches!(error, Error::Malformed { offset: 39, .. }), "{bad}: {error}");
        }
    }
}
