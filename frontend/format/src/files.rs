//! The names of a trace's files.

use alloc::format;
use alloc::string::String;

/// The file that makes a directory a trace. It is written last, and begins with [`MAGIC`].
pub const INFO: &str = "info";
/// The first bytes of [`INFO`].
pub const MAGIC: &[u8; 8] = b"Ftrace!\0";
/// The first bytes of a stream, as `rftrace record --to` sends it and `rftrace ctl PID pipe --rfs` writes it.
pub const STREAM_MAGIC: [u8; 8] = *b"\x93RFS\r\n\x1a\n";
/// The file of sessions, tasks and forks.
pub const TASKS: &str = "task.txt";
/// The file of event names.
pub const EVENTS: &str = "events.txt";
/// The file with the conversion from ticks to nanoseconds.
pub const CLOCK: &str = "clock.txt";
/// The file of losses of the recording.
pub const GAPS: &str = "record.txt";
/// The file with the formats of the kernel's records.
pub const KERNEL_HEADER: &str = "kernel_header";
/// The file of the kernel's functions.
pub const KERNEL_SYMBOLS: &str = "kallsyms";
/// The file of counters.
pub const COUNTERS: &str = "extern.dat";

/// The index: places in the records from which a reader can start, and the functions in the parts between. You may
/// remove it at any time.
pub const INDEX: &str = "index";
/// The sums of the graph of a whole trace. You may remove it at any time.
pub const INDEX_GRAPH: &str = "index-graph";
/// The rows of the report of a whole trace. You may remove it at any time.
pub const INDEX_REPORT: &str = "index-report";
/// The sums of the reports of a trace's parts. You may remove it at any time.
pub const INDEX_BLOCKS: &str = "index-blocks";
/// The sums of the graphs of a trace's parts. You may remove it at any time.
pub const INDEX_GRAPH_BLOCKS: &str = "index-graph-blocks";
/// The data of the browser page of a whole trace. You may remove it at any time.
pub const INDEX_PAGE: &str = "index-page";

/// The file of allocated and released resources, with their callers.
pub const RESOURCES: &str = "resources.dat";

/// Returns the name of the file with a task's records.
pub fn records(tid: u32) -> String {
    format!("{tid}.dat")
}

/// Returns the name of a session's map file.
pub fn map(sid: &str) -> String {
    format!("sid-{sid}.map")
}

/// Returns the name of the file with perf's records for a processor.
pub fn perf(processor: u32) -> String {
    format!("perf-cpu{processor}.dat")
}

/// Returns the name of the file with the kernel's records for a processor.
pub fn kernel(processor: u32) -> String {
    format!("kernel-cpu{processor}.dat")
}

/// The kind of a trace's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum File {
    /// The file [`INFO`].
    Info,
    /// The file [`TASKS`].
    Tasks,
    /// The map of a session.
    Map,
    /// The functions of a module.
    Symbols,
    /// The source lines of a module's functions.
    SourceLines,
    /// The records of the task with this id.
    Records(u32),
    /// The file [`EVENTS`].
    Events,
    /// The file [`COUNTERS`].
    Counters,
    /// The records of perf for this processor.
    Perf(u32),
    /// The file [`CLOCK`].
    Clock,
    /// The file [`GAPS`].
    Gaps,
    /// The records of the kernel for this processor.
    Kernel(u32),
    /// The file [`KERNEL_HEADER`].
    KernelHeader,
    /// The file [`KERNEL_SYMBOLS`].
    KernelSymbols,
    /// The file [`RESOURCES`].
    Resources,
    /// One of [`INDEX`], [`INDEX_GRAPH`], [`INDEX_REPORT`], [`INDEX_BLOCKS`], [`INDEX_GRAPH_BLOCKS`] and
    /// [`INDEX_PAGE`].
    Index,
    /// The file `task` of uftrace's first versions. If it exists, it is read in place of [`TASKS`].
    OldTasks,
}

impl File {
    /// Returns the kind of the file `name`; `None` if a trace has no such file. Clearing an older trace removes every
    /// file with a kind, but only if [`INFO`] begins with [`MAGIC`].
    pub fn of(name: &str) -> Option<Self> {
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        match name {
            INFO => return Some(Self::Info),
            TASKS => return Some(Self::Tasks),
            EVENTS => return Some(Self::Events),
            CLOCK => return Some(Self::Clock),
            GAPS => return Some(Self::Gaps),
            COUNTERS => return Some(Self::Counters),
            RESOURCES => return Some(Self::Resources),
            INDEX | INDEX_GRAPH | INDEX_REPORT | INDEX_BLOCKS | INDEX_GRAPH_BLOCKS | INDEX_PAGE => {
                return Some(Self::Index);
            }
            "task" => return Some(Self::OldTasks),
            KERNEL_HEADER => return Some(Self::KernelHeader),
            KERNEL_SYMBOLS => return Some(Self::KernelSymbols),
            _ => {}
        }
        let (stem, extension) = name.rsplit_once('.')?;
        match extension {
            "dat" => match (stem.strip_prefix("perf-cpu"), stem.strip_prefix("kernel-cpu")) {
                (Some(processor), _) => number(processor).map(Self::Perf),
                (_, Some(processor)) => number(processor).map(Self::Kernel),
                _ => number(stem).map(Self::Records),
            },
            "map" => stem.strip_prefix("sid-").map(|_| Self::Map),
            "sym" => Some(Self::Symbols),
            "dbg" => Some(Self::SourceLines),
            _ => None,
        }
    }

    /// Returns true if the file holds events, rather than the meaning of names and numbers in them.
    pub fn is_data(self) -> bool {
        matches!(self, Self::Records(_) | Self::Perf(_) | Self::Counters | Self::Kernel(_) | Self::Resources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_kind_by_its_name() {
        for (name, kind) in [
            ("info", File::Info),
            ("task.txt", File::Tasks),
            ("sid-0123456789abcdef.map", File::Map),
            ("prog.sym", File::Symbols),
            ("lib.so.6.sym", File::Symbols),
            ("prog.dbg", File::SourceLines),
            ("1.dat", File::Records(1)),
            ("events.txt", File::Events),
            ("extern.dat", File::Counters),
            ("resources.dat", File::Resources),
            ("perf-cpu0.dat", File::Perf(0)),
            ("perf-cpu12.dat", File::Perf(12)),
            ("clock.txt", File::Clock),
            ("record.txt", File::Gaps),
            ("kernel-cpu3.dat", File::Kernel(3)),
            ("kernel_header", File::KernelHeader),
            ("kallsyms", File::KernelSymbols),
            ("task", File::OldTasks),
            ("index", File::Index),
            ("index-graph", File::Index),
            ("index-report", File::Index),
            ("index-blocks", File::Index),
            ("index-graph-blocks", File::Index),
            ("index-page", File::Index),
        ] {
            assert_eq!(File::of(name), Some(kind), "{name}");
        }
        for name in
            ["data.dat", "world.map", "notes.txt", "infos", "x.rs", "default.opts", "+1.dat", ".dat", "perf-cpu.dat"]
        {
            assert_eq!(File::of(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_of_their_kinds() {
        assert_eq!(File::of(&records(7)), Some(File::Records(7)));
        assert_eq!(File::of(&map("0123456789abcdef")), Some(File::Map));
        assert_eq!(File::of(&perf(3)), Some(File::Perf(3)));
        assert_eq!(File::of(&kernel(3)), Some(File::Kernel(3)));
        assert_eq!((records(7), perf(3)), ("7.dat".into(), "perf-cpu3.dat".into()));
        assert_eq!(kernel(3), "kernel-cpu3.dat");
    }
}
