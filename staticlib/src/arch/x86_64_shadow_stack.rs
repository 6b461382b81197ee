//! x86-64: shadow stacks (CET).
//!
//! The processor keeps a second copy of each return address and raises an exception if a function returns to another
//! one, as with a hooked return. Linux has them for programs since 6.6; glibc switches them on if it is told to, for
//! each later thread.

use core::arch::asm;

/// True if the calling thread has a shadow stack. The instruction does nothing without one, also on older processors
/// (Intel SDM volume 2, RDSSP).
pub(crate) fn has_shadow_stack() -> bool {
    let mut pointer = 0usize;
    // SAFETY: reads a register.
    unsafe {
        asm!("rdsspq {pointer}", pointer = inout(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer != 0
}
