//! Thread-local storage as the ELF ABI has it for x86-64 (variant II): the template lies directly below the address in FS base, and at
//! that address is the address itself.

use core::arch::asm;
use core::ptr;

/// The model-specific register with FS base.
pub const FS_BASE: u32 = 0xc000_0100;

/// Makes thread-local storage in `room`, which is aligned to `align`, zero and not used yet. Returns the thread pointer.
///
/// # Safety
///
/// The template begins with `initialised` bytes that are to be copied, and has `bytes` in all.
pub unsafe fn lay_out(room: *mut [u8], align: usize, template: *const u8, initialised: usize, bytes: usize) -> u64 {
    // The template and the address above it have the same alignment.
    let bytes = bytes.next_multiple_of(align);
    assert!(bytes + size_of::<u64>() <= room.len(), "the TLS template has {bytes} bytes: raise TLS_BYTES in tasks.rs");
    let start = room.cast::<u8>();
    let thread_pointer = start.wrapping_add(bytes).cast::<u64>();
    // SAFETY: both lie within the room.
    unsafe {
        ptr::copy_nonoverlapping(template, start, initialised);
        thread_pointer.write(thread_pointer as u64);
    }
    #[cfg(feature = "threadhook")]
    make_area(room, thread_pointer);
    thread_pointer as u64
}

/// Makes the tracer's area of a task, behind the thread pointer; the word after that leads to it.
#[cfg(feature = "threadhook")]
fn make_area(room: *mut [u8], thread_pointer: *mut u64) {
    use rftrace::abi::ThreadArea;

    let leads_there = thread_pointer.wrapping_add(1);
    let area = (leads_there.wrapping_add(1) as u64).next_multiple_of(align_of::<ThreadArea>() as u64);
    let end = room.cast::<u8>() as u64 + room.len() as u64;
    assert!(
        area + size_of::<ThreadArea>() as u64 <= end,
        "the tracer's area does not fit: raise TLS_BYTES in tasks.rs"
    );
    // SAFETY: within the task's room, which is zero from the start and not used yet.
    unsafe { leads_there.write(area) };
}

// The tracer calls this with the feature `threadhook`, see docs/kernels.md.
#[cfg(feature = "threadhook")]
core::arch::global_asm!(
    ".pushsection .text.thread_area, \"ax\"",
    ".globl rftrace_thread_area",
    "rftrace_thread_area:",
    "mov r11, fs:[8]",
    "ret",
    ".popsection",
);

/// Sets the thread pointer of the code that runs on this core.
///
/// # Safety
///
/// It is one that [`lay_out`] has returned, of a task that runs nowhere else.
pub unsafe fn set_thread_pointer(pointer: u64) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") FS_BASE,
            in("eax") pointer as u32,
            in("edx") (pointer >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}
