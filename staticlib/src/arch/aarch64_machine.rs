//! aarch64: operations without a form in Rust.

use core::arch::asm;
#[cfg(not(target_os = "none"))]
use core::sync::atomic::AtomicBool;
#[cfg(not(target_os = "none"))]
use core::sync::atomic::Ordering::Relaxed;

/// The block with the trampolines, its size and alignment, as its unwind information has it.
pub(crate) const TRAMPOLINE_BYTES: usize = 2048;

/// The address of a place in the assembly.
macro_rules! address_of {
    ($label:literal) => {{
        let address;
        // SAFETY: computes an address.
        unsafe {
            asm!(
                concat!("adrp {address}, ", $label),
                concat!("add {address}, {address}, :lo12:", $label),
                address = out(reg) address,
                options(nostack, nomem, preserves_flags),
            );
        }
        address
    }};
}

/// The virtual counter. Programs may read it; its frequency is in CNTFRQ_EL0.
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {ticks}, cntvct_el0", ticks = out(reg) ticks, options(nostack, nomem, preserves_flags)) };
    ticks
}

/// The address of the return trampoline T.
pub(crate) fn trampoline() -> usize {
    address_of!(".Lrftrace_trampoline")
}

/// The address of T5, the return address of functions with entry branches.
#[cfg(not(target_os = "none"))]
pub(crate) fn entry_trampoline() -> usize {
    address_of!(".Lrftrace_keeping_trampoline")
}

/// The address of T4, the return address of functions with a recorded result.
#[cfg(not(target_os = "none"))]
pub(crate) fn values_trampoline() -> usize {
    address_of!(".Lrftrace_values_trampoline")
}

/// The address of T6: T4 for functions with entry branches.
#[cfg(not(target_os = "none"))]
pub(crate) fn entry_values_trampoline() -> usize {
    address_of!(".Lrftrace_keeping_values_trampoline")
}

/// True if an address is a trampoline's: an old word on a stack may also be a return address of their slow paths.
pub(crate) fn is_trampoline(address: usize) -> bool {
    #[cfg(not(target_os = "none"))]
    if address == values_trampoline() || address == entry_trampoline() || address == entry_values_trampoline() {
        return true;
    }
    address == trampoline()
}

/// True if the processor has scalable vectors (SVE). The hooks of entry branches keep them as a whole.
#[cfg(not(target_os = "none"))]
pub(crate) static HAS_SCALABLE: AtomicBool = AtomicBool::new(false);

/// Notes that the processor has scalable vectors, before there are entry branches.
#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_keep_scalable() {
    HAS_SCALABLE.store(true, Relaxed);
}

/// A trampoline as a function expects it in its frame. The function signs its return address with key A (1), key B (3)
/// or not at all (0). The modifier is the CFA.
pub(crate) fn signed(trampoline: usize, cfa: usize, key: u64) -> usize {
    let mut address = trampoline;
    // The instructions are hints: processors without signatures do nothing.
    // SAFETY: changes a register.
    unsafe {
        match key {
            0 => {}
            1 => asm!("hint #8", inout("x17") address, in("x16") cfa, options(nostack, nomem, preserves_flags)), // pacia1716
            _ => asm!("hint #10", inout("x17") address, in("x16") cfa, options(nostack, nomem, preserves_flags)), // pacib1716
        }
    }
    address
}

/// Fills memory with zeros, without the compiler's call of `memset`.
///
/// # Safety
///
/// The `bytes` bytes from `start` on, a multiple of 16, are writable and nobody else uses them.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "cbz {bytes}, 3f",
            "2:",
            "stp xzr, xzr, [{place}], #16",
            "subs {bytes}, {bytes}, #16",
            "b.hi 2b",
            "3:",
            place = inout(reg) start => _,
            bytes = inout(reg) bytes => _,
            options(nostack),
        );
    }
}

/// Runs `work`, perhaps foreign code. The hook was called as a function without arguments or vector registers to keep.
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    work();
}

/// True if the calling thread has a guarded control stack (Armv9.4): it faults at a changed return address. The
/// instruction does nothing without one, also on older processors (Arm ARM, CHKFEAT).
pub(crate) fn has_shadow_stack() -> bool {
    const GCS: usize = 1 << 0;
    let mut features = GCS;
    // SAFETY: reads the state of the processor; clears the bits of active features.
    unsafe { asm!("hint #40", inout("x16") features, options(nostack, nomem, preserves_flags)) };
    features & GCS == 0
}

/// Stops the program: no return is possible from its state.
pub(crate) fn abort() -> ! {
    // SAFETY: raises an exception.
    unsafe { asm!("brk #0x7ace", options(noreturn, nostack, nomem)) }
}
