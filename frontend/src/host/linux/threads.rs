//! What the system calls the traced threads: their ids, and their names.
//!
//! The tracer numbers threads from 1, so that no number stands for two of them. The system's id is looked up when a thread is
//! first seen, its name when it ends, or at the save if it lives. What runs on the traced threads is assembly: this crate may
//! be instrumented, and its functions would be a part of the trace.

use std::fs;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use rftrace::abi::ThreadBlock;

use crate::backend;
use crate::host::program::Identity;

pub(super) use super::arch::{thread_exit, thread_start};

/// Threads whose ids are kept, in the life of a program. It takes memory for those that there are.
pub(super) const MAX_THREADS: usize = 1 << 20;

/// Bytes of a thread's name, with a NUL (`TASK_COMM_LEN`).
const NAME_BYTES: usize = 16;

/// What is known of a thread.
#[repr(C)]
pub(super) struct Entry {
    /// The system's id; 0 if the thread was not seen.
    pub(super) tid: AtomicU64,
    /// Its name when it ended; empty before.
    pub(super) name: [AtomicU64; NAME_BYTES / 8],
}

/// [`MAX_THREADS`] entries, by the tracer's number; null if there is no memory for them.
pub(super) static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The key under which a thread's block is kept.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Bytes of the table.
pub(super) const TABLE_BYTES: usize = MAX_THREADS * size_of::<Entry>();

/// From now on threads are entered into `table`, which is zeroed, [`TABLE_BYTES`] long, and stays mapped.
pub(super) fn keep_in(table: *mut u8, key: Option<libc::pthread_key_t>) {
    KEY.store(key.unwrap_or(u32::MAX), Relaxed);
    ENTRIES.store(table.cast(), Release);
}

/// The child of a fork: the tracer forgets the other threads, and the calling one has another id now.
pub(super) unsafe extern "C" fn forked() {
    // SAFETY: called in the child, on its only thread.
    unsafe { backend::rftrace_backend_forked() };
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

fn entry(number: u32) -> Option<&'static Entry> {
    let entries = ENTRIES.load(Acquire);
    let number = number as usize;
    // SAFETY: the table has so many entries, all of atomics, and stays mapped.
    (!entries.is_null() && number < MAX_THREADS).then(|| unsafe { &*entries.add(number) })
}

/// What the system calls the thread with the tracer's number `number`.
pub(crate) fn identify(number: u32) -> Identity {
    let Some(entry) = entry(number) else { return Identity::of_number(number) };
    let Ok(tid @ 1..) = u32::try_from(entry.tid.load(Relaxed)) else { return Identity::of_number(number) };
    let kept: Vec<u8> = entry.name.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let kept = kept.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = match kept {
        // It has not ended.
        [] => fs::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default(),
        kept => kept.to_vec(),
    };
    Identity { tid, name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned() }
}
