//! What each thread knows: its chunk, and its stack.
//!
//! It lies in thread-local storage that is there from the thread's first instruction on: access takes no call, and nothing is allocated for it.

use std::arch::{asm, global_asm};
use std::cell::Cell;

/// A thread's own. All zero at first. A signal handler may change it between any two instructions of the thread.
#[repr(C)]
pub(crate) struct Thread {
    /// Where the next unit goes, and where the chunk ends; both 0 without a chunk.
    pub(crate) cursor: Cell<usize>,
    pub(crate) end: Cell<usize>,
    /// The number of the process that the chunk belongs to: that of a parent until the first event in a child.
    pub(crate) process: Cell<u64>,
    /// Where the stack was when an event was begun that has not been written; 0 if there is none.
    pub(crate) busy: Cell<usize>,
    /// The number of its chunk plus one; 0 for none.
    pub(crate) chunk: Cell<u32>,
    /// Its number for the system.
    pub(crate) tid: Cell<u32>,
    /// From here to the end of the stack all can be read; 0 if that is not known.
    pub(crate) stack_low: Cell<usize>,
    /// Which cache it takes first.
    pub(crate) cache: Cell<usize>,
    /// What it has taken since its last call has begun, the newest first, and what it has given back; all plus one, 0 for nothing.
    pub(crate) taken: Cell<[u64; 2]>,
    pub(crate) given_back: Cell<u64>,
}

global_asm!(
    ".section .tbss.rftrace_resources,\"awT\",@nobits",
    ".balign 64",
    ".globl rftrace_resources_thread",
    ".hidden rftrace_resources_thread",
    ".type rftrace_resources_thread, @tls_object",
    ".size rftrace_resources_thread, {size}",
    "rftrace_resources_thread:",
    ".zero {size}",
    ".text",
    size = const size_of::<Thread>(),
);

/// That of this thread.
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    let place: *const Thread;
    // SAFETY: the offset of the storage from the thread pointer, which the linker knows.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + rftrace_resources_thread@GOTTPOFF]",
            out(reg) place,
            options(nostack, readonly, pure),
        );
    }
    // SAFETY: as large as said above, zero is a value of each field, and nobody else refers to it. It is not used beyond the thread's end.
    unsafe { &*place }
}

/// Adds to a number in one instruction, which no signal can come into. Returns what it was.
#[inline(always)]
pub(crate) fn add(number: &Cell<usize>, more: usize) -> usize {
    let mut before = more;
    // SAFETY: the number is this thread's own.
    unsafe { asm!("xadd qword ptr [{}], {}", in(reg) number.as_ptr(), inout(reg) before, options(nostack)) };
    before
}

/// Where this thread's storage begins, at the end of its stack, if that was made by the C library.
#[inline(always)]
pub(crate) fn pointer() -> usize {
    let pointer;
    // SAFETY: the thread pointer points to itself.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, pure)) };
    pointer
}

/// Runs this, and leaves `errno` as it is.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the thread's own, as long as it lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}
