//! The numbers of stacks, by their hashes.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use rftrace_format::resources::MAX_FRAMES;

use crate::memory;

/// The hashes of the stacks that have a number, which is the place plus one. A power of two.
static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
const PLACES: usize = 1 << 20;
/// So many places are tried for a stack.
const TRIES: usize = 64;

/// Makes the table, or empties it. Returns whether there is memory for it.
pub(super) fn prepare() -> bool {
    let known = TABLE.load(Relaxed);
    if !known.is_null() {
        // SAFETY: the table, which is private memory: it reads as 0 then.
        return unsafe { libc::madvise(known.cast(), PLACES * size_of::<AtomicU64>(), libc::MADV_DONTNEED) == 0 };
    }
    let table = memory::map(PLACES * size_of::<AtomicU64>());
    TABLE.store(table.cast(), Release);
    !table.is_null()
}

/// The stack that was found.
pub(super) enum Found {
    /// Its number.
    Numbered(u32),
    /// It has none. Its hash, and how many addresses there are.
    New(u64, usize),
}

/// The return addresses of a new stack, from that of the function on.
pub(super) type Addresses = [MaybeUninit<u64>; MAX_FRAMES];

/// The stack with this hash, whose addresses the other function has if it is new.
#[inline(always)]
pub(super) fn found(hash: u64, n_frames: usize, addresses: impl FnOnce()) -> Found {
    match place(hash) {
        (number, false) => Found::Numbered(number),
        (_, true) => {
            addresses();
            Found::New(hash, n_frames)
        }
    }
}

/// The number of the stack with this hash, and whether it is not there yet; 0 if there is no room for it.
#[inline(always)]
pub(super) fn place(hash: u64) -> (u32, bool) {
    let table = TABLE.load(Relaxed);
    for step in 0..TRIES {
        let place = ((hash >> 20) as usize + step) % PLACES;
        // SAFETY: within the table, which stays.
        match unsafe { &*table.add(place) }.load(Relaxed) {
            0 => return (place as u32 + 1, true),
            other if other == hash => return (place as u32 + 1, false),
            _ => {}
        }
    }
    (0, false)
}

/// Gives a number that is free to the stack with this hash. Returns false if another one has it.
pub(super) fn take(number: u32, hash: u64) -> bool {
    // SAFETY: within the table, which stays.
    let place = unsafe { &*TABLE.load(Relaxed).add(number as usize - 1) };
    place.compare_exchange(0, hash, AcqRel, Relaxed).is_ok()
}
