//! The tracer's Rust code without its assembly: the files of `staticlib/src` and `src/abi` themselves, compiled into a
//! crate in which everything around them can be steered.
//!
//! - [`arch`] replaces the assembly. Its hooks are the fast paths of `arch/x86_64/` line by line in Rust; the clock
//!   counts; a thread is whatever [`steer::set_identity`] says.
//! - [`sync`] replaces `core::sync`. The root of this crate is named `core` as well, so the tracer's own
//!   `use core::sync::atomic::…` find it. Its atomics have the layout and the operations of the real ones, and call
//!   [`steer::point`] before each: there a test lets another thread go on, or a signal handler strike.
//! - [`lab`] hands memory to the tracer, empties it again, and reads the records back; `reader` is the frontend's own
//!   decoder, for the same reason. The code that empties and copies chunks is the recorder's own.
//! - [`slot`] is what a recorder and a process ask of each other.
//!
//! The control block is one static variable, as in the tracer: one [`lab::Lab`] lives at a time.

// The unit tests of these files belong to the packages they are from.
#![cfg(not(test))]

// The tracer's files say `core::…`, the frontend's `rftrace::…`: both find this crate.
extern crate self as core;
extern crate self as rftrace;

// The parts of `core` that they use, unchanged.
pub use std::{ffi, hint, iter, mem, ptr, slice};

#[path = "../../../src/abi/mod.rs"]
pub mod abi;
pub mod arch;
pub mod lab;
pub mod slot;
pub mod steer;
pub mod sync;

#[path = "../../../staticlib/src/buffer.rs"]
mod buffer;
#[path = "../../../staticlib/src/busy.rs"]
mod busy;
#[path = "../../../staticlib/src/chunk.rs"]
mod chunk;
#[path = "../../../staticlib/src/control.rs"]
mod control;
#[path = "../../../staticlib/src/control_block.rs"]
mod control_block;
#[path = "../../../staticlib/src/entry.rs"]
mod entry;
#[path = "../../../staticlib/src/exit.rs"]
mod exit;
#[path = "../../../staticlib/src/filter.rs"]
mod filter;
#[path = "../../../staticlib/src/left.rs"]
mod left;
#[path = "../../../staticlib/src/moves.rs"]
mod moves;
#[path = "../../../staticlib/src/observe.rs"]
mod observe;
#[path = "../../../staticlib/src/return_stack.rs"]
mod return_stack;
#[path = "../../../staticlib/src/thread.rs"]
mod thread;
#[path = "../../../staticlib/src/thread_end.rs"]
mod thread_end;
#[path = "../../../staticlib/src/waiting.rs"]
mod waiting;

#[path = "../../../frontend/src/backend.rs"]
#[allow(dead_code, reason = "a part of the frontend")]
mod backend;
#[path = "../../../frontend/src/decode/mod.rs"]
#[allow(dead_code, reason = "a part of the frontend")]
mod decode;
#[path = "../../../frontend/src/bank/handover.rs"]
#[allow(dead_code, reason = "a part of the frontend")]
mod handover;
#[path = "../../../frontend/src/ring.rs"]
#[allow(dead_code, reason = "a part of the frontend")]
mod ring;
