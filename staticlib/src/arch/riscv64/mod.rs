//! riscv64: `_mcount`, the return trampoline with its unwind information. There are no patched call sites.
//!
//! # A call of the hook
//!
//! GCC's `-pg` and LLVM's (rustc `-Z instrument-mcount`) call `_mcount(return address)` behind the prologue like any
//! other function: the compiler has put its values into callee-saved registers. ra is `child_ip`, a0 the return
//! address, sp is aligned to 16. s0 is the frame pointer in rustc's code and with `-fno-omit-frame-pointer`; in other
//! code it is anything.
//!
//! ```text
//!   higher addresses
//!   | caller's frame             |
//!   +----------------------------+ <- CFA: sp at the function's first instruction, and when T starts
//!   | registers with arguments   |    where any number is taken; else s0 is the CFA
//!   +----------------------------+ <- s0
//!   | return address, now T      |    the slot
//!   | caller's s0                |
//!   | saved registers, locals    |    see riscv64_prologue.rs
//!   +----------------------------+ <- sp at the call
//! ```
//!
//! # Registers for the hooks
//!
//! The hook: a0 to a7, t0 to t6 and all floating-point registers but fs0 to fs11, as any function. T: t0 to t6,
//! nobody's at a return; a0 to a7 and fa0 to fa7 may hold results. `-pg` switches off GCC's inter-procedural register
//! allocation. T needs no stack. ra is T when a function has returned to it, and stays so until T leaves: its unwind
//! information finds the tracer's memory by it. T leaves by a jump that predictors take for neither a return nor a
//! call: the function's own return has taken its entry.
//!
//! # Order, for signals between any two instructions
//!
//! A record is reserved by `lr` and `sc` on the cursor, then written: any event in between takes the reservation away,
//! so the store fails and the next record is taken. A return-stack entry is reserved by moving `sp`, then written, its
//! `frame` last but one, the slot itself last. A pop reads the entry, clears `frame`, then moves `sp`. Other threads
//! see the time of a record and `frame` after all earlier writes, by a `fence`.
//!
//! Linkers shorten code, and would move parts with a fixed place: not here (`.option norelax`).

#[macro_use]
mod pieces;
mod entry;
mod exit;
