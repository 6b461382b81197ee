//! riscv64: a thread's data in thread-local storage: the place of its block, and the last sequence number of its calls.

use core::arch::{asm, global_asm};

use crate::abi::ThreadBlock;

/// Bits of a sequence number below the time: so many calls begin within one tick of the clock at the most, or the numbers run
/// ahead of it a little.
pub(crate) const SEQUENCE_BITS: u32 = 4;

// The two words: the address of the thread's block, and the last sequence number. Initial-exec access works in every
// executable, static or PIE, and in shared objects loaded at start.
global_asm!(
    ".pushsection .tbss.rftrace_thread_block, \"awT\", @nobits",
    ".p2align 4",
    ".type rftrace_thread_block, @object",
    ".size rftrace_thread_block, 16",
    "rftrace_thread_block:",
    ".zero 16",
    ".popsection",
);

/// The address of this thread's words.
fn words() -> *mut [usize; 2] {
    let address;
    // SAFETY: computes it, and touches nothing.
    unsafe {
        asm!(
            "la.tls.ie {address}, rftrace_thread_block",
            "add {address}, {address}, tp",
            address = out(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    address
}

/// The block of this thread, null before its first traced call and after its end.
pub(crate) fn thread_block() -> *mut ThreadBlock {
    // SAFETY: this thread's own; a handler may change it between any two instructions, so it is read anew each time.
    unsafe { words().cast::<*mut ThreadBlock>().read_volatile() }
}

/// Sets the block of this thread.
pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    // SAFETY: as above.
    unsafe { words().cast::<*mut ThreadBlock>().write_volatile(block) }
}

/// Sets the block of this thread if it has none. Returns whether it was set; a signal handler may have been faster.
pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    let before: usize;
    // SAFETY: changes this thread's variable; only the tracer uses it. A handler in between takes the reservation away,
    // or leaves a value other than 0.
    unsafe {
        asm!(
            "2:",
            "lr.d {before}, ({words})",
            "bnez {before}, 3f",
            "sc.d {failed}, {block}, ({words})",
            "bnez {failed}, 2b",
            "3:",
            block = in(reg) block,
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
