//! The clock that all cores of a riscv64 processor share, in place of the time stamp counter.

use core::arch::asm;

use super::TscSource;

/// The clock.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register that Linux lets programs read; the tracer stamps its records with it.
    unsafe { asm!("rdtime {ticks}", ticks = out(reg) ticks, options(nostack, nomem, preserves_flags)) };
    ticks
}

/// Returns true: the clock runs at one rate in every power state (RISC-V unprivileged specification, the extension Zicntr).
pub(crate) fn is_invariant() -> bool {
    true
}

/// No register has its frequency: it is measured by the system's clock. (Linux may tell it in a device tree; what qemu-user counts are ticks of
/// another clock.)
pub(crate) fn exact_hz() -> Option<(u64, TscSource)> {
    None
}

/// As above.
pub(crate) fn nominal_hz() -> Option<(u64, TscSource)> {
    None
}

/// The processor's name for itself: it has none that a program may read.
#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) fn processor_name() -> Option<String> {
    None
}
