//! State shared by all threads: the switch of recording, the control block, the bank of the process that empties the buffer; and the memory
//! that a frontend gives. Data of one thread is in `thread.rs`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use super::filter::FilterControl;
use super::thread::{LeftCell, ThreadBlock};

/// States of recording: the lowest byte of [`Switch::enabled`].
pub mod enabled {
    /// Not recording.
    pub const OFF: u8 = 0;
    /// Recording every call.
    pub const ON: u8 = 1;
    /// Recording what [`FilterControl`](super::FilterControl) lets pass.
    pub const FILTERED: u8 = 2;

    /// The bits that tell.
    pub const MASK: u32 = 0xff;
    /// Somebody is about to stop recording, and nobody has started it since.
    pub const STOPPING: u32 = 1 << 8;
    /// The number that each one about to stop adds to the bits above: no two have the same word.
    pub const ONE_STOP: u32 = 1 << 9;
}

/// The switch that the hooks look at first. It has a page of its own, all zero at first: a frontend may have the system clear it in each
/// child of a fork (`MADV_WIPEONFORK`).
#[derive(Debug)]
#[cfg_attr(target_os = "none", repr(C, align(64)))]
#[cfg_attr(not(target_os = "none"), repr(C, align(4096)))]
pub struct Switch {
    /// One of [`enabled`] in its lowest byte. The bits above are for who stops recording provided that nobody has started it since.
    pub enabled: AtomicU32,
}

impl Switch {
    /// The state of recording: one of [`enabled`].
    #[must_use]
    #[inline(always)]
    pub fn state(&self, order: Ordering) -> u8 {
        self.enabled.load(order) as u8
    }
}

/// Data shared by a tracer and the one that empties its buffer while it is filled, maybe in another process: that one takes the records of
/// chunks that are FULL, or WAITING and written, and makes those FREE.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bank {
    /// Changes as long as somebody empties the buffer.
    pub beat: AtomicU64,
    /// How long a thread that finds no chunk waits while `beat` does not change, in ticks; 0: it does not wait.
    pub wait_ticks: AtomicU64,
    /// Calls and returns that were not recorded because no chunk was free.
    pub n_lost: AtomicU64,
}

/// State of the tracer that all threads share. All times are ticks.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    /// Not 0: full chunks are used again, oldest first (ring mode).
    pub overwriting: AtomicU8,
    /// Not 0: the buffer was used up and recording stopped for this cycle (stop mode).
    pub full: AtomicU8,
    /// Bytes of a chunk, a power of two. 0 before init.
    pub chunk_bytes: AtomicUsize,
    /// Number of chunks.
    pub n_chunks: AtomicUsize,
    /// The first chunk, aligned to `chunk_bytes`.
    pub chunks: AtomicPtr<u8>,
    /// Head of the list of all blocks ever used. Read by the trampoline's CFI.
    pub threads: AtomicPtr<ThreadBlock>,
    /// Memory for blocks; null where they lie in thread-local storage.
    pub blocks: AtomicPtr<ThreadBlock>,
    /// Number of blocks that fit.
    pub n_blocks: AtomicUsize,
    /// The table of left frames; null for none.
    pub left: AtomicPtr<LeftCell>,
    /// Its buckets.
    pub n_left_buckets: AtomicUsize,
    /// Not 0 once a frame was left.
    pub any_left: AtomicU8,
    /// See [`InitArgs::thread_start`]; null for none.
    pub thread_start: AtomicPtr<c_void>,
    /// The first argument of `thread_start`.
    pub thread_start_key: AtomicU32,
    /// When the current cycle began: records before it were dumped already.
    pub cycle_start_tsc: AtomicU64,
    /// When recording was last switched off.
    pub stop_tsc: AtomicU64,
    /// The id that the next thread gets.
    pub next_tid: AtomicU32,
    /// Threads that could not be traced because all blocks were in use, or because they have a shadow stack.
    pub n_untraced_threads: AtomicU32,
    /// Calls that could not be recorded because every chunk was being written to by a thread (ring mode).
    pub n_lost_no_chunk: AtomicU64,
    /// The bank of the one that empties the buffer; null for none.
    pub bank: AtomicPtr<Bank>,
    /// The [`Bank::beat`] at which a thread has waited in vain.
    pub beat_given_up: AtomicU64,
    /// Until then nobody looks for a chunk, as there was none.
    pub none_until_tsc: AtomicU64,
    /// The filter.
    pub filter: FilterControl,
    /// Fields that change often: they have a cache line of their own.
    pub shared: ControlShared,
}

impl Control {
    /// Chunks that may ever have been taken, from the first on. The memory of the others may not be there yet.
    #[must_use]
    #[inline(always)]
    pub fn n_touched_chunks(&self) -> usize {
        let shared = &self.shared;
        let n_taken = shared.next_index.load(Relaxed).saturating_sub(shared.first_index.load(Relaxed));
        self.n_chunks.load(Relaxed).min(n_taken as usize)
    }
}

/// Chunks of ended threads that are kept for new threads to go on with.
pub const PARTIAL_SLOTS: usize = 64;

/// The part of [`Control`] that threads write when they take a chunk.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ControlShared {
    /// Chunks taken so far, over all cycles; modulo `n_chunks` the chunk to take next.
    pub next_index: AtomicU64,
    /// Stop mode: `next_index` at which the buffer is used up.
    pub end_index: AtomicU64,
    /// Full chunks that were used again in this cycle (ring mode).
    pub n_overwritten: AtomicU64,
    /// `next_index` when the buffer was given, a multiple of `n_chunks`.
    pub first_index: AtomicU64,
    /// Threads that are taking or leaving a chunk at this moment, and more, see [`takers`].
    pub n_takers: AtomicU32,
    /// The last stamp of a cell in the table of left frames.
    pub left_stamp: AtomicU64,
    /// Blocks used at least once.
    pub n_blocks_used: AtomicU32,
    /// Head of the free list of blocks: `tag << 32 | number + 1`.
    pub free_block: AtomicU64,
    /// Where PARTIAL chunks may be found: number + 1, or 0. A hint; the chunk's state decides.
    pub partial: [AtomicU64; PARTIAL_SLOTS],
}

impl ControlShared {
    /// True if no thread is taking a chunk.
    #[must_use]
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.n_takers.load(SeqCst) & !takers::FORKS == 0
    }
}

/// The parts of [`ControlShared::n_takers`].
pub mod takers {
    /// The bits that count the threads.
    pub const COUNT: u32 = (1 << 16) - 1;
    /// The bits that count forks: the takers of before are not there any more, or find that they need not be counted out.
    pub const FORKS: u32 = !COUNT & !REPLACING;
    /// Counts a fork.
    pub const FORK: u32 = COUNT + 1;
    /// The buffer is being replaced; nobody takes a chunk.
    pub const REPLACING: u32 = 1 << 31;
}

/// The memory that a frontend gives to the tracer. It must stay mapped for the rest of the program and be all zero.
///
/// The tracer takes a buffer each time, and the rest (`blocks`, `left`, `thread_start`) with the first one only.
#[derive(Debug)]
#[repr(C)]
pub struct InitArgs {
    /// Memory for records.
    pub buffer: *mut u8,
    /// Its size; [`region_bytes`](super::region_bytes) tells how much a number of records needs.
    pub buffer_bytes: usize,
    /// Memory for per-thread blocks, aligned to 64 bytes; unused (and best null) where the tracer was built for a
    /// target without OS, which has them in thread-local storage.
    pub blocks: *mut u8,
    /// Its size.
    pub blocks_bytes: usize,
    /// Memory for frames that a thread left without their returning: dead ones, and those of other stacks.
    /// [`LEFT_BUCKET_BYTES`](super::LEFT_BUCKET_BYTES) at least, aligned to 8 bytes. Null: they stay on their threads' return stacks.
    pub left: *mut u8,
    /// Its size.
    pub left_bytes: usize,
    /// Not 0 for ring mode, 0 for stop mode.
    pub overwriting: u8,
    /// Not null: a thread that finds no free chunk waits, and the buffer is never used up (`overwriting` is 0).
    pub bank: *const Bank,
    /// Called on a thread when it is first seen, with `thread_start_key` and its block. It has the shape of
    /// `pthread_setspecific`: with a key whose destructor is `rftrace_backend_thread_exit` blocks are recycled.
    pub thread_start: Option<unsafe extern "C" fn(u32, *const c_void) -> c_int>,
    /// The first argument of `thread_start`.
    pub thread_start_key: u32,
}

/// Results of `rftrace_backend_init_v10`.
pub mod init {
    /// The memory was taken.
    pub const OK: u32 = 0;
    /// The tracer has its memory already, and was built for a target without OS: it cannot tell all threads of another one.
    pub const ALREADY_DONE: u32 = 1;
    /// The buffer holds fewer than [`MIN_CHUNKS`](super::super::MIN_CHUNKS) chunks.
    pub const BUFFER_TOO_SMALL: u32 = 2;
    /// The memory for blocks does not hold two, or is not aligned.
    pub const BAD_BLOCKS: u32 = 3;
    /// Recording is on: the buffer is in use.
    pub const RECORDING: u32 = 4;
    /// A thread is taking a chunk at this moment: try again.
    pub const BUSY: u32 = 5;
    /// The calling thread has a shadow stack, so its returns cannot be hooked.
    pub const SHADOW_STACK: u32 = 6;
}
