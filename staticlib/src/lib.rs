//! The tracer: `mcount`, the return trampoline and their helpers, without OS, allocation or dependency.
//!
//! The way of an event: the assembly in [`hooks`] stores it into the thread's chunk and pushes or pops the return
//! stack. Rare cases go through one save-everything routine to Rust: a thread's first call ([`thread`]), a used-up
//! chunk ([`buffer`]), frames ended without a return ([`entry`], [`exit`]).
//!
//! Modules import downwards: `outside`; `thread_end`; `control`; [`hooks`], the assembly; [`entry`], [`exit`]; [`observe`]; [`moves`];
//! `busy`, `left`; [`return_stack`]; [`thread`]; [`buffer`]; `chunk`, `filter`, `values`, `watch`; [`arch`]; `control_block`; `abi`.
//!
//! **Invariant**: nothing here panics, allocates, divides by a variable without a check, or calls into another
//! crate's compiled code; the object file has no undefined symbol but the weak `_Unwind_*`.
//!
//! **Invariant**: between any two instructions a signal handler or interrupt may come, be traced itself, and run to its
//! end on the same thread. So places are reserved with one read-modify-write instruction before they are written, and
//! read before they are released.

#![no_std]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn
)]

#[path = "../../src/abi/mod.rs"]
#[allow(unreachable_pub, dead_code, unused_imports, reason = "the files serve the frontends too")]
mod abi;
mod arch;
mod buffer;
mod busy;
mod chunk;
mod control;
mod control_block;
mod entry;
mod exit;
mod filter;
mod left;
mod moves;
mod observe;
#[cfg(feature = "outside")]
mod outside;
mod return_stack;
mod thread;
mod thread_end;
mod waiting;
