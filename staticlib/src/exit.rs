//! The slow paths of the trampolines: a function has returned, or an exception leaves it. And of sleds: it is about to return, or to jump to
//! another one.
//!
//! A return has two steps. The first finds the address to go on at, and changes nothing: as long as the address is only
//! in the tracer's registers, unwinders still need the entry. The second takes the entry away, once the trampoline's
//! unwind information can find the address.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{ADDRESS_SHIFT, ThreadBlock, state};
use crate::arch::{
    self,
    values::{Values, Wanted},
};
use crate::busy;
use crate::left;
use crate::moves;
use crate::return_stack::{Entry, Open, ReturnStack};
use crate::thread;

/// Tries before the return stacks and the table are believed although entries are being moved all the time.
const PATIENCE: u32 = 100;

/// The return address of the function that has just returned to the trampoline.
pub(crate) extern "C" fn exit_find(frame: usize) -> usize {
    begin(frame);
    look_up(frame, is_hooked).parent_ip
}

/// Records the exit of the function asked about by [`exit_find`], and takes its entry away. `frame_pointer` is its
/// caller's, if it keeps one; the words between are not used.
pub(crate) extern "C" fn exit_done(frame: usize, _: usize, _: usize, frame_pointer: usize) {
    leave(frame, frame_pointer, &look_up(frame, is_hooked));
}

/// A sled of a function: it is about to return, or to jump to another function. Nothing is done if its entry is not known, as it was not
/// recorded, or if its return is hooked.
#[cfg(not(target_os = "none"))]
#[allow(dead_code, reason = "not all processors have sleds")]
pub(crate) extern "C" fn exit_at_sled(frame: usize, _: usize, _: usize, frame_pointer: usize) {
    if thread::existing_block().is_none() {
        return;
    }
    // A function returning by T to T was called by a jump, and may have a sled.
    let is_own = |open: &Open| open.is_unhooked() || open.is_tail_call();
    if let Some(ended) = try_look_up(frame, |_| true).filter(is_own) {
        begin(frame);
        leave(frame, frame_pointer, &ended);
    }
}

/// Records the exit of a function, and takes its entry away.
fn leave(frame: usize, frame_pointer: usize, ended: &Open) {
    let reach = arch::reach(frame, frame, arch::frame_of_pointer(frame_pointer));
    let own = thread::existing_block().map(ReturnStack::of);
    for _ in 0..PATIENCE {
        if own.is_some_and(|stack| end(stack, ended)) {
            break;
        }
        // It was left, or entered on another thread.
        moves::take_over(own, frame, reach);
        if own.is_some_and(|stack| moves::bring_back(stack, frame)) {
            continue;
        }
        let n_moves = left::n_moves();
        // Another thread may take it for its own and move it meanwhile.
        if moves::forget(own, ended) || left::n_moves() == n_moves {
            break;
        }
    }
    if let Some(stack) = own {
        busy::end(stack, frame);
    }
}

/// As [`exit_find`], for a function with a wanted result; records its exit if this thread has its entry. `registers` is
/// the place of the saved result. The entry stays.
#[allow(dead_code, reason = "not all processors have values")]
pub(crate) extern "C" fn exit_find_with_values(
    frame: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    registers: usize,
) -> usize {
    let own = begin(frame);
    // As long as no frame was left the innermost one with this frame is it, if it is hooked.
    let innermost = own.and_then(|(_, entry)| entry?.open()).filter(|open| is_hooked(open) && !left::in_use());
    let ended = innermost.unwrap_or_else(|| look_up(frame, is_hooked));
    if let Some((stack, Some(entry))) = own {
        if entry.sequence() == ended.sequence
            && let Some(wanted) = Wanted::of_return((ended.exit_word >> ADDRESS_SHIFT) as usize, registers, frame)
        {
            record_result(stack, entry, &ended, wanted);
        }
        busy::end(stack, frame);
    }
    ended.parent_ip
}

/// The result takes a kilobyte of the stack.
#[inline(never)]
fn record_result(stack: ReturnStack<'_>, entry: Entry<'_>, ended: &Open, wanted: Wanted) {
    moves::leave_above(stack, Some(entry));
    let mut values = Values::new();
    values.read_result(wanted);
    moves::record_exit_with(stack, entry, Some(&values));
    if ended.exit_word & state::HIDDEN == 0 {
        wanted.returned(stack.block().tid.load(Relaxed), ended.sequence);
    }
}

/// Takes the entry away after [`exit_find_with_values`], as [`exit_done`], and records the exit unless it is recorded.
#[allow(dead_code, reason = "not all processors have values")]
pub(crate) extern "C" fn exit_done_with_values(frame: usize, _: usize, _: usize, frame_pointer: usize) {
    begin(frame);
    exit_done(frame, 0, 0, frame_pointer);
}

/// Ends a function with an entry on this return stack. Others there with its frame are dead. Returns false without an
/// entry.
fn end(stack: ReturnStack<'_>, ended: &Open) -> bool {
    while let Some(entry) = stack.find(ended.frame) {
        let is_it = entry.sequence() == ended.sequence;
        moves::end(stack, entry);
        if is_it {
            return true;
        }
    }
    false
}

/// An exception leaves the function with this frame, or a chain of tail calls with it. Finds the address to which the
/// first of these functions would have returned. Changes nothing.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) extern "C" fn unwound_find(frame: usize) -> usize {
    begin(frame);
    look_up(frame, |open| is_hooked(open) && !open.is_tail_call()).parent_ip
}

/// Records the exits of these frames and takes their entries away.
#[cfg_attr(target_os = "none", allow(dead_code))]
pub(crate) extern "C" fn unwound_done(frame: usize) {
    loop {
        let parent_ip = exit_find(frame);
        exit_done(frame, 0, 0, 0);
        if !arch::is_trampoline(parent_ip) {
            return;
        }
    }
}

/// An interrupt handler has returned: records its exit. Returns the address to go on at in the interrupted code.
/// `stack_pointer` is that code's; `flags` become its flags.
#[allow(dead_code, reason = "nobody interrupts where there is an OS")]
pub(crate) extern "C" fn interrupt_exit(stack_pointer: usize, flags: &AtomicUsize) -> usize {
    let is_it = |sequence| arch::is_interrupt_sequence(sequence, stack_pointer);
    let found = thread::existing_block().map(ReturnStack::of).and_then(|stack| {
        let is_handler = |entry: &Entry<'_>| !entry.is_reserved() && is_it(entry.sequence());
        Some((stack, stack.entries().find(is_handler)?))
    });
    let open = match found {
        Some((stack, entry)) => {
            let open = entry.read();
            let frame = arch::frame_below(stack_pointer);
            busy::begin_return(stack, frame, Some(entry));
            moves::end(stack, entry);
            busy::end(stack, frame);
            open
        }
        None => {
            // It was left: by another handler on a stack near its own, or its thread's block served others meanwhile.
            let left = left::find(is_it);
            let frame = left.map_or_else(|| arch::frame_below(stack_pointer), |left| left.open.frame);
            exit_find(frame);
            let open = look_up(frame, |_| true);
            exit_done(frame, 0, 0, 0);
            open
        }
    };
    if arch::had_interrupts(open.sequence) {
        arch::let_interrupts_in(flags);
    }
    open.parent_ip
}

/// The thread ends: records the exits of all its open functions, and moves their entries to the table of left frames:
/// those on other stacks may go on elsewhere. Returns true if it had room for all; the rest stays.
pub(crate) fn close_all(block: &ThreadBlock) -> bool {
    let stack = ReturnStack::of(block);
    busy::begin_end(stack);
    moves::leave_above(stack, None)
}

/// True if the function returns by T.
fn is_hooked(open: &Open) -> bool {
    !open.is_unhooked()
}

/// A slow path begins. Returns the thread's return stack, and the innermost entry with this frame there.
fn begin(frame: usize) -> Option<(ReturnStack<'static>, Option<Entry<'static>>)> {
    let stack = ReturnStack::of(thread::existing_block()?);
    let entry = stack.find(frame);
    busy::begin_return(stack, frame, entry);
    Some((stack, entry))
}

/// The youngest entry with a frame, and as wanted: on this thread's return stack, on another's, or in the table of left
/// frames.
fn look_up(frame: usize, is_wanted: impl Fn(&Open) -> bool) -> Open {
    // As long as no frame was left none is moved.
    if let Some(found) = own_entry(frame, &is_wanted)
        && !left::in_use()
    {
        return found;
    }
    let mut n_tries = 0u32;
    loop {
        let n_moves = left::n_moves();
        let found = try_look_up(frame, &is_wanted);
        // One is missed only if another thread moves it meanwhile.
        let is_sure = left::n_moves() == n_moves || n_tries >= PATIENCE;
        match found {
            Some(found) if is_sure => return found,
            // It was never there, or the function has returned already: the return address is lost.
            None if left::n_moves() == n_moves => arch::abort(),
            _ => n_tries = n_tries.saturating_add(1),
        }
    }
}

fn try_look_up(frame: usize, is_wanted: impl Fn(&Open) -> bool) -> Option<Open> {
    // One by one: iterators would be moved as a whole, by a `memcpy`, and there is none.
    let mut latest = own_entry(frame, &is_wanted);
    let mut consider = |found: Option<Open>| {
        if let Some(open) = found
            && is_wanted(&open)
            && latest.is_none_or(|latest| latest.sequence <= open.sequence)
        {
            latest = Some(open);
        }
    };
    // Before the stacks, as it may be brought back from there to a stack already looked at,
    consider(left::innermost(frame).map(|left| left.open));
    consider(left::outermost(frame).map(|left| left.open));
    for stack in moves::others(thread::existing_block().map(ReturnStack::of)) {
        consider(entry_on(stack, frame, &is_wanted));
    }
    // and behind them, as it may be moved there.
    consider(left::innermost(frame).map(|left| left.open));
    consider(left::outermost(frame).map(|left| left.open));
    latest
}

/// The innermost entry with a frame, and as wanted, on this thread's return stack.
fn own_entry(frame: usize, is_wanted: impl Fn(&Open) -> bool) -> Option<Open> {
    entry_on(ReturnStack::of(thread::existing_block()?), frame, is_wanted)
}

/// The same on any return stack.
fn entry_on(stack: ReturnStack<'_>, frame: usize, is_wanted: impl Fn(&Open) -> bool) -> Option<Open> {
    let mut entries = stack.entries().filter(|entry| entry.frame() == Some(frame)).filter_map(Entry::open);
    entries.find(is_wanted)
}
