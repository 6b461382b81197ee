//! x86-64: frames. A frame's name is its *slot*, the address of the return address.

use core::mem::{align_of, size_of};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use super::interrupts::is_interrupt_trampoline;
use super::is_trampoline;
use super::reach::{MAX_FRAME_BYTES, Reach};

/// The smallest page.
const PAGE_BYTES: usize = 4096;

/// The place of the return address of a function running on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    frame: usize,
}

impl Slot {
    /// The slot of the function with this frame; it needs nothing else.
    pub(crate) fn new(frame: usize, _parent_loc: usize, _child_ip: usize, _further: usize) -> Self {
        Self { frame }
    }

    /// The return address.
    pub(crate) fn return_address(self) -> usize {
        return_address(self.frame)
    }

    /// Has it return elsewhere.
    pub(crate) fn set_return_address(self, address: usize) {
        word(self.frame).store(address, Relaxed);
    }

    /// True if it will return to a trampoline.
    pub(crate) fn is_hooked(self) -> bool {
        is_hooked(self.frame)
    }
}

/// True if a function has a frame with its return address at `parent_loc`.
pub(crate) fn is_frame(parent_loc: usize, _child_ip: usize, stack_pointer: usize) -> bool {
    parent_loc >= stack_pointer && parent_loc.is_multiple_of(align_of::<usize>())
}

/// The frame of a function by its frame pointer, once set up.
pub(crate) fn frame_of_pointer(frame_pointer: usize) -> usize {
    frame_pointer.wrapping_add(size_of::<usize>())
}

/// The frame of a caller: the one told by its frame pointer.
pub(crate) fn caller_frame(
    told: usize,
    _open: impl Iterator<Item = (usize, usize)>,
    _nearest_left: impl Fn(usize) -> Option<usize>,
) -> usize {
    told
}

/// The return address of the function with this frame, running on this thread.
fn return_address(frame: usize) -> usize {
    word(frame).load(Relaxed)
}

/// True if the function with this frame, running on this thread, will return to a trampoline.
fn is_hooked(frame: usize) -> bool {
    let address = return_address(frame);
    is_trampoline(address) || is_interrupt_trampoline(address)
}

/// The same for any frame, while `running` is the running one: only words in the same page above it are known to be
/// there, and looked at. All others may.
pub(crate) fn may_be_hooked(running: usize, frame: usize) -> bool {
    !is_there(running, frame) || is_hooked(frame)
}

/// True if any frame may be of a function with this return address, while `running` is the running one: as
/// [`may_be_hooked`].
pub(crate) fn may_return_to(running: usize, frame: usize, address: usize) -> bool {
    !is_there(running, frame) || return_address(frame) == address
}

/// The reach of frame pointers up the stack of `running`: from `frame`, which is on it, to its caller's and so on.
/// `caller` is the frame of the caller of `running`. Only the page of `running` is read.
pub(crate) fn reach(running: usize, frame: usize, caller: usize) -> Reach {
    let mut up_to = frame;
    loop {
        let saved = up_to.wrapping_sub(size_of::<usize>());
        let next = if up_to == running {
            caller
        } else if is_there(running, saved) {
            frame_of_pointer(return_address(saved))
        } else {
            return Reach { up_to, is_cut: true };
        };
        let distance = next.wrapping_sub(up_to);
        if distance == 0 || distance > MAX_FRAME_BYTES || !next.is_multiple_of(align_of::<usize>()) {
            return Reach { up_to, is_cut: false };
        }
        up_to = next;
    }
}

/// True if the word at `place` is known to be there when the frame `running` runs.
fn is_there(running: usize, place: usize) -> bool {
    place >= running
        && place | (PAGE_BYTES - 1) == running | (PAGE_BYTES - 1)
        && place.is_multiple_of(align_of::<usize>())
}

/// The word in a slot.
fn word(frame: usize) -> &'static AtomicUsize {
    // SAFETY: a word of this thread's stack, at or above a running frame. A return address has only one user, the
    // function's return.
    unsafe { &*(frame as *const AtomicUsize) }
}

/// The sequence number of a call: of two entries with one frame the later one has the larger number.
///
/// The time stamp counter is one: between two calls with the same frame lies a whole hook, or a switch of threads. Both
/// take more than the few cycles in which it may stand still, and Linux lets no program use it if processors disagree
/// by more than such a switch takes.
pub(crate) fn sequence(now: u64) -> u64 {
    now
}

/// An address without its upper 16 bits.
pub(crate) fn whole_address(low: usize) -> usize {
    // Bit 47 equals all bits above.
    ((low << 16) as isize >> 16) as usize
}
