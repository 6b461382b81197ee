//! Errors of this crate.

use std::{io, result};

use thiserror::Error;

/// A `Result` of this crate.
pub type Result<T> = result::Result<T, Error>;

/// An error: the page could not be made or served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] rftrace_read::Error),

    /// The trace has more calls than a page can hold.
    #[error(
        "the trace has more than {max} calls, too many for a page: choose a part of it by --from and --to, --tid, -F, -D or -t"
    )]
    TooManyCalls {
        /// The maximum number.
        max: u64,
    },

    /// The trace has times beyond the page's range of nanoseconds.
    #[error("the trace is longer than 104 days, the limit of a page: choose a part of it by --to")]
    TooLong,

    /// The data exceed the size that browsers load well.
    #[error(
        "the page would have {} MiB of data, more than the {} MiB that browsers load well: choose a part of the trace by --from and \
         --to, --tid, -F, -D or -t, or look at it with `rftrace view`",
        bytes >> 20, max >> 20
    )]
    TooLarge {
        /// The size of the data in bytes.
        bytes: u64,
        /// The maximum size in bytes.
        max: u64,
    },

    /// The index cannot be written.
    #[error(
        "cannot write the index of the page: make room on the disk, or choose a part of the trace by --from and --to"
    )]
    Index(#[source] io::Error),

    /// The index is damaged.
    #[error(
        "the index of the page is damaged: remove `index-page` from the trace's directory, and start `rftrace view` again"
    )]
    Damaged,

    /// The page's question names a part that does not exist.
    #[error("the trace has no such part: reload the page")]
    Question,

    /// The output cannot be written.
    #[error("cannot write the page")]
    Write(#[source] io::Error),

    /// The server cannot listen at a port, or make a random token.
    #[error("cannot serve the page")]
    Listen(#[source] io::Error),
}
