//! The common clock of all cores of a riscv64 processor, in place of the time stamp counter.

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

/// Returns none: no register has the frequency, so it is measured by the system's clock. (Linux may have it in a device
/// tree; qemu-user counts ticks of another clock.)
pub(crate) fn exact_hz() -> Option<(u64, TscSource)> {
    None
}

/// Returns none, like [`exact_hz`].
pub(crate) fn nominal_hz() -> Option<(u64, TscSource)> {
    None
}

/// Returns none: the processor has no name readable by programs.
#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) fn processor_name() -> Option<String> {
    None
}
