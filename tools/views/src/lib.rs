//! Views of a trace: call stacks and trees, replays, reports, graphs and statistics.
//!
//! Not here: reading (`rftrace-read`), and the formats of other tools (`rftrace-export`).
//!
//! - [`CallStack`] rebuilds a task's stack from its records, as [`Step`]s. All other views use it. [`walk`] goes
//!   through one task, [`walk_all`] through all tasks in order of time.
//! - [`CallTree`] is a tree of a task's calls, for tests and for tools that want all of it in memory.
//! - [`TaskLines`] are the lines of one task's replay. A clone is a place for a later restart.
//! - [`replay`], [`Report`], [`Waits`] and [`Graph`] are the text outputs of the `rftrace` command, [`Overview`] is the
//!   first screen. [`TaskStats`] counts the records of a task.
//!
//! # Example
//!
//! This program prints the ten functions with the longest own time; `examples/hottest.rs` is the complete program.
//!
//! ```
//! # fn main() -> rftrace_read::Result<()> {
//! use rftrace_read::Trace;
//! use rftrace_views::{Field, Report};
//!
//! # let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/directory"));
//! let mut report = Report::read(&Trace::open(dir)?)?;
//! report.sort(&[Field::Own]);
//! for row in report.rows().iter().take(10) {
//!     println!("{:12} ns in {} calls of {}", row.self_ns, row.calls, row.name);
//! }
//! # assert_eq!(report.rows()[0].name, "main");
//! # Ok(())
//! # }
//! ```
//!
//! # Flaws in traces
//!
//! Views add missing exits and leave out exits without an entry. [`Warnings`](rftrace_read::Warnings) count both.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

mod assumed;
mod between;
mod blocking;
mod blocks;
mod by_value;
mod collect;
mod collector;
mod columns;
mod confidence;
mod correction;
mod counts;
mod difference;
mod duration;
mod graph;
mod hot;
mod keys;
mod lines;
mod overview;
mod paths;
mod replay;
mod report;
mod rows;
#[cfg(test)]
mod sample;
mod spread;
mod stack;
mod stats;
mod sums;
mod table;
mod tree;
mod waits;
mod walk;
mod ways;
mod words;

pub use assumed::AssumedFunctions;
pub use by_value::ByValue;
pub use columns::ReplayField;
pub use counts::{Count, Counts};
pub use difference::{Compared, Difference, Side};
pub use duration::Duration;
pub use graph::{Graph, GraphField, GraphNode, GraphOrder, Way};
pub use lines::{Line, TaskLines, Values, What};
pub use overview::{Overview, TableBelow};
pub use replay::{ReplayOptions, replay};
pub use report::Report;
pub use rows::{CallTimes, ReportOptions, Row};
pub use spread::Spread;
pub use stack::{CallStack, EndedCall, Step};
pub use stats::TaskStats;
pub use table::Field;
pub use tree::{Call, CallTree, Calls};
pub use waits::{Cause, WaitRow, WaitTimes, Waits};
pub use walk::{Walked, walk, walk_all, walk_until, walk_with_records};
pub use words::{count, literal, percent};
