//! The errors of this crate.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rftrace_format::Malformed;

/// The result of reading a trace.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: a trace directory could not be read, or the output could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory, or the `info` file in it, does not exist.
    #[error(
        "{}: no such file or directory; is this a trace directory? Give the directory that the traced program wrote: \
         it holds `info`, `task.txt` and one `<tid>.dat` for each task",
        path.display()
    )]
    NotATrace {
        /// The path of the directory, or the expected one of `info` in it.
        path: PathBuf,
    },

    /// The directory has no calls, only who took memory and other resources.
    #[error("{}: only resources were recorded, no calls; `rftrace resources` shows them", path.display())]
    OnlyResources {
        /// The path of the resources.
        path: PathBuf,
    },

    /// A file could not be opened or read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file's path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },

    /// A file violates the format.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Malformed {
        /// The file's path.
        path: PathBuf,
        /// The offset of the fault in bytes.
        offset: u64,
        /// The fault and the remedy.
        reason: Cow<'static, str>,
    },

    /// A binary cannot be read, or does not belong to the trace.
    #[error("{}: {reason}", path.display())]
    Binary {
        /// The file's path.
        path: PathBuf,
        /// The fault and the remedy.
        reason: String,
    },

    /// A file of the output could not be written.
    #[error("cannot write {}", path.display())]
    WriteFile {
        /// The file's path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },

    /// Context switches cannot be recorded.
    #[error("cannot record context switches: {remedy}")]
    Schedule {
        /// The reason and the remedy.
        remedy: &'static str,
        /// The error of the system.
        source: io::Error,
    },

    /// Several sources cannot be aligned in time.
    #[error("{reason}")]
    Unaligned {
        /// The missing or unfit fact, and the remedy.
        reason: String,
    },

    /// The trace, or its chosen part, cannot be written in this format.
    #[error("{0}")]
    Export(Cow<'static, str>),

    /// The reader was stopped, see [`Reading::stop`](crate::Reading::stop).
    #[error("reading was stopped")]
    Stopped,

    /// The output could not be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

impl Error {
    /// Creates the error for a fault in the file `path` at the byte `offset`.
    pub fn malformed(path: &Path, offset: u64, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Malformed { path: path.to_owned(), offset, reason: reason.into() }
    }

    /// Creates the error for a fault in the file `path`, found by a parser of the format.
    pub fn of_format(path: &Path, malformed: Malformed) -> Self {
        Self::malformed(path, malformed.offset, malformed.reason)
    }

    /// Returns true if the reader of the output has closed it, as `head` does. For a command-line tool that is success.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
