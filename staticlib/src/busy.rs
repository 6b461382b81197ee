//! Detection of hooks that have interrupted a slow path on their own thread.
//!
//! While a slow path is at work, hooks of signal handlers only push and pop, so that it finds all below as it was. A handler
//! may also jump out of it. That becomes known with the first event that no handler can cause: a function returns, or
//! is gone, that was open all the time; or it calls another one above the frame that the slow path was for.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;

use crate::return_stack::{Entry, ReturnStack, is_near};

/// Notes that a slow path is at work for the function with this frame, which is called from `caller`, as far as a frame
/// pointer tells. Returns false in a signal handler that has interrupted one: its calls and returns are nested, whatever
/// the entries below look like.
pub(crate) fn begin_call(stack: ReturnStack<'_>, frame: usize, caller: Option<Entry<'_>>) -> bool {
    let busy = stack.block().busy.load(Relaxed);
    let floor = stack.block().busy_floor.load(Relaxed);
    // At or above the other one this is no handler's, nearby or if called by a function that was open before.
    let is_older = caller.is_some_and(|caller| {
        caller.is_below(floor) && busy <= frame && caller.frame().is_some_and(|caller| frame <= caller)
    });
    begin(stack, frame, is_older || is_near(busy, frame))
}

/// The same for a function that returns, whose entry is `own` if this thread has one.
pub(crate) fn begin_return(stack: ReturnStack<'_>, frame: usize, own: Option<Entry<'_>>) -> bool {
    let busy = stack.block().busy.load(Relaxed);
    let floor = stack.block().busy_floor.load(Relaxed);
    begin(stack, frame, own.is_some_and(|own| own.is_below(floor)) || is_near(busy, frame))
}

fn begin(stack: ReturnStack<'_>, frame: usize, is_abandoned: bool) -> bool {
    let block = stack.block();
    let sp = block.sp.load(Relaxed);
    if block.busy.load(Relaxed) != 0 && !is_abandoned && sp >= block.busy_floor.load(Relaxed) {
        return false;
    }
    block.busy.store(0, Relaxed);
    compiler_fence(SeqCst);
    block.busy_floor.store(sp, Relaxed);
    compiler_fence(SeqCst);
    block.busy.store(frame, Relaxed);
    compiler_fence(SeqCst);
    true
}

/// The slow path for this frame has ended, or was a signal handler's.
pub(crate) fn end(stack: ReturnStack<'_>, frame: usize) {
    compiler_fence(SeqCst);
    if stack.block().busy.load(Relaxed) == frame {
        stack.block().busy.store(0, Relaxed);
    }
}

/// The thread ends: signal handlers from here on are nested.
pub(crate) fn begin_end(stack: ReturnStack<'_>) {
    let block = stack.block();
    block.busy_floor.store(block.base.load(Relaxed), Relaxed);
    compiler_fence(SeqCst);
    block.busy.store(usize::MAX, Relaxed);
    compiler_fence(SeqCst);
}
