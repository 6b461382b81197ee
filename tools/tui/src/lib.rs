//! An interactive view of traces in a terminal.
//!
//! Not here: reading (`rftrace-read`), and views of a trace (`rftrace-views`).
//!
//! [`run`] takes the terminal until the user quits. `app` handles keys, with `graph`, `report` and `calls` for each
//! view; none of them uses the terminal. `draw` makes a picture of their state; `terminal` has the main loop. The
//! screen of `rftrace top` (`rftrace-top`) shares [`screen`], [`list`] and [`text`].

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod app;
mod calls;
mod draw;
mod graph;
pub mod list;
mod report;
pub mod screen;
mod terminal;
pub mod text;

#[cfg(test)]
mod tests;

use std::io;

pub use terminal::run;

/// The result of showing a trace.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: a trace could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Stdout is no terminal.
    #[error("stdout is not a terminal: use `rftrace graph`, `report` or `replay` for files and pipes")]
    NoTerminal,

    /// The terminal fails.
    #[error("cannot use the terminal")]
    Terminal(#[from] io::Error),

    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] rftrace_read::Error),
}
