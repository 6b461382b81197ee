//! The tracer's data for one thread, and the frames that threads have left. Data shared by all threads is in `control.rs`.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Return-stack entries of one thread. A call that finds the stack full is counted, not recorded.
///
/// uftrace's format has ten bits for the depth, and its reader shows 1024 levels unless told otherwise: the last one is
/// left for the events that tell of lost calls.
///
/// Miri takes a microsecond and more for each step: there stacks and buckets are small, so that tests fill them.
pub const RETURN_STACK_ENTRIES: usize = if cfg!(miri) { 63 } else { 1023 };

/// A function that is open: what its return address was, and where it stood.
///
/// The layout is also known to the CFI expression of the return trampoline.
#[derive(Debug)]
#[repr(C)]
pub struct ReturnEntry {
    /// The return address (`parent_ip`) that the trampoline's address replaced; or with [`UNHOOKED`] that which is still in its place.
    pub parent_ip: AtomicUsize,
    /// The name of the function's frame: on x86-64 the address of its return address (`parent_loc`), on aarch64 the CFA. 0 in an entry that
    /// is free or half-written, odd in one that another thread claims.
    pub frame: AtomicUsize,
    /// The word of the exit record to come.
    pub exit_word: AtomicU64,
    /// Larger than that of any earlier call with the same frame; on x86-64 the time of the call, in ticks, on aarch64 one that is
    /// unique. Of two entries with
    /// the same frame the later is the living one, but for a chain of tail calls, whose members all live.
    pub sequence: AtomicU64,
}

/// On x86-64 all return trampolines lie in a block of so many bytes, aligned to that. One is at its beginning. Its last eight bytes are the distance from there to
/// [`Control::threads`](super::Control::threads).
pub const TRAMPOLINES_BYTES: usize = 2048;
/// Where that block tells, with an OS, how far from its beginning the other trampolines are: each in two bytes.
pub const TRAMPOLINE_PLACES_AT: usize = TRAMPOLINES_BYTES - 16;
/// How many these are.
pub const N_TRAMPOLINE_PLACES: usize = 3;

/// Set in a [`ReturnEntry::parent_ip`]: the function's return is not hooked, a sled tells of it. No address of a program has this bit.
pub const UNHOOKED: usize = 1 << (usize::BITS - 1);

/// Cells of a bucket in the table of left frames. All are looked at for each frame that might be there.
pub const LEFT_BUCKET_CELLS: usize = if cfg!(miri) { 8 } else { 64 };
/// Bytes of such a bucket.
pub const LEFT_BUCKET_BYTES: usize = LEFT_BUCKET_CELLS * size_of::<LeftCell>();

/// A place in the table of left frames; its memory is used by `staticlib/src/left.rs`. Two entries long: the trampoline's
/// CFI expression takes the table for a return stack. The first of the two is none: a stack that begins with no slot is
/// passed over by the expression's first search, so that the second one finds what is on the threads' stacks before what is
/// dead here.
#[derive(Debug)]
#[repr(C)]
pub struct LeftCell {
    /// The owner of the cell: a stamp, and a state in its low three bits.
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

/// The [`ThreadBlock::chunk_mask`] that sends a thread to its slow paths wherever its next record would be: it was excluded from what
/// is recorded, or is not excluded any more and has not noticed yet. No record's address has this bit.
pub const EXCLUDED_MASK: usize = 1;

/// All the tracer keeps for one thread. Only its own thread (and signal handlers on it) writes to it, but for
/// `frame` of an entry, which other threads may claim, `chunk_mask`, which becomes 0 with a new buffer, and what
/// [excludes](EXCLUDED_MASK) the thread.
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
    /// Size of a chunk minus 1; 0 until the thread has come to the buffer that is in use. Other threads may set it to 0, or
    /// from another value to [`EXCLUDED_MASK`].
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
    /// When the thread was excluded from what is recorded, in ticks; 0: it is not. For it all is then as if recording were off.
    pub excluded_tsc: AtomicU64,
    /// Sentinel and entries.
    pub stack: [ReturnEntry; RETURN_STACK_ENTRIES + 1],
    /// The end of the newest record while a hook takes that back, by which it invalidates it; 0 otherwise. Who gives the chunk up meanwhile
    /// invalidates the record in the hook's stead and makes this 0: then the hook writes it again, and the chunk waits for that.
    pub late: AtomicUsize,
}

/// The data of a kernel with the feature `threadhook` for each of its tasks: all zero at first, at a place that does not change
/// as long as the task lives.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadArea {
    /// The thread's block; null before its first traced call.
    pub current: AtomicPtr<ThreadBlock>,
    /// Memory for it.
    pub block: ThreadBlock,
}

const _: () = assert!(size_of::<ReturnEntry>() == 32);
// The trampoline's CFI expression has these offsets in its bytes.
const _: () = assert!(offset_of!(ReturnEntry, parent_ip) == 0);
const _: () = assert!(offset_of!(ReturnEntry, frame) == 8);
const _: () = assert!(size_of::<LeftCell>() == 2 * size_of::<ReturnEntry>());
const _: () = assert!(offset_of!(LeftCell, no_slot) == offset_of!(ReturnEntry, frame));
const _: () = assert!(offset_of!(LeftCell, entry) == size_of::<ReturnEntry>());
const _: () = assert!(offset_of!(ThreadBlock, next) == 0);
const _: () = assert!(offset_of!(ThreadBlock, psp) == 8);
const _: () = assert!(offset_of!(ThreadBlock, base) == 16);
// The hooks of some processors read both by one instruction.
const _: () = assert!(offset_of!(ThreadBlock, chunk_mask) == offset_of!(ThreadBlock, cursor) + size_of::<usize>());
// The hot fields share the first cache line.
const _: () = assert!(offset_of!(ThreadBlock, chunk_mask) + size_of::<usize>() <= 64);
