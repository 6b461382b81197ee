//! Frames left by a thread without a return.
//!
//! After a `longjmp` they are dead. After a switch of stacks (coroutines) they live and will run again, on this thread
//! or on another. Nobody can tell the two apart when they are left, so their entries are kept here until the frame runs
//! again or a younger one with its frame comes here.
//!
//! The table is one for all threads: buckets of cells, found by a hash of the frame. The trampoline's unwind information
//! walks it like a return stack.
//!
//! Two threads may move the same entry: the one leaving the frame, and the one running it now. So an entry comes here
//! in steps. It is written to a cell as *pending*; then one compare-exchange of the entry's old place decides who moves
//! it; the winner confirms its cell and the other withdraws its own. A pending entry can be found, and also taken as
//! soon as it has left its old place: the taker marks it as dead, and its owner frees the cell.
//!
//! **Invariant**: a moving entry is written to its new place before it is taken from the old one. So a search of the
//! return stacks first and of this table second finds it at every moment.
//!
//! **Invariant**: among the entries with a frame the youngest is the living one, wherever they are. If it returns to the
//! trampoline it is a tail call, and the next younger one lives too.
//!
//! **Invariant**: a cell changes hands by compare-exchange of its tag. The tag holds a stamp of this entry alone.

use core::slice;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;

use crate::abi::{LEFT_BUCKET_CELLS, LeftCell};
use crate::control_block::CONTROL;
use crate::return_stack::Open;

/// States of a cell, in its tag: nothing in it,
const FREE: u64 = 0;
/// being written or freed,
const BUSY: u64 = 1;
/// an entry on its way here,
const PENDING: u64 = 2;
/// one here for good,
const SETTLED: u64 = 3;
/// and one taken before it was settled.
const DEAD: u64 = 4;
const STATE_MASK: u64 = 7;
/// The step of a stamp.
const STAMP: u64 = STATE_MASK + 1;
/// The unit of a link, in bytes.
const WORD_BYTES: usize = 8;

/// An entry found in the table.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    cell: &'static LeftCell,
    tag: u64,
    pub(crate) open: Open,
    link: usize,
}

/// An entry on its way into the table.
pub(crate) struct Moving {
    cell: &'static LeftCell,
    stamp: u64,
    open: Open,
    /// Its bucket is half full.
    pub(crate) is_crowded: bool,
}

/// The link of an entry with this frame to its caller's frame, `caller`.
pub(crate) fn link_to(frame: usize, caller: usize) -> usize {
    caller.wrapping_sub(frame) / WORD_BYTES
}

/// Writes an entry to the table, as pending. Fails if its bucket is full, or if there is no table.
pub(crate) fn put(open: &Open, link: usize) -> Option<Moving> {
    for (idx, cell) in bucket(open.frame).iter().enumerate() {
        let tag = cell.tag.load(Relaxed);
        if tag & STATE_MASK != FREE {
            continue;
        }
        let stamp = next_stamp();
        if cell.tag.compare_exchange(tag, stamp | BUSY, AcqRel, Relaxed).is_err() {
            continue;
        }
        cell.link.store(link, Relaxed);
        cell.entry.parent_ip.store(open.parent_ip, Relaxed);
        cell.entry.exit_word.store(open.exit_word, Relaxed);
        cell.entry.sequence.store(open.sequence, Relaxed);
        cell.entry.frame.store(open.frame, Release);
        cell.tag.store(stamp | PENDING, Release);
        if !in_use() {
            CONTROL.any_left.store(1, Relaxed);
        }
        return Some(Moving { cell, stamp, open: *open, is_crowded: idx >= LEFT_BUCKET_CELLS / 2 });
    }
    None
}

/// A number that no claim has.
pub(crate) fn next_number() -> u64 {
    next_stamp() / STAMP
}

fn next_stamp() -> u64 {
    CONTROL.shared.left_stamp.fetch_add(STAMP, AcqRel).wrapping_add(STAMP)
}

/// Changes whenever an entry comes to the table or leaves it. Before one leaves it, it is at its new place.
pub(crate) fn n_moves() -> u64 {
    fence(SeqCst);
    CONTROL.shared.left_stamp.load(SeqCst)
}

impl Moving {
    /// A number that no other claim has.
    pub(crate) fn number(&self) -> u64 {
        self.stamp / STAMP
    }

    /// The entry was taken from its old place: it is here now. Older ones with its frame are dead, unless it is a tail call.
    pub(crate) fn confirm(self) {
        if !self.open.is_tail_call() {
            purge(self.open.frame, self.open.sequence);
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

/// Takes the entry of an ended function out of the table. Returns true if it was there.
pub(crate) fn forget(ended: &Open) -> bool {
    let mut was_there = false;
    // Two threads may be moving it here; only one of them will.
    for left in with_frame(ended.frame).filter(|left| left.open.sequence == ended.sequence) {
        was_there |= left.take();
    }
    was_there
}

impl Left {
    /// Takes the entry out of the table. Returns false if it is not there any more: another thread was faster.
    pub(crate) fn take(self) -> bool {
        next_stamp();
        let stamp = self.tag & !STATE_MASK;
        let exchange = |from, to| self.cell.tag.compare_exchange(stamp | from, stamp | to, AcqRel, Relaxed).is_ok();
        if self.tag & STATE_MASK == PENDING && exchange(PENDING, DEAD) {
            return true;
        }
        // It may have been settled meanwhile.
        let is_taken = exchange(SETTLED, BUSY);
        if is_taken {
            free(self.cell, stamp);
        }
        is_taken
    }

    /// The caller's frame, unless the entry is a tail call.
    pub(crate) fn caller(&self) -> Option<usize> {
        (self.link != 0).then(|| frame_above(self.open.frame, self.link))
    }
}

fn free(cell: &LeftCell, stamp: u64) {
    cell.entry.frame.store(0, Release);
    cell.tag.store(stamp | FREE, Release);
}

/// The youngest entry with this frame; of a chain of tail calls the innermost one.
pub(crate) fn innermost(frame: usize) -> Option<Left> {
    with_frame(frame).max_by_key(|left| left.open.sequence)
}

/// The youngest entry with this frame and a true return address: the outermost one of a chain of tail calls.
pub(crate) fn outermost(frame: usize) -> Option<Left> {
    with_frame(frame).filter(|left| !left.open.is_tail_call()).max_by_key(|left| left.open.sequence)
}

/// Living entries with this frame: one, or a chain of tail calls.
pub(crate) fn count(frame: usize) -> usize {
    let since = outermost(frame).map_or(0, |left| left.open.sequence);
    with_frame(frame).filter(|left| left.open.sequence >= since).count()
}

/// True if a frame was ever left. Programs without longjmp and coroutines are spared some searches.
pub(crate) fn in_use() -> bool {
    CONTROL.any_left.load(Relaxed) != 0
}

/// The nearest left frame above this one, by at most half a kilobyte.
pub(crate) fn nearest_above(frame: usize) -> Option<usize> {
    const MAX_WORDS: usize = 64;
    if !in_use() {
        return None;
    }
    (1..=MAX_WORDS).map(|words| frame_above(frame, words)).find(|&frame| innermost(frame).is_some())
}

/// Finds an entry by its time, or the number in place of it: searches all cells.
#[allow(dead_code, reason = "nobody interrupts where there is an OS")]
pub(crate) fn find(is_wanted: impl Fn(u64) -> bool) -> Option<Left> {
    let cells = CONTROL.left.load(Acquire);
    if !in_use() || cells.is_null() {
        return None;
    }
    let n_cells = CONTROL.n_left_buckets.load(Relaxed).wrapping_mul(LEFT_BUCKET_CELLS);
    // SAFETY: the whole table stays mapped; cells consist of atomics.
    let cells = unsafe { slice::from_raw_parts(cells, n_cells) };
    let found = cells.iter().filter(|cell| is_wanted(cell.entry.sequence.load(Relaxed)));
    let mut frames = found.map(|cell| cell.entry.frame.load(Relaxed));
    frames.find_map(|frame| with_frame(frame).find(|left| is_wanted(left.open.sequence)))
}

/// Takes away the settled entries with this frame from before `sequence`: they are dead.
fn purge(frame: usize, sequence: u64) {
    let is_dead = |left: &Left| left.tag & STATE_MASK == SETTLED && left.open.sequence < sequence;
    with_frame(frame).filter(is_dead).for_each(|left| {
        left.take();
    });
}

/// Takes away all settled entries with frames between a frame and its caller's, by the link: they are dead.
///
/// Nothing else tells that frames left by longjmp are dead, so a program that jumps from ever other depths needs this
/// when the table fills. Frames too large for it may lie on two stacks, with other living ones between.
pub(crate) fn purge_up_to_caller(frame: usize, link: usize) {
    const MAX_WORDS: usize = 64;
    if link <= MAX_WORDS {
        (1..link).for_each(|words| purge(frame_above(frame, words), u64::MAX));
    }
}

fn frame_above(frame: usize, words: usize) -> usize {
    frame.wrapping_add(words.wrapping_mul(WORD_BYTES))
}

fn with_frame(frame: usize) -> impl Iterator<Item = Left> {
    bucket(frame).iter().filter_map(move |cell| {
        if cell.entry.frame.load(Relaxed) != frame {
            return None;
        }
        let tag = cell.tag.load(Acquire);
        let left = Left {
            cell,
            tag,
            open: Open {
                frame,
                parent_ip: cell.entry.parent_ip.load(Acquire),
                exit_word: cell.entry.exit_word.load(Acquire),
                sequence: cell.entry.sequence.load(Acquire),
            },
            link: cell.link.load(Acquire),
        };
        // The fields belong together only if the cell has not changed hands.
        let is_same =
            cell.entry.frame.load(Acquire) == frame && cell.tag.load(Relaxed) & !STATE_MASK == tag & !STATE_MASK;
        (is_same && matches!(tag & STATE_MASK, PENDING | SETTLED)).then_some(left)
    })
}

/// The cells for entries with this frame.
fn bucket(frame: usize) -> &'static [LeftCell] {
    /// 2 to the 64th, divided by the golden ratio: multiplying by it spreads neighbours.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

    let cells = CONTROL.left.load(Acquire);
    if cells.is_null() {
        return &[];
    }
    let hash = ((frame / WORD_BYTES) as u64).wrapping_mul(SPREAD);
    // The top bits of the hash, the best mixed ones, as a fraction of the number of buckets.
    let number = u128::from(hash).wrapping_mul(CONTROL.n_left_buckets.load(Relaxed) as u128) >> 64;
    let first = cells.wrapping_add((number as usize).wrapping_mul(LEFT_BUCKET_CELLS));
    // SAFETY: bucket `number` of the table stays mapped; cells consist of atomics.
    unsafe { slice::from_raw_parts(first, LEFT_BUCKET_CELLS) }
}
