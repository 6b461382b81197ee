//! The virtual counter of an aarch64 processor, in place of the time stamp counter.

use core::arch::asm;

use super::TscSource;

/// The counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register that programs may read; the tracer stamps its records with it.
    unsafe { asm!("mrs {ticks}, cntvct_el0", ticks = out(reg) ticks, options(nostack, nomem, preserves_flags)) };
    ticks
}

/// Returns true: the counter runs at one rate in every power state (Arm ARM, the Generic Timer).
pub(crate) fn is_invariant() -> bool {
    true
}

/// The frequency in Hz, set by the firmware.
pub(crate) fn exact_hz() -> Option<(u64, TscSource)> {
    let hz: u64;
    // SAFETY: reads a register that programs may read.
    unsafe { asm!("mrs {hz}, cntfrq_el0", hz = out(reg) hz, options(nostack, nomem, preserves_flags)) };
    Some((hz, TscSource::Register)).filter(|&(hz, _)| hz > 0)
}

/// There is no other one.
pub(crate) fn nominal_hz() -> Option<(u64, TscSource)> {
    None
}

/// Returns none: the processor has no name readable by programs.
#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) fn processor_name() -> Option<String> {
    None
}
