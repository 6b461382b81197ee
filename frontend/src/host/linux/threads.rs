//! The system's ids and names of the traced threads.
//!
//! The tracer numbers threads from 1, so each number stands for one thread. The system's id is looked up when a thread
//! is first seen, its name when it ends, or at the save if it lives.
//!
//! The code on the traced threads is assembly: this crate may be instrumented, and its functions would be a part of the
//! trace.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, fence};

use rftrace::abi::ThreadBlock;
use rftrace_format::system;

use super::thread_table::{Entry, MAX_THREADS};
use crate::backend;
use crate::host::program::Identity;

pub(super) use super::arch::{thread_exit, thread_start};

/// [`MAX_THREADS`] entries, by the tracer's number; null if there is no memory for them.
pub(super) static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The table from [`keep_in`].
static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The key of threads' blocks.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Enters threads into `table` from now on. It is zeroed, `TABLE_BYTES` long, and stays mapped.
pub(crate) fn keep_in(table: *mut u8, key: Option<libc::pthread_key_t>) {
    KEY.store(key.unwrap_or(u32::MAX), Relaxed);
    FIRST.store(table.cast(), Relaxed);
    ENTRIES.store(table.cast(), Release);
}

/// Returns the address of the first table; 0 without one.
pub(crate) fn first_table() -> usize {
    FIRST.load(Relaxed) as usize
}

/// Enters the new id of the calling thread, the only one of a forked child.
pub(crate) fn forked() {
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

/// Like [`move_to`], with the present threads; they live or occur in later records.
///
/// **Invariant**: a thread that enters itself meanwhile is in the new table. After its write it checks the current
/// table again (`arch`); here the new table is published before the old one is read. So one of the two sees the other's
/// work.
pub(crate) fn copy_to(table: *mut u8) {
    let before = ENTRIES.swap(table.cast(), SeqCst);
    fence(SeqCst);
    if before.is_null() {
        return;
    }
    let last = backend::control().next_tid.load(Relaxed) as usize;
    for number in 1..=last.min(MAX_THREADS - 1) {
        // SAFETY: both tables have so many entries, all of atomics, and stay mapped.
        let (from, to) = unsafe { (&*before.add(number), &*table.cast::<Entry>().add(number)) };
        match from.tid.load(Relaxed) {
            0 => {}
            tid => to.tid.store(tid, Relaxed),
        }
        to.name.iter().zip(&from.name).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }
}

/// Back to the table of the beginning, as [`copy_to`].
pub(crate) fn copy_back() {
    let first = FIRST.load(Relaxed);
    if !first.is_null() && first != ENTRIES.load(Relaxed) {
        copy_to(first.cast());
    }
}

fn entry(number: u32) -> Option<&'static Entry> {
    let entries = ENTRIES.load(Acquire);
    let number = number as usize;
    // SAFETY: the table has so many entries, all of atomics, and stays mapped.
    (!entries.is_null() && number < MAX_THREADS).then(|| unsafe { &*entries.add(number) })
}

/// The system's id of the thread with the tracer's number `number`, if it is known.
pub(super) fn system_tid(number: u32) -> Option<u32> {
    entry(number)?.system_tid()
}

/// Returns the system's id and name of the thread with the tracer's number `number`.
pub(crate) fn identify(number: u32) -> Identity {
    let Some(entry) = entry(number) else { return Identity::of_number(number) };
    let Some(tid) = entry.system_tid() else { return Identity::of_number(number) };
    let name = match entry.name() {
        // It has not ended.
        name if name.is_empty() => system::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default(),
        name => name,
    };
    Identity { tid, name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned() }
}

/// Enters the names of living threads, up to the tracer's number `last`: they may be gone later.
pub(crate) fn keep_names(last: u32) {
    for entry in (1..=last).filter_map(entry) {
        if let Some(tid) = entry.system_tid()
            && entry.name().is_empty()
            && let Ok(name) = system::read(format!("/proc/self/task/{tid}/comm"))
        {
            entry.set_name(name.trim_ascii_end());
        }
    }
}
