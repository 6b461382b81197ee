//! What `rftrace record --resources` puts into a program, by `LD_PRELOAD` or while it runs: functions in place of those that give out memory, descriptors and
//! threads, and of those that take them back. They record who calls them, and call those that they stand for.
//!
//! The package `rftrace-tools` links this as a shared library. It is inert where the variable `RFTRACE_RESOURCES` is not set.
//!
//! - `interpose` has the functions, `originals` what they stand for.
//! - `process` begins to record a program, `state` is what of it.
//! - `attach` begins to record one that ran before, and ends that; `slots` says which slots of it are to lead here.
//! - `specifications` is what users say of other functions, as the recorder has compiled it; `machine` executes that.
//! - `branched` is which of those functions have branches at their beginnings.
//! - `stacks` finds who has called, and gives each stack a number; `modules` is what is known of programs and libraries for that, `room` how much the
//!   unwinder may remember of it at a time.
//! - `chunks` is how events are written, `pool` where to: memory of the recorder. `thread` is what each thread knows, `identity` which
//!   process it is in: that of a fork begins as one of its own.
//! - `memory` is where this library's own memory is from.
//!
//! Not here: what is written (`rftrace_format::resources`), who takes it out of the memory (`rftrace-record`), and what it shows
//! (`rftrace-resources`).
//!
//! **Invariant**: nothing here uses the program's allocator, registers a thread-local destructor, or changes `errno`. No lock is waited
//! for: what another thread, or an interrupted function of this one, is at, is left out.
//!
//! **Invariant**: of the program's memory only stacks are read, as far as they are known to be there; what else a specification names is read
//! by a system call that tells where nothing is.
//!
//! **Invariant**: as soon as the program is confined (`state::is_confined`) nothing here makes a system call but for anonymous memory. What needs another one looks before.

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
