//! x86-64.

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};

/// The machine of ELF files.
pub(crate) const MACHINE: u16 = libc::EM_X86_64;

/// The version of the C library's first functions, which it has for ever.
pub(crate) const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";

/// The functions that instrumented code calls.
pub(crate) const HOOKS: &[&CStr] = &[c"mcount", c"__fentry__"];

/// Calls `work` with `data` on the stack that ends at `top`, and returns what it returns. Meanwhile the present stack pointer is
/// in `waiting`; [`go_back`] with that returns false here.
///
/// Registers on entry: rdi, rsi, rdx, rcx the arguments. The registers that belong to the caller wait on the present stack.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(
    work: extern "C" fn(*mut c_void) -> bool,
    data: *mut c_void,
    top: *mut u8,
    waiting: *mut *mut c_void,
) -> bool {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rcx], rsp",
        "mov rbx, rsp",
        "mov rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, rbx",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    );
}

/// Leaves the present stack for that on which [`switch`] was called.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn go_back(waiting: *mut c_void) -> ! {
    naked_asm!("mov rsp, rdi", "xor eax, eax", "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp", "ret",);
}

/// A function that calls `before` with its place and its own first arguments, then goes on in the C library's function as if
/// called directly, with all arguments, those on the stack included.
///
/// On entry rsp is 8 above a multiple of 16; seven registers are put aside, so it is one at the call.
macro_rules! passed_on {
    ($name:ident, $before:ident, $place:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "mov rcx, rdx",
                "mov rdx, rsi",
                "mov rsi, rdi",
                "mov edi, {place}",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                place = const $place,
                before = sym $before,
            );
        }
    };
}
pub(crate) use passed_on;
