//! The tracer, as the rest of this crate sees it: safe functions over its symbols and its memory.

use std::collections::HashMap;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rftrace::abi::{
    self, CHUNK_HEADER_BYTES, ChunkHeader, Control, InitArgs, Record, ThreadBlock, chunk_state, init, kind, state,
};

use crate::Error;
use crate::decode;

unsafe extern "C" {
    fn rftrace_backend_init_v4(args: *const InitArgs) -> u32;
    safe fn rftrace_backend_control_v4() -> *const Control;
    safe fn rftrace_backend_enable();
    safe fn rftrace_backend_disable();
    safe fn rftrace_backend_reset();
    safe fn rftrace_backend_filter(active: u8);
    safe fn rftrace_backend_suspend_thread() -> *mut ThreadBlock;
    unsafe fn rftrace_backend_resume_thread(block: *mut ThreadBlock);
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    /// See [`rftrace::abi`]; the destructor of a thread-specific key.
    pub(crate) unsafe fn rftrace_backend_thread_exit(block: *mut std::ffi::c_void);
    /// See [`rftrace::abi`]; a handler of `pthread_atfork`.
    pub(crate) unsafe fn rftrace_backend_forked();
}

/// How long a dump waits for threads that are taking a chunk. They need microseconds, unless they are stopped.
const QUIESCE_LIMIT: Duration = Duration::from_secs(1);

/// Hands memory to the tracer.
///
/// # Safety
///
/// What `args` names is all zero, is used by nobody else and stays mapped for the rest of the program; `thread_start`
/// may be called on any thread.
pub(crate) unsafe fn initialize(args: &InitArgs) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    match unsafe { rftrace_backend_init_v4(args) } {
        init::OK => Ok(()),
        init::ALREADY_DONE => Err(Error::AlreadyInitialized),
        _ => Err(Error::BufferTooSmall { bytes: args.buffer_bytes, minimum: minimum_bytes() }),
    }
}

/// The smallest buffer that the tracer takes, wherever it lies.
pub(crate) const fn minimum_bytes() -> usize {
    (abi::MIN_CHUNKS + 1) * abi::MIN_CHUNK_BYTES
}

/// The control block.
pub(crate) fn control() -> &'static Control {
    // SAFETY: the function returns the address of a static variable all of whose fields are atomics.
    unsafe { &*rftrace_backend_control_v4() }
}

/// Starts recording. Inlined, as is all that runs while recording is on: this crate may be instrumented too.
#[inline(always)]
pub(crate) fn enable() {
    rftrace_backend_enable();
}

/// Stops recording.
#[inline(always)]
pub(crate) fn disable() {
    rftrace_backend_disable();
}

/// Gives all chunks that have no writer back and begins a new cycle. Recording must be off.
pub(crate) fn reset() {
    rftrace_backend_reset();
}

/// Filters what is recorded as the control block says, or not any more.
pub(crate) fn set_filtered(is_filtered: bool) {
    rftrace_backend_filter(u8::from(is_filtered));
}

/// Runs `work` without recording this thread: this crate may be instrumented, and what it does at length would fill the
/// buffer.
#[inline(always)]
pub(crate) fn unrecorded<T>(work: impl FnOnce() -> T) -> T {
    struct Resume(*mut ThreadBlock);
    impl Drop for Resume {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: on this thread, and what was suspended last: these calls are nested.
            unsafe { rftrace_backend_resume_thread(self.0) };
        }
    }
    let _resume = Resume(rftrace_backend_suspend_thread());
    work()
}

/// Whether recording is on.
pub(crate) fn is_enabled() -> bool {
    control().enabled.load(Relaxed) != 0
}

/// Waits until no thread is taking a chunk. Recording must be off.
///
/// A thread that was preempted between its look at `enabled` and its last store may still write one record; it goes
/// into that thread's own chunk, either before the reader comes by or unseen.
pub(crate) fn quiesce() {
    let deadline = Instant::now() + QUIESCE_LIMIT;
    while control().shared.n_takers.load(SeqCst) != 0 && Instant::now() < deadline {
        thread::yield_now();
    }
}

/// A chunk that holds records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) header: &'static ChunkHeader,
    pub(crate) records: &'static [Record],
}

/// All chunks that hold records, in memory order.
pub(crate) fn chunks() -> impl Iterator<Item = Chunk> {
    let control = control();
    let start = control.chunks.load(Acquire);
    let n_chunks = if start.is_null() { 0 } else { control.n_chunks.load(Relaxed) };
    let chunk_bytes = control.chunk_bytes.load(Relaxed);
    (0..n_chunks).filter_map(move |place| {
        let chunk = start.wrapping_add(place * chunk_bytes);
        // SAFETY: chunk `place` of the buffer, which stays mapped; all fields are atomics.
        let header = unsafe { &*chunk.cast::<ChunkHeader>() };
        let used = header.state.load(Acquire) != chunk_state::FREE && header.tid.load(Acquire) != 0;
        let first = chunk.wrapping_add(CHUNK_HEADER_BYTES).cast::<Record>();
        // SAFETY: the rest of the chunk; records consist of atomics.
        let records = unsafe { slice::from_raw_parts(first, abi::records_per_chunk(chunk_bytes)) };
        used.then_some(Chunk { header, records })
    })
}

/// The words of the exit records of the recorded functions that are open now, outermost first, by thread.
pub(crate) fn open_functions() -> HashMap<u32, Vec<u64>> {
    let mut open = HashMap::new();
    let mut next: *const ThreadBlock = control().threads.load(Acquire);
    while !next.is_null() {
        // SAFETY: blocks on the list stay mapped for ever.
        let block = unsafe { &*next };
        next = block.next.load(Relaxed);
        // Not a thread, or one that has ended.
        if block.limit.load(Acquire).is_null() {
            continue;
        }
        let base = block.base.load(Relaxed) as usize;
        let n_open = (block.sp.load(Relaxed) as usize).saturating_sub(base) / size_of::<abi::ReturnEntry>();
        // The first element is the sentinel.
        let words = block.stack.iter().skip(1).take(n_open).map(|entry| entry.exit_word.load(Relaxed));
        let shown = words.filter(|word| word & (kind::LEFT | state::HIDDEN) == 0);
        open.insert(block.tid.load(Relaxed), shown.map(decode::exit_word).collect());
    }
    open
}
