//! One event, and the kinds of events. The meaning of recorded values is in `values.rs`.

use core::mem::size_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// One event: 16 bytes, two little-endian words.
///
/// The tracer writes the time last, so the time shows whether the record is written. Memory is not cleared when a chunk
/// is taken: records of an earlier owner have times before [`ChunkHeader::taken_tsc`](super::ChunkHeader::taken_tsc).
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    /// The raw time stamp counter, in ticks.
    pub tsc: AtomicU64,
    /// `address << 16 | kind`; [`kind`] describes the address.
    pub word: AtomicU64,
}

impl Record {
    /// Returns the time and the word if the record was written since `taken_tsc`, or `None`.
    ///
    /// The function is inlined because a save calls it for each record, and is compiled with the program's flags, maybe
    /// instrumented.
    #[must_use]
    #[inline(always)]
    pub fn read(&self, taken_tsc: u64) -> Option<(u64, u64)> {
        let tsc = self.tsc.load(Acquire);
        (tsc >= taken_tsc).then(|| (tsc, self.word.load(Relaxed)))
    }
}

/// The number of bits of a record's word below the address.
pub const ADDRESS_SHIFT: u32 = 16;

/// The kinds of a [`Record`], the low two bits of its `word`, with the values of uftrace's format; and further flags.
pub mod kind {
    /// A function was entered. The address lies in the function, behind its call to `mcount`.
    pub const ENTRY: u64 = 0;
    /// A function was left. The address is that of its entry record.
    pub const EXIT: u64 = 1;
    /// Calls were not recorded because the return stack was full. The address is their number.
    pub const LOST: u64 = 2;
    /// The thread returned from functions while recording was off. The address is the number of functions still open,
    /// the time is that of the stop.
    pub const RESYNC: u64 = 3;
    /// The bits of the kind.
    pub const MASK: u64 = 3;
    /// Set in an EXIT word: the thread left the function without a return, and its frame may still live on another
    /// stack.
    pub const LEFT: u64 = 1 << 2;
    /// Set in an ENTRY word: the function's return was not hooked, so there is no EXIT record.
    pub const POINT: u64 = 1 << 2;
    /// Set in a RESYNC word: the rest of the chunk is the beginning of another thread. The address is that thread's id.
    pub const NEW_THREAD: u64 = 1 << 2;
    /// Set in a RESYNC word: the thread left no function, but runs on another core from here on. The address is the
    /// core's number.
    pub const CORE: u64 = 1 << 3;
    /// Set in a RESYNC word: the thread left a whole stack, with the address as its number. The exits of the functions
    /// open there follow; their number is in [`FUNCTIONS_MASK`]. The stack may run again.
    pub const SUSPENDED: u64 = 1 << 4;
    /// Set in a RESYNC word: the thread runs again on the left stack with this number. The entries of the functions
    /// open there follow, each with the bit [`AGAIN`].
    pub const RESUMED: u64 = 1 << 5;
    /// Both bits set in a RESYNC word: six bytes of values in place of the address. They belong to the call or return
    /// of the record before, with the same time. [`FUNCTIONS_MASK`] holds the number of further such records. They were
    /// reserved together with that record, so no other record comes between. See [`value`](super::super::value).
    pub const VALUES: u64 = SUSPENDED | RESUMED;
    /// The word of an empty record: values of no call.
    pub const NOTHING: u64 = VALUES | RESYNC;
    /// Set in an ENTRY word: the thread entered the function before, left it without a return, and runs it again.
    pub const AGAIN: u64 = 1 << 3;
    /// The bits of the number of functions in a SUSPENDED word, times [`FUNCTIONS_ONE`].
    pub const FUNCTIONS_MASK: u64 = 0xffc0;
    /// The unit of that number.
    pub const FUNCTIONS_ONE: u64 = 1 << 6;
}

const _: () = assert!(size_of::<Record>() == 16);
