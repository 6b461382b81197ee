//! The frontend of the function tracer [rftrace](https://docs.rs/rftrace): it gives the tracer its buffer, switches
//! recording on and off, and writes what was recorded as a directory that `uftrace replay`, `report`, `graph`, `tui` and
//! `dump` read.
//!
//! # Example
//!
//! ```no_run
//! extern crate rftrace as _; // the tracer itself
//! # fn work() {}
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tracer = rftrace_frontend::Config::new().directory("trace").install()?;
//!     {
//!         let _recording = tracer.record();
//!         work();
//!     }
//!     tracer.save()?;
//!     Ok(())
//! }
//! ```
//!
//! Build with `RUSTFLAGS="-Z instrument-mcount"` on nightly, then look at the trace with `uftrace replay -d trace`.
//!
//! The functions of rftrace-frontend 0.3 are here too: [`init`], [`enable`], [`disable`], [`dump_full_uftrace`] and
//! [`dump_trace`].
//!
//! # Choosing functions
//!
//! A [`Filter`] chooses what is recorded: by name, module, caller, depth, duration or code size; from the beginning
//! ([`Config::filter`]), at any time ([`Tracer::set_filter`]), or from outside by the variable `RFTRACE_FILTER`.
//!
//! # How it works
//!
//! The tracer stores raw time stamps and addresses in chunks, each written by one thread. A save waits until no chunk
//! changes hands, goes through every thread's chunks in order, completes missing exits and writes one file per thread,
//! in parallel and without copying the buffer. Time stamps become nanoseconds of CLOCK_MONOTONIC by two pairs of
//! (counter, clock), taken when the tracer was installed and at the save.
//!
//! # Patched call sites
//!
//! With [`Config::patched`], or the environment variable `RFTRACE_PATCHED=1`, the calls of the hooks in the program and its
//! libraries are changed: into NOPs while recording is off, into jumps while it is on (on aarch64 the calls that they were). Linux only.
//! [`Tracer::patched_sites`] tells what was patched and why something was not; what is left as compiled is recorded too.
//! Threads may run meanwhile. Libraries that are opened later are patched when recording is next switched on, or by
//! [`Tracer::patch`].
//!
//! Functions in which a compiler has left room for a branch are recorded with [`Config::patchable_entries`], or `RFTRACE_PATCHABLE=1`.
//!
//! # Kernels
//!
//! The module [`kernel`] is for all that has no operating system. With `default-features = false` it is what is left of this
//! crate, which then is `no_std` without `alloc`.
//!
//! # Features
//!
//! - `std` (default): all but the module [`kernel`].
//! - `control`: on Linux, `rftrace ctl` tells a program that has this crate in it what to record, see `Config::control`.
//! - `import` (part of `std`): on Linux, `Image` reads what a kernel has sent, or `dump_trace` has written, and writes it as
//!   a directory; `Binary` names the functions of a trace from elsewhere. Alone, it does not need the tracer to be linked.
//!
//! # Limits
//!
//! - One buffer at a time. Record and save as often as you like.
//! - 1023 nested calls per thread are recorded; deeper ones are counted and shown as `rftrace:lost_…`.
//! - 8192 threads at the same time; further ones run untraced and are counted.

#![cfg_attr(not(feature = "import"), no_std)]
#![cfg_attr(not(feature = "std"), allow(rustdoc::broken_intra_doc_links, reason = "the text tells of what `std` has"))]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod arch;
mod backend;
mod clock;
mod image;
pub mod kernel;
mod mode;

// Writing of uftrace directories.
#[cfg(feature = "import")]
mod decode;
#[cfg(all(feature = "import", target_os = "linux"))]
mod elf;
#[cfg(feature = "import")]
mod error;
#[cfg(feature = "import")]
mod filter;
#[cfg(feature = "import")]
mod host;
#[cfg(feature = "import")]
mod uftrace;

// Tracing of the program itself.
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod bank;
#[cfg(feature = "std")]
mod compat;
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod patch;
#[cfg(feature = "std")]
mod ring;
#[cfg(feature = "std")]
mod tracer;

#[cfg(feature = "std")]
pub use compat::{Events, disable, dump_full_uftrace, dump_trace, enable, init};
#[cfg(all(feature = "import", target_os = "linux"))]
pub use elf::binary::{Binary, LoadedBinary};
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
pub use elf::names::readable_name;
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
pub use elf::patchable::patchable_entries;
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
pub use elf::separate::places_of_debug_link;
#[cfg(feature = "import")]
pub use error::Error;
#[cfg(feature = "std")]
pub use filter::{AskValues, Filter, Function, Selected};
#[cfg(all(feature = "std", target_os = "linux"))]
#[doc(hidden)]
pub use filter::{OutsideChoice, ask_values, outside_functions};
#[cfg(all(feature = "import", target_os = "linux"))]
pub use image::contents::Image;
#[cfg(all(feature = "import", target_os = "linux"))]
pub use image::import::{ImportOptions, Imported};
pub use mode::Mode;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use patch::{Ends, EntryBranches, LeftOut, WholeReason};
#[cfg(feature = "std")]
pub use patch::{PatchedSites, PlainReason};
/// The counter that records have their times of.
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
#[must_use]
pub fn ticks() -> u64 {
    clock::tsc::ticks()
}
/// How fast the time stamp counter of this machine runs, in ticks a second, as far as it tells: exactly, or rounded to MHz.
#[cfg(all(feature = "import", target_os = "linux"))]
pub fn machine_tsc_hz() -> Option<u64> {
    host::linux::sysinfo::tsc_hz().map(|(hz, _)| hz)
}
#[cfg(all(feature = "std", target_os = "linux"))]
pub use host::linux::chosen::Threads;
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
pub use host::linux::sysinfo::processor;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use tracer::StreamOptions;
#[cfg(feature = "std")]
pub use tracer::{Config, Recorder, SaveOptions, Saved, Statistics, Tracer, mark};
