//! Entries change places: frames end, are left, and run again.
//!
//! These moves never make a return wrong: an entry is given up only when its frame has returned or was unwound,
//! or when another call had its frame.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{ADDRESS_SHIFT, ThreadBlock, enabled, kind, state};
use crate::arch::{self, Reach, values::Values};
use crate::buffer;
use crate::control_block::SWITCH;
use crate::left;
use crate::return_stack::{Entry, Open, ReturnStack, is_near};
use crate::thread;

/// The thread goes on in the function of `outer`, or none of them for `None`. Those above it are dead, or wait on other
/// stacks: records their exits, and moves them to the table of left frames. Returns whether it had room for all; the
/// rest stays.
#[inline(always)]
pub(crate) fn leave_above(stack: ReturnStack<'_>, outer: Option<Entry<'_>>) -> bool {
    stack.top() == outer || leave_some_above(stack, outer)
}

/// The same if there are some.
#[inline(never)]
fn leave_some_above(stack: ReturnStack<'_>, outer: Option<Entry<'_>>) -> bool {
    record_suspended(stack, outer);
    stack.above(outer).for_each(|entry| record_exit(stack, entry));
    while stack.above(outer).next().is_some() {
        if !move_top_to_table(stack) {
            return false;
        }
    }
    true
}

/// Records the whole stacks left when the thread goes on in `outer`: the exits of their functions follow, and readers
/// may have to tell them from exits of ended functions.
fn record_suspended(stack: ReturnStack<'_>, outer: Option<Entry<'_>>) {
    let mut n_functions = 0u64;
    let mut entries = stack.entries().peekable();
    while let Some(entry) = entries.next_if(|&entry| outer != Some(entry)) {
        let open = entry.read();
        n_functions = n_functions.wrapping_add((open.frame != 0 && buffer::has_exit_to_come(open.exit_word)).into());
        let next = entries.peek().map_or(0, |next| next.read().frame);
        if n_functions != 0 && open.frame != 0 && !is_near(open.frame, next) {
            buffer::record(stack.block(), stack_word(kind::SUSPENDED, open.sequence, n_functions));
            n_functions = 0;
        }
    }
}

/// The word of a record about a whole stack, named by the sequence number of its outermost function.
fn stack_word(what: u64, sequence: u64, n_functions: u64) -> u64 {
    let n_functions = n_functions.wrapping_mul(kind::FUNCTIONS_ONE) & kind::FUNCTIONS_MASK;
    sequence << ADDRESS_SHIFT | n_functions | what | kind::RESYNC
}

/// Forgets the open functions of a thread that is gone; nothing is recorded. Returns as [`leave_above`].
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) fn forget_all(block: &ThreadBlock) -> bool {
    let stack = ReturnStack::of(block);
    while move_top_to_table(stack) {}
    stack.top().is_none()
}

/// Moves the innermost entry to the table of left frames. Fails if there is no room, or no entry.
fn move_top_to_table(stack: ReturnStack<'_>) -> bool {
    let Some(top) = stack.top() else {
        return false;
    };
    let open = top.read();
    if open.frame != 0 && !top.is_gone() {
        let link = link(stack, top, open.frame);
        let Some(moving) = left::put(&open, link) else {
            return false;
        };
        if moving.is_crowded && !open.is_tail_call() {
            left::purge_up_to_caller(open.frame, link);
        }
        // Another thread may have taken it at the same time.
        if top.withdraw(open.frame) {
            moving.confirm();
        } else {
            moving.withdraw();
        }
    }
    stack.pop(top);
    true
}

/// The link to an entry's caller in the table of left frames.
fn link(stack: ReturnStack<'_>, entry: Entry<'_>, frame: usize) -> usize {
    let outer = stack.below(entry).map_or(0, |outer| outer.read().frame);
    if is_near(frame, outer) { left::link_to(frame, outer) } else { 0 }
}

/// Takes away the entry of an ended function, and records its exit. The thread goes on in its caller.
pub(crate) fn end(stack: ReturnStack<'_>, entry: Entry<'_>) {
    let left_all = leave_above(stack, Some(entry));
    record_exit(stack, entry);
    if left_all {
        stack.pop(entry);
    } else {
        stack.close_gap(entry);
    }
}

/// Drops the innermost entries, as far as their functions went on running on other threads.
#[inline(always)]
pub(crate) fn drop_gone(stack: ReturnStack<'_>) {
    if stack.top().is_some_and(Entry::is_gone) {
        drop_some_gone(stack);
    }
}

/// The same if there are some.
#[inline(never)]
fn drop_some_gone(stack: ReturnStack<'_>) {
    record_suspended(stack, stack.entries().find(|entry| !entry.is_gone()));
    while let Some(top) = stack.top() {
        if !top.is_gone() {
            return;
        }
        record_exit(stack, top);
        stack.pop(top);
    }
}

/// Records the exit of a function, unless it is recorded already.
fn record_exit(stack: ReturnStack<'_>, entry: Entry<'_>) {
    record_exit_with(stack, entry, None);
}

/// The same with the function's result.
pub(crate) fn record_exit_with(stack: ReturnStack<'_>, entry: Entry<'_>, values: Option<&Values>) {
    let word = entry.exit_word();
    if entry.is_reserved() || word & kind::LEFT != 0 {
        return;
    }
    if word & state::HIDDEN != 0 {
        entry.mark_left();
        return;
    }
    // The place first: the beginning of a new chunk still counts the function as open.
    let n_records = values.map_or(0, Values::n_units).wrapping_add(1);
    let place = buffer::reserve_many(stack.block(), n_records);
    // A signal handler in between may leave the same frames; then the place stays empty.
    let word = entry.mark_left();
    match place {
        Some(place) if word & kind::LEFT == 0 => place.write(arch::ticks(), word, values),
        Some(_) => {}
        None => buffer::park(stack.block()),
    }
}

/// A left frame runs again: moves its entry back from the table, with those of its callers on the same stack, and
/// records their entries. Returns true if it did so; not while recording is off, or the thread excluded, or the return
/// stack is full.
pub(crate) fn bring_back(stack: ReturnStack<'_>, frame: usize) -> bool {
    if SWITCH.state(Relaxed) == enabled::OFF || buffer::is_excluded(stack.block()) {
        return false;
    }
    // If the table has a younger entry with this frame, the open function is dead.
    while let Some(entry) = stack.find(frame) {
        let is_dead = |open: &Open| left::innermost(frame).is_some_and(|left| left.open.sequence > open.sequence);
        if !entry.open().is_some_and(|open| is_dead(&open) && entry.claim_as(&open, left::next_number())) {
            return false;
        }
    }
    let n_entries = count_with_callers(stack, frame);
    if n_entries == 0 {
        return false;
    }
    let Some(mut places) = stack.reserve_many(n_entries) else {
        return false;
    };
    let mut next = Some(frame);
    let (mut is_shown, mut outermost) = (false, None);
    while let Some(left) = next.and_then(left::innermost) {
        let mut open = left.open;
        open.exit_word |= kind::LEFT;
        if !places.publish(&open) {
            break;
        }
        // Two threads may do this; one of them gets it. A pending entry may stay in its old place. If another thread
        // holds a younger one with this frame, the one here is dead: on top of this return stack it would be believed
        // without a look elsewhere.
        if is_held_elsewhere(stack, &left.open) || !left.take() {
            places.take_last_back();
            break;
        }
        is_shown |= open.exit_word & state::HIDDEN == 0;
        outermost = Some(left);
        if !open.is_tail_call() {
            next = left.caller();
        }
    }
    // With an open or unknown caller it is not the whole stack.
    let whole = outermost.filter(|left| is_shown && left.caller().is_none());
    if let Some(outermost) = whole {
        buffer::record_resumed(stack.block(), stack_word(kind::RESUMED, outermost.open.sequence, 0));
    }
    // If another thread was faster some places stay empty: the frames above them were dead.
    for entry in places.finish() {
        let word = entry.exit_word();
        if entry.is_gone() {
            continue;
        }
        let entry_word = word >> ADDRESS_SHIFT << ADDRESS_SHIFT | kind::AGAIN | kind::ENTRY;
        if word & state::HIDDEN == 0 && !buffer::record(stack.block(), entry_word) {
            buffer::park(stack.block());
            break;
        }
        entry.unmark_left();
    }
    outermost.is_some()
}

/// The number of entries in the table of a left frame and of its callers on the same stack.
fn count_with_callers(stack: ReturnStack<'_>, frame: usize) -> usize {
    let mut n_entries = 0usize;
    let mut next = Some(frame);
    while let Some(frame) = next
        && stack.find(frame).is_none()
    {
        n_entries = n_entries.wrapping_add(left::count(frame));
        next = left::outermost(frame).and_then(|left| left.caller());
    }
    n_entries
}

/// True if a left frame may run again: it is its stack's first, or its caller is open or was left too. The return of a
/// caller has ended the frames of all its calls, though they may still look hooked.
pub(crate) fn has_living_caller(stack: ReturnStack<'_>, frame: usize) -> bool {
    let mut next = frame;
    while let Some(inner) = left::outermost(next)
        && let Some(caller) = inner.caller()
    {
        // A later call may have the caller's frame.
        if let Some(entry) = stack.find(caller) {
            return entry.sequence() < inner.open.sequence || arch::is_of_handler(entry.sequence());
        }
        if left::count(caller) == 0 {
            return false;
        }
        next = caller;
    }
    true
}

/// The entry with this frame held by another thread, if it is the youngest one: the frame went on running here before
/// the other thread has noticed its leaving.
pub(crate) fn held_elsewhere(
    own: Option<ReturnStack<'_>>,
    frame: usize,
) -> Option<(ReturnStack<'static>, Entry<'static>)> {
    let left = left::innermost(frame).map_or(0, |left| left.open.sequence);
    let held = others(own).filter_map(|stack| Some((stack, stack.find(frame)?)));
    held.filter(|(_, entry)| entry.sequence() > left).max_by_key(|(_, entry)| entry.sequence())
}

/// True if another thread holds this entry, or a younger one with its frame.
fn is_held_elsewhere(own: ReturnStack<'_>, open: &Open) -> bool {
    others(Some(own)).filter_map(|stack| stack.find(open.frame)).any(|entry| entry.sequence() >= open.sequence)
}

/// This very entry, if another thread holds it.
fn held_by_another(own: Option<ReturnStack<'_>>, open: &Open) -> Option<Entry<'static>> {
    let mut found = others(own).filter_map(|stack| stack.find(open.frame));
    found.find(|entry| entry.sequence() == open.sequence)
}

/// Takes the entry of an ended function away from another thread. Returns true if it was found.
pub(crate) fn forget(own: Option<ReturnStack<'_>>, ended: &Open) -> bool {
    let held = held_by_another(own, ended);
    let is_claimed = held.is_some_and(|entry| entry.claim_as(ended, left::next_number()));
    left::forget(ended) || is_claimed
}

/// Moves an entry held elsewhere to the table of left frames, with those of its callers on this thread's stack: the
/// ones that frame pointers reach. If these could not be followed to their end, nearby entries are taken to be
/// callers'.
#[cold]
pub(crate) fn take_over(own: Option<ReturnStack<'_>>, frame: usize, reach: Reach) {
    let Some((stack, found)) = held_elsewhere(own, frame) else {
        return;
    };
    let mut inner = frame;
    for entry in stack.entries().skip_while(|&entry| entry != found) {
        let Some(open) = entry.open() else {
            return;
        };
        let is_proven = open.frame <= reach.up_to || reach.is_cut;
        if open.frame < inner || !is_near(inner, open.frame) || !is_proven {
            return;
        }
        inner = open.frame;
        let Some(moving) = left::put(&open, link(stack, entry, open.frame)) else {
            return;
        };
        if !entry.claim_as(&open, moving.number()) {
            return moving.withdraw();
        }
        moving.confirm();
    }
}

/// The return stacks of all threads traced now, but for one.
pub(crate) fn others(own: Option<ReturnStack<'_>>) -> impl Iterator<Item = ReturnStack<'static>> {
    let is_own = move |stack: &ReturnStack<'static>| own.is_some_and(|own| own.is(*stack));
    thread::traced().map(ReturnStack::of).filter(move |stack| !is_own(stack))
}
