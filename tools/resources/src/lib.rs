//! Reports on unreleased memory, files and threads by the functions that allocated them: reads and shows the
//! `resources.dat` of a trace.
//!
//! - [`Recording`] is an opened file. Processes, modules and stacks are in memory; events are read when they are
//!   needed.
//! - [`Account`] has the sums of allocations and releases of a resource up to some time, in total and for each stack.
//! - [`Names`] finds functions and source lines of addresses.
//! - [`Report`] is a choice of stacks with names, as text, JSON or a flame graph.
//! - [`Tests`] finds the leaking tests of a Rust test binary.
//! - [`Difference`] compares two recordings.
//! - [`timeline`] is the amount of a resource over time.
//! - [`FunctracerText`] and [`write_sp_rtrace`] write the text of older tools; [`Postprocessor`] shortens it.
//! - [`write_heaptrack`] writes input for heaptrack's own programs.
//!
//! The file is untrusted: a wrong number is an error that names the place.
//!
//! Not here: the file's format (`rftrace_format::resources`), and its writer (`rftrace-record`).
//!
//! # Example
//!
//! This program prints the amount of unreleased memory in a trace:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rftrace_format::resources::Resource;
//! use rftrace_resources::{Account, Recording, Until};
//!
//! let recording = Recording::open(Path::new("trace/resources.dat"))?;
//! let account = Account::of(&recording, Resource::Memory, Until::End, None)?;
//! println!("{} bytes in {} blocks were not released", account.total.bytes, account.total.blocks);
//! # Ok::<(), rftrace_read::Error>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
mod blocks;
mod by_test;
mod diff;
mod flame;
mod heaptrack;
mod live;
mod lookup;
mod merge;
mod names;
mod own;
mod recording;
mod report;
mod text;
mod timeline;
mod words;

pub use account::{Account, Held, Sums};
pub use by_test::{TestLeaks, Tests};
pub use diff::Difference;
pub use flame::Unit;
pub use heaptrack::write_heaptrack;
pub use live::Until;
pub use merge::Event;
pub use names::{Name, Names, names_of_stacks, of_caller};
pub use recording::{Frame, Module, Process, Recording, Thread};
pub use report::{Choice, Report, Sort};
pub use text::{FunctracerText, Order, Postprocessor, Section, functracer_header, write_sp_rtrace};
pub use timeline::timeline;
pub use words::{Size, amount, several_of};
