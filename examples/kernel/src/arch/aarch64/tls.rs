//! Thread-local storage as the ELF ABI has it for aarch64 (variant I): at the address in TPIDR_EL0 two words that are nobody's here, and
//! the template behind them.

use core::arch::asm;
use core::ptr;

/// The two words.
const RESERVED_BYTES: usize = 16;

/// Makes thread-local storage in `room`, which is aligned to `align`, zero and not used yet. Returns the thread pointer.
///
/// # Safety
///
/// The template begins with `initialised` bytes that are to be copied, and has `bytes` in all.
pub unsafe fn lay_out(room: *mut [u8], align: usize, template: *const u8, initialised: usize, bytes: usize) -> u64 {
    let distance = RESERVED_BYTES.next_multiple_of(align);
    assert!(distance + bytes <= room.len(), "the TLS template has {bytes} bytes: raise TLS_BYTES in tasks.rs");
    let start = room.cast::<u8>();
    // SAFETY: within the room.
    unsafe { ptr::copy_nonoverlapping(template, start.wrapping_add(distance), initialised) };
    start as u64
}

/// Sets the thread pointer of the code that runs on this core.
///
/// # Safety
///
/// It is one that [`lay_out`] has returned, of a task that runs nowhere else.
pub unsafe fn set_thread_pointer(pointer: u64) {
    // SAFETY: by this function's contract.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) pointer, options(nostack, preserves_flags)) };
}
