//! Frames that a thread left without their returning.
//!
//! After a `longjmp` they are dead. After a switch of stacks (coroutines) they live and will run again, on this thread or
//! on another. When they are left nobody can tell which it is, so their entries are kept here until the frame runs again
//! or its slot serves another left call.
//!
//! The table is one for all threads: buckets of cells, found by a hash of the slot. A cell is a [`ReturnEntry`] whose
//! `parent_loc` is 0 when it is free and [`GONE`] while it is being written. The trampoline's unwind information walks
//! the table like a return stack.
//!
//! An entry comes here in three steps, because two threads may move the same one: the thread that leaves the frame, and
//! the one that runs it now. It is written to a cell as *pending*; then one compare-exchange of the entry's old place
//! decides who moved it; the winner confirms its cell and the other withdraws its own. A pending entry can be found and
//! taken too; who takes it marks it as dead, and its owner frees the cell.
//!
//! **Invariant**: an entry that moves is written to its new place before it is taken from the old one, so it can be
//! found at every moment by who looks at the return stacks first and here second, twice.

use core::slice;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::abi::{GONE, LEFT_BUCKET_ENTRIES, ReturnEntry, kind};
use crate::arch;
use crate::control::CONTROL;

/// The bits of `exit_word` that link an entry to its caller's: how many words of 8 bytes the caller's slot lies above this
/// one, 0 if no caller is known. In an entry that returns to the trampoline (a tail call, whose caller has the same
/// slot) they count instead how many entries of the chain lie below it.
const LINK_MASK: u64 = LINK_MAX << LINK_SHIFT;
const LINK_SHIFT: u32 = 3;
const LINK_MAX: u64 = (1 << 13) - 1;
/// States of a cell, in place of the kind in `exit_word`: an entry that is here for good,
const SETTLED: u64 = kind::EXIT;
/// one that is still being moved here,
const PENDING: u64 = 3;
/// and one that was taken meanwhile.
const DEAD: u64 = 2;
const STATE_MASK: u64 = kind::MASK;
/// What a link counts.
const WORD_BYTES: usize = 8;

/// The exit word of an entry without its link, marked as not to be recorded.
pub(crate) fn unlinked(exit_word: u64) -> u64 {
    exit_word & !(LINK_MASK | STATE_MASK) | kind::EXIT | kind::LEFT
}

/// The caller's slot of an entry that was read from the table.
pub(crate) fn caller(parent_loc: usize, exit_word: u64) -> Option<usize> {
    let link = (exit_word & LINK_MASK) >> LINK_SHIFT;
    (link != 0).then(|| caller_at(parent_loc, link as usize))
}

/// The caller's slot, by the link of an entry that is no tail call.
pub(crate) fn caller_at(parent_loc: usize, link: usize) -> usize {
    parent_loc.wrapping_add(link.wrapping_mul(WORD_BYTES))
}

/// An entry that is being moved into the table.
pub(crate) struct Moving {
    cell: &'static ReturnEntry,
    /// Its bucket is half full.
    pub(crate) is_crowded: bool,
}

/// Writes an entry to the table, as pending. `link` is what [`LINK_MASK`] tells of. Fails if its bucket is full, or if
/// there is no table.
pub(crate) fn put(entry: &ReturnEntry, parent_loc: usize, link: usize) -> Option<Moving> {
    for (idx, cell) in bucket(parent_loc).iter().enumerate() {
        let free = cell.parent_loc.load(Relaxed) == 0;
        if free && cell.parent_loc.compare_exchange(0, GONE, Acquire, Relaxed).is_ok() {
            let link = (link as u64).min(LINK_MAX) << LINK_SHIFT;
            let exit_word = entry.exit_word.load(Relaxed) & !(LINK_MASK | STATE_MASK);
            cell.parent_ip.store(entry.parent_ip.load(Relaxed), Relaxed);
            cell.exit_word.store(exit_word | link | PENDING, Relaxed);
            cell.parent_loc.store(parent_loc, Release);
            if !in_use() {
                CONTROL.any_left.store(1, Relaxed);
            }
            return Some(Moving { cell, is_crowded: idx >= LEFT_BUCKET_ENTRIES / 2 });
        }
    }
    None
}

impl Moving {
    /// The entry was taken from its old place: it is here now.
    pub(crate) fn confirm(self) {
        let pending = self.cell.exit_word.load(Relaxed);
        let settled = pending & !STATE_MASK | SETTLED;
        let is_pending = pending & STATE_MASK == PENDING;
        if !is_pending || self.cell.exit_word.compare_exchange(pending, settled, AcqRel, Relaxed).is_err() {
            self.withdraw();
        }
    }

    /// The entry is not to be here: another thread was faster.
    pub(crate) fn withdraw(self) {
        self.cell.parent_loc.store(0, Release);
    }
}

/// Takes away all entries with slots between these two, which belong to a frame and its caller: they are dead.
///
/// Nothing else tells that frames which were left by longjmp are dead, so a program that jumps from ever other depths
/// needs this when the table fills. Frames too large for it may lie on two stacks, with other living ones between.
pub(crate) fn purge_between(parent_loc: usize, caller_loc: usize) {
    const MAX_BYTES: usize = 512;
    if caller_loc.wrapping_sub(parent_loc) <= MAX_BYTES {
        (parent_loc..caller_loc).step_by(WORD_BYTES).skip(1).for_each(purge);
    }
}

/// The link of an entry whose caller's slot is `caller_loc`.
pub(crate) fn distance(parent_loc: usize, caller_loc: usize) -> usize {
    caller_loc.wrapping_sub(parent_loc) / WORD_BYTES
}

/// The entry with this slot; of a chain of tail calls the innermost one.
pub(crate) fn innermost(parent_loc: usize) -> Option<&'static ReturnEntry> {
    let tail_call = |cell: &&ReturnEntry| cell.parent_ip.load(Relaxed) == arch::trampoline();
    let place = |cell: &&ReturnEntry| if tail_call(cell) { 1 + (cell.exit_word.load(Relaxed) & LINK_MASK) } else { 0 };
    with_slot(parent_loc).max_by_key(place)
}

/// The entry with this slot that holds a true return address: of a chain of tail calls the outermost one.
pub(crate) fn outermost(parent_loc: usize) -> Option<&'static ReturnEntry> {
    with_slot(parent_loc).find(|cell| cell.parent_ip.load(Relaxed) != arch::trampoline())
}

/// Entries with this slot.
pub(crate) fn count(parent_loc: usize) -> usize {
    with_slot(parent_loc).count()
}

/// Whether a frame was ever left. Programs that know neither longjmp nor coroutines are spared some searches.
pub(crate) fn in_use() -> bool {
    CONTROL.any_left.load(Relaxed) != 0
}

/// The slot of the nearest left frame that lies above this one by at most half a kilobyte.
pub(crate) fn nearest_above(parent_loc: usize) -> Option<usize> {
    const MAX_WORDS: usize = 64;
    if !in_use() {
        return None;
    }
    (1..=MAX_WORDS).map(|words| caller_at(parent_loc, words)).find(|&slot| count(slot) != 0)
}

/// Takes away an entry that was found in the table. Returns whether it was still there.
pub(crate) fn take(cell: &ReturnEntry, parent_loc: usize) -> bool {
    let mut word = cell.exit_word.load(Acquire);
    // Pending entries become settled, and settled ones do not change.
    if word & STATE_MASK == PENDING {
        let dead = word & !STATE_MASK | DEAD;
        match cell.exit_word.compare_exchange(word, dead, AcqRel, Acquire) {
            Ok(_) if cell.parent_loc.load(Relaxed) == parent_loc => return true,
            Ok(_) => {
                // The cell has a new entry, whose word is the same.
                let _ = cell.exit_word.compare_exchange(dead, word, AcqRel, Relaxed);
                return false;
            }
            Err(now) => word = now,
        }
    }
    word & STATE_MASK == SETTLED && cell.parent_loc.compare_exchange(parent_loc, 0, AcqRel, Relaxed).is_ok()
}

/// Takes away all settled entries with this slot: another call has it, they are dead.
pub(crate) fn purge(parent_loc: usize) {
    for cell in with_slot(parent_loc) {
        if cell.exit_word.load(Relaxed) & STATE_MASK == SETTLED {
            take(cell, parent_loc);
        }
    }
}

fn with_slot(parent_loc: usize) -> impl Iterator<Item = &'static ReturnEntry> {
    bucket(parent_loc).iter().filter(move |cell| {
        cell.parent_loc.load(Acquire) == parent_loc && cell.exit_word.load(Relaxed) & STATE_MASK != DEAD
    })
}

/// The cells among which the entries with this slot are.
fn bucket(parent_loc: usize) -> &'static [ReturnEntry] {
    /// 2 to the 64th, divided by the golden ratio: multiplying by it spreads neighbours.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

    let cells = CONTROL.left.load(Acquire);
    if cells.is_null() {
        return &[];
    }
    let hash = ((parent_loc / WORD_BYTES) as u64).wrapping_mul(SPREAD) >> 32;
    let number = hash as usize & CONTROL.n_left_buckets.load(Relaxed).wrapping_sub(1);
    let first = cells.wrapping_add(number.wrapping_mul(LEFT_BUCKET_ENTRIES));
    // SAFETY: bucket `number` of the table, which stays mapped; cells consist of atomics.
    unsafe { slice::from_raw_parts(first, LEFT_BUCKET_ENTRIES) }
}
