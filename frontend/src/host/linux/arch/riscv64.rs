//! riscv64.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use rftrace::abi::ThreadBlock;

use crate::backend;
use crate::host::linux::chosen;
use crate::host::linux::thread_table::{Entry, MAX_THREADS};
use crate::host::linux::threads::ENTRIES;

/// True if the tracer can record values here.
pub(crate) const HAS_VALUES: bool = false;

/// Enters the calling thread, then stores its block under the key. The tracer calls this on a new thread. If there is
/// another table by then, it enters it there too (`threads::copy_to`). With a choice of threads, it checks this one
/// (`chosen`).
///
/// Registers on entry: a0 the key, a1 the block. The system call changes a0 only.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_start(key: u32, block: *const c_void) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "ld a2, {entries}",
        "beqz a2, 2f",
        "lwu a3, {tid}(a1)",
        "li a4, {max_threads}",
        "bgeu a3, a4, 2f",
        "li a4, {entry_bytes}",
        ".option push",
        ".option arch, +m", // naked functions are not told what the target has
        "mul a3, a3, a4",
        ".option pop",
        "mv a6, a0",
        "li a7, {sys_gettid}",
        "ecall",
        "3: add a5, a2, a3",
        "sd a0, {entry_tid}(a5)",
        "fence rw, rw",
        "mv a4, a2",
        "ld a2, {entries}",
        "bne a4, a2, 3b",
        "mv a0, a6",
        "2: lw a2, {any_chosen}",
        "bnez a2, 4f",
        "tail {set}",
        "4: addi sp, sp, -32",
        ".cfi_def_cfa_offset 32",
        "sd ra, 24(sp)",
        ".cfi_offset ra, -8",
        "sd a0, 0(sp)",
        "sd a1, 8(sp)",
        "call {suspend}",
        "ld a0, 8(sp)",
        "call {look}",
        "ld a0, 8(sp)",
        "call {resume}",
        "ld a0, 0(sp)",
        "ld a1, 8(sp)",
        "ld ra, 24(sp)",
        ".cfi_restore ra",
        "addi sp, sp, 32",
        ".cfi_def_cfa_offset 0",
        "tail {set}",
        ".cfi_endproc",
        entries = sym ENTRIES,
        tid = const offset_of!(ThreadBlock, tid),
        max_threads = const MAX_THREADS,
        entry_bytes = const size_of::<Entry>(),
        entry_tid = const offset_of!(Entry, tid),
        sys_gettid = const libc::SYS_gettid,
        any_chosen = sym chosen::ANY,
        suspend = sym backend::rftrace_backend_suspend_thread,
        look = sym chosen::look,
        resume = sym backend::rftrace_backend_resume_thread,
        set = sym libc::pthread_setspecific,
    );
}

/// Keeps the name of an ending thread, then informs the tracer: the destructor of the key.
///
/// Registers on entry: a0 the block.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_exit(block: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "ld a2, {entries}",
        "beqz a2, 2f",
        "lwu a3, {tid}(a0)",
        "li a4, {max_threads}",
        "bgeu a3, a4, 2f",
        "li a4, {entry_bytes}",
        ".option push",
        ".option arch, +m", // naked functions are not told what the target has
        "mul a3, a3, a4",
        ".option pop",
        "add a1, a2, a3",
        "addi a1, a1, {entry_name}",
        "mv a6, a0",
        "li a0, {get_name}",
        "li a7, {sys_prctl}",
        "ecall",
        "mv a0, a6",
        "2: tail {exit}",
        ".cfi_endproc",
        entries = sym ENTRIES,
        tid = const offset_of!(ThreadBlock, tid),
        max_threads = const MAX_THREADS,
        entry_bytes = const size_of::<Entry>(),
        entry_name = const offset_of!(Entry, name),
        get_name = const libc::PR_GET_NAME,
        sys_prctl = const libc::SYS_prctl,
        exit = sym backend::rftrace_backend_thread_exit,
    );
}
