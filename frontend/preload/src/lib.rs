//! The library that `rftrace record` preloads into a program (`LD_PRELOAD`): the tracer, and code that starts and saves a recording.
//!
//! The package `rftrace-tools` links this as a shared library. It is inert where the variable `RFTRACE_RECORD` is not set.
//!
//! - `settings` reads the settings of `rftrace record` from the environment.
//! - `environment` passes them on to programs that this one starts, if they can load this: `program` knows.
//! - `start` runs first, before anything else of the program.
//! - `save` writes the records, each time into a folder of its own.
//! - `work` does so alone, on a stack of its own. `memory` is the source of its memory.
//! - `notes` tells `rftrace record` of failed writes, `quota` knows how much may be written.
//! - `process` knows which process this is: that of the beginning, a child, or a guest in its parent's memory.
//! - `control` serves `rftrace ctl`.
//! - `signals` saves before the program is killed, and hides this from the program.
//! - `types` asks for the types of functions' values.
//! - `arch` has the differences between processors, and features of only some of them.
//! - `measure` is for the recorder alone: the overhead of a recorded call here.
//! - `interpose` takes the place of functions of the C library, which `originals` has; `locks` of the one that locks all memory.
//!
//! Not here: the files of a save (`rftrace-frontend`), and the merge of several processes' parts into one trace (`rftrace-record`).
//!
//! **Invariant**: nothing here uses the program's allocator, and all signals are blocked while this library is at work. So a
//! signal handler finds none of its locks held by its own thread.
//!
//! **Invariant**: this library's work has no effect on how the program goes on: work that cannot be done is left undone, and noted.

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
