//! aarch64: a thread's data in thread-local storage: the place of its block, and the last sequence number of its calls.

use core::arch::{asm, global_asm};
#[cfg(target_os = "none")]
use core::mem::size_of;
use core::mem::{align_of, offset_of};

use super::UNTRACED_ADDRESS;
use crate::abi::ThreadBlock;

/// Bits of a sequence number below the time: so many calls begin within one tick of the clock at the most, or the numbers run
/// ahead of it a little.
pub(crate) const SEQUENCE_BITS: u32 = 4;

/// Set in a thread's first word if it has a block, as the word is the cursor's place then. So one instruction tells it
/// from 0 and UNTRACED, and records are reserved by the word itself.
pub(crate) const BLOCK_BIT: u32 = CURSOR.trailing_zeros();

const CURSOR: usize = offset_of!(ThreadBlock, cursor);
const _: () = assert!(UNTRACED_ADDRESS < 1 << BLOCK_BIT && 1 << BLOCK_BIT < align_of::<ThreadBlock>());

// The two words: the place of the cursor in the thread's block, and the last sequence number. Initial-exec access works
// in every executable, static or PIE, and in shared objects loaded at start; the linker relaxes it to a constant offset
// if it can.
global_asm!(
    ".pushsection .tbss.rftrace_thread_block, \"awT\", @nobits",
    ".p2align 4",
    ".type rftrace_thread_block, @object",
    ".size rftrace_thread_block, 16",
    "rftrace_thread_block:",
    ".zero 16",
    ".popsection",
);

// Without OS the block itself is thread-local too: nobody else could give memory back when a task ends.
#[cfg(target_os = "none")]
global_asm!(
    ".pushsection .tbss.rftrace_local_block, \"awT\", @nobits",
    ".p2align 6",
    ".type rftrace_local_block, @object",
    ".size rftrace_local_block, {size}",
    "rftrace_local_block:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<ThreadBlock>(),
);

/// The address of a variable of this thread, one of those above.
macro_rules! address_of {
    ($variable:literal) => {{
        let address;
        // SAFETY: computes it, and touches nothing.
        unsafe {
            asm!(
                "mrs {address}, tpidr_el0",
                concat!("adrp {offset}, :gottprel:", $variable),
                concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $variable, "]"),
                "add {address}, {address}, {offset}",
                address = out(reg) address,
                offset = out(reg) _,
                options(nostack, preserves_flags, readonly),
            );
        }
        address
    }};
}

/// The address of this thread's words.
fn words() -> *mut [usize; 2] {
    address_of!("rftrace_thread_block")
}

/// The place of this thread's words, from the thread pointer on: the same in all threads. The stubs of patched entries
/// have it.
#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "C" fn rftrace_backend_words_offset() -> usize {
    let thread_pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) thread_pointer, options(nostack, nomem, preserves_flags)) };
    words().addr().wrapping_sub(thread_pointer)
}

/// The block of this thread, null before its first traced call and after its end.
pub(crate) fn thread_block() -> *mut ThreadBlock {
    // SAFETY: this thread's own; a handler may change it between any two instructions, so it is read anew each time.
    let word = unsafe { words().cast::<*mut ThreadBlock>().read_volatile() };
    if word.addr() & 1 << BLOCK_BIT != 0 { word.wrapping_byte_sub(CURSOR) } else { word }
}

/// The first word for a block, null or UNTRACED.
fn word(block: *mut ThreadBlock) -> *mut ThreadBlock {
    if block.addr() > UNTRACED_ADDRESS { block.wrapping_byte_add(CURSOR) } else { block }
}

/// Sets the block of this thread.
pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    // SAFETY: as above.
    unsafe { words().cast::<*mut ThreadBlock>().write_volatile(word(block)) }
}

/// Sets the block of this thread if it has none. Returns whether it was set; a signal handler may have been faster.
pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    let before: usize;
    // SAFETY: changes this thread's variable; only the tracer uses it. Any event between the two exclusive instructions
    // clears the monitor.
    unsafe {
        asm!(
            "2:",
            "ldxr {before}, [{words}]",
            "cbnz {before}, 3f",
            "stxr {failed:w}, {block}, [{words}]",
            "cbnz {failed:w}, 2b",
            "3:",
            block = in(reg) word(block),
            words = in(reg) words(),
            before = out(reg) before,
            failed = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    before == 0
}

/// The sequence number of a call: larger than any earlier one on this thread.
///
/// The clock may stand still from one call to the next, so it is not enough. Two threads that enter functions with the
/// same frame have handed a stack over in between, which takes longer than a tick.
pub(crate) fn sequence(now: u64) -> u64 {
    let last = words().cast::<u64>().wrapping_add(1);
    // SAFETY: the second of this thread's words.
    unsafe {
        let sequence = (now << SEQUENCE_BITS).max(last.read_volatile().wrapping_add(1));
        last.write_volatile(sequence);
        sequence
    }
}

/// The block in thread-local storage, on targets with blocks there.
#[cfg(target_os = "none")]
pub(crate) fn local_block() -> *mut ThreadBlock {
    address_of!("rftrace_local_block")
}
