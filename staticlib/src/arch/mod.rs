//! Code for each processor, and features of only some: nothing outside asks for the processor. The hooks themselves, and `values`, are
//! above all else here.
//!
//! An entry of a return stack is named by the *frame* of its function: a word known to hooks and trampolines, and no
//! other frame's as long as this one lives. On x86-64 it is the address of the return address, on the others the CFA. A
//! port brings:
//!
//! | | |
//! |---|---|
//! | `is_frame`, `frames`, `caller_frame`, `frame_of_pointer` | the frames of a function and of its caller, as the hook finds them |
//! | `Slot` | the place of a running function's return address |
//! | `may_be_hooked`, `may_return_to`, `reach` | the words above it on the same stack, as far as they may be read |
//! | `HAS_SLEDS` | true if sleds report some returns |
//! | `trampoline`, `entry_trampoline`, `entry_values_trampoline`, `is_trampoline` | return addresses of hooked functions |
//! | `thread_block`, `set_thread_block`, `set_first_thread_block`, `local_block` | thread-local storage |
//! | `keeping_vectors`, `zero`, `abort` | operations without a form in Rust |
//! | `hooks` | in assembly |
//! | `values` | arguments and results, and their places (`registers`); on Linux on x86-64 and aarch64, elsewhere `no_values.rs` |
//! | `interrupted` and its like | functions called by an interrupt; elsewhere `no_interrupts.rs` |

use core::ptr;

use crate::abi::ThreadBlock;

#[cfg(target_arch = "aarch64")]
mod aarch64_atomics;
#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64_frames;
#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64_machine;
#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64_prologue;
#[macro_use]
mod walk;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/mod.rs")]
mod hooks;
#[cfg(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe"))]
#[path = "x86_64_interrupt_trampoline.rs"]
mod interrupt_trampoline;
#[cfg_attr(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe"), path = "x86_64_interrupts.rs")]
#[cfg_attr(not(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe")), path = "no_interrupts.rs")]
pub(crate) mod interrupts;
pub(crate) mod reach;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_os = "none")))]
#[cfg_attr(target_arch = "x86_64", path = "x86_64_registers.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64_registers.rs")]
mod registers;
#[cfg(target_arch = "riscv64")]
pub(crate) mod riscv64_frames;
#[cfg(target_arch = "riscv64")]
pub(crate) mod riscv64_machine;
#[cfg(target_arch = "riscv64")]
pub(crate) mod riscv64_prologue;
#[cfg_attr(
    not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_os = "none"))),
    path = "no_values.rs"
)]
pub(crate) mod values;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_os = "none")))]
mod watch;
#[cfg(target_arch = "x86_64")]
mod x86_64_frames;
#[cfg(target_arch = "x86_64")]
mod x86_64_machine;
#[cfg(target_arch = "x86_64")]
mod x86_64_shadow_stack;
pub(crate) use interrupts::{
    Interrupted, frame_below, had_interrupts, interrupt_sequence, interrupt_trampoline, interrupted,
    is_interrupt_sequence, is_of_handler, keep_interrupts_off, let_interrupts_in,
};
pub(crate) use reach::{MAX_FRAME_BYTES, Reach};
#[cfg_attr(target_arch = "aarch64", path = "aarch64_tls.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64_tls.rs")]
#[cfg_attr(all(target_arch = "x86_64", not(any(feature = "threadhook", feature = "outside"))), path = "x86_64_tls.rs")]
#[cfg_attr(all(target_arch = "x86_64", feature = "threadhook"), path = "x86_64_threadhook.rs")]
#[cfg_attr(all(target_arch = "x86_64", feature = "outside"), path = "x86_64_outside.rs")]
mod local;
#[cfg(feature = "outside")]
pub(crate) use local::{OUTSIDE, forget_thread, has_ended, own_tid, tid_of_block};
pub(crate) use local::{set_first_thread_block, set_thread_block, thread_block};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64_frames::{
    Slot, caller_frame, frame_of_pointer, is_frame, may_be_hooked, may_return_to, reach, sequence, whole_address,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64_machine::{
    MAX_REALIGN_BYTES, abort, frames, is_trampoline, keeping_vectors, ticks, trampoline, zero,
};
#[cfg(all(target_arch = "x86_64", not(target_os = "none")))]
pub(crate) use x86_64_machine::{entry_trampoline, values_trampoline, values_trampoline as entry_values_trampoline};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64_shadow_stack::has_shadow_stack;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64_frames::{
    Slot, caller_frame, frame_of_pointer, frames, is_frame, may_be_hooked, may_return_to, reach, whole_address,
};
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64_machine::{abort, has_shadow_stack, is_trampoline, keeping_vectors, ticks, trampoline, zero};
#[cfg(all(target_arch = "aarch64", not(target_os = "none")))]
pub(crate) use aarch64_machine::{entry_trampoline, entry_values_trampoline, values_trampoline};
#[cfg(target_arch = "aarch64")]
pub(crate) use local::BLOCK_BIT;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
pub(crate) use local::{SEQUENCE_BITS, sequence};

#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64_frames::{
    Slot, caller_frame, frame_of_pointer, frames, is_frame, may_be_hooked, may_return_to, reach, whole_address,
};
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64_machine::{
    abort, entry_trampoline, entry_trampoline as entry_values_trampoline, has_shadow_stack, is_trampoline,
    keeping_vectors, ticks, trampoline, zero,
};

#[cfg(all(feature = "threadhook", not(target_os = "none")))]
compile_error!("the feature `threadhook` is for kernels: build it for a target without OS, see RFTRACE_TARGET_TRIPLE");

#[cfg(all(feature = "threadhook", target_os = "none", not(target_arch = "x86_64")))]
compile_error!(
    "the feature `threadhook` is for kernels of x86-64: elsewhere tasks have thread-local storage, see docs/kernels.md"
);

#[cfg(all(feature = "outside", not(all(target_arch = "x86_64", target_os = "linux"))))]
compile_error!("the feature `outside` is for x86-64 Linux");

#[cfg(not(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", any(target_os = "linux", target_os = "none")),
    all(target_arch = "riscv64", target_os = "linux", target_feature = "d"),
)))]
compile_error!(
    "rftrace supports x86-64, aarch64 with Linux or without OS, and riscv64 (with floating-point registers) with Linux; others need their \
     module in staticlib/src/arch"
);

/// The block of this thread, all zero at first, on targets with storage for it in each thread: without an OS nobody
/// else could give memory back when a task ends.
#[inline(always)]
pub(crate) fn local_block() -> Option<*mut ThreadBlock> {
    #[cfg(target_os = "none")]
    return Some(local::local_block());
    #[cfg(not(target_os = "none"))]
    None
}

/// True if there are functions without hooked returns, see [`UNHOOKED`](crate::abi::UNHOOKED): addresses must leave its
/// bit free.
pub(crate) const HAS_SLEDS: bool = cfg!(all(target_arch = "x86_64", not(target_os = "none")));

/// Stands for the block of a thread that is not, or no longer, traced. To the hooks no address up to this one is a
/// block.
pub(crate) const UNTRACED: *mut ThreadBlock = ptr::without_provenance_mut(UNTRACED_ADDRESS);
/// As a number, for the hooks.
pub(crate) const UNTRACED_ADDRESS: usize = 1;
