//! The frontend of the function tracer [rftrace](https://docs.rs/rftrace), for programs that trace themselves.
//!
//! **`rftrace replay trace` shows the trace**, every call in time order. This crate writes it: it gives the tracer a
//! buffer, starts and stops recording, and saves a directory.
//!
//! Further commands: `rftrace report` shows the time of each function, `rftrace graph` the call tree, `rftrace tui` all
//! of these in the terminal. `cargo install --path tools` in a checkout installs `rftrace`. The directory has
//! [uftrace](https://github.com/namhyung/uftrace)'s format, so the commands of uftrace read it too.
//!
//! # Example
//!
//! ```toml
//! [dependencies]
//! rftrace = { git = "https://github.com/hermit-os/rftrace" }
//! rftrace-frontend = { git = "https://github.com/hermit-os/rftrace" }
//! ```
//!
//! ```no_run
//! extern crate rftrace as _; // links the tracer
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
//!
//! #[inline(never)]
//! fn work() {
//!     println!("at work");
//! }
//! ```
//!
//! Build with `RUSTFLAGS="-Z instrument-mcount" cargo +nightly run --target x86_64-unknown-linux-gnu`, then look at the trace with
//! `rftrace replay trace`. A program that ends without a save is saved at its exit, see [`Config::save_at_exit`].
//!
//! # Functions of version 0.3
//!
//! [`init`], [`enable`], [`disable`], [`dump_full_uftrace`] and [`dump_trace`] keep the signatures of rftrace-frontend
//! 0.3.
//!
//! ```no_run
//! extern crate rftrace as _;
//! # fn work() {}
//!
//! fn main() -> std::io::Result<()> {
//!     let events = rftrace_frontend::init(1_000_000, false);
//!     rftrace_frontend::enable();
//!     work();
//!     rftrace_frontend::disable();
//!     rftrace_frontend::dump_full_uftrace(events, "trace", "program")
//! }
//! ```
//!
//! # Choosing functions
//!
//! A [`Filter`] chooses the recorded functions and calls: by name, module, caller, depth, duration or code size. Set it
//! before recording ([`Config::filter`]), at any time ([`Tracer::set_filter`]), or from outside with the environment
//! variable `RFTRACE_FILTER`.
//!
//! # How it works
//!
//! The tracer stores raw time stamps and addresses in chunks; one thread writes to each. A save waits until no thread
//! is taking a chunk. Then it reads the chunks of each thread in order, adds missing exits, and writes one file per
//! thread, in parallel and without a copy of the buffer.
//!
//! Two pairs of (counter, clock), one taken by [`Config::install`] and one by the save, convert time stamps to
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! # Patched call sites
//!
//! With [`Config::patched`], or the environment variable `RFTRACE_PATCHED=1`, the frontend rewrites the calls of the
//! hooks in the program and its libraries: NOPs while recording is off, jumps while it is on (calls, as compiled, on
//! aarch64). Threads may run meanwhile. Linux only.
//!
//! [`Tracer::patched_sites`] counts the patched sites, and the others by reason; their calls are recorded too.
//! Libraries opened later are patched when recording next starts, or on [`Tracer::patch`].
//!
//! [`Config::patchable_entries`], or `RFTRACE_PATCHABLE=1`, records functions compiled with room for a branch.
//!
//! # Kernels
//!
//! The module [`kernel`] is for code without an operating system. `default-features = false` reduces this crate to that
//! module, without `std` and without `alloc`.
//!
//! # Features
//!
//! - `std` (default): everything except the module [`kernel`], which needs no feature.
//! - `control`: on Linux, `rftrace ctl` controls a running program with this crate, see `Config::control`.
//! - `import` (part of `std`): on Linux, `Image` reads a recording from a kernel or from `dump_trace`, and writes it as
//!   a directory; `Binary` names the functions of a trace from another machine. By itself this feature does not link
//!   the tracer.
//!
//! # Limits
//!
//! - One buffer at a time. Record and save as often as you like.
//! - 1023 nested calls per thread are recorded. Deeper calls are counted; the trace shows them as `rftrace:lost_…`.
//! - 8192 threads at the same time. Further threads run untraced and are counted.

#![cfg_attr(not(feature = "import"), no_std)]
#![cfg_attr(not(feature = "std"), allow(rustdoc::broken_intra_doc_links, reason = "the text tells of what `std` has"))]
#![warn(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

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
#[cfg(all(feature = "import", target_os = "linux"))]
mod import;
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
#[doc(hidden)]
pub use compat::save_and_tell;
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
pub use error::{Error, NoEventsCause};
#[cfg(feature = "std")]
pub use filter::{AskValues, Filter, Function, Selected};
#[cfg(all(feature = "std", target_os = "linux"))]
#[doc(hidden)]
pub use filter::{OutsideChoice, ask_values, outside_functions};
#[cfg(all(feature = "import", target_os = "linux"))]
pub use image::contents::Image;
#[cfg(all(feature = "import", target_os = "linux"))]
pub use import::{ImportOptions, Imported};
pub use mode::Mode;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use patch::{Ends, EntryBranches, LeftOut, WholeReason};
#[cfg(feature = "std")]
pub use patch::{PatchedSites, PlainReason};
/// Returns the present value of the counter that time stamps of records come from, in ticks.
#[cfg(all(feature = "import", target_os = "linux"))]
#[doc(hidden)]
#[must_use]
pub fn ticks() -> u64 {
    clock::tsc::ticks()
}
/// Returns the frequency of this machine's time stamp counter in Hz, exact or rounded to MHz. `None` if the machine
/// does not report it.
#[cfg(all(feature = "import", target_os = "linux"))]
pub fn machine_tsc_hz() -> Option<u64> {
    clock::tsc_hz().map(|(hz, _)| hz)
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
