//! Frames that a thread left without their returning.
//!
//! After a `longjmp` they are dead. After a switch of stacks (coroutines) they live and will run again, on this thread or
//! on another. When they are left nobody can tell which it is, so their entries are kept here until the frame runs again
//! or a younger one with its slot comes here.
//!
//! The table is one for all threads: buckets of cells, found by a hash of the slot. The trampoline's unwind information
//! walks it like a return stack.
//!
//! Two threads may move the same entry: the one that leaves the frame, and the one that runs it now. So an entry comes
//! here in steps. It is written to a cell as *pending*; then one compare-exchange of the entry's old place decides who
//! moves it; the winner confirms its cell and the other withdraws its own. A pending entry can be found and taken too:
//! who takes it marks it as dead, and its owner frees the cell.
//!
//! **Invariant**: an entry that moves is written to its new place before it is taken from the old one, so it can be
//! found at every moment by who looks at the return stacks first and here second.
//!
//! **Invariant**: among the entries with a slot the youngest is the living one, wherever they are. If it returns to the
//! trampoline it is a tail call, and the next younger one lives too.
//!
//! **Invariant**: a cell changes hands by compare-exchange of its tag, which holds a stamp that no other entry ever has.

use core::slice;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::abi::{LEFT_BUCKET_CELLS, LeftCell, ReturnEntry};
use crate::arch;
use crate::control::CONTROL;

/// States of a cell, in its tag: nothing in it,
const FREE: u64 = 0;
/// being written or freed,
const BUSY: u64 = 1;
/// an entry that is being moved here,
const PENDING: u64 = 2;
/// one that is here for good,
const SETTLED: u64 = 3;
/// and one that was taken before it was.
const DEAD: u64 = 4;
const STATE_MASK: u64 = 7;
/// What a stamp counts by.
const STAMP: u64 = STATE_MASK + 1;
/// What a link counts, in bytes.
const WORD_BYTES: usize = 8;

/// An entry that was found in the table.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    cell: &'static LeftCell,
    tag: u64,
    pub(crate) parent_ip: usize,
    pub(crate) parent_loc: usize,
    pub(crate) exit_word: u64,
    pub(crate) entered: u64,
    link: usize,
}

/// An entry that is being moved into the table.
pub(crate) struct Moving {
    cell: &'static LeftCell,
    stamp: u64,
    parent_loc: usize,
    /// Its bucket is half full.
    pub(crate) is_crowded: bool,
}

/// The link of an entry whose caller's slot is `caller_loc`.
pub(crate) fn link_to(parent_loc: usize, caller_loc: usize) -> usize {
    caller_loc.wrapping_sub(parent_loc) / WORD_BYTES
}

/// Writes an entry to the table, as pending. Fails if its bucket is full, or if there is no table.
pub(crate) fn put(entry: &ReturnEntry, parent_loc: usize, link: usize) -> Option<Moving> {
    for (idx, cell) in bucket(parent_loc).iter().enumerate() {
        let tag = cell.tag.load(Relaxed);
        if tag & STATE_MASK != FREE {
            continue;
        }
        let stamp = CONTROL.shared.left_stamp.fetch_add(STAMP, Relaxed).wrapping_add(STAMP);
        if cell.tag.compare_exchange(tag, stamp | BUSY, AcqRel, Relaxed).is_err() {
            continue;
        }
        cell.link.store(link, Relaxed);
        cell.entry.parent_ip.store(entry.parent_ip.load(Relaxed), Relaxed);
        cell.entry.exit_word.store(entry.exit_word.load(Relaxed), Relaxed);
        cell.entry.entered.store(entry.entered.load(Relaxed), Relaxed);
        cell.entry.parent_loc.store(parent_loc, Release);
        cell.tag.store(stamp | PENDING, Release);
        if !in_use() {
            CONTROL.any_left.store(1, Relaxed);
        }
        return Some(Moving { cell, stamp, parent_loc, is_crowded: idx >= LEFT_BUCKET_CELLS / 2 });
    }
    None
}

impl Moving {
    /// The entry was taken from its old place: it is here now. Older ones with its slot are dead, unless it is a tail call.
    pub(crate) fn confirm(self) {
        let entered = self.cell.entry.entered.load(Relaxed);
        if !arch::is_trampoline(self.cell.entry.parent_ip.load(Relaxed)) {
            purge(self.parent_loc, entered);
        }
        let (pending, settled) = (self.stamp | PENDING, self.stamp | SETTLED);
        if self.cell.tag.compare_exchange(pending, settled, AcqRel, Relaxed).is_err() {
            self.withdraw();
        }
    }

    /// The entry is not to be here: another thread was faster.
    pub(crate) fn withdraw(self) {
        free(self.cell, self.stamp);
    }
}

impl Left {
    /// Takes the entry out of the table, if it is still there.
    pub(crate) fn take(self) {
        let stamp = self.tag & !STATE_MASK;
        let exchange = |from, to| self.cell.tag.compare_exchange(stamp | from, stamp | to, AcqRel, Relaxed).is_ok();
        if self.tag & STATE_MASK == PENDING && exchange(PENDING, DEAD) {
            return;
        }
        // It may have been settled meanwhile.
        if exchange(SETTLED, BUSY) {
            free(self.cell, stamp);
        }
    }

    /// Whether the entry returns to the trampoline.
    pub(crate) fn is_tail_call(&self) -> bool {
        arch::is_trampoline(self.parent_ip)
    }

    /// The caller's slot, of an entry that is no tail call.
    pub(crate) fn caller_loc(&self) -> Option<usize> {
        (self.link != 0).then(|| slot_above(self.parent_loc, self.link))
    }
}

fn free(cell: &LeftCell, stamp: u64) {
    cell.entry.parent_loc.store(0, Relaxed);
    cell.tag.store(stamp | FREE, Release);
}

/// The youngest entry with this slot; of a chain of tail calls the innermost one.
pub(crate) fn innermost(parent_loc: usize) -> Option<Left> {
    with_slot(parent_loc).max_by_key(|left| left.entered)
}

/// The youngest entry with this slot that holds a true return address: of a chain of tail calls the outermost one.
pub(crate) fn outermost(parent_loc: usize) -> Option<Left> {
    with_slot(parent_loc).filter(|left| !left.is_tail_call()).max_by_key(|left| left.entered)
}

/// Living entries with this slot: one, or a chain of tail calls.
pub(crate) fn count(parent_loc: usize) -> usize {
    let since = outermost(parent_loc).map_or(0, |left| left.entered);
    with_slot(parent_loc).filter(|left| left.entered >= since).count()
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
    (1..=MAX_WORDS).map(|words| slot_above(parent_loc, words)).find(|&slot| innermost(slot).is_some())
}

/// An entry whose time, or what stands in its place, is wanted: all cells are searched.
#[allow(dead_code, reason = "nobody interrupts where there is an OS")]
pub(crate) fn find(is_wanted: impl Fn(u64) -> bool) -> Option<Left> {
    let cells = CONTROL.left.load(Acquire);
    if !in_use() || cells.is_null() {
        return None;
    }
    let n_cells = CONTROL.n_left_buckets.load(Relaxed).wrapping_mul(LEFT_BUCKET_CELLS);
    // SAFETY: the whole table, which stays mapped; cells consist of atomics.
    let cells = unsafe { slice::from_raw_parts(cells, n_cells) };
    let found = cells.iter().filter(|cell| is_wanted(cell.entry.entered.load(Relaxed)));
    let mut slots = found.map(|cell| cell.entry.parent_loc.load(Relaxed));
    slots.find_map(|slot| with_slot(slot).find(|left| is_wanted(left.entered)))
}

/// Takes away the settled entries with this slot that were entered before `entered`, in ticks: they are dead.
fn purge(parent_loc: usize, entered: u64) {
    let is_dead = |left: &Left| left.tag & STATE_MASK == SETTLED && left.entered < entered;
    with_slot(parent_loc).filter(is_dead).for_each(Left::take);
}

/// Takes away all settled entries with slots between that of a frame and its caller's, by the link: they are dead.
///
/// Nothing else tells that frames which were left by longjmp are dead, so a program that jumps from ever other depths
/// needs this when the table fills. Frames too large for it may lie on two stacks, with other living ones between.
pub(crate) fn purge_up_to_caller(parent_loc: usize, link: usize) {
    const MAX_WORDS: usize = 64;
    if link <= MAX_WORDS {
        (1..link).for_each(|words| purge(slot_above(parent_loc, words), u64::MAX));
    }
}

fn slot_above(parent_loc: usize, words: usize) -> usize {
    parent_loc.wrapping_add(words.wrapping_mul(WORD_BYTES))
}

fn with_slot(parent_loc: usize) -> impl Iterator<Item = Left> {
    bucket(parent_loc).iter().filter_map(move |cell| {
        if cell.entry.parent_loc.load(Relaxed) != parent_loc {
            return None;
        }
        let tag = cell.tag.load(Acquire);
        let left = Left {
            cell,
            tag,
            parent_ip: cell.entry.parent_ip.load(Acquire),
            parent_loc,
            exit_word: cell.entry.exit_word.load(Acquire),
            entered: cell.entry.entered.load(Acquire),
            link: cell.link.load(Acquire),
        };
        // What was read belongs together only if the cell has not changed hands.
        let is_same = cell.entry.parent_loc.load(Acquire) == parent_loc
            && cell.tag.load(Relaxed) & !STATE_MASK == tag & !STATE_MASK;
        (is_same && matches!(tag & STATE_MASK, PENDING | SETTLED)).then_some(left)
    })
}

/// The cells among which the entries with this slot are.
fn bucket(parent_loc: usize) -> &'static [LeftCell] {
    /// 2 to the 64th, divided by the golden ratio: multiplying by it spreads neighbours.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

    let cells = CONTROL.left.load(Acquire);
    if cells.is_null() {
        return &[];
    }
    let hash = ((parent_loc / WORD_BYTES) as u64).wrapping_mul(SPREAD);
    // The top bits of the hash, which are the best mixed, as a fraction of the number of buckets.
    let number = u128::from(hash).wrapping_mul(CONTROL.n_left_buckets.load(Relaxed) as u128) >> 64;
    let first = cells.wrapping_add((number as usize).wrapping_mul(LEFT_BUCKET_CELLS));
    // SAFETY: bucket `number` of the table, which stays mapped; cells consist of atomics.
    unsafe { slice::from_raw_parts(first, LEFT_BUCKET_CELLS) }
}
