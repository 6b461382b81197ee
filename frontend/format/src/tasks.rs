//! `task.txt`: the programs, threads and forks of a recording, with their times.

use core::fmt;

use crate::text::Seconds;

/// An upper limit for the number of tasks of a system at a time: `PID_MAX_LIMIT` of Linux.
pub const MAX_TASKS: usize = 1 << 22;

/// A line of `task.txt`. Times are in nanoseconds of the trace's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLine<'a> {
    /// A program was started. The map of the session `sid` describes its address space.
    Session {
        /// The time in nanoseconds.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The session: 16 hexadecimal digits.
        sid: &'a str,
        /// The program's path, spelled as in the map.
        exe_name: &'a str,
    },
    /// A thread began.
    Task {
        /// The time in nanoseconds.
        time_ns: u64,
        /// The thread.
        tid: u32,
        /// The process.
        pid: u32,
        /// The thread's name, an addition of rftrace: uftrace reads the line up to the pid. Empty if it is unknown.
        name: &'a str,
    },
    /// A process was forked.
    Fork {
        /// The time in nanoseconds.
        time_ns: u64,
        /// The child.
        pid: u32,
        /// The parent.
        ppid: u32,
    },
    /// A library was loaded at run time.
    Dlopen {
        /// The time in nanoseconds.
        time_ns: u64,
        /// The loading thread.
        tid: u32,
        /// The session with the library's address space.
        sid: &'a str,
        /// The library's base address.
        base: u64,
        /// The library's path.
        path: &'a str,
    },
}

impl<'a> TaskLine<'a> {
    /// Parses a line. `Ok(None)` stands for a line of an unknown kind.
    ///
    /// # Errors
    ///
    /// The fault in a line of a known kind.
    pub fn parse(line: &'a str) -> Result<Option<Self>, &'static str> {
        let parsed = match line.get(..4) {
            Some("SESS") => session(line),
            Some("TASK") => task(line),
            Some("FORK") => fork(line),
            Some("DLOP") => dlopen(line),
            _ => return Ok(None),
        };
        parsed.map(Some).ok_or(
            "the line needs `timestamp=` with nine decimals, numbers for `tid=`, `pid=` and `ppid=`, and 16 \
             hexadecimal digits for `sid=`",
        )
    }

    /// Returns the time in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        let (Self::Session { time_ns, .. }
        | Self::Task { time_ns, .. }
        | Self::Fork { time_ns, .. }
        | Self::Dlopen { time_ns, .. }) = *self;
        time_ns
    }
}

impl fmt::Display for TaskLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Seconds(self.time_ns());
        match self {
            Self::Session { pid, sid, exe_name, .. } => {
                writeln!(f, "SESS timestamp={time} pid={pid} sid={sid} exename=\"{exe_name}\"")
            }
            Self::Task { tid, pid, name: "", .. } => writeln!(f, "TASK timestamp={time} tid={tid} pid={pid}"),
            Self::Task { tid, pid, name, .. } => {
                write!(f, "TASK timestamp={time} tid={tid} pid={pid} comm=\"")?;
                name.chars().try_for_each(|c| {
                    let c = if c == '"' || c.is_control() { ' ' } else { c };
                    write!(f, "{c}")
                })?;
                writeln!(f, "\"")
            }
            Self::Fork { pid, ppid, .. } => writeln!(f, "FORK timestamp={time} pid={pid} ppid={ppid}"),
            Self::Dlopen { tid, sid, base, path, .. } => {
                writeln!(f, "DLOP timestamp={time} tid={tid} sid={sid} base={base:x} libname=\"{path}\"")
            }
        }
    }
}

fn session(line: &str) -> Option<TaskLine<'_>> {
    // Some versions write the process as `tid=`.
    let pid = field(line, "pid").or_else(|| field(line, "tid"))?;
    let exe_name = quoted(line, " exename=\"").unwrap_or("");
    Some(TaskLine::Session { time_ns: time(line)?, pid: pid.parse().ok()?, sid: sid(line)?, exe_name })
}

fn task(line: &str) -> Option<TaskLine<'_>> {
    let (tid, pid) = (field(line, "tid")?.parse().ok()?, field(line, "pid")?.parse().ok()?);
    Some(TaskLine::Task { time_ns: time(line)?, tid, pid, name: quoted(line, " comm=\"").unwrap_or("") })
}

fn fork(line: &str) -> Option<TaskLine<'_>> {
    let pid = field(line, "pid")?.parse().ok()?;
    Some(TaskLine::Fork { time_ns: time(line)?, pid, ppid: field(line, "ppid")?.parse().ok()? })
}

fn dlopen(line: &str) -> Option<TaskLine<'_>> {
    let base = u64::from_str_radix(field(line, "base")?, 16).ok()?;
    let tid = field(line, "tid").and_then(|tid| tid.parse().ok()).unwrap_or(0);
    // A path that is cut would be another one.
    let (path, _) = line.split_once("libname=\"")?.1.rsplit_once('"')?;
    Some(TaskLine::Dlopen { time_ns: time(line)?, tid, sid: sid(line)?, base, path })
}

/// The quoted text at the end of a line. A name in it may hold any character, quotes too.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, quoted) = line.split_once(key)?;
    Some(quoted.strip_suffix('"').unwrap_or(quoted))
}

fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
}

fn time(line: &str) -> Option<u64> {
    Seconds::parse(field(line, "timestamp")?).map(|time| time.0)
}

/// A session's name becomes part of a file name, so only the format's characters may pass.
fn sid(line: &str) -> Option<&str> {
    field(line, "sid").filter(|sid| sid.len() == 16 && sid.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const SID: &str = "0123456789abcdef";

    #[test]
    fn every_kind_of_line_both_ways() {
        for (text, line) in [
            (
                "SESS timestamp=1.000000002 pid=3 sid=0123456789abcdef exename=\"/a b\"\n",
                TaskLine::Session { time_ns: 1_000_000_002, pid: 3, sid: SID, exe_name: "/a b" },
            ),
            (
                "TASK timestamp=1.000000003 tid=4 pid=3\n",
                TaskLine::Task { time_ns: 1_000_000_003, tid: 4, pid: 3, name: "" },
            ),
            (
                "TASK timestamp=1.000000003 tid=5 pid=3 comm=\"a pid=9\"\n",
                TaskLine::Task { time_ns: 1_000_000_003, tid: 5, pid: 3, name: "a pid=9" },
            ),
            ("FORK timestamp=2.000000000 pid=5 ppid=3\n", TaskLine::Fork { time_ns: 2_000_000_000, pid: 5, ppid: 3 }),
            (
                "DLOP timestamp=2.000000001 tid=5 sid=0123456789abcdef base=7f00 libname=\"/lib/a.so\"\n",
                TaskLine::Dlopen { time_ns: 2_000_000_001, tid: 5, sid: SID, base: 0x7f00, path: "/lib/a.so" },
            ),
        ] {
            assert_eq!(line.to_string(), text);
            assert_eq!(TaskLine::parse(text.trim_end()), Ok(Some(line)));
        }
        assert_eq!(TaskLine::parse("NEWS whatever"), Ok(None));
        assert_eq!(TaskLine::parse(""), Ok(None));
    }

    #[test]
    fn names_have_no_quotes() {
        let line = TaskLine::Task { time_ns: 5, tid: 2, pid: 42, name: "a \"b\"" };
        assert_eq!(line.to_string(), "TASK timestamp=0.000000005 tid=2 pid=42 comm=\"a  b \"\n");
    }

    #[test]
    fn the_process_of_a_session_may_be_called_tid() {
        let line = "SESS timestamp=1.000000002 tid=3 sid=0123456789abcdef exename=\"a\"";
        assert!(matches!(TaskLine::parse(line), Ok(Some(TaskLine::Session { pid: 3, .. }))));
    }

    #[test]
    fn bad_lines_are_errors() {
        for bad in [
            "TASK timestamp=1.003 tid=4 pid=3",
            "TASK timestamp=1.000000003 tid=x pid=3",
            "FORK timestamp=99999999999999999999.000000000 pid=5 ppid=3",
            "SESS timestamp=1.000000002 pid=3 sid=../../../../etc/ exename=\"\"",
            "SESS timestamp=1.000000002 pid=3 sid=0123 exename=\"\"",
            "DLOP",
            "DLOP timestamp=2.000000001 tid=5 sid=0123456789abcdef base=7f00 libname=\"/lib/a",
        ] {
            assert!(TaskLine::parse(bad).is_err(), "{bad}");
        }
    }
}
