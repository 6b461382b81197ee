//! What `rftrace record` puts into a program by `LD_PRELOAD`: the tracer, and what starts and saves a recording.
//!
//! The package `rftrace-tools` links this as a shared library. It is inert where the variable `RFTRACE_RECORD` is not set.
//!
//! - [`settings`] reads what `rftrace record` wants, from the environment.
//! - [`start`] is what runs first, before anything else of the program.
//! - [`save`] writes what was recorded, each time into a folder of its own.
//! - [`process`] knows which process this is: that of the beginning, a child, or a guest in its parent's memory.
//! - [`signals`] saves before the program is killed, and hides this from the program.
//! - [`trigger`] begins to record at a function.
//! - [`interpose`] takes the place of functions of the C library after which there is no program any more.
//!
//! **Invariant**: nothing here uses the program's allocator, and all signals are blocked while this library is at work. So a
//! signal handler finds none of its locks held by its own thread.

#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]

extern crate rftrace as _; // the tracer itself

mod interpose;
mod process;
mod save;
mod settings;
mod signals;
mod start;
mod trigger;

/// Its own, so that the program's may be locked, broken or recorded.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
