//! The program's own allocator: its functions have branches (`branched`), and what they call in turn is a part of what they do. So of calls within
//! calls the outermost is recorded.
//!
//! A call is known by where its return address lies, and by that. Who has left one by a jump or an exception is in none as soon as it is above that on the
//! stack, or something else is in its place.

use rftrace_format::resources::Resource;
use rftrace_format::specification::Entry;

use crate::stacks;
use crate::thread;

/// Where the return address of a call lies, and that.
pub(crate) type Layer = [usize; 2];

/// True for a function of an allocator within the program.
pub(crate) fn has(entry: &Entry<'_>) -> bool {
    entry.resource() == Resource::Memory.number()
}

/// True if a function with its return address there is called within one of the allocator's.
pub(crate) fn is_within(sp: usize) -> bool {
    let [outer, returns_to] = thread::current().layer();
    // Of another stack, which may be gone, nothing is read.
    sp < outer && outer < stacks::readable_end(sp) && returns_to == return_address(outer)
}

/// Begins a call of a function that has its return address there. Returns what [`leave`] is to be told; `None` if it is a part of another one.
pub(crate) fn enter(entry: &Entry<'_>, sp: usize) -> Option<Layer> {
    if !has(entry) {
        return Some([0; 2]);
    }
    (!is_within(sp)).then(|| thread::current().set_layer([sp, return_address(sp)]))
}

/// Ends it.
pub(crate) fn leave(entry: &Entry<'_>, before: Layer) {
    if has(entry) {
        thread::current().set_layer(before);
    }
}

fn return_address(sp: usize) -> usize {
    // SAFETY: a word of this thread's stack, which can be read.
    unsafe { *(sp as *const usize) }
}
