//! Reads trace directories in the format of [uftrace](https://github.com/namhyung/uftrace), as rftrace writes them.
//!
//! Not here: call stacks and views of a trace (`rftrace-views`), and the formats of other tools (`rftrace-export`).
//!
//! # Overview
//!
//! - [`Trace::open`] reads the metadata of a directory.
//! - [`Trace::records`] reads the records of one task, [`Trace::all_records`] those of all tasks in order of time.
//! - [`Trace::choose`] limits all readers to some functions, levels or times. [`Trace::use_index`] lets them skip the
//!   rest.
//! - [`info::read`] and [`read_clock`] read one file; [`lines`] reads any text of a trace line by line. The crate
//!   [`rftrace_format`] defines lines and records.
//!
//! # Example
//!
//! This program prints the functions entered by each task:
//!
//! ```
//! # fn main() -> rftrace_read::Result<()> {
//! use rftrace_read::{Kind, Trace};
//!
//! # let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/directory"));
//! let trace = Trace::open(dir)?;
//! for task in trace.tasks() {
//!     for record in trace.records(task) {
//!         let record = record?;
//!         if record.kind == Kind::Entry {
//!             println!("{} {}: {}", record.time_ns, task.name(), trace.function_name(task, record.time_ns, record.addr));
//!         }
//!     }
//! }
//! # assert_eq!(trace.tasks().len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Flaws in traces
//!
//! A trace may come from a crashed program, a small buffer, or another tool. Malformed metadata is an [`Error`] with
//! its place. Readers skip malformed records, and count them in [`Warnings`].
//!
//! # Limits
//!
//! - Only little-endian 64-bit traces.
//! - Readers skip the data of events; arguments and return values without specs in the trace; and the files
//!   `extern.dat`. Of `*.dbg` they use only [source lines](Trace::read_sources) and specs of values, of `perf-cpu*.dat`
//!   only context switches, which take 8 bytes of memory each, and [wakings](Trace::wakings).

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

mod all_records;
mod chosen;
mod demangle;
mod error;
mod events;
mod facts;
pub mod files;
mod functions;
mod index;
mod indexing;
pub mod info;
pub mod inlined;
mod kept;
mod kernel;
pub mod lines;
mod made_names;
pub mod maps;
mod off_cpu;
mod parallel;
mod reading;
mod records;
mod seeker;
mod session;
mod short_names;
mod shown_names;
mod sources;
mod summary;
mod switches;
mod symbols;
mod task;
mod trace;
mod wakings;
mod warning;
mod window;

pub use all_records::AllRecords;
pub use chosen::Choice;
pub use demangle::Demangle;
pub use error::{Error, Result};
pub use events::EventNames;
pub use facts::{Module, read_clock};
pub use functions::Functions;
pub use kept::{Kept, KeptFile, checksum};
pub use kernel::FIRST_ADDRESS as FIRST_KERNEL_ADDRESS;
pub use made_names::{is_nameless, made_name};
pub use off_cpu::{OffCpu, OffCpuSince};
pub use parallel::some_at_a_time;
pub use reading::Reading;
pub use records::{Mark, OVERWRITTEN, Records};
pub use rftrace_format::clock::ClockFile;
pub use rftrace_format::cost::CallCost;
pub use rftrace_format::events::{DID_NOT_RETURN, SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
pub use rftrace_format::gaps::Gaps;
pub use rftrace_format::info::Info;
pub use rftrace_format::perf::Waking;
pub use rftrace_format::record::{Kind, RECORD_BYTES, Record};
pub use rftrace_format::text::Shown;
pub use rftrace_pattern::{Error as PatternError, Pattern, nearest};
pub use session::{Session, SymbolFiles};
pub use short_names::{NAME_COLUMNS, short_name};
pub use shown_names::ShownNames;
pub use sources::SourcePlace;
pub use summary::Summary;
pub use task::Task;
pub use trace::Trace;
pub use warning::{Warning, Warnings};
