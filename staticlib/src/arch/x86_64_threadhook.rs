//! x86-64 with the feature `threadhook`: the kernel tells the place of a thread's block.
//!
//! The kernel defines the function `rftrace_thread_area`. It returns in r11 the address of the running task's
//! [`ThreadArea`], and changes no other register, not even a flag. It is called amid functions and interrupt handlers,
//! is not traced itself, and needs no more room on the stack than for a return address. While there is no task yet it
//! returns the address of `rftrace_untraced_area`.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{ThreadArea, ThreadBlock};

/// For code without a task.
#[unsafe(no_mangle)]
static rftrace_untraced_area: AtomicPtr<ThreadBlock> = AtomicPtr::new(super::UNTRACED);

fn area() -> *mut ThreadArea {
    let area;
    // SAFETY: by the contract of the function, see above.
    unsafe {
        asm!("call rftrace_thread_area", out("r11") area, options(preserves_flags));
    }
    area
}

/// The pointer to this thread's block: the area of code without task has nothing else.
fn pointer() -> &'static AtomicPtr<ThreadBlock> {
    // SAFETY: the area's first field; the area belongs to the running task and stays where it is.
    unsafe { &*area().cast() }
}

/// The block of this thread, null before its first traced call and after its end.
pub(crate) fn thread_block() -> *mut ThreadBlock {
    pointer().load(Relaxed)
}

/// Sets the block of this thread.
pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    if !ptr::eq(pointer(), &raw const rftrace_untraced_area) {
        pointer().store(block, Relaxed);
    }
}

/// Sets the block of this thread if it has none. Returns whether it was set; an interrupt handler may have been faster.
pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    pointer().compare_exchange(ptr::null_mut(), block, Relaxed, Relaxed).is_ok()
}

/// The block in the area.
pub(crate) fn local_block() -> *mut ThreadBlock {
    // SAFETY: computes an address. The area is a task's: without a task the pointer is not null.
    unsafe { &raw mut (*area()).block }
}
