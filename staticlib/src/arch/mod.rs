//! What depends on the processor: the hooks, the trampoline, thread-local storage and the clock.

#[cfg_attr(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe"), path = "x86_64_interrupts.rs")]
#[cfg_attr(not(all(target_arch = "x86_64", target_os = "none", feature = "interruptsafe")), path = "no_interrupts.rs")]
mod interrupts;
#[cfg(target_arch = "x86_64")]
mod x86_64;
pub(crate) use interrupts::{
    Interrupted, interrupt_trampoline, interrupted, is_interrupt_trampoline, keep_interrupts_off, let_interrupts_in,
    slot_below,
};
#[cfg_attr(all(target_arch = "x86_64", not(feature = "threadhook")), path = "x86_64_tls.rs")]
#[cfg_attr(all(target_arch = "x86_64", feature = "threadhook"), path = "x86_64_threadhook.rs")]
mod local;
#[cfg(target_os = "none")]
pub(crate) use local::local_block;
pub(crate) use local::{set_first_thread_block, set_thread_block, thread_block};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{abort, is_trampoline, keeping_vectors, slots, ticks, trampoline, zero};

#[cfg(all(feature = "threadhook", not(target_os = "none")))]
compile_error!("the feature `threadhook` is for kernels: build it for a target without OS, see RFTRACE_TARGET_TRIPLE");

#[cfg(not(target_arch = "x86_64"))]
compile_error!("rftrace supports x86-64; another architecture needs its module in staticlib/src/arch");
