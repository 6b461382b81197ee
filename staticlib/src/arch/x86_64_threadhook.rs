//! x86-64 with the feature `threadhook`: where a thread's block is, the kernel says.
//!
//! The kernel defines the function `rftrace_thread_area`, which returns in r11 the address of a [`ThreadArea`] that belongs
//! to the running task, and changes no other register, not even a flag. It is called amid functions and interrupt handlers,
//! is not traced itself, and needs no more room on the stack than for a return address. Where there is no task yet it
//! returns the address of `rftrace_untraced_area`.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{ThreadArea, ThreadBlock};

/// For code that runs where no task is.
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

/// The pointer to this thread's block: all that is there in the area of code without task.
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

/// The block that lies in the area.
pub(crate) fn local_block() -> *mut ThreadBlock {
    // SAFETY: computes an address. The area is a task's: that of code without task has a pointer that is not null.
    unsafe { &raw mut (*area()).block }
}
