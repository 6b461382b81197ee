//! riscv64: operations without a form in Rust.

use core::arch::asm;

/// The block with the trampoline, its size and alignment, as its unwind information has it.
pub(crate) const TRAMPOLINE_BYTES: usize = 1024;

/// The clock of all cores. Programs may read it on Linux.
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register.
    unsafe { asm!("rdtime {ticks}", ticks = out(reg) ticks, options(nostack, nomem, preserves_flags)) };
    ticks
}

/// The address of the return trampoline T.
pub(crate) fn trampoline() -> usize {
    let address;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "lla {address}, .Lrftrace_trampoline",
            address = out(reg) address,
            options(nostack, nomem, preserves_flags),
        );
    }
    address
}

/// The same: no functions have entry branches here.
pub(crate) fn entry_trampoline() -> usize {
    trampoline()
}

/// True if an address is T's: an old word on a stack may also be a return address of its slow path.
pub(crate) fn is_trampoline(address: usize) -> bool {
    address == trampoline()
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
            "beq {place}, {end}, 3f",
            "2:",
            "sd zero, 0({place})",
            "sd zero, 8({place})",
            "addi {place}, {place}, 16",
            "bne {place}, {end}, 2b",
            "3:",
            place = inout(reg) start => _,
            end = in(reg) start.wrapping_add(bytes),
            options(nostack),
        );
    }
}

/// Runs `work`, perhaps foreign code. The hook was called as a function without arguments to keep.
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    work();
}

/// True if the calling thread has a shadow stack (Zicfiss). The instruction to ask with is illegal on processors
/// without shadow stacks; Linux gives one only to programs built for it.
pub(crate) fn has_shadow_stack() -> bool {
    false
}

/// Stops the program: no return is possible from its state.
pub(crate) fn abort() -> ! {
    // SAFETY: raises an exception.
    unsafe { asm!("unimp", options(noreturn, nostack, nomem)) }
}
