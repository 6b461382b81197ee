//! Who took memory, files or threads, and did not give them back: reads `resources.dat` of a trace, and shows it.
//!
//! - [`Recording`] is a file that was opened: processes, modules and stacks are in memory, events are read when they are needed.
//! - [`Account`] is what was taken and given back of a resource up to some time, in total and by each stack.
//! - [`Names`] finds functions and source lines of addresses.
//! - [`Report`] is a choice of stacks with names, as text, JSON or a flame graph.
//! - [`Tests`] says which test of a Rust test binary has not given back what it took.
//! - [`Difference`] is what one recording took more than another.
//! - [`timeline`] is how much was there from time to time.
//! - [`FunctracerText`] and [`write_sp_rtrace`] write the text of older tools; [`Postprocessor`] makes less of it.
//! - [`write_heaptrack`] writes what heaptrack's own programs read.
//!
//! Nothing of the file is believed: what is too large or wrong is an error that names the place.
//!
//! Not here: what the file looks like (`rftrace_format::resources`), and who writes it (`rftrace-record`).

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
