//! aarch64: `_mcount`, the hook of patched entries, the return trampoline with its unwind information. Patched call sites have no hook of
//! their own here.
//!
//! # A call of the hook
//!
//! GCC's `-pg` and LLVM's (rustc `-Z instrument-mcount`) call `_mcount(return address)` behind the prologue like any
//! other function: the compiler has put its values into callee-saved registers. x29 points at the frame record
//! {caller's x29, return address}, x30 is `child_ip`, x0 the return address without its signature, sp is aligned to 16.
//!
//! ```text
//!   higher addresses
//!   | caller's frame             |
//!   +----------------------------+ <- CFA: sp at the function's first instruction, and when T starts
//!   | saved registers, locals of |
//!   | GCC; the distance is known |    see aarch64_prologue.rs
//!   | for each call of the hook  |
//!   | return address, now T      |    parent_loc; maybe signed, with the CFA as modifier
//!   | caller's x29               | <- x29
//!   | locals of LLVM             |
//!   +----------------------------+ <- sp at the call
//! ```
//!
//! # Registers for the hooks
//!
//! The hook: x0 to x17 and all vector registers but d8 to d15, as any function. T: x9 to x17, nobody's at a return; x0
//! to x8 and the vector registers may hold results. `-pg` switches off GCC's inter-procedural register allocation. T
//! needs no stack. x30 is T when a function has returned to it, and stays so as long as T runs: its unwind information
//! finds the tracer's memory by it. T leaves by `ret`: a `br` would need a landing pad (BTI) behind every call.
//!
//! # Patched entries
//!
//! Compilers leave NOPs at the beginning of a function (`-fpatchable-function-entry`), behind its landing pad and in front of all else. The first
//! becomes `b stub`, a stub of the frontend's for this function alone:
//!
//! ```text
//! stub       adr x17, goes_on; ldr x16, hook; br x16
//! goes_on    b behind the NOP
//! +8         child_ip << 16, as in records
//! +16        the distance from tpidr_el0 to the thread's words
//! ```
//!
//! Nothing of the function has run: sp is the CFA, x30 its return address, not signed yet; no frame has to be known,
//! and none is changed. The hook puts T into x30; the function saves and signs it itself. x0 to x8, x18 and the vector
//! registers are the function's own; x9 to x17 are nobody's, since GCC's inter-procedural register allocation is off as
//! for `-pg`.
//!
//! The hook was jumped to, so the return predictor has one entry for the function, its caller's. It leaves over a `bl`
//! in front of T. The `bl` puts T into x30 and above the caller's entry: both the function's return and T's are
//! predicted.
//!
//! # Entry branches
//!
//! Functions compiled without any of this get a branch in place of their first instruction, to a stub as above, with
//! the words in front of `goes_on`. Their callers may rely on any register, so they have a hook and a trampoline of
//! their own, `rftrace_keeping_entry` and T5.
//!
//! # Order, for signals between any two instructions
//!
//! A record is reserved by an exclusive pair on the cursor, then written: any event in between clears the monitor, so
//! the store fails and the next record is taken. A return-stack entry is reserved by moving `sp`, then written, its
//! `frame` last but one, the slot itself last. A pop reads the entry, clears `frame`, then moves `sp`. Other threads
//! see the time of a record and `frame` after all earlier writes, by `stlr`.

#[macro_use]
mod pieces;
#[cfg(not(target_os = "none"))]
#[macro_use]
mod patched;
#[cfg(not(target_os = "none"))]
#[macro_use]
mod keeping;
mod entry;
mod exit;

use core::mem::{offset_of, size_of};

use crate::abi::{Record, ReturnEntry, ThreadBlock, enabled};

/// The bit for the recording of every call.
const ON_BIT: u32 = enabled::ON.trailing_zeros();

// Assumptions of the assembly: only this state has the bit; pairs of words; the targets of pre- and post-indexing.
const _: () = assert!(enabled::ON.is_power_of_two() && (enabled::OFF | enabled::FILTERED) & enabled::ON == 0);
const _: () = assert!(offset_of!(Record, tsc) == 0);
const _: () = assert!(offset_of!(ReturnEntry, parent_ip) == 0);
const _: () = assert!(offset_of!(ReturnEntry, sequence) == offset_of!(ReturnEntry, exit_word) + size_of::<u64>());
const _: () = assert!(offset_of!(ThreadBlock, limit) == offset_of!(ThreadBlock, sp) + size_of::<usize>());
