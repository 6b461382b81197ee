//! aarch64.

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};

/// The machine of ELF files.
pub(crate) const MACHINE: u16 = libc::EM_AARCH64;

/// The version of the C library's first functions, which it has for ever.
pub(crate) const FIRST_VERSION: &CStr = c"GLIBC_2.17";

/// The functions that instrumented code calls.
pub(crate) const HOOKS: &[&CStr] = &[c"_mcount"];

/// Calls `work` with `data` on the stack that ends at `top`, and returns what it returns. Meanwhile the present stack pointer is
/// in `waiting`; [`go_back`] with that returns false here.
///
/// Registers on entry: x0 to x3 the arguments. The registers that belong to the caller wait on the present stack; of v8 to v15 that
/// is the lower half.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(
    work: extern "C" fn(*mut c_void) -> bool,
    data: *mut c_void,
    top: *mut u8,
    waiting: *mut *mut c_void,
) -> bool {
    naked_asm!(
        "stp x29, x30, [sp, #-160]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x29, sp",
        "str x29, [x3]",
        "mov sp, x2",
        "mov x9, x0",
        "mov x0, x1",
        "blr x9",
        "mov sp, x29",
        "b {back}",
        back = sym restore,
    );
}

/// Leaves the present stack for that on which [`switch`] was called.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn go_back(waiting: *mut c_void) -> ! {
    naked_asm!("mov sp, x0", "mov w0, #0", "b {back}", back = sym restore);
}

/// The end of [`switch`]: gives the caller its registers back.
#[unsafe(naked)]
unsafe extern "C" fn restore() {
    naked_asm!(
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    );
}

/// A function that calls `before` with its place and its own first arguments, then goes on in the C library's function as if
/// called directly, with all arguments, those on the stack included. None of them is a floating-point number.
///
/// On entry x0 to x7 are the arguments; x8 may say where a result goes.
macro_rules! passed_on {
    ($name:ident, $before:ident, $place:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "hint #34", // bti c
                "stp x29, x30, [sp, #-96]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "mov x3, x2",
                "mov x2, x1",
                "mov x1, x0",
                "mov w0, #{place}",
                "bl {before}",
                "mov x16, x0",
                "ldr x8, [sp, #80]",
                "ldp x6, x7, [sp, #64]",
                "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #96",
                "br x16",
                place = const $place,
                before = sym $before,
            );
        }
    };
}
pub(crate) use passed_on;
