//! Events since the last hook of a thread, as the next call shows them. Nothing is changed here.
//!
//! A conclusion may be a guess; a wrong one costs a wrong line in the trace, never a wrong return.
//!
//! **Invariant**: of the program's memory only words are read that are known to be there: the frame of the running function,
//! and the words above it in the same page. A frame that is only remembered may be on a stack that is gone.

use crate::arch;
use crate::left;
use crate::moves::{has_living_caller, held_elsewhere};
use crate::return_stack::{Entry, ReturnStack, is_near};

/// A call, as its hook finds it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// The frame of the function that was called.
    pub(crate) frame: usize,
    /// Where its return address is.
    pub(crate) slot: arch::Slot,
    /// Its stack pointer.
    pub(crate) stack_pointer: usize,
    /// The frame of its caller if that keeps a frame pointer; otherwise it may be anything.
    pub(crate) caller_frame: usize,
}

/// An event before a call.
pub(crate) enum Happened<'a> {
    /// Nothing else: the innermost open function has called this one, or nothing is open, nor was left.
    Nested,
    /// This open function has ended by a jump to the called one, which has its frame.
    TailCall(Entry<'a>),
    /// The thread went on in this open function, which has called this one; those above it were left.
    Jumped(Entry<'a>),
    /// The thread went on in this frame, which was left, by it or by another thread.
    Resumed(usize),
    /// The thread is on another stack, or the caller is not known.
    OtherStack,
}

/// Tells what has happened before a call. With `may_resume` false it is not that a frame was resumed.
#[inline(always)]
pub(crate) fn observe<'a>(stack: ReturnStack<'a>, call: &Call, may_resume: bool) -> Happened<'a> {
    let top = stack.top();
    if is_nested(stack, top, call.frame) || top.is_none() && !left::in_use() {
        Happened::Nested
    } else {
        observe_more(stack, call, may_resume)
    }
}

/// The same where it is more than a call.
#[inline(never)]
fn observe_more<'a>(stack: ReturnStack<'a>, call: &Call, may_resume: bool) -> Happened<'a> {
    let frame = call.frame;
    if call.slot.is_hooked()
        && let Some(entry) = stack.find(frame)
    {
        return Happened::TailCall(entry);
    }
    // After a tail call the frame is hooked already, and belongs to the caller.
    let caller_frame = if call.slot.is_hooked() { frame } else { call.caller_frame };
    // As far as its slot tells, of one that was left.
    let may_live = |other| {
        arch::may_be_hooked(frame, other) || left::innermost(other).is_some_and(|left| left.open.may_live(frame))
    };
    // A frame that is dead may have been where that of a function is that is not traced.
    let named = stack.find(caller_frame).filter(|caller| looks_open(*caller, frame) && is_youngest(*caller));
    let is_near_caller = is_near(frame, caller_frame);
    if may_resume && named.is_none() && is_near_caller && left::in_use() && may_live(caller_frame) {
        let is_left = left::count(caller_frame) != 0 && has_living_caller(stack, caller_frame)
            || held_elsewhere(Some(stack), caller_frame).is_some();
        if is_left {
            return Happened::Resumed(caller_frame);
        }
    }
    // A frame pointer may be that of a function that is not traced, or of one that realigns its frame: then it tells of the
    // copy of the slot. Without one it is what is open on this stack; if nothing is, all that is there may have been left.
    let by_pointer = || if is_near_caller { nearest_above(stack, frame, caller_frame) } else { None };
    let by_place = || nearest_above(stack, frame, frame.wrapping_add(1));
    let found = named.or_else(by_pointer).or_else(by_place).filter(|&caller| is_youngest(caller));
    let Some(caller) = found else {
        let left = if may_resume { left::nearest_above(frame) } else { None };
        let resumed = left.filter(|&left| may_live(left) && has_living_caller(stack, left));
        return resumed.map_or(Happened::OtherStack, Happened::Resumed);
    };
    let Some(inner) = stack.above(Some(caller)).last() else {
        return Happened::Nested;
    };
    // On another stack the frame pointer is still that of the function that was interrupted, or that made the stack.
    let is_near_inner = inner.frame().is_some_and(|inner| is_near(inner, frame) || is_near(frame, inner));
    let is_here = caller.frame().is_some_and(|caller| is_near(frame, caller)) || is_near_inner;
    if is_here { Happened::Jumped(caller) } else { Happened::OtherStack }
}

/// True if a call is simply one of the innermost open function.
fn is_nested(stack: ReturnStack<'_>, top: Option<Entry<'_>>, frame: usize) -> bool {
    let Some(top) = top else {
        return false;
    };
    if top.is_reserved() {
        // A hook was interrupted when it had just reserved the entry, and this is the handler; unless that has jumped away:
        // then the call may be where there were frames.
        let mut frames = stack.entries().filter_map(Entry::frame);
        return !frames.next().is_some_and(|inner| is_near(inner, frame));
    }
    top.frame().is_some_and(|top| frame < top && is_near(frame, top))
}

/// True if a function may still be open, by the word in its slot, when that of `frame` is called.
fn looks_open(entry: Entry<'_>, frame: usize) -> bool {
    entry.open().is_some_and(|open| open.may_live(frame))
}

/// True if no later call with its frame was left: that would be the living one.
fn is_youngest(entry: Entry<'_>) -> bool {
    let left = entry.frame().filter(|_| left::in_use()).and_then(left::innermost);
    left.is_none_or(|left| left.open.sequence <= entry.sequence())
}

/// The open function with the nearest frame at or above `from`, for a call with this frame.
fn nearest_above(stack: ReturnStack<'_>, frame: usize, from: usize) -> Option<Entry<'_>> {
    let distance = |entry: &Entry<'_>| entry.frame().map_or(usize::MAX, |other| other.wrapping_sub(from));
    let is_candidate = |entry: &Entry<'_>| distance(entry) < arch::MAX_FRAME_BYTES && looks_open(*entry, frame);
    stack.entries().filter(is_candidate).min_by_key(distance)
}
