//! x86-64: the place of a thread's block, in thread-local storage.

use core::arch::asm;
use core::arch::global_asm;
#[cfg(target_os = "none")]
use core::mem::size_of;

use crate::abi::ThreadBlock;

// Thread-local storage: the address of the thread's block. Initial-exec access works in every executable, static or
// PIE, and in shared objects loaded at start; the linker relaxes it to a constant offset if it can.
global_asm!(
    ".pushsection .tbss.rftrace_thread_block, \"awT\", @nobits",
    ".p2align 3",
    ".type rftrace_thread_block, @object",
    ".size rftrace_thread_block, 8",
    "rftrace_thread_block:",
    ".zero 8",
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

/// The block of this thread, null before its first traced call and after its end.
pub(crate) fn thread_block() -> *mut ThreadBlock {
    let block;
    // SAFETY: reads this thread's variable, defined above.
    unsafe {
        asm!(
            "mov {block}, [rip + rftrace_thread_block@gottpoff]",
            "mov {block}, fs:[{block}]",
            block = out(reg) block,
            options(nostack, preserves_flags, readonly),
        );
    }
    block
}

/// Sets the block of this thread.
pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    // SAFETY: writes this thread's variable, defined above; only the tracer uses it.
    unsafe {
        asm!(
            "mov {offset}, [rip + rftrace_thread_block@gottpoff]",
            "mov fs:[{offset}], {block}",
            offset = out(reg) _,
            block = in(reg) block,
            options(nostack, preserves_flags),
        );
    }
}

/// Sets the block of this thread if it has none. Returns whether it was set; a signal handler may have been faster.
pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    let before: usize;
    // SAFETY: as in `set_thread_block`; one instruction, so no handler comes between the look and the store.
    unsafe {
        asm!(
            "mov {offset}, [rip + rftrace_thread_block@gottpoff]",
            "cmpxchg fs:[{offset}], {block}",
            offset = out(reg) _,
            block = in(reg) block,
            inout("rax") 0usize => before,
            options(nostack),
        );
    }
    before == 0
}

/// The block in thread-local storage, on targets with blocks there.
#[cfg(target_os = "none")]
pub(crate) fn local_block() -> *mut ThreadBlock {
    let block: *mut ThreadBlock;
    // SAFETY: computes an address: the ABI keeps the thread pointer itself at fs:0.
    unsafe {
        asm!(
            "mov {block}, fs:[0]",
            "add {block}, [rip + rftrace_local_block@gottpoff]",
            block = out(reg) block,
            options(nostack, readonly),
        );
    }
    block
}
