//! Detection of hooks that have interrupted a slow path on their own thread.
//!
//! While a slow path is at work, hooks of signal handlers only push and pop, so it finds all below unchanged. A handler
//! may also jump out of it. The first event that no handler can cause shows this: a function that was open all the time
//! returns or is gone; or it calls another one above the slow path's frame.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;

use crate::return_stack::{Entry, ReturnStack, is_near};

/// Notes that a slow path is at work for the function with this frame. `caller` is its caller, as far as a frame
/// pointer tells. Returns false in a signal handler that has interrupted another slow path: its calls and returns are
/// nested, whatever the entries below look like.
pub(crate) fn begin_call(stack: ReturnStack<'_>, frame: usize, caller: Option<Entry<'_>>) -> bool {
    let busy = stack.block().busy.load(Relaxed);
    let floor = stack.block().busy_floor.load(Relaxed);
    // At or above the other frame it is no handler's: if it is near, or if its caller was open before.
    let is_older = caller.is_some_and(|caller| {
        caller.is_below(floor) && busy <= frame && caller.frame().is_some_and(|caller| frame <= caller)
    });
    begin(stack, frame, is_older || is_near(busy, frame))
}

/// The same for a returning function. Its entry is `own` if this thread has one.
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
