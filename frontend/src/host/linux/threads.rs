//! What the system calls the traced threads: their ids, and their names.
//!
//! The tracer numbers threads from 1, so that no number stands for two of them. The system's id is looked up when a thread is
//! first seen, its name when it ends, or at the save if it lives. What runs on the traced threads is assembly: this crate may
//! be instrumented, and its functions would be a part of the trace.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::fs;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use rftrace::abi::ThreadBlock;

use super::thread_table::{Entry, MAX_THREADS};
use crate::backend;
use crate::host::program::Identity;

/// [`MAX_THREADS`] entries, by the tracer's number; null if there is no memory for them.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The key under which a thread's block is kept.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// From now on threads are entered into `table`, which is zeroed, `TABLE_BYTES` long, and stays mapped.
pub(crate) fn keep_in(table: *mut u8, key: Option<libc::pthread_key_t>) {
    KEY.store(key.unwrap_or(u32::MAX), Relaxed);
    ENTRIES.store(table.cast(), Release);
}

/// Enters the calling thread, then stores its block under the key: what the tracer calls on a new thread.
///
/// Registers on entry: `edi` the key, `rsi` the block. The system call changes rax, rcx and r11, which belong to the callee.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn thread_start(key: u32, block: *const c_void) -> c_int {
    naked_asm!(
        "mov rdx, [rip + {entries}]",
        "test rdx, rdx",
        "jz 2f",
        "mov r8d, [rsi + {tid}]",
        "cmp r8d, {max_threads}",
        "jae 2f",
        "imul r8, r8, {entry_bytes}",
        "mov eax, {sys_gettid}",
        "syscall",
        "mov [rdx + r8 + {entry_tid}], rax",
        "2: jmp {set}",
        entries = sym ENTRIES,
        tid = const offset_of!(ThreadBlock, tid),
        max_threads = const MAX_THREADS,
        entry_bytes = const size_of::<Entry>(),
        entry_tid = const offset_of!(Entry, tid),
        sys_gettid = const libc::SYS_gettid,
        set = sym libc::pthread_setspecific,
    );
}

/// Keeps the name of a thread that ends, then tells the tracer: the destructor of the key.
///
/// Registers on entry: `rdi` the block.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn thread_exit(block: *mut c_void) {
    naked_asm!(
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

/// The calling thread has another id now: it is the only one of a child that was forked.
pub(super) fn forked() {
    backend::unrecorded(|| {
        let key = KEY.load(Relaxed);
        // SAFETY: the key is the tracer's; what is stored under it is null or the thread's block, which stays mapped.
        let block = unsafe { libc::pthread_getspecific(key).cast::<ThreadBlock>().as_ref() };
        let entry = block.filter(|_| key != u32::MAX).and_then(|block| entry(block.tid.load(Relaxed)));
        if let Some(entry) = entry {
            entry.tid.store(u64::from(std::process::id()), Relaxed);
        }
    });
}

/// From now on threads are entered into another table, as for [`keep_in`].
pub(crate) fn move_to(table: *mut u8) {
    ENTRIES.store(table.cast(), Release);
}

fn entry(number: u32) -> Option<&'static Entry> {
    let entries = ENTRIES.load(Acquire);
    let number = number as usize;
    // SAFETY: the table has so many entries, all of atomics, and stays mapped.
    (!entries.is_null() && number < MAX_THREADS).then(|| unsafe { &*entries.add(number) })
}

/// What the system calls the thread with the tracer's number `number`.
pub(crate) fn identify(number: u32) -> Identity {
    let Some(entry) = entry(number) else { return Identity::of_number(number) };
    let Some(tid) = entry.system_tid() else { return Identity::of_number(number) };
    let name = match entry.name() {
        // It has not ended.
        name if name.is_empty() => fs::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default(),
        name => name,
    };
    Identity { tid, name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned() }
}

/// Enters the names of the threads that live, up to the tracer's number `last`: nobody may be there to ask later.
pub(crate) fn keep_names(last: u32) {
    for entry in (1..=last).filter_map(entry) {
        if let Some(tid) = entry.system_tid()
            && entry.name().is_empty()
            && let Ok(name) = fs::read(format!("/proc/self/task/{tid}/comm"))
        {
            entry.set_name(name.trim_ascii_end());
        }
    }
}
