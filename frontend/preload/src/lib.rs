//! What `rftrace record` puts into a program by `LD_PRELOAD`: the tracer, and what starts and saves a recording.
//!
//! The package `rftrace-tools` links this as a shared library. It is inert where the variable `RFTRACE_RECORD` is not set.
//!
//! - `settings` reads what `rftrace record` wants, from the environment.
//! - `environment` has programs that this one starts be told the same, if they can load this: `program` knows.
//! - `start` is what runs first, before anything else of the program.
//! - `save` writes what was recorded, each time into a folder of its own.
//! - `work` is how it does so: alone, on a stack of its own. `memory` is where its memory is from.
//! - `notes` tells `rftrace record` what cannot be written, `quota` knows how much may be.
//! - `process` knows which process this is: that of the beginning, a child, or a guest in its parent's memory.
//! - `control` does what `rftrace ctl` asks.
//! - `signals` saves before the program is killed, and hides this from the program.
//! - `types` asks what is known of functions' values.
//! - `arch` is what differs between processors, and what only some of them have.
//! - `measure` is for the recorder alone: what a recorded call costs here.
//! - `interpose` takes the place of functions of the C library, which `originals` has; `locks` of the one that locks all memory.
//!
//! Not here: what a save writes (`rftrace-frontend`), and how parts of several processes become one trace (`rftrace-record`).
//!
//! **Invariant**: nothing here uses the program's allocator, and all signals are blocked while this library is at work. So a
//! signal handler finds none of its locks held by its own thread.
//!
//! **Invariant**: what is at work has no effect on how the program goes on: what cannot be done is left undone, and noted.

#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

extern crate rftrace as _; // the tracer itself

mod arch;
mod control;
mod environment;
mod interpose;
mod locks;
mod measure;
mod memory;
mod notes;
mod originals;
mod process;
mod program;
mod quota;
mod save;
mod signals;
mod start;
mod types;
mod work;

pub use measure::measure;

#[global_allocator]
static ALLOCATOR: memory::Memory = memory::Memory;
