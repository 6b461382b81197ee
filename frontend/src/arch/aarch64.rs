//! aarch64: the presence of the atomic instructions of Armv8.1 (LSE).

unsafe extern "C" {
    safe fn rftrace_backend_use_lse();
}

/// Informs the tracer about the processor. Inlined: a program that only imports images links without the tracer.
#[inline(always)]
pub(crate) fn tell_tracer() {
    if has_lse() {
        rftrace_backend_use_lse();
    }
}

/// The system knows it of all processors.
#[cfg(all(target_os = "linux", feature = "import"))]
fn has_lse() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::getauxval(libc::AT_HWCAP) & libc::HWCAP_ATOMICS != 0 }
}

/// A part for kernels, tried in a program: nobody to ask, and the register may not be read.
#[cfg(all(target_os = "linux", not(feature = "import")))]
fn has_lse() -> bool {
    false
}

/// Without a system below, the code runs at EL1 or above and can read the register. The value of this core stands for
/// all cores.
#[cfg(not(target_os = "linux"))]
fn has_lse() -> bool {
    /// The lowest bit of the field `Atomic`, of four bits (Arm ARM, ID_AA64ISAR0_EL1).
    const ATOMIC_SHIFT: u64 = 20;
    /// From this value on the instructions are there.
    const ATOMIC_LSE: u64 = 0b0010;

    let features: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {features}, id_aa64isar0_el1", features = out(reg) features, options(nostack, nomem, preserves_flags));
    }
    features >> ATOMIC_SHIFT & 0xf >= ATOMIC_LSE
}
