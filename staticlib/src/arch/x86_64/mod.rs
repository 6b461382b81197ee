//! x86-64: `mcount`, `__fentry__`, the return trampoline with its unwind information.
//!
//! # How a return is caught
//!
//! A hook runs in the prologue of a traced function. It moves the return address (`parent_ip`) from its stack slot
//! (`parent_loc`) to the return stack and puts the address of the trampoline T into the slot. When the function
//! returns, T runs in its stead, records the exit and goes on to `parent_ip`:
//!
//! ```text
//!   higher addresses
//!   | caller's frame           |
//!   +--------------------------+ <- CFA of the traced function = rsp when T starts
//!   | parent_ip, now T         |    parent_loc
//!   +--------------------------+
//!   | saved rbp                | <- rbp while the hook of mcount runs
//!   | locals, saved registers  |
//!   +--------------------------+
//!   | child_ip                 | <- rsp when a hook starts: pushed by `call mcount`
//! ```
//!
//! T leaves with `jmp r11`: the return predictor has already popped an entry for the function's own `ret`, a second
//! `ret` would take one of an outer frame.
//!
//! # Registers for the hooks
//!
//! On entry all argument registers live (rdi, rsi, rdx, rcx, r8, r9, xmm0-7, the count of vector registers in al, the
//! static chain in r10); on return rax, rdx, xmm0-1 and st0-1 hold results (System V ABI for AMD64, 3.2.3). The hooks
//! keep everything except r11 and the flags: no calling convention passes these on. The feature `interruptsafe` keeps
//! r11 too. `-pg` switches off GCC's inter-procedural register allocation, so no caller relies on r11. `rftrace_entry`
//! and T3 keep it: they are for code compiled without `-pg`.
//!
//! # Order, for signals between any two instructions
//!
//! A record is reserved by a `cmpxchg` of the cursor (no `lock`: only this thread writes it), then written. A
//! return-stack entry is reserved by moving `sp`, then written, its `parent_loc` last but one, the slot itself last. A
//! pop reads the entry, clears `parent_loc`, then moves `sp`.

#[macro_use]
mod pieces;
mod entry;
mod exit;
mod saved;
#[cfg(not(target_os = "none"))]
mod sled;

/// Bytes pushed by the trampoline before it looks at its stack slot: rcx, rax, rdx, and with `interruptsafe` room for
/// the return address and r11.
const EXIT_SAVED: usize = if cfg!(feature = "interruptsafe") { 40 } else { 24 };
/// The same for T2: it always leaves by `ret`.
const PAIRED_EXIT_SAVED: usize = if cfg!(feature = "interruptsafe") { 40 } else { 32 };
/// Bytes pushed by a hook before it looks at its caller: rax, rcx, rdx, and with `interruptsafe` r11.
const ENTRY_SAVED: usize = if cfg!(feature = "interruptsafe") { KEPT_ENTRY_SAVED } else { 24 };
/// The same for the hook of entry branches: it always keeps r11.
const KEPT_ENTRY_SAVED: usize = 32;
/// And for T3, its trampoline.
#[cfg(not(target_os = "none"))]
const KEPT_EXIT_SAVED: usize = 40;
/// The size and alignment of the block with the trampolines.
const TRAMPOLINE_BYTES: usize = crate::abi::TRAMPOLINES_BYTES;
// Their unwind information has it too.
const _: () = assert!(TRAMPOLINE_BYTES == 2048);
