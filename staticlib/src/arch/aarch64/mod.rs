//! aarch64: `_mcount`, the return trampoline with its unwind information. Patched call sites have no hook here.
//!
//! # What a call of the hook looks like
//!
//! GCC's `-pg` and LLVM's (rustc `-Z instrument-mcount`) call `_mcount(return address)` behind the prologue like any other
//! function: what the compiler needs it has put into callee-saved registers. x29 points at the frame record {caller's x29,
//! return address}, x30 is `child_ip`, x0 the return address without its signature, sp is aligned to 16.
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
//! # What the hooks may touch
//!
//! The hook: x0 to x17 and all vector registers but d8 to d15, as any function. T: x9 to x17, which are nobody's at a return;
//! x0 to x8 and the vector registers may hold results. `-pg` switches off GCC's inter-procedural register allocation. T needs
//! no stack. x30 is T when a function has returned to it, and stays so until T leaves: its unwind information finds the
//! tracer's memory by it. T leaves by `ret x17`: a `br` would need a landing pad (BTI) behind every call.
//!
//! # Order, for signals between any two instructions
//!
//! A record is reserved by an exclusive pair on the cursor, then written: whatever comes in between clears the monitor, so the
//! store fails and the next record is taken. A return-stack entry is reserved by moving `sp`, then written, its `frame`
//! last but one, the slot itself last. A pop reads the entry, clears `frame`, then moves `sp`. Other threads see the time
//! of a record and `frame` after what was written before, by `stlr`.

#[macro_use]
mod pieces;
mod entry;
mod exit;
