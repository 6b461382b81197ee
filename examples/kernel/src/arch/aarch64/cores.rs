//! Cores: which one runs this, starting and stopping the second one.

use core::arch::asm;
use core::ptr;

use super::clock::Rates;
use super::gic;
use crate::smp::Core;

/// Remedy for a kernel that is run with one core.
pub const SECOND_CORE_REMEDY: &str = "run qemu-system-aarch64 with -smp 2, or use cores=1";

/// Makes the core that runs this one.
pub fn set_this(core: &'static Core) {
    // SAFETY: nothing but `this` uses the register.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) ptr::from_ref(core), options(nostack, preserves_flags)) };
}

/// The core that runs this, as [`set_this`] was told.
#[inline(always)]
pub fn this() -> &'static Core {
    let core: *const Core;
    // SAFETY: the register holds the address of a static.
    unsafe {
        asm!("mrs {}, tpidr_el1", out(reg) core, options(nostack, preserves_flags, readonly));
        &*core
    }
}

/// Waits a moment for what another core does. Rust's `spin_loop` is an `isb`, at which QEMU does not let another core take its turn.
#[inline(always)]
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nostack, nomem, preserves_flags)) };
}

unsafe extern "C" {
    static core_start: u8;
}

/// Starts another core, which goes to `second_core_main` in main.rs on the stack that ends at `stack_end`.
///
/// # Panics
///
/// When there is no such core.
pub fn start(number: usize, stack_end: u64, _rates: Rates) {
    /// CPU_ON of the Power State Coordination Interface (Arm DEN 0022), which QEMU answers.
    const CPU_ON: u64 = 0xc400_0003;

    let result: i64;
    // SAFETY: the other core begins in boot.s. The registers that the calling convention lets the call change are declared.
    unsafe {
        asm!(
            "hvc #0",
            inlateout("x0") CPU_ON => result,
            in("x1") number,
            in("x2") &raw const core_start,
            in("x3") stack_end,
            clobber_abi("C"),
            options(nostack),
        );
    }
    assert!(result == 0, "the second core does not start (PSCI error {result}): {SECOND_CORE_REMEDY}");
}

/// Stops another core for ever, as soon as it lets interrupts in.
pub fn stop(number: usize) {
    gic::send_stop(number);
}
