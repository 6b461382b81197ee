//! What depends on the processor: the hooks, the trampoline, thread-local storage and the clock.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe"))]
mod x86_64_interrupts;
#[cfg(all(target_arch = "x86_64", target_os = "none"))]
pub(crate) use x86_64::local_block;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{
    abort, is_trampoline, keeping_vectors, set_first_thread_block, set_thread_block, slots, thread_block, ticks,
    trampoline, zero,
};
#[cfg(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe"))]
pub(crate) use x86_64_interrupts::{Interrupted, interrupt_trampoline, interrupted, slot_below};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("rftrace supports x86-64; another architecture needs its module in staticlib/src/arch");
