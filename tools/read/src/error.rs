//! Errors of this crate.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rftrace_format::Malformed;

/// The result of reading a trace.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a trace directory could not be read, or the output not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory, or the `info` file in it, does not exist.
    #[error(
        "{}: no such file; is this a trace directory? Give the directory that the traced program wrote: \
         it holds `info`, `task.txt` and one `<tid>.dat` for each task",
        path.display()
    )]
    NotATrace {
        /// The `info` file that was looked for.
        path: PathBuf,
    },

    /// A file could not be opened or read.
    #[error("{}: cannot read it", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// A file exists but its contents are not what the format asks for.
    #[error("{}: byte {offset}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes from its start.
        offset: u64,
        /// The fault there, and the remedy.
        reason: Cow<'static, str>,
    },

    /// A binary cannot be read, or is not one of the trace.
    #[error("{}: {reason}", path.display())]
    Binary {
        /// The file.
        path: PathBuf,
        /// The fault, and the remedy.
        reason: String,
    },

    /// A file of the output could not be written.
    #[error("{}: cannot write it", path.display())]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// Context switches cannot be recorded.
    #[error("context switches cannot be recorded: {remedy}")]
    Schedule {
        /// Why, and what to do about it.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },

    /// Several sources cannot be brought together, for the reason that it tells, with the remedy.
    #[error("{reason}")]
    Unaligned {
        /// The missing or unfit fact, and the remedy.
        reason: String,
    },

    /// The trace, or what was chosen of it, cannot be written in this format.
    #[error("{0}")]
    Export(Cow<'static, str>),

    /// The result is no longer needed, see [`Reading::stop`](crate::Reading::stop).
    #[error("reading was stopped")]
    Stopped,

    /// The output could not be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

impl Error {
    /// A file whose contents are wrong at this byte, for this reason.
    pub fn malformed(path: &Path, offset: u64, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Malformed { path: path.to_owned(), offset, reason: reason.into() }
    }

    /// A file of which a part is not as the format wants it.
    pub fn of_format(path: &Path, malformed: Malformed) -> Self {
        Self::malformed(path, malformed.offset, malformed.reason)
    }

    /// True if the reader of the output has closed it, as `head` does. For a command-line tool that is success.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
