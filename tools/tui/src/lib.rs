//! Traces to look around in, in a terminal.
//!
//! Not here: reading (`rftrace-read`) and what is shown of a trace (`rftrace-views`).
//!
//! [`run`] takes the terminal until the user quits. What keys do is decided in `app` and, for each view, in `graph`, `report` and `calls`,
//! which know nothing of terminals; `draw` makes a picture of that and changes nothing; `terminal` has the loop. [`screen`], [`list`] and [`text`] are
//! what the screen of `rftrace top` (`rftrace-top`) shares with it.

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

/// Why a trace could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody could look at it.
    #[error("stdout is no terminal: `rftrace graph`, `report` and `replay` write to files and pipes")]
    NoTerminal,

    /// The terminal does not do what is asked of it.
    #[error("cannot use the terminal")]
    Terminal(#[from] io::Error),

    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] rftrace_read::Error),
}
