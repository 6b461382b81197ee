//! Chunks, and the right to write into them.
//!
//! A chunk's state and its index, the number of its last taking, are one word, its *lease*. A program gives out each
//! index once in its life, so a compare-exchange of a lease changes the one it has read and no later one. The rights of
//! a thread to a chunk are a value of a type, [`Owned`] or [`Kept`]: giving the chunk away uses it up.
//!
//! **Invariant**: a chunk has one writer from the moment it leaves FREE or FULL until the writer itself sets KEPT or
//! FULL. Nobody else ever takes it away, so a late store by a preempted thread hits its own chunk.
//!
//! A signal may strike when a hook has reserved a record, and the handler fill the chunk and take the next one before
//! the record is written. So a thread keeps its last chunk until it takes one more. Others get it before only if the
//! ring has nothing else and all its records are written. Handlers may even fill a whole further chunk: under a storm
//! of interrupts a task may have many turns and not get on. A chunk with unwritten records is therefore let go as
//! WAITING, and passed over until all are written. But a handler may jump out of the hook, and the hook never goes on:
//! after [`PATIENCE`] rounds of the buffer the chunk is used all the same, or it would be lost for good.

use core::mem::size_of;
use core::ptr;
use core::slice;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use core::sync::atomic::{compiler_fence, fence};

use crate::abi::{
    CHUNK_HEADER_BYTES, ChunkHeader, Record, ThreadBlock, chunk_state, enabled, lease, records_per_chunk,
};
use crate::arch;
use crate::control_block::{CONTROL, SWITCH};

/// Room, in records, for a new thread to go on in the chunk of another.
const LEAST_ROOM: usize = 8;

/// Rounds of the buffer before a WAITING chunk is used all the same.
const PATIENCE: u64 = 64;

/// Chunks to search for one used before.
const LOOKED_AT: u64 = 64;

/// A chunk of a buffer. It stays mapped, and any thread may access its header.
#[derive(Clone, Copy)]
pub(crate) struct Chunk(&'static ChunkHeader);

impl Chunk {
    /// Chunk number `place` of the buffer. There has to be one.
    fn at(place: u64) -> Self {
        Self::within(CONTROL.chunks.load(Relaxed), CONTROL.chunk_bytes.load(Relaxed), place)
    }

    /// The same, in a given buffer. Inlined: a function called in a closure of a returned iterator would be exported,
    /// with all it refers to.
    #[inline]
    fn within(buffer: *mut u8, chunk_bytes: usize, place: u64) -> Self {
        let chunk = buffer.wrapping_add((place as usize).wrapping_mul(chunk_bytes)).cast::<ChunkHeader>();
        // SAFETY: a chunk of the buffer stays mapped; headers consist of atomics.
        Self(unsafe { &*chunk })
    }

    /// The chunk taken as number `index`, from 1; or some other one if the buffer has been replaced since.
    fn of_index(index: u64) -> Self {
        Self::at(index.wrapping_sub(1).checked_rem(CONTROL.n_chunks.load(Relaxed) as u64).unwrap_or(0))
    }

    /// All chunks but those never taken: their memory may not be there yet.
    fn all() -> impl Iterator<Item = Self> {
        let (buffer, chunk_bytes) = (CONTROL.chunks.load(Relaxed), CONTROL.chunk_bytes.load(Relaxed));
        let is_emptied = is_emptied();
        let chunks = (0..CONTROL.n_touched_chunks() as u64).map(move |place| Self::within(buffer, chunk_bytes, place));
        // In an emptied buffer the first ones are taken again and again.
        chunks.take_while(move |chunk| !is_emptied || chunk.0.lease.load(Relaxed) != 0)
    }

    /// The place of a free chunk, taken before, among the first ones before `place`.
    fn first_free(place: u64) -> Option<u64> {
        let is_free = |&place: &u64| {
            let lease = Self::at(place).0.lease.load(Relaxed);
            lease != 0 && lease::state(lease) == chunk_state::FREE
        };
        (0..place.min(LOOKED_AT)).find(is_free)
    }

    pub(crate) fn header(self) -> &'static ChunkHeader {
        self.0
    }

    /// The place of the first record.
    pub(crate) fn first_record(self) -> usize {
        (ptr::from_ref(self.0) as usize).wrapping_add(CHUNK_HEADER_BYTES)
    }

    /// Its number in the buffer.
    fn place(self) -> u64 {
        let offset = (ptr::from_ref(self.0) as usize).wrapping_sub(CONTROL.chunks.load(Relaxed) as usize);
        offset.checked_div(CONTROL.chunk_bytes.load(Relaxed)).unwrap_or(0) as u64
    }

    /// Changes the state under a lease. Fails if the chunk has another lease by now.
    ///
    /// Acquire and Release: the records of the last owner are written before those of the next one.
    fn exchange(self, lease: u64, next: u64) -> bool {
        self.0.lease.compare_exchange(lease, next, AcqRel, Relaxed).is_ok()
    }

    /// True if no hook will write into a full chunk any more.
    fn is_written(self) -> bool {
        let n_records = records_per_chunk(CONTROL.chunk_bytes.load(Relaxed));
        let taken_tsc = self.0.taken_tsc.load(Relaxed);
        // SAFETY: the chunk's memory behind its header.
        let records = unsafe { slice::from_raw_parts(self.first_record() as *const Record, n_records) };
        // Four at a time: each thread does this with each chunk of a ring.
        let (lines, rest) = records.as_chunks::<4>();
        let written = |record: &Record| record.read(taken_tsc).is_some();
        lines.iter().all(|line| line.iter().all(written)) && rest.iter().all(written)
    }
}

/// A cursor, and the size minus 1 of its chunk (it points into the chunk, or to its end): both of one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    cursor: usize,
    mask: usize,
}

impl Place {
    /// The place of a thread's next record.
    ///
    /// The cursor is read first. A handler in between may bring the thread to another buffer, and then changes the
    /// cursor. So a successful compare-exchange of the cursor from this value proves both to be of one buffer.
    pub(crate) fn next(block: &ThreadBlock) -> Self {
        let cursor = block.cursor.load(Relaxed);
        compiler_fence(SeqCst);
        Self { cursor, mask: block.chunk_mask.load(Relaxed) }
    }

    /// A place in the buffer in use, for a counted taker of chunks.
    pub(crate) fn in_use(cursor: usize, mask: usize) -> Self {
        Self { cursor, mask }
    }

    /// Another place in the same chunk, behind this one or before.
    pub(crate) fn moved_to(self, cursor: usize) -> Self {
        Self { cursor, mask: self.mask }
    }

    pub(crate) fn cursor(self) -> usize {
        self.cursor
    }

    /// True if another cursor points into the same chunk, or to its end.
    pub(crate) fn is_in_same_chunk(self, cursor: usize) -> bool {
        (self.cursor.wrapping_sub(1) ^ cursor.wrapping_sub(1)) & !self.mask == 0
    }

    /// True if a record has room there.
    pub(crate) fn has_room(self) -> bool {
        self.cursor & self.mask != 0
    }

    /// Records of a whole chunk.
    pub(crate) fn n_records(self) -> usize {
        records_per_chunk(self.mask.wrapping_add(1))
    }

    /// Room for records from there on, if there is any.
    pub(crate) fn n_left(self) -> usize {
        self.mask.wrapping_add(1).wrapping_sub(self.cursor & self.mask) / size_of::<Record>()
    }

    /// The chunk.
    pub(crate) fn chunk(self) -> Chunk {
        let chunk = self.cursor.wrapping_sub(1) & !self.mask;
        // SAFETY: a cursor lies behind the header of a chunk, and its buffer stays mapped.
        Chunk(unsafe { &*(chunk as *const ChunkHeader) })
    }
}

/// The right to write into a chunk. A thread has it in the form of its cursor, unless it is just taking or leaving a
/// chunk.
pub(crate) struct Owned {
    chunk: Chunk,
    index: u64,
}

impl Owned {
    /// The chunk of the calling thread's cursor. The thread gives the cursor up by this.
    pub(crate) fn of_cursor(cursor: Place) -> Self {
        let chunk = cursor.chunk();
        Self { chunk, index: lease::index(chunk.0.lease.load(Relaxed)) }
    }

    /// Finds a chunk to write into, and gives up its contents. `None` for none; the caller counts the loss.
    pub(crate) fn claim() -> Option<Self> {
        let n_chunks = CONTROL.n_chunks.load(Relaxed) as u64;
        let ring = CONTROL.overwriting.load(Relaxed) != 0;
        let is_emptied = is_emptied();
        // Each chunk is looked at twice at the most: a ring may have as many owners as chunks. What others keep is taken the
        // second time.
        for n_seen in 0..n_chunks.wrapping_mul(2) {
            let taken = CONTROL.shared.next_index.fetch_add(1, Relaxed);
            if !ring && !is_emptied && taken >= CONTROL.shared.end_index.load(Relaxed) {
                stop_full();
                return None;
            }
            let own = taken.wrapping_add(1);
            let chunk = Chunk::of_index(own);
            let before = chunk.0.lease.load(Relaxed);
            // Recently used chunks are in memory, and in the processor's cache: prefer them to the rest of the buffer.
            if is_emptied
                && before == 0
                && let Some(place) = Chunk::first_free(taken.checked_rem(n_chunks).unwrap_or(0))
            {
                let next_round = taken.checked_next_multiple_of(n_chunks).unwrap_or(taken);
                CONTROL.shared.next_index.fetch_max(next_round.wrapping_add(place), Relaxed);
                continue;
            }
            let (state, index) = (lease::state(before), lease::index(before));
            let to_be_had = match state {
                chunk_state::FREE => true,
                // This thread was held up here, and others have gone once around: this is not the oldest chunk any more.
                _ if index > taken => false,
                chunk_state::FULL | chunk_state::PARTIAL => ring,
                chunk_state::KEPT => ring && n_seen >= n_chunks && chunk.is_written(),
                chunk_state::WAITING => {
                    let age = taken.saturating_sub(index);
                    ring && (age >= n_chunks.wrapping_mul(PATIENCE) || chunk.is_written())
                }
                _ => false,
            };
            if !to_be_had || !chunk.exchange(before, lease::new(own, chunk_state::OWNED)) {
                continue;
            }
            if state != chunk_state::FREE {
                CONTROL.shared.n_overwritten.fetch_add(1, Relaxed);
            }
            // A reader of a header field written from here on finds the new lease too.
            fence(Release);
            return Some(Self { chunk, index: own });
        }
        None
    }

    /// True if an ended thread may have left one.
    pub(crate) fn may_adopt() -> bool {
        CONTROL.shared.partial.iter().any(|slot| slot.load(Relaxed) != 0)
    }

    /// A chunk left by an ended thread, with the place to go on at.
    pub(crate) fn adopt() -> Option<(Self, usize)> {
        for slot in &CONTROL.shared.partial {
            if slot.load(Relaxed) == 0 {
                continue;
            }
            let number = slot.swap(0, Relaxed);
            if number == 0 {
                continue;
            }
            let chunk = Chunk::at(number.wrapping_sub(1));
            let before = chunk.0.lease.load(Relaxed);
            let index = lease::index(before);
            if before == lease::new(index, chunk_state::PARTIAL)
                && chunk.exchange(before, lease::new(index, chunk_state::OWNED))
            {
                let fill = chunk.0.fill.load(Relaxed) as usize;
                return Some((Self { chunk, index }, (ptr::from_ref(chunk.0) as usize).wrapping_add(fill)));
            }
        }
        None
    }

    pub(crate) fn header(&self) -> &'static ChunkHeader {
        self.chunk.0
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn first_record(&self) -> usize {
        self.chunk.first_record()
    }

    /// It is full, but the thread may still write its reserved records.
    pub(crate) fn keep(self) -> Kept {
        self.give_up(chunk_state::KEPT);
        Kept(self.index)
    }

    /// The thread ends, with its next record at `cursor`: another one goes on there if there is room for some calls.
    pub(crate) fn leave(self, cursor: usize) {
        let fill = cursor.wrapping_sub(ptr::from_ref(self.chunk.0) as usize);
        if CONTROL.chunk_bytes.load(Relaxed).wrapping_sub(fill) < LEAST_ROOM * size_of::<Record>() {
            return self.give_up(chunk_state::FULL);
        }
        self.chunk.0.fill.store(fill as u32, Relaxed);
        self.give_up(chunk_state::PARTIAL);
        offer(self.chunk.place().wrapping_add(1));
    }

    /// Nothing was written.
    pub(crate) fn give_back(self) {
        self.chunk.0.tid.store(0, Relaxed);
        self.give_up(chunk_state::FREE);
    }

    fn give_up(&self, state: u64) {
        self.chunk.0.lease.store(lease::new(self.index, state), Release);
    }
}

/// A full chunk; an interrupted hook may still write into it. Another thread may have it by now.
///
/// It is the index of the chunk, as in a thread's block.
pub(crate) struct Kept(u64);

impl Kept {
    /// The chunk in a thread's block; 0 for none.
    pub(crate) fn of_block(index: u64) -> Option<Self> {
        (index != 0).then_some(Self(index))
    }

    pub(crate) fn index(&self) -> u64 {
        self.0
    }

    /// Lets the chunk go.
    pub(crate) fn release(self) {
        let chunk = Chunk::of_index(self.0);
        let kept = lease::new(self.0, chunk_state::KEPT);
        if chunk.0.lease.load(Relaxed) == kept {
            let is_wanted = CONTROL.overwriting.load(Relaxed) != 0 || is_emptied();
            // In stop mode nobody wants it before the buffer is saved, and then all of these are looked at.
            let next = if is_wanted && chunk.is_written() { chunk_state::FULL } else { chunk_state::WAITING };
            chunk.exchange(kept, lease::new(self.0, next));
        }
    }
}

/// Tells new threads of a PARTIAL chunk, by its number plus 1. Where there is no room for it, it is not used further.
fn offer(number: u64) {
    for slot in &CONTROL.shared.partial {
        let empty = slot.load(Relaxed) == 0;
        if empty && slot.compare_exchange(0, number, Relaxed, Relaxed).is_ok() {
            return;
        }
    }
}

/// True if somebody empties the buffer while it is filled.
fn is_emptied() -> bool {
    !CONTROL.bank.load(Relaxed).is_null()
}

/// Stop mode: the buffer is used up.
fn stop_full() {
    if CONTROL.full.swap(1, Relaxed) == 0 {
        CONTROL.stop_tsc.store(arch::ticks(), Relaxed);
    }
    SWITCH.enabled.fetch_and(!enabled::MASK, SeqCst);
}

/// The writers of all chunks are not there any more, but of those with certain indices.
#[cfg(not(target_os = "none"))]
pub(crate) fn forget_writers(is_kept: impl Fn(u64) -> bool) {
    for chunk in Chunk::all() {
        let now = chunk.0.lease.load(Relaxed);
        let index = lease::index(now);
        let has_writer = matches!(lease::state(now), chunk_state::OWNED | chunk_state::KEPT | chunk_state::WAITING);
        if has_writer && !is_kept(index) {
            chunk.exchange(now, lease::new(index, chunk_state::FULL));
        }
    }
}

/// Makes all full chunks free, but for those with a record still to be written.
pub(crate) fn free_full() {
    let next = CONTROL.shared.next_index.load(Relaxed);
    let patience = PATIENCE.wrapping_mul(CONTROL.n_chunks.load(Relaxed) as u64);
    for chunk in Chunk::all() {
        let now = chunk.0.lease.load(Relaxed);
        let is_done = match lease::state(now) {
            chunk_state::FULL | chunk_state::PARTIAL => true,
            chunk_state::WAITING if next.saturating_sub(lease::index(now)) >= patience => true,
            chunk_state::KEPT | chunk_state::WAITING => chunk.is_written(),
            _ => false,
        };
        if is_done {
            chunk.exchange(now, lease::new(lease::index(now), chunk_state::FREE));
        }
    }
}
