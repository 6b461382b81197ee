//! The tracer's data for one thread, and the frames left without a return. The data shared by all threads is in
//! `control.rs`.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// The number of return-stack entries of one thread. A call that finds the stack full is counted, not recorded.
///
/// uftrace's format has ten bits for the depth, and its reader shows 1024 levels by default. The last level is for the
/// events of lost calls. Under Miri, which takes a microsecond and more for each step, stacks and buckets are small, so
/// that tests fill them.
pub const RETURN_STACK_ENTRIES: usize = if cfg!(miri) { 63 } else { 1023 };

/// An open function: its return address and the place of its frame.
///
/// The CFI expression of the return trampoline knows this layout too.
#[derive(Debug)]
#[repr(C)]
pub struct ReturnEntry {
    /// The function's return address (`parent_ip`), replaced by the trampoline's; with [`UNHOOKED`] still in place.
    pub parent_ip: AtomicUsize,
    /// The function's frame: on x86-64 the address of its return address (`parent_loc`), on aarch64 the CFA. 0 in a
    /// free or half-written entry, odd in an entry claimed by another thread.
    pub frame: AtomicUsize,
    /// The word of the future exit record.
    pub exit_word: AtomicU64,
    /// A number larger than that of any earlier call with the same frame: on x86-64 the time of the call in ticks, on
    /// aarch64 a unique one. Of two entries with the same frame the later one lives, except in a chain of tail calls,
    /// whose members all live.
    pub sequence: AtomicU64,
}

/// The size of the block with all return trampolines on x86-64, in bytes, and its alignment. One trampoline is at its
/// beginning. Its last eight bytes are the distance from there to [`Control::threads`](super::Control::threads).
pub const TRAMPOLINES_BYTES: usize = 2048;
/// The offset in that block, with an OS, of the distances of the other trampolines from its beginning, two bytes each.
pub const TRAMPOLINE_PLACES_AT: usize = TRAMPOLINES_BYTES - 16;
/// The number of these distances.
pub const N_TRAMPOLINE_PLACES: usize = 3;

/// Set in a [`ReturnEntry::parent_ip`]: the function's return is not hooked, a sled reports it. No address of a program
/// has this bit.
pub const UNHOOKED: usize = 1 << (usize::BITS - 1);

/// The number of cells in a bucket of the table of left frames. A search for a frame looks at all cells of its bucket.
pub const LEFT_BUCKET_CELLS: usize = if cfg!(miri) { 8 } else { 64 };
/// The size of a bucket in bytes.
pub const LEFT_BUCKET_BYTES: usize = LEFT_BUCKET_CELLS * size_of::<LeftCell>();

/// A cell in the table of left frames; `staticlib/src/left.rs` manages it.
///
/// It is as long as two return-stack entries, because the trampoline's CFI expression reads the table as a return
/// stack. The first of the two is empty.
///
/// The expression's first search passes over a stack that begins with no slot, so the second search finds living frames
/// on the threads' stacks before dead ones here.
#[derive(Debug)]
#[repr(C)]
pub struct LeftCell {
    /// The owner of the cell: a stamp, with a state in its low three bits.
    pub tag: AtomicU64,
    /// Always 0 (no slot), in the place of a frame for the CFI expression.
    pub no_slot: AtomicUsize,
    /// The distance from this slot up to the caller's, in words of 8 bytes; 0 if no caller is known.
    pub link: AtomicUsize,
    /// Unused.
    pub padding: AtomicU64,
    /// The left frame; its `frame` is 0 in a free cell.
    pub entry: ReturnEntry,
}

/// The [`ThreadBlock::chunk_mask`] of a thread that takes its slow paths at its next record: it was excluded, or was
/// included again and has not noticed yet. No record's address has this bit.
pub const EXCLUDED_MASK: usize = 1;

/// The tracer's data for one thread. Only its own thread (and signal handlers on it) writes to it. Exceptions: other
/// threads may claim the `frame` of an entry, set `chunk_mask` to 0 for a new buffer, and [exclude](EXCLUDED_MASK) the
/// thread.
///
/// Invariants: `sp` lies between `base` and `limit`; entries at or above `sp` have `frame` 0; `stack[0]` is a sentinel
/// whose `frame` is no function's; `cursor` is 0, the end of a chunk, or the place of the next record in a chunk that
/// this thread owns.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadBlock {
    /// The next block in the list of all blocks ever used. The trampoline's CFI reads it.
    pub next: AtomicPtr<ThreadBlock>,
    /// A pointer to `sp`. The trampoline's CFI reads it.
    pub psp: AtomicPtr<AtomicPtr<ReturnEntry>>,
    /// The outermost entry. The trampoline's CFI reads it.
    pub base: AtomicPtr<ReturnEntry>,
    /// The entry above the innermost one.
    pub sp: AtomicPtr<ReturnEntry>,
    /// The entry above the last usable one; null until the block is ready, and after the thread's end.
    pub limit: AtomicPtr<ReturnEntry>,
    /// The address of the next record. `cursor & chunk_mask == 0` sends the hooks to their slow paths.
    pub cursor: AtomicUsize,
    /// The size of a chunk minus 1; 0 until the thread uses the present buffer. Other threads may set it to 0, or from
    /// another value to [`EXCLUDED_MASK`].
    pub chunk_mask: AtomicUsize,
    /// The thread's id, from 1.
    pub tid: AtomicU32,
    /// Not 0: the thread left functions while recording was off. A RESYNC record has to give the number of those still
    /// open.
    pub resync: AtomicU32,
    /// The cursor that was saved when `resync` was set.
    pub parked_cursor: AtomicUsize,
    /// The time at which recording stopped, for the RESYNC record.
    pub resync_tsc: AtomicU64,
    /// The index of the chunk taken last.
    pub last_index: AtomicU64,
    /// The LOST record to which the next loss adds, while it is the newest record.
    pub lost_record: AtomicUsize,
    /// The frame of the function whose slow path is at work, 0 for none. Meanwhile signal handlers leave the order of
    /// the stack unchanged.
    pub busy: AtomicUsize,
    /// The lowest `sp` since `busy` was set.
    pub busy_floor: AtomicPtr<ReturnEntry>,
    /// The index of the thread's previous chunk, which may be KEPT for it; 0 for none.
    pub kept_index: AtomicU64,
    /// While the thread takes a chunk, a lower bound for the index of that chunk; 0 otherwise.
    pub taking: AtomicU64,
    /// The number of the next block in the free list, plus 1; 0 for none.
    pub next_free: AtomicU32,
    /// The number of calls of `rftrace_backend_thread_exit` for this thread.
    pub exit_rounds: AtomicU32,
    /// The core on which the thread runs, plus 1; 0 if unknown.
    pub core: AtomicU32,
    /// The time of the thread's exclusion in ticks; 0 if it is recorded. For an excluded thread recording is off.
    pub excluded_tsc: AtomicU64,
    /// The sentinel and the entries.
    pub stack: [ReturnEntry; RETURN_STACK_ENTRIES + 1],
    /// The end of the newest record while a hook removes that record and so invalidates it; 0 otherwise. If the chunk
    /// is given up meanwhile, the record is invalidated there and this becomes 0. Then the hook writes the record
    /// again, and the chunk waits for it.
    pub late: AtomicUsize,
}

/// The data of a task in a kernel with the feature `threadhook`: all zero at first, at an address that does not change
/// while the task lives.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ThreadArea {
    /// The task's block; null before its first traced call.
    pub current: AtomicPtr<ThreadBlock>,
    /// The memory for that block.
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
