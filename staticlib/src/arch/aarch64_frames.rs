//! aarch64: frames. A frame's name is its *CFA*, the stack pointer before the function's first instruction and behind
//! its return. The return address lies at `[x29 + 8]` as long as the function runs; the function's prologue tells its
//! distance to the CFA. A table remembers the facts of prologues.
//!
//! Code changes: a library is unloaded, and another one takes its place. A wrong frame would be a wrong return. So a
//! cell of the table does not name the function of a prologue but describes its instructions: it is used only if they
//! are the same.

use core::mem::{align_of, size_of};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::aarch64_machine::{is_trampoline, signed, trampoline};
use super::aarch64_prologue::{self as prologue, DECISIVE};
use super::reach::{MAX_FRAME_BYTES, Reach};

/// log2 of the cells for prologues.
pub(crate) const CELL_BITS: usize = 12;
/// The address behind the call chooses a cell; its lowest bits are 0.
pub(crate) const CELL_SHIFT: usize = 2;
/// The bits of the key among the known facts of a frame.
pub(crate) const KEY_MASK: u64 = 3;
/// The unit of CFA - x29, above the key.
pub(crate) const OFFSET_UNIT: usize = 8;
/// Bits of the key.
const KEY_BITS: u32 = KEY_MASK.trailing_ones();
/// Bits of the distance CFA - x29.
pub(crate) const OFFSET_BITS: u32 = 14;
/// The lowest bits of a cell: how many instructions are between the decisive ones and the one behind the call.
pub(crate) const DECIDED_BITS: u32 = 8;
/// The place of the key in a cell.
pub(crate) const KEY_SHIFT: u32 = DECIDED_BITS;
/// And the distance CFA - x29.
pub(crate) const OFFSET_SHIFT: u32 = KEY_SHIFT + KEY_BITS;
/// And the fingerprint, up to the highest bit.
pub(crate) const FINGERPRINT_SHIFT: u32 = OFFSET_SHIFT + OFFSET_BITS;
/// The factor of fingerprints: an odd number without pattern, 2^64 / the golden ratio.
pub(crate) const FINGERPRINT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Decoded prologues: `fingerprint | (CFA - x29) / 8 | key | place of the fingerprint's instructions`, 0 in an unused
/// cell. A cell is written whole.
///
/// **Invariant**: a cell's instructions lie in the page of the call, for each call that may find the cell: the cell's
/// number has the call's place in its page. So they may be read whatever lies there now. An unused cell leads to the
/// last ones before the end of the call.
pub(crate) static CELLS: Cells = Cells([const { AtomicU64::new(0) }; 1 << CELL_BITS]);

/// At the beginning of a page, so the hook needs one instruction less to find them.
#[repr(C, align(4096))]
pub(crate) struct Cells([AtomicU64; 1 << CELL_BITS]);

/// The smallest pages. A cell's number tells the place of a call in such a page.
const PAGE_BYTES: usize = 1 << 12;
const _: () = assert!(1 << (CELL_BITS + CELL_SHIFT) >= PAGE_BYTES);

/// Added to the even `parent_loc` if it is the place of a word of the hook: nothing of the function has run, so the
/// return address is in no frame yet, and goes back to x30 from there.
pub(crate) const AT_START: usize = 1;
/// Bytes saved by the hook then, below the CFA.
pub(crate) const AT_START_BYTES: usize = 240;

fn is_at_start(parent_loc: usize) -> bool {
    parent_loc & AT_START != 0
}

/// The frame of the hook's caller, as far as known: `(CFA - x29) / 8 << 2 | key`, or 0.
fn known(child_ip: usize) -> u64 {
    let Some(frame) = prologue::decode(|number| Some(instruction(child_ip, number.wrapping_add(2)))) else {
        return 0;
    };
    let units = u64::from(frame.cfa_offset) / OFFSET_UNIT as u64;
    let known = units << KEY_BITS | frame.key as u64;
    if units < 1 << OFFSET_BITS
        && let Some(decided) = frame.decided
        && let Some(between) = decided.checked_sub(DECISIVE).filter(|between| *between < 1 << DECIDED_BITS)
        && is_in_page(child_ip, decided)
        && let Some(cell) = cell(child_ip)
    {
        let (mixed, low) = (mixed(child_ip, decided), known << KEY_SHIFT | between as u64);
        // The first word with these low bits at or above the word that the hook computes: so it is larger by less than
        // a fingerprint's lowest bit.
        cell.store(mixed.wrapping_add(low.wrapping_sub(mixed) & ((1 << FINGERPRINT_SHIFT) - 1)), Relaxed);
    }
    known
}

/// The cell for a function.
fn cell(child_ip: usize) -> Option<&'static AtomicU64> {
    CELLS.0.get(child_ip >> CELL_SHIFT & ((1 << CELL_BITS) - 1))
}

/// The place of a function's x29, if the cell is the function's: its code is not looked at, and may be gone.
fn pointer(frame: usize, child_ip: usize) -> usize {
    let units = cell(child_ip).map_or(0, |cell| cell.load(Relaxed) >> OFFSET_SHIFT) as usize & ((1 << OFFSET_BITS) - 1);
    frame.wrapping_sub(units.wrapping_mul(OFFSET_UNIT))
}

/// The instruction so many places before the one behind the call.
fn instruction(child_ip: usize, before: usize) -> u32 {
    let place = child_ip.wrapping_sub(before.wrapping_mul(size_of::<u32>()));
    // SAFETY: code of the running function, or the word in front of it. A program's first code is no function with a
    // call of the hook, or has other parts of the file in front of it.
    unsafe { (place as *const u32).read_volatile() }
}

/// True if the decisive instructions lie in the page of the call.
fn is_in_page(child_ip: usize, decided: usize) -> bool {
    let page = |address: usize| address / PAGE_BYTES;
    let first = child_ip.wrapping_sub(decided.wrapping_mul(size_of::<u32>()));
    let last = first.wrapping_add((DECISIVE - 1) * size_of::<u32>());
    let call = page(child_ip.wrapping_sub(size_of::<u32>()));
    page(first) == call && page(last) == call
}

/// The hook's own hash of the decisive instructions, two words, to compare their fingerprint: `(a * factor + b) * factor`.
fn mixed(child_ip: usize, decided: usize) -> u64 {
    let two = |before: usize| {
        u64::from(instruction(child_ip, before)) | u64::from(instruction(child_ip, before.wrapping_sub(1))) << 32
    };
    let sum = two(decided).wrapping_mul(FINGERPRINT_FACTOR).wrapping_add(two(decided.wrapping_sub(2)));
    sum.wrapping_mul(FINGERPRINT_FACTOR)
}

/// The place of the return address of a function running on this thread, and the address without its signature.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    place: usize,
    frame: usize,
    key: u64,
    return_address: usize,
}

impl Slot {
    /// The slot of the function with this frame. The hook has found the return address at `place`.
    pub(crate) fn new(frame: usize, place: usize, child_ip: usize, return_address: usize) -> Self {
        if is_at_start(place) {
            return Self { place: place.wrapping_sub(AT_START), frame, key: 0, return_address };
        }
        Self { place, frame, key: known(child_ip) & KEY_MASK, return_address }
    }

    /// The return address.
    pub(crate) fn return_address(self) -> usize {
        self.return_address
    }

    /// Has it return to a trampoline. The function authenticates the word in its frame, so the word is signed as it
    /// signs.
    pub(crate) fn set_return_address(self, trampoline: usize) {
        // SAFETY: the return address in the running function's frame; its return is the only user.
        unsafe { (self.place as *mut usize).write_volatile(signed(trampoline, self.frame, self.key)) };
    }

    /// True if it will return to a trampoline.
    pub(crate) fn is_hooked(self) -> bool {
        is_trampoline(self.return_address)
    }
}

/// True if a function has a known frame with its return address at `parent_loc`.
pub(crate) fn is_frame(parent_loc: usize, child_ip: usize, stack_pointer: usize) -> bool {
    is_at_start(parent_loc)
        || parent_loc >= stack_pointer && parent_loc.is_multiple_of(align_of::<usize>()) && known(child_ip) > KEY_MASK
}

/// The frame of a function, and the frame pointer of its caller: all code with calls of the hook keeps one.
pub(crate) fn frames(parent_loc: usize, child_ip: usize, frame_pointer: usize, _parent_ip: usize) -> (usize, usize) {
    if is_at_start(parent_loc) {
        // The hook has saved its registers directly below the CFA, x30 as the second.
        let place = parent_loc.wrapping_sub(AT_START);
        return (place.wrapping_sub(size_of::<usize>()).wrapping_add(AT_START_BYTES), frame_pointer);
    }
    let offset = (known(child_ip) >> KEY_BITS) as usize;
    // SAFETY: the frame record of the running function, directly below the slot.
    let caller_pointer = unsafe { *(parent_loc.wrapping_sub(size_of::<usize>()) as *const usize) };
    (frame_pointer.wrapping_add(offset.wrapping_mul(OFFSET_UNIT)), caller_pointer)
}

/// The frame of a caller by its frame pointer, which lies within the frame: the frame of the open function with this
/// pointer, or the nearest one above it, open or left. `open` are the frames of functions, each with the function's
/// `child_ip`.
pub(crate) fn caller_frame(
    frame_pointer: usize,
    open: impl Iterator<Item = (usize, usize)>,
    nearest_left: impl Fn(usize) -> Option<usize>,
) -> usize {
    let mut nearest = usize::MAX;
    for (frame, child_ip) in open.filter(|&(frame, _)| frame > frame_pointer) {
        if pointer(frame, child_ip) == frame_pointer {
            return frame;
        }
        nearest = nearest.min(frame);
    }
    if nearest.wrapping_sub(frame_pointer) <= MAX_FRAME_BYTES {
        return nearest;
    }
    // An odd word is no frame: the called function's may lie at the frame pointer.
    nearest_left(frame_pointer).unwrap_or(frame_pointer | 1)
}

/// No frame is known by a frame pointer alone.
pub(crate) fn frame_of_pointer(frame_pointer: usize) -> usize {
    frame_pointer
}

/// True if any frame may be hooked: the place of another one's return address is unknown, so all may.
pub(crate) fn may_be_hooked(_running: usize, _frame: usize) -> bool {
    true
}

/// As [`may_be_hooked`].
pub(crate) fn may_return_to(_running: usize, _frame: usize, _address: usize) -> bool {
    true
}

/// The reach of frame pointers up the stack: unknown, as they tell of no frames.
pub(crate) fn reach(_running: usize, frame: usize, _caller: usize) -> Reach {
    Reach { up_to: frame, is_cut: true }
}

/// An address without its upper 16 bits: 0 in programs. In a kernel they are those of its own addresses; no lower bit
/// tells them.
pub(crate) fn whole_address(low: usize) -> usize {
    const UPPER: usize = !0 << 48;
    if cfg!(target_os = "none") { low | (trampoline() & UPPER) } else { low }
}
