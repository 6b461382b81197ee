//! aarch64: frames. A frame's name is its *CFA*, the stack pointer before the function's first instruction and behind its
//! return. The return address lies at `[x29 + 8]` as long as the function runs; how far that is below the CFA is read from the
//! function's prologue, once for each call of the hook, and kept in a table.

use core::mem::{align_of, size_of};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::aarch64_machine::{is_trampoline, signed_trampoline};
use super::aarch64_prologue as prologue;
use super::reach::{MAX_FRAME_BYTES, Reach};
use crate::abi::ADDRESS_SHIFT;

/// log2 of the cells that remember calls of the hook.
pub(crate) const SITE_BITS: usize = 12;
/// A cell is chosen by the address behind the call, whose lowest bits are 0.
pub(crate) const SITE_SHIFT: usize = 2;
/// The bits of what is known of a frame that hold the key.
pub(crate) const KEY_MASK: u64 = 3;
/// The unit in which CFA - x29 is kept, above the key.
pub(crate) const OFFSET_UNIT: usize = 8;
/// Bits of the key.
pub(crate) const KEY_BITS: u32 = KEY_MASK.trailing_ones();

/// What is known of calls of the hook: `child_ip << 16 | (CFA - x29) / 8 << 2 | key`, the lower part 0 if the frame is not known.
/// A cell is written whole; who finds another call in it reads the prologue again.
pub(crate) static SITES: [AtomicU64; 1 << SITE_BITS] = [const { AtomicU64::new(0) }; 1 << SITE_BITS];

/// What is known of the frame of the function that has called the hook.
fn known(child_ip: usize) -> u64 {
    let cell = SITES.get(child_ip >> SITE_SHIFT & ((1 << SITE_BITS) - 1));
    let word = cell.map_or(0, |cell| cell.load(Relaxed));
    if word >> ADDRESS_SHIFT == child_ip as u64 {
        return word & 0xffff;
    }
    let known = read_prologue(child_ip);
    if let Some(cell) = cell {
        cell.store((child_ip as u64) << ADDRESS_SHIFT | known, Relaxed);
    }
    known
}

fn read_prologue(child_ip: usize) -> u64 {
    // The call itself is the first word below.
    let call = child_ip.wrapping_sub(size_of::<u32>());
    let decoded = prologue::decode(|number| {
        let place = call.wrapping_sub(number.wrapping_add(1).wrapping_mul(size_of::<u32>()));
        // SAFETY: code of the running function, or the word in front of it. A program's first code is no function that calls
        // the hook, or has other parts of the file in front of it.
        Some(unsafe { (place as *const u32).read_volatile() })
    });
    let fits = |frame: &prologue::Frame| (frame.cfa_offset as usize) < OFFSET_UNIT << (ADDRESS_SHIFT - KEY_BITS);
    let word = |frame: prologue::Frame| {
        let units = u64::from(frame.cfa_offset) / OFFSET_UNIT as u64;
        units << KEY_BITS | frame.key as u64
    };
    decoded.filter(fits).map_or(0, word)
}

/// Where the return address of a function is that is running on this thread, and what it is without its signature.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    place: usize,
    frame: usize,
    key: u64,
    return_address: usize,
}

impl Slot {
    /// That of the function with this frame, of which the hook has found the return address at `place`.
    pub(crate) fn new(frame: usize, place: usize, child_ip: usize, return_address: usize) -> Self {
        Self { place, frame, key: known(child_ip) & KEY_MASK, return_address }
    }

    /// Where the function returns to.
    pub(crate) fn return_address(self) -> usize {
        self.return_address
    }

    /// Has it return to the trampoline. The function authenticates what it finds in its frame, so that is signed as it signs.
    pub(crate) fn set_return_address(self, _trampoline: usize) {
        // SAFETY: the word of the running function's frame that holds its return address, of which its return is the only user.
        unsafe { (self.place as *mut usize).write_volatile(signed_trampoline(self.frame, self.key)) };
    }

    /// Whether it will return to the trampoline.
    pub(crate) fn is_hooked(self) -> bool {
        is_trampoline(self.return_address)
    }
}

/// Whether a function whose return address should be at `parent_loc` has a frame there that is known.
pub(crate) fn is_frame(parent_loc: usize, child_ip: usize, stack_pointer: usize) -> bool {
    parent_loc >= stack_pointer && parent_loc.is_multiple_of(align_of::<usize>()) && known(child_ip) > KEY_MASK
}

/// The frame of a function, and the frame pointer of its caller, which is kept in all code that calls the hook.
pub(crate) fn frames(parent_loc: usize, child_ip: usize, frame_pointer: usize, _parent_ip: usize) -> (usize, usize) {
    let offset = (known(child_ip) >> KEY_BITS) as usize;
    // SAFETY: the frame record of the running function, directly below the slot.
    let caller_pointer = unsafe { *(parent_loc.wrapping_sub(size_of::<usize>()) as *const usize) };
    (frame_pointer.wrapping_add(offset.wrapping_mul(OFFSET_UNIT)), caller_pointer)
}

/// The frame of a caller by its frame pointer, which lies within the frame: the nearest above it of a function that is open, or
/// of one that was left.
pub(crate) fn caller_frame(
    frame_pointer: usize,
    open: impl Iterator<Item = usize>,
    nearest_left: impl Fn(usize) -> Option<usize>,
) -> usize {
    let is_around = |frame: &usize| *frame > frame_pointer && frame.wrapping_sub(frame_pointer) <= MAX_FRAME_BYTES;
    open.filter(is_around).min().or_else(|| nearest_left(frame_pointer)).unwrap_or(frame_pointer)
}

/// No frame is known by a frame pointer alone.
pub(crate) fn frame_of_pointer(frame_pointer: usize) -> usize {
    frame_pointer
}

/// Whether any frame may be hooked: where the return address of another one is, is not known, so all may.
pub(crate) fn may_be_hooked(_running: usize, _frame: usize) -> bool {
    true
}

/// How far frame pointers lead up the stack: they tell of no frames, so that is not known.
pub(crate) fn reach(_running: usize, frame: usize, _caller: usize) -> Reach {
    Reach { up_to: frame, is_cut: true }
}

/// An address of which the upper 16 bits are missing: that of a program.
pub(crate) fn whole_address(low: usize) -> usize {
    low
}
