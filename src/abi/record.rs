//! One event, and the kinds of events. What the bytes of values mean is in `values.rs`.

use core::mem::size_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// One event: 16 bytes, two little-endian words.
///
/// The time is written last, and tells whether the record was written at all: memory is not cleared when a chunk is taken,
/// so what an earlier owner left has times before [`ChunkHeader::taken_tsc`](super::ChunkHeader::taken_tsc).
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    /// Raw time stamp counter, in ticks.
    pub tsc: AtomicU64,
    /// `address << 16 | kind`; see [`kind`] for what the address is.
    pub word: AtomicU64,
}

impl Record {
    /// The time and the word, if the record was written since `taken_tsc`. Inlined: a save calls it for each record, and is
    /// compiled with the program's flags, maybe instrumented.
    #[must_use]
    #[inline(always)]
    pub fn read(&self, taken_tsc: u64) -> Option<(u64, u64)> {
        let tsc = self.tsc.load(Acquire);
        (tsc >= taken_tsc).then(|| (tsc, self.word.load(Relaxed)))
    }
}

/// Bits of a record's word below the address.
pub const ADDRESS_SHIFT: u32 = 16;

/// The kinds of a [`Record`], the low two bits of its `word`. The values are those of uftrace's format.
pub mod kind {
    /// A function was entered; the address lies in it, behind its call to `mcount`.
    pub const ENTRY: u64 = 0;
    /// A function was left; the address is that of its entry.
    pub const EXIT: u64 = 1;
    /// Calls that were not recorded because the return stack was full; the address is their number.
    pub const LOST: u64 = 2;
    /// The thread returned from functions while tracing was off; the address is the number of functions that are
    /// still open, the time is when tracing went off.
    pub const RESYNC: u64 = 3;
    /// The bits of a word that hold the kind.
    pub const MASK: u64 = 3;
    /// Set in an EXIT word: the function's exit was recorded when its thread left it without its returning, and its frame
    /// may still live on another stack.
    pub const LEFT: u64 = 1 << 2;
    /// Set in an ENTRY word: the function's return was not hooked, there is no EXIT record.
    pub const POINT: u64 = 1 << 2;
    /// Set in a RESYNC word: what follows in the chunk is the beginning of another thread, whose id is the address.
    pub const NEW_THREAD: u64 = 1 << 2;
    /// Set in a RESYNC word: no function was left, but from here on the thread runs on the core whose number is the address.
    pub const CORE: u64 = 1 << 3;
    /// Set in a RESYNC word: the thread has left a whole stack, whose number is the address. The exits of the functions that
    /// are open there follow, as many as [`FUNCTIONS_MASK`] says. The stack may run again.
    pub const SUSPENDED: u64 = 1 << 4;
    /// Set in a RESYNC word: the thread runs on the stack with this number, which was left. The entries of the functions that
    /// are open there follow, each with the bit [`AGAIN`].
    pub const RESUMED: u64 = 1 << 5;
    /// Both bits set in a RESYNC word: six bytes of the values of the call, or of the return, whose record comes before and has the same
    /// time; in place of the address. How many further such records follow stands in [`FUNCTIONS_MASK`]. They were reserved
    /// together with that record, so nothing comes between. See [`value`](super::super::value).
    pub const VALUES: u64 = SUSPENDED | RESUMED;
    /// The word of a record that says nothing: values of no call.
    pub const NOTHING: u64 = VALUES | RESYNC;
    /// Set in an ENTRY word: the function was entered before and left without its returning; it runs again.
    pub const AGAIN: u64 = 1 << 3;
    /// The bits of a SUSPENDED word that hold the number of functions: that many times [`FUNCTIONS_ONE`].
    pub const FUNCTIONS_MASK: u64 = 0xffc0;
    /// One function there.
    pub const FUNCTIONS_ONE: u64 = 1 << 6;
}

const _: () = assert!(size_of::<Record>() == 16);
