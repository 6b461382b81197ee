//! Reads trace directories in the format of [uftrace](https://github.com/namhyung/uftrace), which rftrace writes.
//!
//! # Overview
//!
//! - [`Trace::open`] reads a directory's metadata.
//! - [`Trace::records`] and [`Trace::merged`] read what was recorded, of one task or of all in order of time.
//! - [`Trace::call_tree`] makes a tree of a task's calls, for tests and for tools that want all of it in memory.
//! - [`add_symbols`] names the functions of a trace from elsewhere.
//! - [`replay`] and [`Report`] are the text outputs of the `rftrace` command.
//! - [`Merge`] brings traces of a guest and its host, KVM's events and what perf recorded onto one timeline.
//! - [`export`] gives a trace to a [`Sink`], which writes it in the format of another tool.
//!
//! # Example
//!
//! ```no_run
//! # fn main() -> rftrace_tools::Result<()> {
//! use std::path::Path;
//!
//! let trace = rftrace_tools::Trace::open(Path::new("uftrace.data"))?;
//! for task in trace.tasks() {
//!     print!("{}", trace.call_tree(task)?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Flaws in traces
//!
//! A trace may come from a program that crashed, a buffer that was too small, or another tool. Metadata that makes no sense
//! is an [`Error`] that says where. Records that make no sense are skipped, exits that are missing are made up, and both
//! are counted in [`Warnings`].
//!
//! # Limits
//!
//! - Only little-endian 64-bit traces.
//! - Function arguments, return values and data of events are skipped, and so are files of other sources: `kernel-*.dat`,
//!   `extern.dat`, `*.dbg`; of `perf-cpu*.dat` all but context switches, which are held in memory, 8 bytes each.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod align;
mod callsites;
mod duration;
mod error;
mod events;
mod export;
mod facts;
mod info;
mod maps;
mod merge;
mod perf;
mod record;
mod records;
mod replay;
mod report;
#[cfg(target_os = "linux")]
mod schedule;
mod session;
mod stack;
mod stats;
#[cfg(target_os = "linux")]
mod symbolize;
mod symbols;
mod tasks;
mod text;
mod trace;
mod tree;
mod warning;

pub use align::{ClockFile, Merge, MergeOptions, TscClock};
pub use callsites::CallSites;
pub use duration::Duration;
pub use error::{Error, Result};
pub use events::{EventNames, SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
pub use export::{Chrome, ExportOptions, Firefox, Folded, Perfetto, Sink, Track, WallClock, export, write_directory};
pub use facts::{Gaps, Module};
pub use info::Info;
pub use merge::Merged;
pub use record::{Kind, RECORD_SIZE, Record};
pub use records::Records;
pub use replay::{ReplayOptions, replay};
pub use report::{Report, Row, SortKey};
#[cfg(target_os = "linux")]
pub use schedule::{ScheduleEvents, ScheduleRecorder};
pub use stats::TaskStats;
#[cfg(target_os = "linux")]
pub use symbolize::{SymbolOptions, Symbolized, add_symbols};
pub use trace::{Task, Trace};
pub use tree::{Call, CallTree, Calls};
pub use warning::{Warning, Warnings};

/// How much was read, and what was wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The number of records.
    pub records: u64,
    /// The flaws met in the records; those of the metadata are in [`Trace::warnings`].
    pub warnings: Warnings,
}
