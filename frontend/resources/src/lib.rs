//! The library of `rftrace record --resources` in a program, by `LD_PRELOAD` or while it runs: functions in place of those that give out
//! memory, descriptors and threads, and of those that take them back. They record their callers, and call the originals.
//!
//! The package `rftrace-tools` links this as a shared library. It is inert where the variable `RFTRACE_RESOURCES` is not set.
//!
//! - `interpose` has the functions, `originals` their originals.
//! - `process` begins to record a program, `state` is which resources of it.
//! - `attach` begins to record a running program, and ends that; `slots` lists its slots that are to lead here.
//! - `specifications` are the users' descriptions of other functions, as the recorder has compiled them; `machine` executes them.
//! - `branched` is which of those functions have branches at their beginnings.
//! - `stacks` finds the callers, and gives each stack a number; `modules` is the knowledge of programs and libraries for that, `room` the
//!   limit of the unwinder's memory at a time.
//! - `chunks` writes events, `pool` is their place: memory of the recorder. `thread` is the state of each thread, `identity` which
//!   process it is in: that of a fork begins as one of its own.
//! - `memory` is the source of this library's own memory.
//!
//! Not here: the format (`rftrace_format::resources`), the reader of the memory (`rftrace-record`), and the views (`rftrace-resources`).
//!
//! **Invariant**: nothing here uses the program's allocator, registers a thread-local destructor, or changes `errno`. No lock is waited
//! for: work that another thread, or an interrupted function of this one, is at, is left out.
//!
//! **Invariant**: of the program's memory only stacks are read, as far as they are known to be there; other memory that a specification names
//! is read by a system call that fails where nothing is.
//!
//! **Invariant**: as soon as the program is confined (`state::is_confined`) nothing here makes a system call but for anonymous memory.
//! Code that needs another one checks that before.

#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]

mod attach;
mod branched;
mod chunks;
mod identity;
mod interpose;
mod layers;
mod machine;
mod memory;
mod modules;
mod originals;
mod pool;
mod process;
mod room;
mod slots;
mod specifications;
mod stacks;
mod state;
mod stubs;
mod thread;

#[global_allocator]
static ALLOCATOR: memory::Memory = memory::Memory;
