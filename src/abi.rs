//! What the tracer and its frontends share: records, chunks, per-thread blocks and the control block.
//!
//! This file is compiled into both sides and is the only definition. **A change of any layout or meaning below
//! must raise [`VERSION`] and the suffix of the two versioned symbols** (`rftrace_backend_init_v7`,
//! `rftrace_backend_control_v7`): sides that do not fit then fail to link instead of misreading each other.
//!
//! # Symbols of the backend
//!
//! | symbol | what it does |
//! |---|---|
//! | `mcount`, `__fentry__` | the hooks that compilers call in function prologues |
//! | `rftrace_patched_mcount`, `rftrace_patched_fentry` | the same for patched call sites, which jump here, see below |
//! | `rftrace_entry` | the hook of entry branches, which stubs jump to, see below |
//! | `rftrace_backend_init_v7(*const InitArgs) -> u32` | takes the memory to record into; returns an [`init`] status |
//! | `rftrace_backend_control_v7() -> *const Control` | the control block, for reading the chunks |
//! | `rftrace_backend_enable()` | starts recording |
//! | `rftrace_backend_disable()` | stops recording |
//! | `rftrace_backend_begin_disable() -> u32` | marks that recording is about to be stopped: an enable takes the mark away |
//! | `rftrace_backend_end_disable(u32) -> u8` | with what the beginning returned: stops recording if no enable came between; else returns 0 |
//! | `rftrace_backend_reset()` | while off: frees all full chunks and starts a new cycle |
//! | `rftrace_backend_filter(u8)` | not 0: recording is filtered as [`FilterControl`] says; 0: everything is recorded |
//! | `rftrace_backend_suspend_thread() -> *mut ThreadBlock` | this thread is not recorded until it resumes |
//! | `rftrace_backend_resume_thread(*mut ThreadBlock)` | with what suspending returned: it is recorded again |
//! | `rftrace_backend_thread_exit(*mut ThreadBlock)` | the calling thread, whose block this is (or null), ends |
//! | `rftrace_backend_confine()` | the tracer makes no system call from now on, see [`FilterControl::confined`] |
//! | `rftrace_backend_set_core(u32)` | the calling thread runs on this core from now on |
//! | `rftrace_backend_forked(*const InitArgs) -> u32` | in the child of a fork: forgets the other threads, begins a new cycle; not null: in that buffer, like init |
//! | `rftrace_backend_switch() -> *const Switch` | what the hooks look at first |
//! | `__monstartup`, `_mcleanup` | on Linux: nothing; they keep gprof's start-up code (linked by `-pg`) quiet |
//!
//! # Patched call sites
//!
//! On aarch64 the hooks are `_mcount` and `mcount`, and there are none for patched call sites.
//!
//! A frontend may replace the five bytes of a `call mcount` by a jump to a stub of its own, which puts the address behind
//! the call (`child_ip`) into r11 and jumps to `rftrace_patched_mcount`; that comes back with a jump to the address. The
//! stack and all other registers are as at the call, rsp where it was before it. Calls and returns of the traced function
//! then are paired for the processor's return predictor. `rftrace_patched_fentry` is the same for `__fentry__`.
//!
//! # Entry branches
//!
//! A frontend may replace the first instructions of a function that calls no hook by a jump to a stub of its own, which pushes the
//! address where the function goes on (a copy of these instructions) and then that of the function, and jumps to `rftrace_entry`.
//! That records the function by its address, keeps all registers but the flags, takes both words off the stack and jumps to
//! the copy. The function returns by a trampoline that keeps all registers too: its callers were not compiled for hooks, and
//! may rely on any register that the function does not change.
//!
//! # The feature `threadhook`
//!
//! A kernel whose tasks have no thread-local storage at `fs` defines `rftrace_thread_area`: it returns in r11 the address of
//! the running task's [`ThreadArea`] and changes no other register and no flag. The tracer then also exports
//! `rftrace_untraced_area`, whose address it may return where no task runs. See docs/kernels.md.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::{self, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// The version of this interface. Part of the names of `rftrace_backend_init_v7` and `rftrace_backend_control_v7`.
pub const VERSION: u32 = 7;
/// The oldest version whose records and chunks mean the same.
pub const OLDEST_RECORDS: u32 = 5;

/// Return-stack entries of one thread. A call that finds the stack full is counted, not recorded.
///
/// uftrace's format has ten bits for the depth, and its reader shows 1024 levels unless told otherwise: the last one is
/// left for the events that tell of lost calls.
pub const RETURN_STACK_ENTRIES: usize = 1023;

/// Smallest chunk, in bytes.
pub const MIN_CHUNK_BYTES: usize = 512;
/// Largest chunk, in bytes.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that a region is cut into at least, as far as [`MIN_CHUNK_BYTES`] allows.
pub const WANTED_CHUNKS: usize = 64;
/// Chunks of ended threads that are kept for new threads to go on with.
pub const PARTIAL_SLOTS: usize = 64;
/// Chunks without which a region is refused.
pub const MIN_CHUNKS: usize = 4;

/// One event: 16 bytes, two little-endian words.
///
/// The time is written last, and tells whether the record was written at all: memory is not cleared when a chunk is taken,
/// so what an earlier owner left has times before [`ChunkHeader::taken_tsc`].
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    /// Raw time stamp counter, in ticks.
    pub tsc: AtomicU64,
    /// `address << 16 | kind`; see [`kind`] for what the address is.
    pub word: AtomicU64,
}

impl Record {
    /// The time and the word, if the record was written since `taken_tsc`. Inlined: a save calls it for each record, and is
    /// compiled with the program's flags, maybe instrumented.
    #[must_use]
    #[inline(always)]
    pub fn read(&self, taken_tsc: u64) -> Option<(u64, u64)> {
        let tsc = self.tsc.load(Acquire);
        (tsc >= taken_tsc).then(|| (tsc, self.word.load(Relaxed)))
    }
}

/// The kinds of a [`Record`], the low two bits of its `word`. The values are those of uftrace's format.
pub mod kind {
    /// A function was entered; the address lies in it, behind its call to `mcount`.
    pub const ENTRY: u64 = 0;
    /// A function was left; the address is that of its entry.
    pub const EXIT: u64 = 1;
    /// Calls that were not recorded because the return stack was full; the address is their number.
    pub const LOST: u64 = 2;
    /// The thread returned from functions while tracing was off; the address is the number of functions that are
    /// still open, the time is when tracing went off.
    pub const RESYNC: u64 = 3;
    /// The bits of a word that hold the kind.
    pub const MASK: u64 = 3;
    /// Set in an EXIT word: the function's exit was recorded when its thread left it without its returning, and its frame
    /// may still live on another stack.
    pub const LEFT: u64 = 1 << 2;
    /// Set in an ENTRY word: the function's return was not hooked, there is no EXIT record.
    pub const POINT: u64 = 1 << 2;
    /// Set in a RESYNC word: what follows in the chunk is the beginning of another thread, whose id is the address.
    pub const NEW_THREAD: u64 = 1 << 2;
    /// Set in a RESYNC word: no function was left, but from here on the thread runs on the core whose number is the address.
    pub const CORE: u64 = 1 << 3;
    /// Set in a RESYNC word: the thread has left a whole stack, whose number is the address. The exits of the functions that
    /// are open there follow, as many as [`FUNCTIONS_MASK`] says. The stack may run again.
    pub const SUSPENDED: u64 = 1 << 4;
    /// Set in a RESYNC word: the thread runs on the stack with this number, which was left. The entries of the functions that
    /// are open there follow, each with the bit [`AGAIN`].
    pub const RESUMED: u64 = 1 << 5;
    /// Both bits set in a RESYNC word: six bytes of the values of the call, or of the return, whose record comes before and has the same
    /// time; in place of the address. How many further such records follow stands in [`FUNCTIONS_MASK`]. They were reserved
    /// together with that record, so nothing comes between. See [`value`](super::value).
    pub const VALUES: u64 = SUSPENDED | RESUMED;
    /// Set in an ENTRY word: the function was entered before and left without its returning; it runs again.
    pub const AGAIN: u64 = 1 << 3;
    /// The bits of a SUSPENDED word that hold the number of functions: that many times [`FUNCTIONS_ONE`].
    pub const FUNCTIONS_MASK: u64 = 0xffc0;
    /// One function there.
    pub const FUNCTIONS_ONE: u64 = 1 << 6;
}

/// Bits of an exit word between the kind and the address: what an open function means for the calls in it, while recording
/// is filtered. They say nothing about the record.
pub mod state {
    /// The function is not recorded, neither its entry nor its exit.
    pub const HIDDEN: u64 = 1 << 3;
    /// Nothing that it calls is recorded.
    pub const OUT: u64 = 1 << 4;
    /// It is one of those chosen by [`action::INTO`](super::action::INTO), or was called from one.
    pub const IN: u64 = 1 << 5;
    /// Added for each recorded function around a call, its own included.
    pub const DEPTH_ONE: u64 = 1 << 6;
    /// The bits that hold this number.
    pub const DEPTH_MASK: u64 = 0xffc0;
    /// All of the above.
    pub const MASK: u64 = 0xfff8;
}

/// What to do with a function while recording is filtered.
pub mod action {
    /// It is not recorded; what it calls may be.
    pub const SKIP: u8 = 1;
    /// It is recorded.
    pub const RECORD: u8 = 2;
    /// Its entry is recorded, its return is not hooked.
    pub const POINT: u8 = 3;
    /// It is recorded, and so is what it calls; with [`FilterControl::wanted`](super::FilterControl::wanted) nothing else is.
    pub const INTO: u8 = 4;
    /// Neither it nor what it calls is recorded.
    pub const NOT_INTO: u8 = 5;
    /// As RECORD, with the values that [`FilterControl::values`](super::FilterControl::values) tells of.
    pub const RECORD_VALUES: u8 = 6;
    /// As INTO, with values.
    pub const INTO_VALUES: u8 = 7;
}

/// Arguments and results.
///
/// What is recorded of a call are its *items*, one behind the other, and of its return one: each is the value's code, two bytes, and then
/// the value, little-endian, as long as the code says; of a string the number of bytes, in two bytes, and the bytes. So whoever reads
/// them needs no table. They are cut into pieces of [`UNIT_BYTES`](self::value::UNIT_BYTES) for [`kind::VALUES`].
pub mod value {
    /// The bits of a code that tell where the value is.
    pub const PLACE_MASK: u16 = 3;
    /// In the register, or on the stack, of an argument that is an integer or pointer, by its number.
    pub const ARGUMENT: u16 = 0;
    /// In the register of an argument that is a floating-point number, by its number among these.
    pub const FLOAT_ARGUMENT: u16 = 1;
    /// It is the result.
    pub const RESULT: u16 = 2;
    /// Where the argument's number begins, from 1 on.
    pub const NUMBER_SHIFT: u32 = 2;
    /// The bits of the number.
    pub const NUMBER_MASK: u16 = 0x3f;
    /// Where it begins how the value is shown.
    pub const FORM_SHIFT: u32 = 8;
    /// The bits of that.
    pub const FORM_MASK: u16 = 0xf;
    /// An address of bytes that end with a 0: these are recorded.
    pub const STRING: u16 = 5;
    /// A floating-point number, in a vector register also where it is the result.
    pub const FLOAT: u16 = 7;
    /// An address of bytes, as many as the next argument says, or rdx for a result: these are recorded as of a string.
    pub const COUNTED: u16 = 8;
    /// Nothing is recorded: the item has no bytes.
    pub const UNKNOWN: u16 = 9;
    /// The first of six: an address of three words, of which the one with the number `form - OWNED >> 1` is an address of bytes and the one
    /// that comes `1 + (form - OWNED & 1)` later, or from the first on again, is their number: these are recorded as of a string.
    pub const OWNED: u16 = 10;
    /// Where the size begins: 1, 2, 4 or 8 bytes, by the number of doublings.
    pub const SIZE_SHIFT: u32 = 12;
    /// The bits of that. The two bits above it are the frontend's.
    pub const SIZE_MASK: u16 = 3;

    /// Bytes in a record.
    pub const UNIT_BYTES: usize = 6;
    /// The longest string; of longer ones the last three bytes that are recorded are dots. uftrace has the same.
    pub const STRING_BYTES: usize = 98;
    /// What the items of a call take at the most. A frontend asks for no more.
    pub const MAX_BYTES: usize = 1024;
    /// The length that stands for the null pointer, where a string was wanted; no bytes follow.
    pub const NULL: u16 = u16::MAX;
}

/// The values that are recorded of a function.
#[derive(Debug)]
#[repr(C)]
pub struct ValueSite {
    /// What hooks know the function by.
    pub child_ip: usize,
    /// The codes of its arguments, and how many there are.
    pub arguments: *const u16,
    /// How many.
    pub n_arguments: usize,
    /// That of its result; 0 for none.
    pub result: u16,
}

/// Which values are recorded. It stays mapped for ever.
#[derive(Debug)]
#[repr(C)]
pub struct ValueTable {
    /// The sites, by `child_ip`, ascending.
    pub sites: *const ValueSite,
    /// How many there are.
    pub n_sites: usize,
    /// Memory that can be read as long as the program runs: the beginning and end of each range.
    pub constant: *const [usize; 2],
    /// How many there are.
    pub n_constant: usize,
}

/// Which slot of [`FilterControl::sites`] to look at first for a function. It is there or in one of the following, before
/// the next free one; behind the last comes the first.
#[must_use]
pub const fn site_slot(child_ip: usize, mask: usize) -> usize {
    (child_ip.wrapping_mul(SITE_FACTOR) >> SITE_SHIFT) & mask
}

/// Spreads addresses over the slots; it fits into a signed 32-bit constant.
pub const SITE_FACTOR: usize = 0x3c6e_f372;
/// Bits of the product that are not used.
pub const SITE_SHIFT: u32 = 20;

/// Cells of a bucket in the table of left frames.
pub const LEFT_BUCKET_CELLS: usize = 64;
/// Bytes of such a bucket.
pub const LEFT_BUCKET_BYTES: usize = LEFT_BUCKET_CELLS * size_of::<LeftCell>();

/// Bits of a record's word below the address.
pub const ADDRESS_SHIFT: u32 = 16;

/// States of a chunk.
pub mod chunk_state {
    /// The bits of a [`lease`](super::lease) that hold it.
    pub const MASK: u64 = 7;
    /// Holds nothing of this cycle.
    pub const FREE: u64 = 0;
    /// One thread writes into it, and only that thread may let it go.
    pub const OWNED: u64 = 1;
    /// Holds records and has no writer.
    pub const FULL: u64 = 2;
    /// Like FULL, but its writer ended early: the next new thread may go on behind what is there.
    pub const PARTIAL: u64 = 3;
    /// Like FULL, but a hook that a signal has interrupted may still write a record that it has reserved here.
    pub const KEPT: u64 = 4;
    /// Like KEPT, but its thread has let it go.
    pub const WAITING: u64 = 5;
}

/// A chunk's lease, one word: `index << 3 | state`. The index tells the takings of all chunks apart, in the life of a program.
pub mod lease {
    use super::chunk_state;

    const INDEX_SHIFT: u32 = chunk_state::MASK.trailing_ones();

    /// That of the chunk that was taken as number `index`.
    #[must_use]
    #[inline(always)]
    pub const fn new(index: u64, state: u64) -> u64 {
        index << INDEX_SHIFT | state
    }

    /// One of [`chunk_state`].
    #[must_use]
    #[inline(always)]
    pub const fn state(lease: u64) -> u64 {
        lease & chunk_state::MASK
    }

    /// The chunk's place in the order in which all chunks were taken, from 1.
    #[must_use]
    #[inline(always)]
    pub const fn index(lease: u64) -> u64 {
        lease >> INDEX_SHIFT
    }
}

/// The first 64 bytes of a chunk. Records fill the rest.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ChunkHeader {
    /// When it was taken last, by number, and what state it is in; see [`lease`].
    pub lease: AtomicU64,
    /// Index of the chunk that the same thread filled before, 0 for its first one.
    pub prev_index: AtomicU64,
    /// Functions that were open in the thread when it took the chunk.
    pub depth: AtomicU32,
    /// Offset of the first free record in a PARTIAL chunk.
    pub fill: AtomicU32,
    /// How many further threads went on in this chunk, each behind a RESYNC record with the bit [`kind::NEW_THREAD`].
    pub n_adopted: AtomicU32,
    /// The thread that writes or wrote into it; ids count from 1, 0 means that the chunk is being prepared.
    pub tid: AtomicU32,
    /// When the chunk was taken, in ticks: records with earlier times are an earlier owner's.
    pub taken_tsc: AtomicU64,
    /// The core on which the thread ran then, plus 1; 0 if nobody has told.
    pub core: AtomicU32,
    /// How many stacks were resumed in this chunk, each with a RESYNC record with the bit [`kind::RESUMED`].
    pub n_resumed: AtomicU32,
}

impl ChunkHeader {
    /// The chunk's place in the order in which all chunks were taken, from 1.
    #[must_use]
    #[inline(always)]
    pub fn index(&self) -> u64 {
        lease::index(self.lease.load(Relaxed))
    }
}

/// Bytes of a chunk before its first record.
pub const CHUNK_HEADER_BYTES: usize = size_of::<ChunkHeader>();

/// A function that is open: what its return address was, and where it stood.
///
/// The layout is also known to the CFI expression of the return trampoline.
#[derive(Debug)]
#[repr(C)]
pub struct ReturnEntry {
    /// The return address (`parent_ip`) that the trampoline's address replaced.
    pub parent_ip: AtomicUsize,
    /// What names the function's frame: on x86-64 the address of its return address (`parent_loc`), on aarch64 the CFA. 0 in an entry that is free
    /// or half-written, odd in one that another thread claims.
    pub frame: AtomicUsize,
    /// The word of the exit record to come.
    pub exit_word: AtomicU64,
    /// Larger than that of any earlier call with the same frame; on x86-64 the time of the call, in ticks, on aarch64 one that is
    /// unique. Of two entries with
    /// the same frame the later is the living one, but for a chain of tail calls, whose members all live.
    pub sequence: AtomicU64,
}

/// A place in the table of left frames; its memory is used by `staticlib/src/left.rs`. Two entries long: the trampoline's
/// CFI expression takes the table for a return stack. The first of the two is none: a stack that begins with no slot is
/// passed over by the expression's first search, so that the second one finds what is on the threads' stacks before what is
/// dead here.
#[derive(Debug)]
#[repr(C)]
pub struct LeftCell {
    /// Who has the cell: a stamp, and a state in its low three bits.
    pub tag: AtomicU64,
    /// Always 0, no slot, where the CFI expression looks for one.
    pub no_slot: AtomicUsize,
    /// How many words of 8 bytes the caller's slot lies above this one; 0 if no caller is known.
    pub link: AtomicUsize,
    /// Not used.
    pub padding: AtomicU64,
    /// The entry; `frame` is 0 if there is none.
    pub entry: ReturnEntry,
}

/// All the tracer keeps for one thread. Only its own thread (and signal handlers on it) writes to it, but for
/// `frame` of an entry, which other threads may claim, and `chunk_mask`, which becomes 0 with a new buffer.
///
/// Invariants: `sp` lies between `base` and `limit`; entries at or above `sp` have `frame` 0; `stack[0]` is a
/// sentinel whose `frame` is no function's; `cursor` is 0, the end of a chunk, or the place of the next
/// record in a chunk that this thread owns.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadBlock {
    /// The next block that was ever used. Read by the trampoline's CFI.
    pub next: AtomicPtr<ThreadBlock>,
    /// Points to `sp`. Read by the trampoline's CFI.
    pub psp: AtomicPtr<AtomicPtr<ReturnEntry>>,
    /// The outermost entry. Read by the trampoline's CFI.
    pub base: AtomicPtr<ReturnEntry>,
    /// One above the innermost entry.
    pub sp: AtomicPtr<ReturnEntry>,
    /// One above the last usable entry; null until the block is ready, and when its thread has ended.
    pub limit: AtomicPtr<ReturnEntry>,
    /// Address of the next record. `cursor & chunk_mask == 0` sends the hooks to their slow paths.
    pub cursor: AtomicUsize,
    /// Size of a chunk minus 1; 0 until the thread has come to the buffer that is in use. Other threads may set it to 0.
    pub chunk_mask: AtomicUsize,
    /// The thread's id, from 1.
    pub tid: AtomicU32,
    /// Not 0: functions were left while tracing was off, a RESYNC record has to tell how many are still open.
    pub resync: AtomicU32,
    /// The cursor that was put aside when `resync` was set.
    pub parked_cursor: AtomicUsize,
    /// When tracing went off, for the RESYNC record.
    pub resync_tsc: AtomicU64,
    /// Index of the chunk taken last.
    pub last_index: AtomicU64,
    /// The LOST record that the next loss adds to, as long as it is the newest record.
    pub lost_record: AtomicUsize,
    /// The frame of the function for which a slow path is at work, 0 for none: signal handlers then leave the stack's order
    /// alone.
    pub busy: AtomicUsize,
    /// The lowest that `sp` has been since then.
    pub busy_floor: AtomicPtr<ReturnEntry>,
    /// Index of the chunk that the thread had before, which may be KEPT for it; 0 for none.
    pub kept_index: AtomicU64,
    /// While the thread takes a chunk, an index that is not above that of any chunk that it may have by that; 0 otherwise.
    pub taking: AtomicU64,
    /// Number of the block behind this one in the free list, plus 1; 0 for none.
    pub next_free: AtomicU32,
    /// How often `rftrace_backend_thread_exit` was called for this thread.
    pub exit_rounds: AtomicU32,
    /// The core on which the thread runs, plus 1; 0 if nobody has told.
    pub core: AtomicU32,
    /// Sentinel and entries.
    pub stack: [ReturnEntry; RETURN_STACK_ENTRIES + 1],
}

/// What a kernel with the feature `threadhook` keeps for each of its tasks: all zero at first, at a place that does not change
/// as long as the task lives.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadArea {
    /// The thread's block; null before its first traced call.
    pub current: AtomicPtr<ThreadBlock>,
    /// Memory for it.
    pub block: ThreadBlock,
}

/// Whether recording is on: the lowest byte of [`Switch::enabled`].
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
    /// What each who is about to adds to the bits above: none has the word of another one.
    pub const ONE_STOP: u32 = 1 << 9;
}

/// What the hooks look at first. It has a page of its own, all zero at first: a frontend may have the system clear it in each
/// child of a fork (`MADV_WIPEONFORK`).
#[derive(Debug)]
#[cfg_attr(target_os = "none", repr(C, align(64)))]
#[cfg_attr(not(target_os = "none"), repr(C, align(4096)))]
pub struct Switch {
    /// One of [`enabled`] in its lowest byte. The bits above are for who stops recording provided that nobody has started it since.
    pub enabled: AtomicU32,
}

impl Switch {
    /// Whether recording is on: one of [`enabled`].
    #[must_use]
    #[inline(always)]
    pub fn state(&self, order: Ordering) -> u8 {
        self.enabled.load(order) as u8
    }
}

/// What a tracer shares with who empties its buffer while it is filled, maybe in another process: takes the records of chunks
/// that are FULL, or WAITING and written, and makes those FREE.
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
    /// Who empties the buffer; null for nobody.
    pub bank: AtomicPtr<Bank>,
    /// The [`Bank::beat`] at which a thread has waited in vain.
    pub beat_given_up: AtomicU64,
    /// Until then nobody looks for a chunk, as there was none.
    pub none_until_tsc: AtomicU64,
    /// What is recorded while recording is filtered.
    pub filter: FilterControl,
    /// What changes often has a cache line of its own.
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

impl ControlShared {
    /// Whether no thread is taking a chunk.
    #[must_use]
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.n_takers.load(SeqCst) & !takers::FORKS == 0
    }
}

/// What is recorded while recording is filtered. The frontend writes it, also while threads are recording: calls at that
/// moment may be filtered by some of the old and some of the new.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct FilterControl {
    /// Not 0: recording, when it is on, is filtered. Set by `rftrace_backend_filter`.
    pub active: AtomicU8,
    /// The [`action`] for functions that are not in `sites`.
    pub default_action: AtomicU8,
    /// A hash table of functions, see [`site_slot`]; null for none. A slot is `child_ip << 16 | action`, 0 if it is free,
    /// and not all are in use. It stays mapped for ever.
    pub sites: AtomicPtr<AtomicU64>,
    /// Number of slots, a power of two, minus 1.
    pub sites_mask: AtomicUsize,
    /// Bits of [`state`] that decide whether what a function calls is recorded: OUT, and IN if only what lies within chosen
    /// functions is.
    pub decisive: AtomicU32,
    /// What these bits must be: 0 or IN.
    pub wanted: AtomicU32,
    /// Calls within so many recorded functions are not recorded, times [`state::DEPTH_ONE`]; [`state::DEPTH_MASK`] at the
    /// most, for no limit.
    pub depth_limit: AtomicU32,
    /// Calls that are over earlier, in ticks, and have no record in them are taken back. 0 for none.
    pub min_ticks: AtomicU64,
    /// Which values are recorded; null for none. [`action::RECORD_VALUES`] and [`action::INTO_VALUES`] send a call there.
    pub values: AtomicPtr<ValueTable>,
    /// Not 0: the program may be killed for a system call of the tracer (seccomp). What cannot be read without is shown by its address.
    pub confined: AtomicU8,
}

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

/// The memory that a frontend gives to the tracer. It must stay mapped for the rest of the program and be all zero.
///
/// The tracer takes a buffer each time, and the rest (`blocks`, `left`, `thread_start`) with the first one only.
#[derive(Debug)]
#[repr(C)]
pub struct InitArgs {
    /// Memory for records.
    pub buffer: *mut u8,
    /// Its size; [`region_bytes`] tells how much a number of records needs.
    pub buffer_bytes: usize,
    /// Memory for per-thread blocks, aligned to 64 bytes; unused (and best null) where the tracer was built for a
    /// target without OS, which has them in thread-local storage.
    pub blocks: *mut u8,
    /// Its size.
    pub blocks_bytes: usize,
    /// Memory for frames that a thread left without their returning: dead ones, and those of other stacks.
    /// [`LEFT_BUCKET_BYTES`] at least, aligned to 8 bytes. Null: they stay on their threads' return stacks.
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

/// What `rftrace_backend_init_v7` returns.
pub mod init {
    /// The memory was taken.
    pub const OK: u32 = 0;
    /// The tracer has its memory already, and was built for a target without OS: it cannot tell all threads of another one.
    pub const ALREADY_DONE: u32 = 1;
    /// The buffer holds fewer than [`super::MIN_CHUNKS`] chunks.
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

/// The size of the chunks that a region is cut into.
#[must_use]
pub const fn chunk_bytes(region_bytes: usize) -> usize {
    let mut bytes = MAX_CHUNK_BYTES;
    while bytes > MIN_CHUNK_BYTES && region_bytes / bytes < WANTED_CHUNKS {
        bytes /= 2;
    }
    bytes
}

/// Records that a chunk holds.
#[must_use]
pub const fn records_per_chunk(chunk_bytes: usize) -> usize {
    (chunk_bytes - CHUNK_HEADER_BYTES) / size_of::<Record>()
}

/// Bytes of an aligned region that holds at least `n_records` records, or `None` if that exceeds the address space.
#[must_use]
pub const fn region_bytes(n_records: usize) -> Option<usize> {
    let Some(raw) = n_records.checked_mul(size_of::<Record>()) else {
        return None;
    };
    // Headers make the region larger than `raw`, which may double the chunk size; a multiple of that holds enough then.
    let chunk = chunk_bytes(raw);
    let n_chunks = n_records.div_ceil(records_per_chunk(chunk));
    match n_chunks.checked_mul(chunk) {
        Some(bytes) => bytes.checked_next_multiple_of(2 * chunk),
        None => None,
    }
}

const _: () = assert!(size_of::<Record>() == 16);
const _: () = assert!(CHUNK_HEADER_BYTES == 64);
const _: () = assert!(size_of::<ReturnEntry>() == 32);
// The depth, as a number, goes up to the last level.
const _: () = assert!(RETURN_STACK_ENTRIES as u64 * state::DEPTH_ONE <= state::DEPTH_MASK);
const _: () = assert!(state::MASK | kind::MASK | kind::LEFT == (1 << ADDRESS_SHIFT) - 1);
const _: () = assert!(SITE_FACTOR <= i32::MAX as usize);
// The trampoline's CFI expression has these offsets in its bytes.
const _: () = assert!(offset_of!(ReturnEntry, parent_ip) == 0);
const _: () = assert!(offset_of!(ReturnEntry, frame) == 8);
const _: () = assert!(size_of::<LeftCell>() == 2 * size_of::<ReturnEntry>());
const _: () = assert!(offset_of!(LeftCell, no_slot) == offset_of!(ReturnEntry, frame));
const _: () = assert!(offset_of!(LeftCell, entry) == size_of::<ReturnEntry>());
const _: () = assert!(offset_of!(ThreadBlock, next) == 0);
const _: () = assert!(offset_of!(ThreadBlock, psp) == 8);
const _: () = assert!(offset_of!(ThreadBlock, base) == 16);
// The hot fields share the first cache line.
const _: () = assert!(offset_of!(ThreadBlock, chunk_mask) + size_of::<usize>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_holds_what_was_asked_for() {
        for n_records in (1..5_000).chain([10_000, 99_999, 262_080, 262_081, 1_000_000, 20_000_000]) {
            let bytes = region_bytes(n_records).unwrap();
            let chunk = chunk_bytes(bytes);
            assert!(bytes / chunk * records_per_chunk(chunk) >= n_records, "{n_records} records in {bytes} bytes");
            // Headers and rounding cost little where the region is not tiny.
            assert!(n_records < 1_000 || bytes < n_records * 16 * 5 / 4, "{bytes} bytes for {n_records} records");
        }
        assert_eq!(region_bytes(usize::MAX), None);
    }

    #[test]
    fn chunks_are_as_large_as_their_number_allows() {
        assert_eq!(chunk_bytes(0), MIN_CHUNK_BYTES);
        assert_eq!(chunk_bytes(64 * 1024), 1024);
        assert_eq!(chunk_bytes(4 * 1024 * 1024), MAX_CHUNK_BYTES);
        assert_eq!(chunk_bytes(1 << 40), MAX_CHUNK_BYTES);
    }
}
