//! aarch64.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use rftrace::abi::ThreadBlock;

use crate::backend;
use crate::host::linux::chosen;
use crate::host::linux::thread_table::{Entry, MAX_THREADS};
use crate::host::linux::threads::ENTRIES;

/// True if the tracer can record values here.
pub(crate) const HAS_VALUES: bool = true;

/// Enters the calling thread, then stores its block under the key. The tracer calls this on a new thread. If there is
/// another table by then, it enters it there too (`threads::copy_to`). With a choice of threads, it checks this one
/// (`chosen`).
///
/// Registers on entry: `w0` the key, `x1` the block. The system call changes x0 only.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_start(key: u32, block: *const c_void) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "hint #34", // bti c
        "adrp x2, {entries}",
        "ldr x2, [x2, :lo12:{entries}]",
        "cbz x2, 2f",
        "ldr w3, [x1, #{tid}]",
        "mov w4, #{max_threads}",
        "cmp w3, w4",
        "b.hs 2f",
        "mov x4, #{entry_bytes}",
        "mov x6, x0",
        "mov x8, #{sys_gettid}",
        "svc #0",
        "3: madd x5, x3, x4, x2",
        "str x0, [x5, #{entry_tid}]",
        "dmb ish",
        "mov x7, x2",
        "adrp x2, {entries}",
        "ldr x2, [x2, :lo12:{entries}]",
        "cmp x7, x2",
        "b.ne 3b",
        "mov x0, x6",
        "2: adrp x2, {any_chosen}",
        "ldr w2, [x2, :lo12:{any_chosen}]",
        "cbnz w2, 4f",
        "b {set}",
        "4: stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {suspend}",
        "ldr x0, [sp, #24]",
        "bl {look}",
        "ldr x0, [sp, #24]",
        "bl {resume}",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "b {set}",
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
/// Registers on entry: `x0` the block.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_exit(block: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "hint #34", // bti c
        "adrp x2, {entries}",
        "ldr x2, [x2, :lo12:{entries}]",
        "cbz x2, 2f",
        "ldr w3, [x0, #{tid}]",
        "mov w4, #{max_threads}",
        "cmp w3, w4",
        "b.hs 2f",
        "mov x4, #{entry_bytes}",
        "madd x1, x3, x4, x2",
        "add x1, x1, #{entry_name}",
        "mov x6, x0",
        "mov x0, #{get_name}",
        "mov x8, #{sys_prctl}",
        "svc #0",
        "mov x0, x6",
        "2: b {exit}",
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
