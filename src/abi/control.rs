//! The state shared by all threads: the switch of recording, the control block, and the bank of a collector process;
//! also the memory from a frontend. The data of one thread is in `thread.rs`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use super::filter::FilterControl;
use super::thread::{LeftCell, ThreadBlock};

/// The states of recording: the lowest byte of [`Switch::enabled`].
pub mod enabled {
    /// Recording is off.
    pub const OFF: u8 = 0;
    /// The hooks record every call.
    pub const ON: u8 = 1;
    /// The hooks record only calls that pass [`FilterControl`](super::FilterControl).
    pub const FILTERED: u8 = 2;

    /// The bits of the state.
    pub const MASK: u32 = 0xff;
    /// The mark of a pending stop: set by `begin_disable`, removed by an enable.
    pub const STOPPING: u32 = 1 << 8;
    /// The unit of the count above these bits. Each `begin_disable` adds one, so no two have the same word.
    pub const ONE_STOP: u32 = 1 << 9;
}

/// The switch of recording: hooks read it first. It has a page of its own, all zero at first. A frontend may have the
/// system clear the page in each child of a fork (`MADV_WIPEONFORK`).
#[derive(Debug)]
#[cfg_attr(target_os = "none", repr(C, align(64)))]
#[cfg_attr(not(target_os = "none"), repr(C, align(4096)))]
pub struct Switch {
    /// One of [`enabled`] in the lowest byte. The higher bits keep a stop from undoing a later start.
    pub enabled: AtomicU32,
}

impl Switch {
    /// Returns the state of recording, one of [`enabled`].
    #[must_use]
    #[inline(always)]
    pub fn state(&self, order: Ordering) -> u8 {
        self.enabled.load(order) as u8
    }
}

/// The data shared by a tracer and the collector that empties its buffer during recording, maybe in another process.
/// The collector takes the records of chunks that are FULL, or WAITING and written, and sets those chunks FREE.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bank {
    /// A counter that changes as long as a collector is at work.
    pub beat: AtomicU64,
    /// The time in ticks for which a thread without a free chunk waits while `beat` stays the same; 0 for no wait.
    pub wait_ticks: AtomicU64,
    /// The number of calls and returns lost because no chunk was free.
    pub n_lost: AtomicU64,
}

/// The state of the tracer, shared by all threads. All times are in ticks.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    /// Not 0 in ring mode: the oldest full chunks are used again.
    pub overwriting: AtomicU8,
    /// Not 0 if the buffer was used up, so that recording stopped for this cycle (stop mode).
    pub full: AtomicU8,
    /// The size of a chunk in bytes, a power of two; 0 before init.
    pub chunk_bytes: AtomicUsize,
    /// The number of chunks.
    pub n_chunks: AtomicUsize,
    /// The first chunk, aligned to `chunk_bytes`.
    pub chunks: AtomicPtr<u8>,
    /// The head of the list of all blocks ever used. The trampoline's CFI reads it.
    pub threads: AtomicPtr<ThreadBlock>,
    /// The memory for blocks; null if blocks are in thread-local storage.
    pub blocks: AtomicPtr<ThreadBlock>,
    /// The number of blocks for which there is memory.
    pub n_blocks: AtomicUsize,
    /// The table of left frames; null without one.
    pub left: AtomicPtr<LeftCell>,
    /// The number of its buckets.
    pub n_left_buckets: AtomicUsize,
    /// Not 0 once a thread has left a frame without a return.
    pub any_left: AtomicU8,
    /// See [`InitArgs::thread_start`]; null without one.
    pub thread_start: AtomicPtr<c_void>,
    /// The first argument of `thread_start`.
    pub thread_start_key: AtomicU32,
    /// The beginning of the current cycle: earlier records were dumped already.
    pub cycle_start_tsc: AtomicU64,
    /// The time of the last stop.
    pub stop_tsc: AtomicU64,
    /// The id of the next new thread.
    pub next_tid: AtomicU32,
    /// The number of untraced threads: all blocks were in use, or the thread has a shadow stack.
    pub n_untraced_threads: AtomicU32,
    /// The number of calls lost because threads were writing to every chunk (ring mode).
    pub n_lost_no_chunk: AtomicU64,
    /// The bank shared with the collector; null without one.
    pub bank: AtomicPtr<Bank>,
    /// The [`Bank::beat`] during which a thread waited in vain.
    pub beat_given_up: AtomicU64,
    /// No thread looks for a chunk before this time, because none was free.
    pub none_until_tsc: AtomicU64,
    /// The filter.
    pub filter: FilterControl,
    /// Fields that change often; they have a cache line of their own.
    pub shared: ControlShared,
}

impl Control {
    /// Returns the number of chunks that may ever have been taken, from the first on. The memory of the others may not
    /// exist yet.
    #[must_use]
    #[inline(always)]
    pub fn n_touched_chunks(&self) -> usize {
        let shared = &self.shared;
        let n_taken = shared.next_index.load(Relaxed).saturating_sub(shared.first_index.load(Relaxed));
        self.n_chunks.load(Relaxed).min(n_taken as usize)
    }
}

/// The number of places for chunks of ended threads. New threads continue these chunks.
pub const PARTIAL_SLOTS: usize = 64;

/// The part of [`Control`] that threads write when they take a chunk.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ControlShared {
    /// The number of chunks taken so far, over all cycles. Modulo `n_chunks` it is the number of the next chunk.
    pub next_index: AtomicU64,
    /// In stop mode, the `next_index` at which the buffer is used up.
    pub end_index: AtomicU64,
    /// In ring mode, the number of full chunks reused in this cycle.
    pub n_overwritten: AtomicU64,
    /// The `next_index` at the time when the buffer was given, a multiple of `n_chunks`.
    pub first_index: AtomicU64,
    /// The number of threads now taking or leaving a chunk, and flags, see [`takers`].
    pub n_takers: AtomicU32,
    /// The last stamp of a cell in the table of left frames.
    pub left_stamp: AtomicU64,
    /// The number of blocks used at least once.
    pub n_blocks_used: AtomicU32,
    /// The head of the free list of blocks: `tag << 32 | number + 1`.
    pub free_block: AtomicU64,
    /// The numbers of chunks that may be PARTIAL, plus 1, or 0. Hints: the chunk's state decides.
    pub partial: [AtomicU64; PARTIAL_SLOTS],
}

impl ControlShared {
    /// Returns true if no thread is taking a chunk.
    #[must_use]
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.n_takers.load(SeqCst) & !takers::FORKS == 0
    }
}

/// The parts of [`ControlShared::n_takers`].
pub mod takers {
    /// The bits of the count of threads.
    pub const COUNT: u32 = (1 << 16) - 1;
    /// The bits of the count of forks. In the child of a fork the earlier takers no longer exist, or find that they
    /// need no counting out.
    pub const FORKS: u32 = !COUNT & !REPLACING;
    /// The unit of the count of forks.
    pub const FORK: u32 = COUNT + 1;
    /// The buffer is being replaced, so no thread takes a chunk.
    pub const REPLACING: u32 = 1 << 31;
}

/// The memory for the tracer from a frontend. It must be all zero, and stay mapped for the rest of the program.
///
/// The tracer takes a buffer with each init, and the rest (`blocks`, `left`, `thread_start`) with the first one only.
#[derive(Debug)]
#[repr(C)]
pub struct InitArgs {
    /// The memory for records.
    pub buffer: *mut u8,
    /// The size of `buffer` in bytes; [`region_bytes`](super::region_bytes) computes it for a number of records.
    pub buffer_bytes: usize,
    /// The memory for per-thread blocks, aligned to 64 bytes. A tracer for a target without OS ignores it (best null),
    /// as it keeps blocks in thread-local storage.
    pub blocks: *mut u8,
    /// The size of `blocks` in bytes.
    pub blocks_bytes: usize,
    /// The memory for frames left without a return: dead frames, and those of other stacks. At least
    /// [`LEFT_BUCKET_BYTES`](super::LEFT_BUCKET_BYTES), aligned to 8 bytes. With null these frames stay on the return
    /// stacks.
    pub left: *mut u8,
    /// The size of `left` in bytes.
    pub left_bytes: usize,
    /// Not 0 for ring mode, 0 for stop mode.
    pub overwriting: u8,
    /// The bank of a collector, or null. With a bank, a thread without a free chunk waits, and the buffer is never used
    /// up (`overwriting` is 0).
    pub bank: *const Bank,
    /// A function called on each new thread with `thread_start_key` and the thread's block. It has the type of
    /// `pthread_setspecific`: with a key whose destructor is `rftrace_backend_thread_exit`, blocks are recycled.
    pub thread_start: Option<unsafe extern "C" fn(u32, *const c_void) -> c_int>,
    /// The first argument of `thread_start`.
    pub thread_start_key: u32,
}

/// The results of `rftrace_backend_init_v10`.
pub mod init {
    /// The tracer took the memory.
    pub const OK: u32 = 0;
    /// The tracer already has its memory and was built for a target without OS: it cannot announce another buffer to
    /// all threads.
    pub const ALREADY_DONE: u32 = 1;
    /// The buffer has room for fewer than [`MIN_CHUNKS`](super::super::MIN_CHUNKS) chunks.
    pub const BUFFER_TOO_SMALL: u32 = 2;
    /// The memory for blocks has no room for two, or is not aligned.
    pub const BAD_BLOCKS: u32 = 3;
    /// Recording is on, so the buffer is in use.
    pub const RECORDING: u32 = 4;
    /// A thread is taking a chunk: try again.
    pub const BUSY: u32 = 5;
    /// The calling thread has a shadow stack, so its returns cannot be hooked.
    pub const SHADOW_STACK: u32 = 6;
}
