//! The chunk buffer: how a thread gets its next chunk, and how a place for a record is reserved.
//!
//! **Invariant**: a chunk has one writer from the moment it leaves FREE or FULL until that writer itself sets KEPT or FULL.
//! Nobody else ever takes it away, so a late store by a thread that was preempted hits its own chunk.
//!
//! A signal may strike when a hook has reserved a record, and the handler fill the chunk and take the next one before the
//! record is written. So a thread keeps its last chunk until it takes one more. Others get it before only if the ring has
//! nothing else and all its records are written. Handlers may even fill a whole further chunk: under a storm of interrupts a
//! task may have many turns and not get on. A chunk of a ring whose records are not all written is therefore let go as WAITING,
//! and is passed over until they are. A hook that never goes on, as the handler has jumped out of it, must not take chunks away
//! for good: after [`PATIENCE`] rounds of the ring the chunk is used again all the same.

use core::mem::size_of;
use core::slice;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::compiler_fence;

use crate::abi::{
    ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, Record, ThreadBlock, chunk_state, kind, records_per_chunk, state,
};
use crate::arch;
use crate::control::CONTROL;

/// Records for which a new thread goes on in the chunk of another.
const LEAST_ROOM: usize = 8;

/// Rounds of the ring for which a WAITING chunk is passed over, at the most.
const PATIENCE: u64 = 64;

/// A record that was reserved in this thread's chunk.
pub(crate) struct Reserved(*const Record);

impl Reserved {
    /// Writes the record; the time, which makes it valid, last.
    pub(crate) fn write(self, tsc: u64, word: u64) {
        // SAFETY: `reserve` returns places inside a chunk that this thread owns, in memory that stays mapped.
        let record = unsafe { &*self.0 };
        record.word.store(word, Relaxed);
        record.tsc.store(tsc, Release);
    }
}

/// Writes a record with the present time. Returns whether there was room.
pub(crate) fn record(block: &ThreadBlock, word: u64) -> bool {
    match reserve(block) {
        Some(place) => {
            place.write(arch::ticks(), word);
            true
        }
        None => false,
    }
}

/// Counts a call that finds no room on the return stack: in the newest record, if that is a LOST record already.
pub(crate) fn record_lost_call(block: &ThreadBlock) {
    let newest = block.cursor.load(Relaxed).wrapping_sub(size_of::<Record>());
    if newest != 0 && block.lost_record.load(Relaxed) == newest {
        // SAFETY: the address is that of a record that this thread reserved in a chunk it still owns.
        let record = unsafe { &*(newest as *const Record) };
        if record.tsc.load(Relaxed) >= CONTROL.cycle_start_tsc.load(Relaxed) {
            record.word.fetch_add(1 << ADDRESS_SHIFT, Relaxed);
            return;
        }
    }
    if let Some(place) = reserve(block) {
        let record = place.0 as usize;
        place.write(arch::ticks(), 1 << ADDRESS_SHIFT | kind::LOST);
        // Last: a signal handler that comes in between adds to a record of its own.
        block.lost_record.store(record, Relaxed);
    }
}

/// Reserves the next record of this thread; `None` when recording is off or no chunk is to be had.
pub(crate) fn reserve(block: &ThreadBlock) -> Option<Reserved> {
    let mask = block.chunk_mask.load(Relaxed);
    loop {
        if CONTROL.enabled.load(Relaxed) == 0 {
            return None;
        }
        let cursor = block.cursor.load(Relaxed);
        if cursor & mask != 0 {
            if swap_cursor(block, cursor) {
                return Some(Reserved(cursor as *const Record));
            }
            continue;
        }
        let parked = block.parked_cursor.load(Relaxed);
        if cursor == 0 && parked & mask != 0 {
            // Back to the chunk that was put aside, unless a handler came in between and did so.
            install(block, 0, parked);
        } else if !take_chunk(block, cursor, mask) {
            return None;
        }
    }
}

/// Makes `place` the cursor instead of `cursor`, with a RESYNC record there first if one is due. Fails if a handler
/// that came in between has changed the cursor.
fn install(block: &ThreadBlock, cursor: usize, place: usize) -> bool {
    let resync = block.resync.load(Relaxed) != 0;
    let next = if resync { place.wrapping_add(size_of::<Record>()) } else { place };
    if block.cursor.compare_exchange(cursor, next, Relaxed, Relaxed).is_err() {
        return false;
    }
    if resync {
        block.resync.store(0, Relaxed);
        let open = open_frames(block) as u64;
        // SAFETY: `place` is in a chunk of this thread, behind its header.
        let header = unsafe { &*((place & !block.chunk_mask.load(Relaxed)) as *const ChunkHeader) };
        let tsc = block.resync_tsc.load(Relaxed).max(header.taken_tsc.load(Relaxed));
        Reserved(place as *const Record).write(tsc, open << ADDRESS_SHIFT | kind::RESYNC);
    }
    true
}

/// Moves the cursor over the record at `cursor`, unless a handler has moved it meanwhile.
fn swap_cursor(block: &ThreadBlock, cursor: usize) -> bool {
    let next = cursor.wrapping_add(size_of::<Record>());
    block.cursor.compare_exchange(cursor, next, Relaxed, Relaxed).is_ok()
}

/// Functions that are open in the thread, as far as its records tell.
pub(crate) fn open_frames(block: &ThreadBlock) -> usize {
    let mut entry = block.base.load(Relaxed);
    let mut open = 0usize;
    while entry < block.sp.load(Relaxed) {
        // SAFETY: between `base` and `sp`.
        let exit_word = unsafe { &*entry }.exit_word.load(Relaxed);
        open = open.wrapping_add(usize::from(exit_word & (kind::LEFT | state::HIDDEN) == 0));
        entry = entry.wrapping_add(1);
    }
    open
}

/// Notes that a function returns and its exit is not recorded: the next record must be preceded by a RESYNC record.
pub(crate) fn park(block: &ThreadBlock) {
    if block.resync.load(Relaxed) == 0 {
        let off = CONTROL.enabled.load(Relaxed) == 0;
        let tsc = if off { CONTROL.stop_tsc.load(Relaxed) } else { arch::ticks() };
        block.resync_tsc.store(tsc, Relaxed);
        block.resync.store(1, Relaxed);
    }
    compiler_fence(SeqCst);
    let cursor = block.cursor.swap(0, Relaxed);
    if cursor != 0 {
        block.parked_cursor.store(cursor, Relaxed);
    }
}

/// Gives the thread a chunk, in place of the one that ends at `cursor` (or none, if that is 0).
fn take_chunk(block: &ThreadBlock, cursor: usize, mask: usize) -> bool {
    // A dump waits until nobody is in here, so that no chunk changes hands while it reads.
    CONTROL.shared.n_takers.fetch_add(1, SeqCst);
    let taken = CONTROL.enabled.load(SeqCst) != 0 && (adopt(block, cursor) || take_and_install(block, cursor, mask));
    CONTROL.shared.n_takers.fetch_sub(1, SeqCst);
    taken
}

/// Goes on in a chunk that an ended thread has left, if this thread has none yet and such a chunk is there.
fn adopt(block: &ThreadBlock, cursor: usize) -> bool {
    if cursor != 0 || block.last_index.load(Relaxed) != 0 {
        return false;
    }
    for slot in &CONTROL.shared.partial {
        if slot.load(Relaxed) == 0 {
            continue;
        }
        let number = slot.swap(0, Relaxed);
        if number == 0 {
            continue;
        }
        let chunk = chunk_at(number.wrapping_sub(1));
        // SAFETY: the slots hold numbers of chunks, whose headers any thread may access.
        let header = unsafe { &*chunk };
        // Acquire: what the last owner wrote comes before what this one writes.
        let state = &header.state;
        if state.compare_exchange(chunk_state::PARTIAL, chunk_state::OWNED, AcqRel, Relaxed).is_err() {
            continue;
        }
        let place = chunk as usize + header.fill.load(Relaxed) as usize;
        let next = place.wrapping_add(size_of::<Record>());
        if block.cursor.compare_exchange(0, next, Relaxed, Relaxed).is_err() {
            // A handler that came in between has a chunk already.
            state.store(chunk_state::PARTIAL, Release);
            offer(number);
            return true;
        }
        header.n_adopted.fetch_add(1, Relaxed);
        block.last_index.store(header.index.load(Relaxed), Relaxed);
        let tid = u64::from(block.tid.load(Relaxed));
        let word = tid << ADDRESS_SHIFT | kind::NEW_THREAD | kind::RESYNC;
        Reserved(place as *const Record).write(arch::ticks(), word);
        return true;
    }
    false
}

/// Gives up the chunks of a thread that ends. With the one that its cursor points into or to the end of, another thread
/// goes on if there is room for some calls.
pub(crate) fn leave(block: &ThreadBlock, cursor: usize) {
    release(block, block.kept_chunk.swap(0, Relaxed));
    if cursor == 0 {
        return;
    }
    let mask = block.chunk_mask.load(Relaxed);
    let chunk = cursor.wrapping_sub(1) & !mask;
    let fill = cursor.wrapping_sub(chunk);
    // SAFETY: this thread's cursor points behind the header of a chunk that this thread owns.
    let header = unsafe { &*(chunk as *const ChunkHeader) };
    if (mask + 1).wrapping_sub(fill) < LEAST_ROOM * size_of::<Record>() {
        header.state.store(chunk_state::FULL, Release);
        return;
    }
    header.fill.store(fill as u32, Relaxed);
    header.state.store(chunk_state::PARTIAL, Release);
    let offset = chunk.wrapping_sub(CONTROL.chunks.load(Relaxed) as usize);
    offer(offset.checked_div(mask + 1).unwrap_or(0) as u64 + 1);
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

/// Chunk number `place` of the buffer.
fn chunk_at(place: u64) -> *mut ChunkHeader {
    let offset = (place as usize).wrapping_mul(CONTROL.chunk_bytes.load(Relaxed));
    CONTROL.chunks.load(Relaxed).wrapping_add(offset).cast()
}

/// Takes the next chunk of the buffer.
fn take_and_install(block: &ThreadBlock, cursor: usize, mask: usize) -> bool {
    let Some((chunk, index)) = claim() else {
        return false;
    };
    // SAFETY: `claim` returns a chunk of the buffer, which is now this thread's.
    let header = unsafe { &*chunk };
    header.tid.store(0, Relaxed);
    header.n_adopted.store(0, Relaxed);
    let mut taken_tsc = arch::ticks();
    if block.resync.load(Relaxed) != 0 {
        // The first record gets an earlier time, which must not make others valid.
        let records = chunk.cast::<u8>().wrapping_add(CHUNK_HEADER_BYTES);
        // SAFETY: the rest of the chunk, which only this thread uses.
        unsafe { arch::zero(records, (mask + 1).wrapping_sub(CHUNK_HEADER_BYTES)) };
        taken_tsc = taken_tsc.min(block.resync_tsc.load(Relaxed));
    }
    header.taken_tsc.store(taken_tsc, Relaxed);
    header.index.store(index, Relaxed);
    header.prev_index.store(block.last_index.load(Relaxed), Relaxed);
    header.depth.store(open_frames(block) as u32, Relaxed);
    header.core.store(block.core.load(Relaxed), Relaxed);
    header.tid.store(block.tid.load(Relaxed), Release);
    let first = chunk as usize + CHUNK_HEADER_BYTES;
    if !install(block, cursor, first) {
        // A handler that came in between has taken a chunk already.
        header.tid.store(0, Relaxed);
        header.state.store(chunk_state::FREE, Release);
        return true;
    }
    block.last_index.store(index, Relaxed);
    // The chunk may have been this thread's before, and have had such a record where an ordinary one comes now.
    block.lost_record.store(0, Relaxed);
    // The old chunk is found by the cursor or, if that was put aside, by the parked one.
    let parked = block.parked_cursor.swap(0, Relaxed);
    let old = if cursor != 0 { cursor } else { parked };
    if old != 0 {
        keep(block, old, mask);
    }
    true
}

/// Makes the chunk that `cursor` points into or to the end of the one that the thread keeps.
fn keep(block: &ThreadBlock, cursor: usize, mask: usize) {
    let chunk = cursor.wrapping_sub(1) & !mask;
    // SAFETY: this thread's cursor was behind the header of a chunk that this thread owns.
    let state = unsafe { &(*(chunk as *const ChunkHeader)).state };
    state.store(chunk_state::KEPT, Release);
    // Where a handler came in between and took a chunk, it has kept the one that was taken just now: all is written there.
    release(block, block.kept_chunk.swap(chunk, Relaxed));
}

/// Lets a chunk go that the thread has kept, unless another thread has it by now.
fn release(block: &ThreadBlock, kept_chunk: usize) {
    if kept_chunk != 0 {
        let chunk = kept_chunk as *const ChunkHeader;
        // SAFETY: a chunk of the buffer, whose header any thread may access.
        let header = unsafe { &*chunk };
        if header.tid.load(Relaxed) == block.tid.load(Relaxed) {
            let ring = CONTROL.overwriting.load(Relaxed) != 0;
            let next = if ring && !is_written(chunk) { chunk_state::WAITING } else { chunk_state::FULL };
            let _ = header.state.compare_exchange(chunk_state::KEPT, next, AcqRel, Relaxed);
        }
    }
}

/// Whether no hook will write into a full chunk any more.
fn is_written(chunk: *const ChunkHeader) -> bool {
    let n_records = records_per_chunk(CONTROL.chunk_bytes.load(Relaxed));
    // SAFETY: a chunk of the buffer, whose header any thread may access.
    let taken_tsc = unsafe { &*chunk }.taken_tsc.load(Relaxed);
    // SAFETY: the chunk's memory behind its header.
    let records = unsafe { slice::from_raw_parts(chunk.wrapping_add(1).cast::<Record>(), n_records) };
    // Four at a time: each thread does this with each chunk of a ring.
    let (lines, rest) = records.as_chunks::<4>();
    let written = |record: &Record| record.read(taken_tsc).is_some();
    lines.iter().all(|line| line.iter().all(written)) && rest.iter().all(written)
}

/// Finds a chunk to write into and makes it OWNED. Returns it with its index. What it held is given up.
fn claim() -> Option<(*mut ChunkHeader, u64)> {
    let n_chunks = CONTROL.n_chunks.load(Relaxed);
    let ring = CONTROL.overwriting.load(Relaxed) != 0;
    // Each chunk is looked at twice at the most: a ring may have as many owners as chunks. What others keep is taken the
    // second time.
    for n_seen in 0..n_chunks.wrapping_mul(2) {
        let taken = CONTROL.shared.next_index.fetch_add(1, Relaxed);
        if !ring && taken >= CONTROL.shared.end_index.load(Relaxed) {
            stop_full();
            return None;
        }
        let chunk = chunk_at(taken.checked_rem(n_chunks as u64).unwrap_or(0));
        // SAFETY: a chunk of the buffer, whose header any thread may access.
        let ChunkHeader { state, index, .. } = unsafe { &*chunk };
        let before = state.load(Relaxed);
        let to_be_had = match before {
            chunk_state::FREE => true,
            chunk_state::FULL | chunk_state::PARTIAL => ring,
            chunk_state::KEPT => ring && n_seen >= n_chunks && is_written(chunk),
            chunk_state::WAITING => {
                let age = taken.saturating_sub(index.load(Relaxed));
                ring && (age >= (n_chunks as u64).wrapping_mul(PATIENCE) || is_written(chunk))
            }
            _ => false,
        };
        // Acquire and Release: the records of the last owner are written before those of the new one.
        if !to_be_had || state.compare_exchange(before, chunk_state::OWNED, AcqRel, Relaxed).is_err() {
            continue;
        }
        if before != chunk_state::FREE {
            if index.load(Relaxed) > taken {
                // This thread was held up here, and others have gone once around: this is not the oldest chunk any more.
                let is_full = matches!(before, chunk_state::FULL | chunk_state::PARTIAL);
                state.store(if is_full { chunk_state::FULL } else { chunk_state::WAITING }, Release);
                continue;
            }
            CONTROL.shared.n_overwritten.fetch_add(1, Relaxed);
        }
        return Some((chunk, taken.wrapping_add(1)));
    }
    CONTROL.n_lost_no_chunk.fetch_add(1, Relaxed);
    None
}

/// How many chunks, from the first on, may ever have been taken. The memory of the others may not be there yet.
fn n_touched() -> u64 {
    CONTROL.shared.next_index.load(Relaxed).min(CONTROL.n_chunks.load(Relaxed) as u64)
}

/// Stop mode: the buffer is used up.
fn stop_full() {
    if CONTROL.full.swap(1, Relaxed) == 0 {
        CONTROL.stop_tsc.store(arch::ticks(), Relaxed);
    }
    CONTROL.enabled.store(0, SeqCst);
}

/// Only the thread of `own` is left: the chunks of all others have lost their writers.
#[cfg(not(target_os = "none"))]
pub(crate) fn keep_only_chunk_of(own: Option<&ThreadBlock>) {
    // A thread that is not there may have been in the middle of taking a chunk.
    CONTROL.shared.n_takers.store(0, SeqCst);
    let mask = CONTROL.chunk_bytes.load(Relaxed).wrapping_sub(1);
    let cursor = own.map(|own| match own.cursor.load(Relaxed) {
        0 => own.parked_cursor.load(Relaxed),
        cursor => cursor,
    });
    let own_chunk = cursor.map(|cursor| cursor.wrapping_sub(1) & !mask);
    let kept_chunk = own.map(|own| own.kept_chunk.load(Relaxed));
    for place in 0..n_touched() {
        let chunk = chunk_at(place);
        if ![own_chunk, kept_chunk].contains(&Some(chunk as usize)) {
            // SAFETY: a chunk of the buffer, whose header any thread may access.
            let state = unsafe { &(*chunk).state };
            for from in [chunk_state::OWNED, chunk_state::KEPT, chunk_state::WAITING] {
                let _ = state.compare_exchange(from, chunk_state::FULL, AcqRel, Relaxed);
            }
        }
    }
}

/// Makes all full chunks free, but for those in which a record is still to be written.
pub(crate) fn free_full_chunks() {
    if CONTROL.chunks.load(Acquire).is_null() {
        return;
    }
    let n_chunks = CONTROL.n_chunks.load(Relaxed) as u64;
    for place in 0..n_touched() {
        let chunk = chunk_at(place);
        // SAFETY: a chunk of the buffer, whose header any thread may access.
        let state = unsafe { &(*chunk).state };
        if [chunk_state::KEPT, chunk_state::WAITING].contains(&state.load(Relaxed)) && !is_written(chunk) {
            continue;
        }
        for from in [chunk_state::FULL, chunk_state::PARTIAL, chunk_state::KEPT, chunk_state::WAITING] {
            let _ = state.compare_exchange(from, chunk_state::FREE, AcqRel, Relaxed);
        }
    }
    // Every chunk can be looked at once in the new cycle.
    let next = CONTROL.shared.next_index.load(Relaxed);
    CONTROL.shared.end_index.store(next.wrapping_add(n_chunks), Relaxed);
    CONTROL.shared.n_overwritten.store(0, Relaxed);
}
