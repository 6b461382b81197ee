//! Data collected of a process: its spool, and all facts needed to make a directory of it (`save`).

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::spool::Folder;
use super::told::Marked;
use super::world::World;
use crate::clock::ClockPair;
use crate::host::linux::modules::Unloaded;
use crate::host::program::Identity;

/// Recording of a process that is over, or until a moment.
#[derive(Debug)]
pub struct Collected {
    /// The process, as it is called here.
    pub pid: u32,
    /// The same as it calls itself, which a trace has: another number in a container.
    pub own_pid: u32,
    /// When its program began to be recorded, by `CLOCK_MONOTONIC` in nanoseconds.
    pub program_nanos: u64,
    /// The process that forked it, and when by `CLOCK_MONOTONIC`, if one did that is recorded too.
    pub fork: Option<(u32, u64)>,
    /// Calls and returns that were not recorded because no chunk was free.
    pub n_dropped: u64,
    /// Threads had all chunks at a time, and others waited in vain.
    pub has_many_threads: bool,
    /// Why not all was written, if it was not.
    pub failed: Option<io::Error>,
    /// As much was written as may be.
    pub is_too_large: bool,
    /// Purpose of this copy, if it is a dump that was [made](super::Banks::dump).
    pub dump: Option<Dump>,
    /// Chunks of a ring whose records others have taken the place of.
    pub n_overwritten: u64,
    /// How it came to its end, if that was not by itself.
    pub death: Option<Death>,
    /// The status of `wait` that it ended with, if the system has told.
    pub status: Option<i32>,
    /// Missing parts of the recording, as the keeper of the spool has said.
    pub problem: Option<String>,
    /// Calls and returns in the spool, some of which may belong to none.
    pub n_records: u64,
    pub(crate) spool: PathBuf,
    /// Keeps the path of the spool right; `None` for one that leads through no open folder.
    pub(crate) _folder: Option<Folder>,
    /// So much of that.
    pub(crate) spool_bytes: u64,
    /// So much of it has been there at the least. 0 where nobody knows.
    pub(crate) least_bytes: u64,
    /// Chunks that threads were writing to, of a process that goes on: a file like the spool.
    pub(crate) tail: Option<PathBuf>,
    /// True if records after its end are left out: a ring was written to while it was copied.
    pub is_cut: bool,
    /// True if nothing more was to come. Otherwise its recorder, or the line to it, has ended before.
    pub(crate) is_over: bool,
    pub(crate) chunk_bytes: usize,
    pub(crate) first: ClockPair,
    pub(crate) last: ClockPair,
    pub(crate) rate: Option<Rate>,
    /// Facts about the program at its end, if the spool is kept.
    pub(crate) facts: Option<PathBuf>,
    pub(crate) utc_offset_nanos: i64,
    /// The shortest call that is recorded, in ticks, from when on.
    pub(crate) minima: Vec<(u64, u64)>,
    pub(crate) end_tsc: u64,
    pub(crate) n_untraced_threads: u32,
    /// The root directory that its paths are for, if that is not this process's.
    pub(crate) root: Option<PathBuf>,
    pub(crate) exe: Vec<u8>,
    pub(crate) command_line: Vec<u8>,
    /// Of different times, the latest last.
    pub(crate) maps: Vec<Vec<u8>>,
    /// Libraries that it had no more at its end, in the order in which it unloaded them.
    pub(crate) unloaded: Vec<Unloaded>,
    /// Moments that were marked.
    pub(crate) marks: Vec<Marked>,
    /// Marks and unloaded libraries that are not among them.
    pub n_untold: u64,
    /// Functions that were hooked and do not call the tracer: an address and a size each.
    pub(crate) hooked: Vec<u8>,
    pub(crate) threads: HashMap<u32, Identity>,
    /// The words of the exit records of the functions that were open in a thread that was forked.
    pub(crate) open: HashMap<u32, Vec<u64>>,
    /// Environment of the process, if that was another machine.
    pub(crate) world: Option<Box<World>>,
}

/// The end of a process that did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// By a signal that it could have handled.
    Signal(u32),
    /// Without a word: by SIGKILL, the system's lack of memory, or a system call of its own.
    WithoutWord,
}

/// The life of a process, as the system tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It goes on.
    Running,
    /// It has ended, with this status of `wait` if that is known.
    Over(Option<i32>),
}

impl Life {
    /// True if it has ended.
    #[must_use]
    pub fn is_over(self) -> bool {
        self != Self::Running
    }

    /// The status that it ended with, if that is known.
    #[must_use]
    pub fn status(self) -> Option<i32> {
        match self {
            Self::Running => None,
            Self::Over(status) => status,
        }
    }
}

/// Amount of data in spools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Calls and returns.
    pub n_records: u64,
    /// Bytes on the disk.
    pub n_bytes: u64,
}

/// How fast the time stamp counter runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) hz: u64,
    /// Source of the rate.
    pub(crate) source: String,
}

/// Reason and extent of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Why.
    pub reason: String,
    /// When that was, in ticks; `None`: now.
    pub tsc: Option<u64>,
    /// In which thread, by the tracer's numbers, if that is known.
    pub thread: Option<u32>,
    /// So much of what comes after it is wanted too.
    pub after: Duration,
    /// Only this thread is.
    pub is_of_thread: bool,
    /// Only so much before its end is.
    pub last: Option<Duration>,
}
