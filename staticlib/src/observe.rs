//! Events since the last hook of a thread, as the next call shows them. Nothing is changed here.
//!
//! A conclusion may be a guess; a wrong one costs a wrong line in the trace, never a wrong return.
//!
//! **Invariant**: of the program's memory only words known to be there are read: the frame of the running function, and
//! the words above it in the same page. A remembered frame may be on a stack that is gone.

use crate::arch;
use crate::left;
use crate::moves::{has_living_caller, held_elsewhere};
use crate::return_stack::{Entry, ReturnStack, is_near};

/// A call, as its hook finds it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// The frame of the called function.
    pub(crate) frame: usize,
    /// The place of its return address.
    pub(crate) slot: arch::Slot,
    /// Its stack pointer.
    pub(crate) stack_pointer: usize,
    /// The frame of its caller if it keeps a frame pointer; otherwise anything.
    pub(crate) caller_frame: usize,
}

/// An event before a call.
pub(crate) enum Happened<'a> {
    /// Nothing else: the innermost open function has called this one, or nothing is open, nor was left.
    Nested,
    /// This open function has ended by a jump to the called one, with the same frame.
    TailCall(Entry<'a>),
    /// The thread went on in this open function, the caller; those above it were left.
    Jumped(Entry<'a>),
    /// The thread went on in this frame, left before by it or by another thread.
    Resumed(usize),
    /// The thread is on another stack, or the caller is not known.
    OtherStack,
}

/// Finds the event before a call. With `may_resume` false it is no resumption of a frame.
#[inline(always)]
pub(crate) fn observe<'a>(stack: ReturnStack<'a>, call: &Call, may_resume: bool) -> Happened<'a> {
    let top = stack.top();
    if is_nested(stack, top, call.frame) || top.is_none() && !left::in_use() {
        Happened::Nested
    } else {
        observe_more(stack, call, may_resume)
    }
}

/// The same for more than a call.
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
    // As far as the slot of a left frame tells.
    let may_live = |other| {
        arch::may_be_hooked(frame, other) || left::innermost(other).is_some_and(|left| left.open.may_live(frame))
    };
    // The frame of an untraced function may be at the place of a dead one.
    let named = stack.find(caller_frame).filter(|caller| looks_open(*caller, frame) && is_youngest(*caller));
    let is_near_caller = is_near(frame, caller_frame);
    if may_resume && named.is_none() && is_near_caller && left::in_use() && may_live(caller_frame) {
        let is_left = left::count(caller_frame) != 0 && has_living_caller(stack, caller_frame)
            || held_elsewhere(Some(stack), caller_frame).is_some();
        if is_left {
            return Happened::Resumed(caller_frame);
        }
    }
    // The frame pointer may be an untraced function's, or a realigned frame's: then it tells of the copy of the slot.
    // Without one the functions open on this stack count; if there are none, all entries may have been left.
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
    // On another stack the frame pointer is still the interrupted function's, or that of the stack's maker.
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
        // A hook was interrupted when it had just reserved the entry, and this is the handler; unless it has jumped
        // away: then the call may be at the place of former frames.
        let mut frames = stack.entries().filter_map(Entry::frame);
        return !frames.next().is_some_and(|inner| is_near(inner, frame));
    }
    top.frame().is_some_and(|top| frame < top && is_near(frame, top))
}

/// True if a function may still be open, by the word in its slot, at a call with the frame `frame`.
fn looks_open(entry: Entry<'_>, frame: usize) -> bool {
    entry.open().is_some_and(|open| open.may_live(frame))
}

/// True if no later call with its frame was left: the later one would be the living one.
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
