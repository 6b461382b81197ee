//! Memory, files and threads that were not given back, by the functions that took them: reads `resources.dat` of a trace, and shows it.
//!
//! - [`Recording`] is a file that was opened: processes, modules and stacks are in memory, events are read when they are needed.
//! - [`Account`] has the sums of allocations and releases of a resource up to some time, in total and by each stack.
//! - [`Names`] finds functions and source lines of addresses.
//! - [`Report`] is a choice of stacks with names, as text, JSON or a flame graph.
//! - [`Tests`] finds the tests of a Rust test binary that leak.
//! - [`Difference`] compares two recordings.
//! - [`timeline`] is how much was there from time to time.
//! - [`FunctracerText`] and [`write_sp_rtrace`] write the text of older tools; [`Postprocessor`] makes less of it.
//! - [`write_heaptrack`] writes input for heaptrack's own programs.
//!
//! The file is untrusted: a number that is too large or wrong is an error that names the place.
//!
//! Not here: the file's format (`rftrace_format::resources`), and its writer (`rftrace-record`).

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
pub use names::{Name, Names};
pub use recording::{Frame, Module, Process, Recording, Thread};
pub use report::{Choice, Report, Sort};
pub use text::{FunctracerText, Order, Postprocessor, Section, functracer_header, write_sp_rtrace};
pub use timeline::timeline;
pub use words::{Size, amount, several_of};
