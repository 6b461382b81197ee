//! riscv64: frames. A frame's name is its *CFA*, the stack pointer before the function's first instruction and behind
//! its return. The function's prologue tells the distance of the CFA from the function's frame pointer or stack
//! pointer, and the place of the return address. A table remembers the facts of prologues.
//!
//! Code changes: a library is unloaded, and another one takes its place. A wrong frame would be a wrong return. So a
//! cell of the table does not name the function of a prologue but describes its instructions: it is used only if they
//! are the same. And whatever a prologue says, a return address has to equal the hook's argument.

use core::mem::size_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::reach::Reach;
use super::riscv64_machine::is_trampoline;
use super::riscv64_prologue::{self as prologue, Frame};

/// log2 of the cells for prologues.
pub(crate) const CELL_BITS: u32 = 12;
/// The address behind the call chooses a cell; its lowest bit is 0.
pub(crate) const CELL_SHIFT: u32 = 1;
/// The unit of distances.
pub(crate) const OFFSET_UNIT: usize = 8;
/// The bit of a cell for a CFA told from s0, not from sp.
pub(crate) const HAS_POINTER: u64 = 1 << 0;
/// The place in a cell of the distance from that register to the CFA, chosen so that no shift is needed to have it in
/// bytes.
pub(crate) const CFA_SHIFT: u32 = OFFSET_UNIT.trailing_zeros();
/// The number of its bits.
pub(crate) const CFA_BITS: u32 = 8;
/// The place in a cell of the distance from the return address to the CFA.
pub(crate) const RETURN_SHIFT: u32 = CFA_SHIFT + CFA_BITS;
/// The number of its bits.
pub(crate) const RETURN_BITS: u32 = 4;
/// The places in a cell of two numbers of halves of an instruction: from the beginning of each of the two decisive
/// instructions to the beginning of the last four bytes of the call.
pub(crate) const DECISIVE_SHIFTS: [u32; 2] = [RETURN_SHIFT + RETURN_BITS, RETURN_SHIFT + RETURN_BITS + DECISIVE_BITS];
/// Bits of each.
pub(crate) const DECISIVE_BITS: u32 = 7;
/// The place of their fingerprint, up to the highest bit.
pub(crate) const FINGERPRINT_SHIFT: u32 = DECISIVE_SHIFTS[1] + DECISIVE_BITS;
/// The factor of fingerprints: an odd number without pattern, 2^64 / the golden ratio.
pub(crate) const FINGERPRINT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Decoded prologues, by the names above; 0 in an unused cell. A cell is written whole.
///
/// **Invariant**: a cell's instructions lie in the page of the call, for each call that may find the cell: the cell's
/// number has the call's place in its page. So they may be read whatever lies there now. An unused cell leads to the
/// end of the call.
pub(crate) static CELLS: [AtomicU64; 1 << CELL_BITS] = [const { AtomicU64::new(0) }; 1 << CELL_BITS];

/// The smallest pages. A cell's number tells the place of a call in such a page.
const PAGE_BYTES: usize = 1 << 12;
const _: () = assert!(1 << (CELL_BITS + CELL_SHIFT) >= PAGE_BYTES);

/// Bytes of half an instruction.
const HALF: usize = size_of::<u16>();

/// The most bytes from a frame pointer up to the CFA, in a function with any number of arguments: it keeps seven
/// registers there, in units of 16 bytes.
const MOST_KEPT_BYTES: usize = 64;

/// The frame of the hook's caller.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// The place of its return address.
    pub(crate) slot: usize,
    /// Its CFA.
    pub(crate) frame: usize,
    /// The frame pointer of its caller, if both keep one.
    pub(crate) caller: usize,
}

/// The frame of the hook's caller; it returns to `parent_ip`.
pub(crate) fn find(child_ip: usize, stack_pointer: usize, frame_pointer: usize, parent_ip: usize) -> Option<Found> {
    let known = prologue::decode(|place| Some(half(child_ip, place)))?;
    let base = if known.has_frame_pointer { frame_pointer } else { stack_pointer };
    let frame = base.wrapping_add(known.cfa_offset as usize);
    let slot = frame.wrapping_sub(known.return_offset as usize);
    if slot < stack_pointer || !slot.is_multiple_of(size_of::<usize>()) {
        return None;
    }
    // SAFETY: of the function's frame; its prologue stores the return address there.
    if unsafe { word(slot) } != parent_ip {
        return None;
    }
    remember(child_ip, &known);
    // The word below is s0 as the caller had it.
    // SAFETY: of the function's frame, the frame pointer's own place.
    let caller = if known.has_frame_pointer { unsafe { word(slot.wrapping_sub(size_of::<usize>())) } } else { 0 };
    Some(Found { slot, frame, caller })
}

/// Puts the facts of a prologue into the table, if they fit.
fn remember(child_ip: usize, known: &Frame) {
    let cell = CELLS.get(child_ip >> CELL_SHIFT & ((1 << CELL_BITS) - 1));
    let (Some(places), Some(cell)) = (known.decisive, cell) else {
        return;
    };
    let [first, second] = places.map(|place| place.wrapping_sub(2));
    let distances = [known.cfa_offset, known.return_offset].map(|bytes| u64::from(bytes) / OFFSET_UNIT as u64);
    let fits = first >> DECISIVE_BITS == 0
        && second >> DECISIVE_BITS == 0
        && distances[0] >> CFA_BITS == 0
        && distances[1] >> RETURN_BITS == 0;
    if !fits || !places.iter().all(|&place| is_in_page(child_ip, place)) {
        return;
    }
    let value = fingerprint(child_ip, places) << FINGERPRINT_SHIFT
        | (second as u64) << DECISIVE_SHIFTS[1]
        | (first as u64) << DECISIVE_SHIFTS[0]
        | distances[1] << RETURN_SHIFT
        | distances[0] << CFA_SHIFT
        | if known.has_frame_pointer { HAS_POINTER } else { 0 };
    cell.store(value, Relaxed);
}

/// The half of an instruction so many places before the end of the call.
fn half(child_ip: usize, place: usize) -> u16 {
    let address = child_ip.wrapping_sub(place.wrapping_mul(HALF));
    // SAFETY: code of the running function, or the bytes in front of it. A program's first code is no function with a
    // call of the hook, or has other parts of the file in front of it.
    unsafe { (address as *const u16).read_volatile() }
}

/// A word of the stack.
///
/// # Safety
///
/// It is there.
unsafe fn word(place: usize) -> usize {
    // SAFETY: by this function's contract.
    unsafe { (place as *const usize).read_volatile() }
}

/// True if the four bytes at a place before the call lie in the page of the call.
fn is_in_page(child_ip: usize, place: usize) -> bool {
    let page = |address: usize| address / PAGE_BYTES;
    let first = child_ip.wrapping_sub(place.wrapping_mul(HALF));
    let last = first.wrapping_add(2 * HALF - 1);
    let call = page(child_ip.wrapping_sub(1));
    page(first) == call && page(last) == call
}

/// The fingerprint of the decisive instructions, as the hook computes it: the upper bits of their eight bytes times the factor.
fn fingerprint(child_ip: usize, [first, second]: [usize; 2]) -> u64 {
    let two = |place: usize| u64::from(half(child_ip, place)) | u64::from(half(child_ip, place.wrapping_sub(1))) << 16;
    (two(first) | two(second) << 32).wrapping_mul(FINGERPRINT_FACTOR) >> FINGERPRINT_SHIFT
}

/// The place of the return address of a function running on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    place: usize,
}

impl Slot {
    /// The slot of the function; [`find`] has found its return address at `place`.
    pub(crate) fn new(_frame: usize, place: usize, _child_ip: usize, _caller: usize) -> Self {
        Self { place }
    }

    /// The return address.
    pub(crate) fn return_address(self) -> usize {
        // SAFETY: of the running function's frame.
        unsafe { word(self.place) }
    }

    /// Has it return elsewhere.
    pub(crate) fn set_return_address(self, address: usize) {
        // SAFETY: the return address in the running function's frame; its return is the only user.
        unsafe { (self.place as *mut usize).write_volatile(address) };
    }

    /// True if it will return to the trampoline.
    pub(crate) fn is_hooked(self) -> bool {
        is_trampoline(self.return_address())
    }
}

/// True if a function's return address was found, see [`find`].
pub(crate) fn is_frame(slot: usize, _child_ip: usize, stack_pointer: usize) -> bool {
    slot >= stack_pointer
}

/// The frame of a function, and the frame pointer of its caller, as [`find`] has found them.
pub(crate) fn frames(_slot: usize, _child_ip: usize, frame: usize, caller: usize) -> (usize, usize) {
    (frame, caller)
}

/// The frame of a caller by its frame pointer: at the same address, or the frame of a function with any number of
/// arguments.
pub(crate) fn caller_frame(
    frame_pointer: usize,
    open: impl Iterator<Item = (usize, usize)>,
    _nearest_left: impl Fn(usize) -> Option<usize>,
) -> usize {
    let frames = open.map(|(frame, _)| frame);
    frames.filter(|frame| frame.wrapping_sub(frame_pointer) <= MOST_KEPT_BYTES).min().unwrap_or(frame_pointer)
}

/// The frame of a function by its frame pointer, once set up.
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

/// The reach of frame pointers up the stack: unknown, as code without them may be between.
pub(crate) fn reach(_running: usize, frame: usize, _caller: usize) -> Reach {
    Reach { up_to: frame, is_cut: true }
}

/// An address without its upper 16 bits: 0 in programs.
pub(crate) fn whole_address(low: usize) -> usize {
    low
}
