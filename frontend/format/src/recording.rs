//! `.recording`: the working folder in a trace directory. `rftrace record` and the recorded processes write to it until
//! the trace is made of its files.
//!
//! Each save of a process is a directory of its own, a [part](Entry::Part): a trace, and [`PART_FILE`], which is
//! written last.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::AddAssign;

use crate::text;

/// The name of the working folder.
pub const FOLDER: &str = ".recording";
/// The later name of that folder, if the records are kept as they were recorded.
pub const STREAM: &str = "stream";
/// The name of the folder in it in which the trace is put together.
pub const JOINED: &str = "joined";
/// The name of the file with the amounts that processes have written: a number of bytes on each line.
pub const WRITTEN: &str = "written";
/// The name of the file with the measured overhead per call: lines of `clock.txt`. See [`cost`](crate::cost).
pub const COST: &str = "cost.txt";
/// The name of the file with the outcome of a part or snapshot. See [`Part`].
pub const PART_FILE: &str = "part.txt";

/// The name of the socket at which a recorder answers questions about functions' values. A question has lines of
/// [modules](TypesLine::Module).
pub const TYPES: &str = "types";
/// The end of an answer. An answer without it is incomplete.
pub const TYPES_END: &str = "end\n";

/// The beginning of the names of files with the raw records of a process.
pub const SPOOL: &str = "spool-";
/// The extension of the file with the facts about a spool's process.
pub const ABOUT: &str = "about";
/// The beginning of the names of files with the symbols of a module of another machine.
pub const SYMBOLS: &str = "symbols-";
/// The name of a file that exists if all data comes from another machine.
pub const RECEIVED: &str = "received";

/// The file name of the library that `rftrace record` preloads into programs: the tracer.
pub const TRACER: &str = "rftrace-preload";
/// The file name of the library that records resources.
pub const RESOURCES: &str = "rftrace-preload-resources";
/// The file name of the library that redirects calls of specified functions to it.
pub const SPECIFIED: &str = "rftrace-specified-functions";

/// A part of the path of musl's dynamic linker.
pub const MUSL: &[u8] = b"/ld-musl-";

/// Returns true if a preloaded library belongs to rftrace, by its name or by that of a folder made for it.
#[must_use]
pub fn is_own_library(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name.starts_with(TRACER.as_bytes()))
}

/// Returns the libraries in the value of `LD_PRELOAD` (ld.so(8)).
pub fn preloaded(variable: &[u8]) -> impl Iterator<Item = &[u8]> {
    variable.split(|byte| b" :".contains(byte)).filter(|path| !path.is_empty())
}

/// Returns the folder name of a snapshot in a trace directory: its number, from 1, and its reason unless that was a
/// signal: `snapshot-3-slow-app.handle-5ms`.
pub fn snapshot(number: u64, reason: Option<&str>) -> String {
    const MAX_CHARS: usize = 60;

    let mut name = format!("snapshot-{number}");
    let reason = reason.filter(|reason| !reason.starts_with("signal:")).unwrap_or_default().replace("::", ".");
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    for word in reason.split(|c| !kept(c)).filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= MAX_CHARS {
            break;
        }
        name.push('-');
        name.push_str(word);
    }
    name
}

/// Returns the number of a snapshot from its folder name; `None` for other names.
pub fn snapshot_number(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("snapshot-")?;
    let number = rest.split_once('-').map_or(rest, |(number, _)| number);
    number.parse().ok().filter(|&number| number > 0)
}

/// An entry of [`FOLDER`], parsed from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A file that exists while `rftrace record` runs.
    Recorder {
        /// The recorder's process.
        pid: u32,
        /// The start time of that process, as `/proc/<pid>/stat` reports it.
        started: &'a str,
    },
    /// A file for a recorded process.
    Process {
        /// The process.
        pid: u32,
        /// The start time of the process, as `/proc/<pid>/stat` reports it.
        started: &'a str,
    },
    /// A file for a process that is about to be forked.
    Fork {
        /// The parent.
        parent: u32,
        /// The number of the parent's fork.
        number: u64,
    },
    /// A file with the reason why a process is not recorded.
    Error {
        /// The process.
        pid: u32,
    },
    /// The directory of a save.
    Part {
        /// The process.
        pid: u32,
        /// The time of the save by `CLOCK_MONOTONIC`, in nanoseconds.
        nanos: u64,
    },
    /// The directory of a snapshot.
    Snapshot {
        /// The process.
        pid: u32,
        /// The time of the snapshot by `CLOCK_MONOTONIC`, in nanoseconds.
        nanos: u64,
    },
}

impl<'a> Entry<'a> {
    /// Parses the name of an entry; `None` for other names.
    pub fn of(name: &'a str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        let (pid, detail) = rest.split_once('-').map_or((rest, None), |(pid, detail)| (pid, Some(detail)));
        let pid = pid.parse().ok()?;
        Some(match (kind, detail) {
            ("recorder", Some(started)) => Self::Recorder { pid, started },
            ("process", Some(started)) => Self::Process { pid, started },
            ("fork", Some(number)) => Self::Fork { parent: pid, number: number.parse().ok()? },
            ("error", None) => Self::Error { pid },
            ("part", Some(nanos)) => Self::Part { pid, nanos: nanos.parse().ok()? },
            ("snapshot", Some(nanos)) => Self::Snapshot { pid, nanos: nanos.parse().ok()? },
            _ => return None,
        })
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorder { pid, started } => write!(f, "recorder-{pid}-{started}"),
            Self::Process { pid, started } => write!(f, "process-{pid}-{started}"),
            Self::Fork { parent, number } => write!(f, "fork-{parent}-{number}"),
            Self::Error { pid } => write!(f, "error-{pid}"),
            Self::Part { pid, nanos } => write!(f, "part-{pid}-{nanos}"),
            Self::Snapshot { pid, nanos } => write!(f, "snapshot-{pid}-{nanos}"),
        }
    }
}

/// The content of [`PART_FILE`]: the outcome of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The process.
    pub pid: u32,
    /// The start time of the program. It tells the program from others that the same process has run.
    pub program: u64,
    /// The fork that created the process, if a recorded process forked it.
    pub fork: Option<Fork>,
    /// The saved part.
    pub saved: Saved,
    /// The problem and the remedy, in one line.
    pub problem: Option<String>,
    /// The status of `wait` that the process ended with, if it is known.
    pub status: Option<i32>,
}

/// The fork that created a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The parent.
    pub parent: u32,
    /// The time of the fork by `CLOCK_MONOTONIC`, in nanoseconds.
    pub nanos: u64,
}

/// The outcome of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// A trace with these counts. All are 0, and there is no trace, if nothing was recorded.
    Trace(Counts),
    /// No trace, as the limit of written data was reached.
    TooMuch,
    /// No trace, as the save failed.
    Failed,
}

/// The counts of records and losses in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of entries and exits.
    pub events: u64,
    /// The number of threads with records.
    pub threads: u64,
    /// The number of calls beyond the deepest recorded level.
    pub lost: u64,
    /// True if the buffer was full.
    pub full: bool,
    /// The number of overwritten chunks of the buffer.
    pub chunks_overwritten: u64,
    /// The number of threads beyond the maximum at one time.
    pub untraced_threads: u64,
    /// The number of calls and returns that found no room.
    pub dropped: u64,
    /// True if the limit of written data was reached, so the rest is missing.
    pub too_large: bool,
    /// True if the recorder, or the connection to it, ended before the process.
    pub cut: bool,
    /// The number of unreadable chunks.
    pub damaged: u64,
    /// True if a file could not be written, so records or names are missing.
    pub unwritten: bool,
}

impl Counts {
    /// Returns true if the process went on after its last record.
    pub fn lacks_end(&self) -> bool {
        self.full || self.too_large || self.cut || self.unwritten
    }
}

/// The last line: without it the file is not whole.
const COMPLETE: &str = "complete=1\n";

impl Part {
    /// Parses the file; `None` if it is incomplete.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.ends_with(COMPLETE.as_bytes()) {
            return None;
        }
        let (mut pid, mut program, mut parent, mut forked, mut problem) = (None, None, None, None, None);
        let mut status = None;
        let (mut counts, mut is_too_much, mut is_failed) = (Counts::default(), false, false);
        for (key, value) in text::pairs(bytes) {
            let number = value.parse::<u64>();
            let count = number.clone().unwrap_or(0);
            match key.as_str() {
                "pid" => pid = value.parse().ok(),
                "program" => program = number.ok(),
                "ppid" => parent = value.parse().ok(),
                "forked_nanos" => forked = number.ok(),
                "too_much" => is_too_much = count != 0,
                "error" => is_failed = true,
                "problem" => problem = Some(value),
                "status" => status = value.parse().ok(),
                "events" => counts.events = count,
                "threads" => counts.threads = count,
                "lost" => counts.lost = count,
                "full" => counts.full = count != 0,
                "chunks_overwritten" => counts.chunks_overwritten = count,
                "dropped" => counts.dropped = count,
                "damaged" => counts.damaged = count,
                "unwritten" => counts.unwritten = count != 0,
                "too_large" => counts.too_large = count != 0,
                "cut" => counts.cut = count != 0,
                "untraced_threads" => counts.untraced_threads = count,
                _ => {}
            }
        }
        let saved = match (is_failed, is_too_much) {
            (true, _) => Saved::Failed,
            (false, true) => Saved::TooMuch,
            (false, false) => Saved::Trace(counts),
        };
        let fork = parent.zip(forked).map(|(parent, nanos)| Fork { parent, nanos });
        Some(Self { pid: pid?, program: program?, fork, saved, problem, status })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pid={}\nprogram={}", self.pid, self.program)?;
        if let Some(Fork { parent, nanos }) = self.fork {
            writeln!(f, "ppid={parent}\nforked_nanos={nanos}")?;
        }
        match self.saved {
            Saved::Trace(Counts {
                events,
                threads,
                lost,
                full,
                chunks_overwritten,
                untraced_threads,
                dropped,
                too_large,
                cut,
                damaged,
                unwritten,
            }) => {
                writeln!(f, "events={events}\nthreads={threads}\nlost={lost}\nfull={}", u8::from(full))?;
                writeln!(f, "chunks_overwritten={chunks_overwritten}\nuntraced_threads={untraced_threads}")?;
                writeln!(f, "dropped={dropped}\ndamaged={damaged}\ncut={}", u8::from(cut))?;
                writeln!(f, "too_large={}\nunwritten={}", u8::from(too_large), u8::from(unwritten))?;
            }
            Saved::TooMuch => writeln!(f, "too_much=1")?,
            Saved::Failed => writeln!(f, "error=1")?,
        }
        if let Some(problem) = &self.problem {
            writeln!(f, "problem={}", problem.replace('\n', " "))?;
        }
        if let Some(status) = self.status {
            writeln!(f, "status={status}")?;
        }
        f.write_str(COMPLETE)
    }
}

/// A part of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of those that succeeded.
    pub done: u64,
    /// The number of all.
    pub of: u64,
}

impl Share {
    fn parse(text: &str) -> Option<Self> {
        let (done, of) = text.split_once('/')?;
        Some(Self { done: done.parse().ok()?, of: of.parse().ok()? })
    }
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        *self = Self { done: self.done + other.done, of: self.of + other.of };
    }
}

/// A line of a process's report on functions that do not call the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntriesLine<'a> {
    /// A program. Its lines follow.
    Program {
        /// The program's path.
        name: &'a str,
        /// The functions that got a branch at their beginning.
        functions: Share,
        /// The functions of other modules whose calls are recorded.
        library_calls: Share,
    },
    /// A function that is not recorded: module, address, name and reason, separated by tabs.
    LeftOut(&'a str),
    /// The program with this path, in which return addresses stay in place, as its runtime reads them.
    ReadsReturns(&'a str),
}

impl<'a> EntriesLine<'a> {
    /// Parses a line without its end; `None` for other lines.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        match line.split_once(' ')? {
            ("program", rest) => {
                let mut words = rest.splitn(3, ' ');
                let mut share = || Share::parse(words.next()?);
                let (functions, library_calls) = (share()?, share()?);
                Some(Self::Program { name: words.next()?, functions, library_calls })
            }
            ("left", rest) => Some(Self::LeftOut(rest)),
            ("reads", rest) => Some(Self::ReadsReturns(rest)),
            _ => None,
        }
    }
}

impl fmt::Display for EntriesLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { name, functions, library_calls } => {
                let (name, calls) = (name.replace('\n', " "), library_calls);
                writeln!(f, "program {}/{} {}/{} {name}", functions.done, functions.of, calls.done, calls.of)
            }
            Self::LeftOut(line) => writeln!(f, "left {}", line.replace('\n', " ")),
            Self::ReadsReturns(name) => writeln!(f, "reads {}", name.replace('\n', " ")),
        }
    }
}

/// A line of the list of specified functions with a branch at their beginning: `number address path<TAB>name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led<'a> {
    /// The function's number in the table of specified functions.
    pub number: usize,
    /// The function's address in the file.
    pub address: u64,
    /// The function's name for messages.
    pub name: &'a str,
    /// The path of its module.
    pub path: &'a str,
}

impl<'a> Led<'a> {
    /// Parses a line without its end; `None` for other lines.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (first, name) = line.rsplit_once('\t')?;
        let mut words = first.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some(Self { number, address, name, path: words.next()? })
    }
}

impl fmt::Display for Led<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, address, name, path } = self;
        let name = name.replace(['\n', '\t'], " ");
        writeln!(f, "{number} {address:x} {path}\t{name}")
    }
}

/// A line of the recorder's answer about functions' values from debug information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypesLine<'a> {
    /// A module. Its functions follow.
    Module {
        /// The module's build-id in hexadecimal, if it has one.
        build_id: Option<&'a str>,
        /// The module's file.
        path: &'a str,
    },
    /// A function.
    Function {
        /// The function's address, relative to the beginning of the module's lowest segment.
        address: u64,
        /// The [codes](crate::values::ValueSpec::code) of its arguments.
        arguments: Vec<u16>,
        /// The codes of its result.
        result: Vec<u16>,
    },
}

impl<'a> TypesLine<'a> {
    /// Parses a line without its end; `None` for other lines.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let codes = |text: &str| -> Option<Vec<u16>> {
            let code = |text| u16::from_str_radix(text, 16).ok();
            text.split(',').filter(|text| !text.is_empty()).map(code).collect()
        };
        let mut words = line.splitn(3, ' ');
        match [words.next()?, words.next()?, words.next()?] {
            ["module", build_id, path] => Some(Self::Module { build_id: Some(build_id).filter(|&id| id != "-"), path }),
            [address, result, arguments] => Some(Self::Function {
                address: u64::from_str_radix(address, 16).ok()?,
                arguments: codes(arguments)?,
                result: if result == "-" { Vec::new() } else { codes(result)? },
            }),
        }
    }
}

impl fmt::Display for TypesLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module { build_id, path } => {
                writeln!(f, "module {} {}", build_id.unwrap_or("-"), path.replace('\n', " "))
            }
            Self::Function { address, arguments, result } => {
                let text = |codes: &[u16]| codes.iter().map(|code| format!("{code:x}")).collect::<Vec<_>>().join(",");
                let result = if result.is_empty() { "-".into() } else { text(result) };
                writeln!(f, "{address:x} {result} {}", text(arguments))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn functions_with_branches_both_ways() {
        let led = Led { number: 7, address: 0x1234, name: "pool::make(int)", path: "/tmp/a folder/app" };
        let line = led.to_string();
        assert_eq!(Led::parse(line.trim_end_matches('\n')), Some(led));
        assert_eq!(Led::parse("7 x /app\tname"), None);
    }

    #[test]
    fn types_both_ways() {
        for line in [
            TypesLine::Module { build_id: None, path: "/a b" },
            TypesLine::Module { build_id: Some("abc"), path: "/a" },
            TypesLine::Function { address: 0x10, arguments: alloc::vec![], result: alloc::vec![7, 8] },
            TypesLine::Function { address: 0x10, arguments: alloc::vec![0x104, 0x2008], result: alloc::vec![] },
        ] {
            assert_eq!(TypesLine::parse(line.to_string().trim_end_matches('\n')), Some(line));
        }
        for bad in ["", "module", "10", "x - 1", "10 - x", "10 z 1"] {
            assert_eq!(TypesLine::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_both_ways() {
        for (name, entry) in [
            ("recorder-7-123", Entry::Recorder { pid: 7, started: "123" }),
            ("process-7-123", Entry::Process { pid: 7, started: "123" }),
            ("fork-7-0", Entry::Fork { parent: 7, number: 0 }),
            ("error-7", Entry::Error { pid: 7 }),
            ("part-7-99", Entry::Part { pid: 7, nanos: 99 }),
            ("snapshot-7-99", Entry::Snapshot { pid: 7, nanos: 99 }),
        ] {
            assert_eq!((entry.to_string().as_str(), Entry::of(name)), (name, Some(entry)));
        }
        for name in [JOINED, WRITTEN, "part-7", "part-x-1", "snapshot-1", "error-7-1", "perf-cpu0.dat", ""] {
            assert_eq!(Entry::of(name), None, "{name}");
        }
        for (number, reason, name) in [
            (1, None, "snapshot-1"),
            (2, Some("signal:USR1"), "snapshot-2"),
            (3, Some("slow:app::handle>5ms"), "snapshot-3-slow-app.handle-5ms"),
            (4, Some("call:<[u8; 3] as Trait>::f#7,after=1ms"), "snapshot-4-call-u8-3-as-Trait-.f-7-after-1ms"),
            (5, Some("fatal: killed by SIGKILL"), "snapshot-5-fatal-killed-by-SIGKILL"),
            (6, Some("panic at ../../x"), "snapshot-6-panic-at-..-..-x"),
        ] {
            assert_eq!((snapshot(number, reason).as_str(), snapshot_number(name)), (name, Some(number)));
        }
        assert!(snapshot(1, Some(&"word ".repeat(100))).len() <= 64);
        for name in ["snapshot-0", "snapshot-x", "snapshot", "snapshot-", "shot-1"] {
            assert_eq!(snapshot_number(name), None, "{name}");
        }
    }

    #[test]
    fn a_part_both_ways() {
        let counts = Counts {
            events: 1,
            threads: 2,
            lost: 3,
            full: true,
            chunks_overwritten: 4,
            untraced_threads: 5,
            dropped: 6,
            too_large: true,
            cut: true,
            damaged: 5,
            unwritten: true,
        };
        let mut part =
            Part { pid: 7, program: 8, fork: None, saved: Saved::Trace(counts), problem: None, status: None };
        let text = "pid=7\nprogram=8\nevents=1\nthreads=2\nlost=3\nfull=1\nchunks_overwritten=4\nuntraced_threads=5\ndropped=6\ndamaged=5\ncut=1\n\
                    too_large=1\nunwritten=1\ncomplete=1\n";
        assert_eq!((part.to_string().as_str(), Part::parse(text.as_bytes())), (text, Some(part.clone())));
        part.fork = Some(Fork { parent: 6, nanos: 9 });
        part.problem = Some("a = b".into());
        part.status = Some(139);
        for saved in [Saved::TooMuch, Saved::Failed] {
            part.saved = saved;
            assert_eq!(Part::parse(part.to_string().as_bytes()), Some(part.clone()));
        }
        part.problem = Some("two\nlines".into());
        assert!(part.to_string().contains("\nforked_nanos=9\nerror=1\nproblem=two lines\nstatus=139\ncomplete=1\n"));
    }

    #[test]
    fn what_is_cut_is_no_part() {
        for text in ["", "pid=7\nprogram=8\nevents=1\n", "complete=1\n", "pid=x\nprogram=8\ncomplete=1\n"] {
            assert_eq!(Part::parse(text.as_bytes()), None, "{text}");
        }
    }
}
