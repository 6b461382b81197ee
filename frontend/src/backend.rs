//! The tracer for the rest of this crate: safe functions over its symbols and its memory.
//!
//! Functions with access to the tracer's symbols are inlined or generic: a program that only imports images links
//! without the tracer.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::{ptr, slice};
#[cfg(feature = "std")]
use std::collections::HashMap;

use rftrace::abi::{
    self, ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, Control, InitArgs, Record, Switch, ThreadBlock, chunk_state,
    kind, lease, state,
};

unsafe extern "C" {
    fn rftrace_backend_init_v10(args: *const InitArgs) -> u32;
    safe fn rftrace_backend_control_v10() -> *const Control;
    safe fn rftrace_backend_switch() -> *const Switch;
    safe fn rftrace_backend_enable();
    safe fn rftrace_backend_disable();
    safe fn rftrace_backend_set_core(core: u32);
    /// See [`rftrace::abi`]; the destructor of a thread-specific key.
    pub(crate) unsafe fn rftrace_backend_thread_exit(block: *mut c_void);
    pub(crate) safe fn rftrace_backend_suspend_thread() -> *mut ThreadBlock;
    pub(crate) unsafe fn rftrace_backend_resume_thread(block: *mut ThreadBlock);
}

#[cfg(feature = "std")]
unsafe extern "C" {
    safe fn rftrace_backend_reset();
    safe fn rftrace_backend_begin_disable() -> u32;
    safe fn rftrace_backend_end_disable(marked: u32) -> u8;
    safe fn rftrace_backend_filter(active: u8);
}

#[cfg(all(feature = "std", target_os = "linux"))]
unsafe extern "C" {
    unsafe fn rftrace_backend_exclude_thread(block: *mut ThreadBlock, is_excluded: u8);
    /// See [`rftrace::abi`]; a handler of `pthread_atfork`.
    unsafe fn rftrace_backend_forked(args: *const InitArgs) -> u32;
}

/// Hands memory to the tracer, after the facts about the processor (`arch`). Returns an [`init`](abi::init) status.
///
/// # Safety
///
/// The memory in `args` is all zero, is used by nobody else and stays mapped for the rest of the program;
/// `thread_start` may be called on any thread.
#[inline]
pub(crate) unsafe fn initialize(args: &InitArgs) -> u32 {
    // SAFETY: by this function's contract.
    unsafe { rftrace_backend_init_v10(args) }
}

/// The minimum size of a buffer for the tracer, at any address.
pub(crate) const fn minimum_bytes() -> usize {
    (abi::MIN_CHUNKS + 1) * abi::MIN_CHUNK_BYTES
}

/// The control block.
#[inline]
pub(crate) fn control() -> &'static Control {
    // SAFETY: the function returns the address of a static variable all of whose fields are atomics.
    unsafe { &*rftrace_backend_control_v10() }
}

/// Starts recording. Inlined, like all code during recording: this crate may be instrumented too.
#[inline(always)]
pub(crate) fn enable() {
    rftrace_backend_enable();
}

/// Stops recording.
#[inline(always)]
pub(crate) fn disable() {
    rftrace_backend_disable();
}

/// The mark of a pending stop.
#[cfg(feature = "std")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopping(u32);

/// Marks a pending stop. A later start removes the mark; the caller has to find out about an earlier one.
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn begin_disable() -> Stopping {
    Stopping(rftrace_backend_begin_disable())
}

/// Stops recording, unless it was started since the mark. Returns true if it stopped.
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn end_disable(stopping: Stopping) -> bool {
    rftrace_backend_end_disable(stopping.0) != 0
}

/// The calling thread runs on this core from now on.
#[inline(always)]
pub(crate) fn set_core(core: u32) {
    rftrace_backend_set_core(core);
}

/// The calling thread ends: its open functions do, and nothing more is recorded of it.
#[inline(always)]
pub(crate) fn end_thread() {
    // SAFETY: the calling thread's own block.
    unsafe { rftrace_backend_thread_exit(ptr::null_mut()) };
}

/// Frees all chunks without a writer and begins a new cycle. Recording must be off.
#[cfg(feature = "std")]
pub(crate) fn reset() {
    rftrace_backend_reset();
}

/// Switches the filter in the control block on or off.
#[cfg(feature = "std")]
pub(crate) fn set_filtered(is_filtered: bool) {
    rftrace_backend_filter(u8::from(is_filtered));
}

/// Records nothing of a thread from now on, or again.
///
/// # Safety
///
/// The block is one of the tracer's.
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) unsafe fn exclude_thread(block: *const ThreadBlock, is_excluded: bool) {
    // SAFETY: by this function's contract; it consists of atomics.
    unsafe { rftrace_backend_exclude_thread(block.cast_mut(), u8::from(is_excluded)) };
}

/// Runs `work` without recording this thread: this crate may be instrumented, and long work would fill the buffer.
#[inline(always)]
pub(crate) fn unrecorded<T>(work: impl FnOnce() -> T) -> T {
    unrecorded_as(|_| work())
}

/// The same for work with the thread's number, if it is traced.
#[inline(always)]
pub(crate) fn unrecorded_as<T>(work: impl FnOnce(Option<u32>) -> T) -> T {
    struct Resume(*mut ThreadBlock);
    impl Drop for Resume {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: on this thread, and what was suspended last: these calls are nested.
            unsafe { rftrace_backend_resume_thread(self.0) };
        }
    }
    let resume = Resume(rftrace_backend_suspend_thread());
    work(block(resume.0).map(|block| block.tid.load(Relaxed)))
}

/// Returns the block of a thread if it is traced. An untraced thread has 1 in place of an address.
#[inline(always)]
fn block(block: *mut ThreadBlock) -> Option<&'static ThreadBlock> {
    // SAFETY: blocks stay mapped, and consist of atomics.
    if block as usize > 1 { unsafe { block.as_ref() } } else { None }
}

/// The calling thread, if it is traced.
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) fn own_thread() -> Option<&'static ThreadBlock> {
    let own = rftrace_backend_suspend_thread();
    // SAFETY: on this thread, what was suspended last.
    unsafe { rftrace_backend_resume_thread(own) };
    block(own)
}

/// Returns true while recording is on.
#[inline(always)]
pub(crate) fn is_enabled() -> bool {
    switch().state(Relaxed) != abi::enabled::OFF
}

/// Returns the switch, the first word that hooks read.
#[inline(always)]
pub(crate) fn switch() -> &'static Switch {
    // SAFETY: the function returns the address of a static variable that consists of atomics.
    unsafe { &*rftrace_backend_switch() }
}

/// In the child of a fork, on its only thread: the tracer forgets the others, and goes on in the buffer of `args`, if
/// given.
/// Returns an [`init`](abi::init) status.
///
/// # Safety
///
/// The contract of [`initialize`].
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) unsafe fn forked(args: Option<&InitArgs>) -> u32 {
    // SAFETY: by this function's contract.
    unsafe { rftrace_backend_forked(args.map_or(ptr::null(), ptr::from_ref)) }
}

/// Waits until no thread is taking a chunk, while `wait` returns true. Recording must be off. Returns true on success.
///
/// A thread pre-empted between its look at `enabled` and its last store may still write one record. It goes into that
/// thread's own chunk, either before the reader comes by or unseen.
#[inline]
pub(crate) fn quiesce(mut wait: impl FnMut() -> bool) -> bool {
    let is_quiet = || control().shared.is_quiet();
    while !is_quiet() {
        if !wait() {
            return is_quiet();
        }
    }
    true
}

/// A chunk with records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) header: &'a ChunkHeader,
    pub(crate) records: &'a [Record],
}

/// All chunks with records, in memory order.
#[inline]
pub(crate) fn chunks() -> impl Iterator<Item = Chunk<'static>> {
    let control = control();
    let start = control.chunks.load(Acquire);
    let n_chunks = if start.is_null() { 0 } else { control.n_touched_chunks() };
    let chunk_bytes = control.chunk_bytes.load(Relaxed);
    (0..n_chunks).filter_map(move |place| {
        let chunk = start.wrapping_add(place * chunk_bytes);
        // SAFETY: chunk `place` of the buffer, which stays mapped; all fields are atomics.
        let header = unsafe { &*chunk.cast::<ChunkHeader>() };
        let used = lease::state(header.lease.load(Acquire)) != chunk_state::FREE && header.tid.load(Acquire) != 0;
        let first = chunk.wrapping_add(CHUNK_HEADER_BYTES).cast::<Record>();
        // SAFETY: the rest of the chunk; records consist of atomics.
        let records = unsafe { slice::from_raw_parts(first, abi::records_per_chunk(chunk_bytes)) };
        used.then_some(Chunk { header, records })
    })
}

/// Returns the word of a function's exit record, from that of its entry or exit, without bits of other meanings.
#[inline]
pub(crate) fn exit_word(word: u64) -> u64 {
    word >> ADDRESS_SHIFT << ADDRESS_SHIFT | kind::EXIT
}

/// Returns the living threads in the tracer's list. The list is empty if blocks are in thread-local storage.
#[inline]
pub(crate) fn threads() -> impl Iterator<Item = &'static ThreadBlock> {
    let mut next: *const ThreadBlock = control().threads.load(Acquire);
    core::iter::from_fn(move || {
        // SAFETY: blocks on the list stay mapped for ever.
        let block = unsafe { next.as_ref() }?;
        next = block.next.load(Relaxed);
        Some(block)
    })
    // Without it the block is not a thread's, or that of one that has ended.
    .filter(|block| !block.limit.load(Acquire).is_null())
}

/// [`open_functions`] of all threads, by their ids.
#[cfg(feature = "std")]
pub(crate) fn open_by_thread() -> HashMap<u32, Vec<u64>> {
    threads().map(|thread| (thread.tid.load(Relaxed), open_functions(thread).collect())).collect()
}

/// Returns the words of the exit records of the recorded functions open in a thread now, outermost first.
#[inline]
pub(crate) fn open_functions(block: &ThreadBlock) -> impl Iterator<Item = u64> {
    let base = block.base.load(Relaxed) as usize;
    let n_open = (block.sp.load(Relaxed) as usize).saturating_sub(base) / size_of::<abi::ReturnEntry>();
    // The first element is the sentinel.
    let words = block.stack.iter().skip(1).take(n_open).map(|entry| entry.exit_word.load(Relaxed));
    words.filter(|word| word & (kind::LEFT | state::HIDDEN) == 0).map(exit_word)
}
