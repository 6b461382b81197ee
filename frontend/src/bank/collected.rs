//! The collected data of a process: its spool, and all facts for a directory of it (`save`). This type alone lists the facts; `about` stores it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spool::Folder;
use super::told::Marked;
use super::world::World;
use crate::clock::ClockPair;
use crate::host::linux::modules::Unloaded;
use crate::host::program::Identity;

/// The recording of an ended process, or up to a moment. Paths and the state of the spool are not stored with the
/// facts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Collected {
    /// The process's PID as the recorder sees it.
    pub pid: u32,
    /// The process's own PID, another one in a container. The trace has this one.
    pub own_pid: u32,
    /// The beginning of its program's recording by `CLOCK_MONOTONIC`, in nanoseconds.
    pub program_nanos: u64,
    /// The recorded parent, and the time of the fork by `CLOCK_MONOTONIC` in nanoseconds, if a recorded process forked
    /// it.
    pub fork: Option<(u32, u64)>,
    /// The number of calls and returns lost because no chunk was free.
    pub n_dropped: u64,
    /// True if threads had all chunks at one time, and others waited in vain.
    pub has_many_threads: bool,
    /// The error that stopped writing.
    pub failed: Option<String>,
    /// True if the limit of written data was reached.
    pub is_too_large: bool,
    /// The purpose of this copy, if it is a [dump](super::Banks::dump).
    #[serde(skip)]
    pub dump: Option<Dump>,
    /// The number of overwritten chunks of a ring.
    pub n_overwritten: u64,
    /// The cause of its death, if it did not end regularly.
    pub death: Option<Death>,
    /// The status of `wait` at its end, if the system has reported it.
    pub status: Option<i32>,
    /// A message about missing parts, from the recorder with the spool.
    pub problem: Option<String>,
    /// The number of calls and returns in the spool; incomplete ones may be among them.
    #[serde(skip)]
    pub n_records: u64,
    #[serde(skip)]
    pub(crate) spool: PathBuf,
    /// Keeps the path of the spool right; `None` for a path without an open folder.
    #[serde(skip)]
    pub(crate) _folder: Option<Folder>,
    /// The size of the spool in bytes.
    #[serde(skip)]
    pub(crate) spool_bytes: u64,
    /// The minimum size of the spool so far; 0 if unknown.
    #[serde(skip)]
    pub(crate) least_bytes: u64,
    /// The chunks in use of a running process: a file like the spool.
    #[serde(skip)]
    pub(crate) tail: Option<PathBuf>,
    /// True if records after its end are left out: a ring was written to while it was copied.
    pub is_cut: bool,
    /// True if nothing more was to come. Otherwise its recorder, or the line to it, has ended before.
    pub(crate) is_over: bool,
    pub(crate) chunk_bytes: usize,
    pub(crate) first: ClockPair,
    #[serde(skip)]
    pub(crate) last: ClockPair,
    /// Facts about the program at its end, if the spool is kept.
    #[serde(skip)]
    pub(crate) facts: Option<PathBuf>,
    pub(crate) utc_offset_nanos: i64,
    /// The minimum durations of recorded calls in ticks, each with its beginning.
    pub(crate) minima: Vec<(u64, u64)>,
    pub(crate) end_tsc: u64,
    pub(crate) n_untraced_threads: u32,
    /// The root directory of its paths, if that is not this process's.
    #[serde(skip)]
    pub(crate) root: Option<PathBuf>,
    pub(crate) exe: Vec<u8>,
    pub(crate) command_line: Vec<u8>,
    /// Of different times, the latest last.
    pub(crate) maps: Vec<Vec<u8>>,
    /// Libraries unloaded before its end, in the order of unloading.
    pub(crate) unloaded: Vec<Unloaded>,
    /// The marks.
    pub(crate) marks: Vec<Marked>,
    /// The number of marks and unloaded libraries missing in these lists.
    pub n_untold: u64,
    /// Hooked functions without a call of the tracer: an address and a size each.
    pub(crate) hooked: Vec<u8>,
    pub(crate) threads: BTreeMap<u32, Identity>,
    /// The words of the exit records of the functions open in a forked thread.
    pub(crate) open: HashMap<u32, Vec<u64>>,
    /// Environment of the process, for another machine, or from there.
    pub(crate) world: Option<Box<World>>,
}

/// The irregular end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Death {
    /// It was killed by a signal it could have handled.
    Signal(u32),
    /// It ended without a notice: by SIGKILL, for lack of memory, or by a system call of its own.
    WithoutWord,
}

/// The life of a process, as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It goes on.
    Running,
    /// It has ended, with this status of `wait` if it is known.
    Over(Option<i32>),
}

impl Life {
    /// True if it has ended.
    #[must_use]
    pub fn is_over(self) -> bool {
        self != Self::Running
    }

    /// The status at its end, if it is known.
    #[must_use]
    pub fn status(self) -> Option<i32> {
        match self {
            Self::Running => None,
            Self::Over(status) => status,
        }
    }
}

/// The amount of data in spools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of calls and returns.
    pub n_records: u64,
    /// The number of bytes on the disk.
    pub n_bytes: u64,
}

/// The reason and the extent of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// The reason.
    pub reason: String,
    /// The time of the reason in ticks; `None` for now.
    pub tsc: Option<u64>,
    /// The thread, by the tracer's number, if it is known.
    pub thread: Option<u32>,
    /// The time after the reason, included in the dump.
    pub after: Duration,
    /// True to include only this thread.
    pub is_of_thread: bool,
    /// The maximum time before the dump's end.
    pub last: Option<Duration>,
}
