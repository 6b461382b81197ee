//! Errors of this crate.

use std::{io, result};

use thiserror::Error;

/// A `Result` of this crate.
pub type Result<T> = result::Result<T, Error>;

/// Why there is no page.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] rftrace_read::Error),

    /// It has more calls than the page holds.
    #[error(
        "the trace has more than {max} calls, too many for a page: choose a part of it by --from and --to, --tid, -F, -D or -t"
    )]
    TooManyCalls {
        /// So many are possible.
        max: u64,
    },

    /// It has times that the page cannot count in nanoseconds.
    #[error("the trace has times more than 104 days after its start, too many for a page: choose a part of it by --to")]
    TooLong,

    /// The file would be larger than browsers load well.
    #[error(
        "the page would have {} MiB of data, more than the {} MiB that browsers load well: choose a part of the trace by --from and \
         --to, --tid, -F, -D or -t, or look at it with `rftrace view`",
        bytes >> 20, max >> 20
    )]
    TooLarge {
        /// How large the data would be.
        bytes: u64,
        /// So much is possible.
        max: u64,
    },

    /// The index cannot be written.
    #[error(
        "cannot write the index of the page: make room on the disk, or choose a part of the trace by --from and --to"
    )]
    Index(#[source] io::Error),

    /// The index is not what was written.
    #[error(
        "the index of the page is damaged: remove `index-page` from the trace's directory, and start `rftrace view` again"
    )]
    Damaged,

    /// The page asks for what is not there.
    #[error("no such part of the trace")]
    Question,

    /// The output cannot be written.
    #[error("cannot write the page")]
    Write(#[source] io::Error),

    /// There is no port to listen to, or no random token.
    #[error("cannot serve the page")]
    Listen(#[source] io::Error),
}
