//! x86-64.

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
/// Registers on entry: `edi` the key, `rsi` the block. The system call changes rax, rcx and r11, which belong to the callee.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_start(key: u32, block: *const c_void) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "mov rdx, [rip + {entries}]",
        "test rdx, rdx",
        "jz 2f",
        "mov r8d, [rsi + {tid}]",
        "cmp r8d, {max_threads}",
        "jae 2f",
        "imul r8, r8, {entry_bytes}",
        "mov eax, {sys_gettid}",
        "syscall",
        "3: mov [rdx + r8 + {entry_tid}], rax",
        "mfence",
        "mov rcx, rdx",
        "mov rdx, [rip + {entries}]",
        "cmp rcx, rdx",
        "jne 3b",
        "2: cmp dword ptr [rip + {any_chosen}], 0",
        "jne 4f",
        "jmp {set}",
        // The stack is aligned for calls by what is pushed.
        "4: push rdi",
        ".cfi_def_cfa_offset 16",
        "push rsi",
        ".cfi_def_cfa_offset 24",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 32",
        "call {suspend}",
        "mov rdi, [rsp + 8]",
        "call {look}",
        "mov rdi, [rsp + 8]",
        "call {resume}",
        "add rsp, 8",
        ".cfi_def_cfa_offset 24",
        "pop rsi",
        ".cfi_def_cfa_offset 16",
        "pop rdi",
        ".cfi_def_cfa_offset 8",
        "jmp {set}",
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
/// Registers on entry: `rdi` the block.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn thread_exit(block: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "mov rsi, [rip + {entries}]",
        "test rsi, rsi",
        "jz 2f",
        "mov r8d, [rdi + {tid}]",
        "cmp r8d, {max_threads}",
        "jae 2f",
        "imul r8, r8, {entry_bytes}",
        "lea rsi, [rsi + r8 + {entry_name}]",
        "mov r8, rdi",
        "mov edi, {get_name}",
        "mov eax, {sys_prctl}",
        "syscall",
        "mov rdi, r8",
        "2: jmp {exit}",
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
