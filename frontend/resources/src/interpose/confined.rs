//! The functions by which a program forbids itself system calls: it may be killed for those of this library from then on.
//!
//! They are not recorded, and go on to the original ones by a jump: what `syscall` does may return twice.

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_ulong, c_void};

use crate::chunks;
use crate::modules;
use crate::originals::{self, Original};
use crate::process;
use crate::stacks;
use crate::thread;

/// A function that calls `before` with its first arguments, then jumps to what that returns, with all arguments.
macro_rules! passed_on {
    ($name:ident, $before:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                concat!(".globl rftrace_own_", stringify!($name)),
                concat!(".hidden rftrace_own_", stringify!($name)),
                concat!("rftrace_own_", stringify!($name), ":"),
                ".cfi_startproc",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                ".cfi_adjust_cfa_offset 56",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -56",
                "jmp r11",
                ".cfi_endproc",
                before = sym $before,
            )
        }
    };
}

passed_on!(prctl, before_prctl);
passed_on!(syscall, before_syscall);

/// Returns the original `prctl`.
extern "C" fn before_prctl(option: c_int, mode: c_ulong, filter: c_ulong) -> *mut c_void {
    look_at_prctl(option, mode, filter);
    originals::get(Original::prctl)
}

/// Returns the original `syscall`.
extern "C" fn before_syscall(number: c_long, first: c_ulong, second: c_ulong, third: c_ulong) -> *mut c_void {
    match number {
        libc::SYS_prctl => look_at_prctl(first as c_int, second, third),
        libc::SYS_seccomp if first == c_ulong::from(libc::SECCOMP_SET_MODE_STRICT) && second == 0 => stop_thread(),
        libc::SYS_seccomp if first == c_ulong::from(libc::SECCOMP_SET_MODE_FILTER) && third != 0 => confine(),
        _ => {}
    }
    originals::get(Original::syscall)
}

/// Without a filter it is only asked whether the system has such.
fn look_at_prctl(option: c_int, mode: c_ulong, filter: c_ulong) {
    if option == libc::PR_SET_SECCOMP && mode == c_ulong::from(libc::SECCOMP_MODE_STRICT) {
        stop_thread();
    } else if option == libc::PR_SET_SECCOMP && filter != 0 {
        confine();
    }
}

/// A filter of system calls is wanted. What has to be known is found out before.
fn confine() {
    if modules::known().is_some() && !process::is_confined() {
        chunks::prepare();
        modules::refresh();
        stacks::confine();
    }
    process::confine();
}

/// The strict mode is wanted: in it a thread may make next to no system calls, and is killed where it reads the time stamp counter.
fn stop_thread() {
    thread::current().is_stopped.set(true);
    process::set_layered();
}
