//! The buffer: how a thread gets its next chunk and a place for a record, and how one buffer replaces another.
//!
//! **Invariant**: only counted takers take, keep and leave chunks of a thread, and nobody does while the buffer is
//! replaced. A replaced buffer stays mapped: a thread in a hook at that moment writes its record there, and nobody
//! reads it. Another buffer gets its addresses only if a recorder comes back to the process, after the recorder before
//! has seen no thread in a hook. If that recorder was killed first, one wrong record is the worst result.
//!
//! **Invariant**: a cursor is used with the mask of its own buffer alone: by a [`Place`], or with the buffer in use by a taker.

use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicUsize, compiler_fence};

use crate::abi::{
    ADDRESS_SHIFT, Bank, CHUNK_HEADER_BYTES, EXCLUDED_MASK, Record, ThreadBlock, enabled, init, kind, state, takers,
};
use crate::arch::{self, values::Values};
use crate::chunk::{self, Kept, Owned, Place};
use crate::control_block::{CONTROL, SWITCH};
use crate::waiting;

/// A reserved record in this thread's chunk.
pub(crate) struct Reserved(*const Record);

/// Some records side by side; one if there was no room for more.
pub(crate) struct ManyReserved {
    place: Place,
    n_records: usize,
}

impl ManyReserved {
    /// Writes the first record, and the values of its call behind it, all at one time.
    pub(crate) fn write(self, tsc: u64, word: u64, values: Option<&Values>) {
        self.record(0).write(tsc, word);
        if let Some(values) = values {
            for (place, word) in (1..self.n_records).zip(values.words()) {
                self.record(place).write(tsc, word);
            }
        }
    }
}

impl ManyReserved {
    fn record(&self, number: usize) -> Reserved {
        Reserved((self.place.cursor() as *const Record).wrapping_add(number))
    }
}

impl Reserved {
    /// Writes the record. The time comes last and makes it valid.
    pub(crate) fn write(self, tsc: u64, word: u64) {
        // SAFETY: `reserve` returns places inside a chunk of this thread; its memory stays mapped.
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

/// Records the resumption of a left stack. The chunk notes the presence of such a record.
pub(crate) fn record_resumed(block: &ThreadBlock, word: u64) {
    if let Some(reserved) = reserve_many(block, 1) {
        reserved
            .place
            .moved_to(reserved.place.cursor().wrapping_add(1))
            .chunk()
            .header()
            .n_resumed
            .fetch_add(1, Relaxed);
        reserved.write(arch::ticks(), word, None);
    }
}

/// Counts a call that finds no room on the return stack: in the newest record, if it is a LOST record already.
pub(crate) fn record_lost_call(block: &ThreadBlock) {
    let newest = block.cursor.load(Relaxed).wrapping_sub(size_of::<Record>());
    if newest != 0 && block.lost_record.load(Relaxed) == newest {
        // SAFETY: the address of a record of this thread, in a chunk it still owns.
        let record = unsafe { &*(newest as *const Record) };
        if record.tsc.load(Relaxed) >= CONTROL.cycle_start_tsc.load(Relaxed) {
            record.word.fetch_add(1 << ADDRESS_SHIFT, Relaxed);
            return;
        }
    }
    if let Some(place) = reserve(block) {
        let record = place.0 as usize;
        place.write(arch::ticks(), 1 << ADDRESS_SHIFT | kind::LOST);
        // Last: a signal handler in between adds to a record of its own.
        block.lost_record.store(record, Relaxed);
    }
}

/// Counts a call if there is certainly no room; returns false if there may be some.
pub(crate) fn loses_call(block: &ThreadBlock) -> bool {
    let is_full = |cursor: &AtomicUsize| {
        let cursor = cursor.load(Relaxed);
        !Place::in_use(cursor, chunk_mask(block)).has_room()
    };
    if !waiting::is_given_up() || !is_full(&block.cursor) || !is_full(&block.parked_cursor) {
        return false;
    }
    if block.last_index.load(Relaxed) == 0 && Owned::may_adopt() {
        return false;
    }
    // SAFETY: null, or mapped for good, by the contract of init.
    let bank = unsafe { CONTROL.bank.load(Relaxed).as_ref() };
    bank.is_some_and(|bank| {
        bank.n_lost.fetch_add(1, Relaxed);
        true
    })
}

/// Reserves the next record of this thread; `None` when recording is off or no chunk is to be had.
pub(crate) fn reserve(block: &ThreadBlock) -> Option<Reserved> {
    reserve_many(block, 1).map(|reserved| reserved.record(0))
}

/// Reserves some records of this thread at once, in one chunk; or one if no chunk has room for so many.
pub(crate) fn reserve_many(block: &ThreadBlock, n_records: usize) -> Option<ManyReserved> {
    loop {
        if SWITCH.state(Relaxed) == enabled::OFF || is_excluded(block) {
            return None;
        }
        let place = Place::next(block);
        if !place.has_room() {
            if as_taker(|| take_chunk(block, place.cursor())) {
                continue;
            }
            return None;
        }
        let n_records = if n_records > place.n_records() { 1 } else { n_records };
        let n_left = place.n_left();
        if !swap_cursor(block, place.cursor(), n_records.min(n_left)) {
            continue;
        }
        if n_records <= n_left {
            return Some(ManyReserved { place, n_records });
        }
        // Too few. All of them have to be written before somebody can take the chunk.
        let too_few = ManyReserved { place, n_records: n_left };
        for number in 0..n_left {
            too_few.record(number).write(arch::ticks(), kind::NOTHING);
        }
    }
}

/// Runs `work` as a taker: it takes, keeps or leaves chunks. A dump waits until there are no takers, so no chunk
/// changes hands while it reads. Returns the result of `work`; false while the buffer is being replaced.
fn as_taker(work: impl FnOnce() -> bool) -> bool {
    let n_takers = &CONTROL.shared.n_takers;
    let before = n_takers.fetch_add(1, SeqCst);
    let done = before & takers::REPLACING == 0 && work();
    // A handler in between may have forked: then nobody is counted any more in the child.
    let is_counted = |now: u32| (now ^ before) & takers::FORKS == 0;
    let _ = n_takers.fetch_update(SeqCst, SeqCst, |now| is_counted(now).then(|| now.wrapping_sub(1)));
    done
}

/// Makes `place` the cursor instead of `cursor`, with a RESYNC record there first if one is due. Fails if a handler in
/// between has changed the cursor.
fn install(block: &ThreadBlock, cursor: usize, place: Place) -> bool {
    let resync = block.resync.load(Relaxed) != 0;
    let first = place.cursor();
    let next = if resync { first.wrapping_add(size_of::<Record>()) } else { first };
    if block.cursor.compare_exchange(cursor, next, Relaxed, Relaxed).is_err() {
        return false;
    }
    if resync {
        block.resync.store(0, Relaxed);
        let open = open_frames(block) as u64;
        let taken_tsc = place.chunk().header().taken_tsc.load(Relaxed);
        let tsc = block.resync_tsc.load(Relaxed).max(taken_tsc);
        Reserved(first as *const Record).write(tsc, open << ADDRESS_SHIFT | kind::RESYNC);
    }
    true
}

/// Moves the cursor over so many records at `cursor`, unless a handler has moved it meanwhile.
fn swap_cursor(block: &ThreadBlock, cursor: usize, n_records: usize) -> bool {
    let next = cursor.wrapping_add(n_records.wrapping_mul(size_of::<Record>()));
    block.cursor.compare_exchange(cursor, next, Relaxed, Relaxed).is_ok()
}

/// Open functions of the thread, as far as its records tell.
pub(crate) fn open_frames(block: &ThreadBlock) -> usize {
    let mut entry = block.base.load(Relaxed);
    let mut open = 0usize;
    while entry < block.sp.load(Relaxed) {
        // SAFETY: between `base` and `sp`.
        let exit_word = unsafe { &*entry }.exit_word.load(Relaxed);
        open = open.wrapping_add(usize::from(has_exit_to_come(exit_word)));
        entry = entry.wrapping_add(1);
    }
    open
}

/// True if the exit of an open function is still to be recorded.
pub(crate) fn has_exit_to_come(exit_word: u64) -> bool {
    exit_word & (kind::LEFT | state::HIDDEN) == 0
}

/// Notes an unrecorded return of a function: a RESYNC record must precede the next record.
pub(crate) fn park(block: &ThreadBlock) {
    if block.resync.load(Relaxed) == 0 {
        // Acquire: `stop_tsc` was written before.
        let off = SWITCH.state(Acquire) == enabled::OFF;
        let tsc = match block.excluded_tsc.load(Relaxed) {
            _ if off => CONTROL.stop_tsc.load(Relaxed),
            0 => arch::ticks(),
            excluded_tsc => excluded_tsc,
        };
        block.resync_tsc.store(tsc, Relaxed);
        block.resync.store(1, Relaxed);
    }
    compiler_fence(SeqCst);
    let cursor = block.cursor.swap(0, Relaxed);
    if cursor != 0 {
        block.parked_cursor.store(cursor, Relaxed);
    }
}

/// Gives the thread a chunk, in place of the one with its end at `cursor` (or of none, for 0).
fn take_chunk(block: &ThreadBlock, cursor: usize) -> bool {
    if SWITCH.state(SeqCst) == enabled::OFF {
        return false;
    }
    match block.chunk_mask.load(Relaxed) {
        0 => {
            change_buffer(block);
            true
        }
        EXCLUDED_MASK => {
            // Another thread may set it to 0 no more, as the buffer is not replaced now.
            let mask = CONTROL.chunk_bytes.load(Relaxed).wrapping_sub(1);
            let _ = block.chunk_mask.compare_exchange(EXCLUDED_MASK, mask, SeqCst, Relaxed);
            stay_excluded(block);
            true
        }
        mask => {
            let parked = Place::in_use(block.parked_cursor.load(Relaxed), mask);
            if cursor == 0 && parked.has_room() {
                // Back to the chunk put aside, unless a handler in between did so.
                install(block, 0, parked);
                return true;
            }
            // For a fork in a handler: chunks from this index on may be this thread's by now. An adopted chunk may have
            // any index.
            let outer = block.taking.load(Relaxed);
            let next = CONTROL.shared.next_index.load(Relaxed).wrapping_add(1);
            block.taking.store(if outer == 0 { next } else { outer.min(next) }, Relaxed);
            compiler_fence(SeqCst);
            let taken = adopt(block, cursor) || take_and_install(block, cursor, mask);
            compiler_fence(SeqCst);
            block.taking.store(outer, Relaxed);
            taken
        }
    }
}

/// The thread has had no chunk of this buffer yet: forgets those of an earlier one.
fn change_buffer(block: &ThreadBlock) {
    // A handler in between may have done this, and have chunks already: keep cursors and indices of the new buffer.
    let forget = |word: &AtomicUsize| {
        let old = word.load(Relaxed);
        compiler_fence(SeqCst);
        if block.chunk_mask.load(Relaxed) == 0 {
            let _ = word.compare_exchange(old, 0, Relaxed, Relaxed);
        }
    };
    let kept = block.kept_index.load(Relaxed);
    compiler_fence(SeqCst);
    if block.chunk_mask.load(Relaxed) == 0 {
        let _ = block.kept_index.compare_exchange(kept, 0, Relaxed, Relaxed);
    }
    forget(&block.lost_record);
    forget(&block.parked_cursor);
    forget(&block.cursor);
    compiler_fence(SeqCst);
    block.chunk_mask.store(CONTROL.chunk_bytes.load(Relaxed).wrapping_sub(1), SeqCst);
    stay_excluded(block);
}

/// True if nothing of this thread is recorded.
pub(crate) fn is_excluded(block: &ThreadBlock) -> bool {
    block.excluded_tsc.load(Relaxed) != 0
}

/// Excludes a thread from recording from now on, or includes it again. Any thread may call it.
///
/// It keeps its chunks. Its hooks go to their slow paths, and find out there.
pub(crate) fn exclude(block: &ThreadBlock, is_excluded: bool) {
    if is_excluded {
        let _ = block.excluded_tsc.compare_exchange(0, arch::ticks(), SeqCst, Relaxed);
        // No call adds to it.
        block.lost_record.store(0, Relaxed);
        stay_excluded(block);
    } else {
        block.excluded_tsc.store(0, SeqCst);
    }
}

/// Sends the hooks of an excluded thread to their slow paths. Call it after `excluded_tsc` is set, and after the thread
/// gets a mask: so one of both sides sees the other's change.
fn stay_excluded(block: &ThreadBlock) {
    if block.excluded_tsc.load(SeqCst) != 0 {
        let has_mask = |mask: usize| (mask != 0).then_some(EXCLUDED_MASK);
        let _ = block.chunk_mask.fetch_update(SeqCst, SeqCst, has_mask);
    }
}

/// Size of a chunk minus 1; 0 if the thread has not come to the buffer in use.
fn chunk_mask(block: &ThreadBlock) -> usize {
    match block.chunk_mask.load(Relaxed) {
        EXCLUDED_MASK => CONTROL.chunk_bytes.load(Relaxed).wrapping_sub(1),
        mask => mask,
    }
}

/// Goes on in a chunk of an ended thread, if this thread has none yet and there is one.
fn adopt(block: &ThreadBlock, cursor: usize) -> bool {
    if cursor != 0 || block.last_index.load(Relaxed) != 0 {
        return false;
    }
    let next = block.taking.swap(1, Relaxed);
    let adopted = Owned::adopt();
    compiler_fence(SeqCst);
    let Some((chunk, place)) = adopted else {
        block.taking.store(next, Relaxed);
        return false;
    };
    let next = place.wrapping_add(size_of::<Record>());
    if block.cursor.compare_exchange(0, next, Relaxed, Relaxed).is_err() {
        // A handler in between has a chunk already.
        chunk.leave(place);
        return true;
    }
    chunk.header().n_adopted.fetch_add(1, Relaxed);
    block.last_index.store(chunk.index(), Relaxed);
    let tid = u64::from(block.tid.load(Relaxed));
    let word = tid << ADDRESS_SHIFT | kind::NEW_THREAD | kind::RESYNC;
    Reserved(place as *const Record).write(arch::ticks(), word);
    true
}

/// The next chunk of the buffer. The thread waits for one if somebody empties the buffer.
fn claim() -> Option<Owned> {
    // SAFETY: null, or mapped for good, by the contract of init.
    let bank = unsafe { CONTROL.bank.load(Relaxed).as_ref() };
    let Some(bank) = bank else {
        let chunk = Owned::claim();
        // In stop mode recording is off then, and nothing counts as lost.
        if chunk.is_none() && CONTROL.overwriting.load(Relaxed) != 0 {
            CONTROL.n_lost_no_chunk.fetch_add(1, Relaxed);
        }
        return chunk;
    };
    let chunk = waiting::claim(bank);
    if chunk.is_none() && SWITCH.state(Relaxed) != enabled::OFF {
        bank.n_lost.fetch_add(1, Relaxed);
    }
    chunk
}

/// Takes the next chunk of the buffer.
fn take_and_install(block: &ThreadBlock, cursor: usize, mask: usize) -> bool {
    let Some(chunk) = claim() else {
        return false;
    };
    let (header, first) = (chunk.header(), chunk.first_record());
    header.tid.store(0, Relaxed);
    header.n_adopted.store(0, Relaxed);
    header.n_resumed.store(0, Relaxed);
    let mut taken_tsc = arch::ticks();
    if block.resync.load(Relaxed) != 0 {
        // The first record gets an earlier time: without zeros behind it, old records would become valid.
        // SAFETY: the rest of the chunk; only this thread uses it.
        unsafe { arch::zero(first as *mut u8, (mask + 1).wrapping_sub(CHUNK_HEADER_BYTES)) };
        taken_tsc = taken_tsc.min(block.resync_tsc.load(Relaxed));
    }
    header.taken_tsc.store(taken_tsc, Relaxed);
    header.prev_index.store(block.last_index.load(Relaxed), Relaxed);
    header.depth.store(open_frames(block) as u32, Relaxed);
    header.core.store(block.core.load(Relaxed), Relaxed);
    header.tid.store(block.tid.load(Relaxed), Release);
    if !install(block, cursor, Place::in_use(first, mask)) {
        // A handler in between has taken a chunk already.
        chunk.give_back();
        return true;
    }
    block.last_index.store(chunk.index(), Relaxed);
    // The chunk may have been this thread's before, with a LOST record at the place of an ordinary one now.
    block.lost_record.store(0, Relaxed);
    // The cursor leads to the old chunk or, if it was put aside, the parked one.
    let parked = block.parked_cursor.swap(0, Relaxed);
    let old = if cursor != 0 { cursor } else { parked };
    if old != 0 {
        let old = Place::in_use(old, mask);
        hold_back_late(block, old);
        let kept = Owned::of_cursor(old).keep();
        // If a handler in between took a chunk, it has kept the one taken just now: all records are written there.
        release(block.kept_index.swap(kept.index(), Relaxed));
    }
    true
}

/// Before the thread gives a chunk up: an interrupted hook may be about to invalidate a record there, to take it back.
/// This does it for the hook, so the chunk waits until the hook writes the record again.
fn hold_back_late(block: &ThreadBlock, place: Place) {
    let late = block.late.load(Relaxed);
    if place.is_in_same_chunk(late) && block.late.compare_exchange(late, 0, Relaxed, Relaxed).is_ok() {
        let record = late.wrapping_sub(size_of::<Record>()) as *const Record;
        // SAFETY: a record in the chunk, which is this thread's still.
        unsafe { &*record }.tsc.store(0, Relaxed);
    }
}

/// Lets the kept chunk of a thread go, by its index; 0 for none.
fn release(kept_index: u64) {
    if let Some(kept) = Kept::of_block(kept_index) {
        kept.release();
    }
}

/// Gives up the chunks of an ending thread. Another thread goes on with the chunk at its cursor (in it, or at its end)
/// if there is room for some calls.
pub(crate) fn leave(block: &ThreadBlock, cursor: usize) {
    let kept_index = block.kept_index.swap(0, Relaxed);
    as_taker(|| {
        let mask = chunk_mask(block);
        // Else they are those of a replaced buffer.
        if mask != 0 {
            release(kept_index);
            if cursor != 0 {
                Owned::of_cursor(Place::in_use(cursor, mask)).leave(cursor);
            }
        }
        true
    });
}

/// Forgets the takers: each is gone with its thread, or interrupted by this handler.
#[cfg(not(target_os = "none"))]
pub(crate) fn forget_takers() {
    let n_takers = &CONTROL.shared.n_takers;
    let forks = n_takers.load(SeqCst).wrapping_add(takers::FORK) & takers::FORKS;
    n_takers.store(forks, SeqCst);
}

/// Only the thread of `own` is left: the chunks of all others have lost their writers.
#[cfg(not(target_os = "none"))]
pub(crate) fn keep_only_chunk_of(own: Option<&ThreadBlock>) {
    let own = own.filter(|own| chunk_mask(own) != 0);
    let Some(own) = own else {
        return chunk::forget_writers(|_| false);
    };
    let cursor = match own.cursor.load(Relaxed) {
        0 => own.parked_cursor.load(Relaxed),
        cursor => cursor,
    };
    let mask = chunk_mask(own);
    let current = if cursor == 0 { 0 } else { Place::in_use(cursor, mask).chunk().header().index() };
    let indices = [current, own.kept_index.load(Relaxed), own.last_index.load(Relaxed)];
    let taking = own.taking.load(Relaxed);
    chunk::forget_writers(|index| indices.contains(&index) || taking != 0 && index >= taking);
}

/// Makes all full chunks free, but for those with a record still to be written.
pub(crate) fn free_full_chunks() {
    if CONTROL.chunks.load(Acquire).is_null() {
        return;
    }
    chunk::free_full();
    // Every chunk can be looked at once in the new cycle.
    let next = CONTROL.shared.next_index.load(Relaxed);
    CONTROL.shared.end_index.store(next.wrapping_add(CONTROL.n_chunks.load(Relaxed) as u64), Relaxed);
    CONTROL.shared.n_overwritten.store(0, Relaxed);
}

/// Memory for records, zeroed: `n_chunks` chunks of `chunk_bytes`, aligned to their size.
pub(crate) struct Region {
    pub(crate) chunks: *mut u8,
    pub(crate) n_chunks: usize,
    pub(crate) chunk_bytes: usize,
    pub(crate) overwriting: bool,
    /// See [`InitArgs::bank`](crate::abi::InitArgs::bank).
    pub(crate) bank: *const Bank,
}

/// Makes `region` the buffer and begins a new cycle, while no thread takes a chunk; `change` does the rest of the work
/// then. Recording is off. Returns an [`init`] status; unless it is OK nothing has changed.
pub(crate) fn replace(region: &Region, change: impl FnOnce() -> u32, begin_cycle: impl FnOnce()) -> u32 {
    let shared = &CONTROL.shared;
    let quiet = shared.n_takers.load(SeqCst) & takers::FORKS;
    if shared.n_takers.compare_exchange(quiet, quiet | takers::REPLACING, SeqCst, Relaxed).is_err() {
        return init::BUSY;
    }
    let status = change();
    if status == init::OK {
        CONTROL.chunks.store(ptr::null_mut(), Release);
        for slot in &shared.partial {
            slot.store(0, Relaxed);
        }
        // Indices go on: those of the old buffer's chunks are no chunk's any more.
        let next = shared.next_index.load(Relaxed);
        let first = next.checked_next_multiple_of(region.n_chunks as u64).unwrap_or(0);
        shared.first_index.store(first, Relaxed);
        shared.next_index.store(first, Relaxed);
        CONTROL.n_chunks.store(region.n_chunks, Relaxed);
        CONTROL.chunk_bytes.store(region.chunk_bytes, Relaxed);
        CONTROL.overwriting.store(region.overwriting.into(), Relaxed);
        CONTROL.bank.store(region.bank.cast_mut(), Relaxed);
        CONTROL.none_until_tsc.store(0, Relaxed);
        CONTROL.beat_given_up.store(0, Relaxed);
        // Last: `enable` goes by it.
        CONTROL.chunks.store(region.chunks, Release);
        begin_cycle();
    }
    shared.n_takers.fetch_and(!takers::REPLACING, SeqCst);
    status
}
