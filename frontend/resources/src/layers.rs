//! The program's own allocator: its functions have branches (`branched`), and what they call in turn is a part of what they do. So of calls within
//! calls the outermost is recorded.
//!
//! A call is known by where its return address lies, and by that. Who has left one by a jump or an exception is in none as soon as it is above that on the
//! stack, or something else is in its place.

use crate::stacks;
use crate::thread;

/// Whether a function that has its return address there is called within one of the allocator's.
pub(crate) fn is_within(sp: usize) -> bool {
    let [outer, returns_to] = thread::current().layer();
    // Of another stack, which may be gone, nothing is read.
    sp < outer && outer < stacks::readable_end(sp) && returns_to == return_address(outer)
}

/// Begins a call. Returns what [`leave`] is to be told.
pub(crate) fn enter(sp: usize) -> [usize; 2] {
    thread::current().set_layer([sp, return_address(sp)])
}

/// Ends it.
pub(crate) fn leave(before: [usize; 2]) {
    thread::current().set_layer(before);
}

fn return_address(sp: usize) -> usize {
    // SAFETY: a word of this thread's stack, which can be read.
    unsafe { *(sp as *const usize) }
}
