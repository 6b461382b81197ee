//! Packed chunks: the contents of a section CHNZ behind the chunk's header, see `docs/image-format.md`.
//!
//! Most records are predictable: the return from the innermost open function, or the last successor of the word before.
//! Then only two bits and the ticks since that record are sent.
//!
//! The words so far are kept in [`Tables`], the same for packer and unpacker. They are empty at a chunk's beginning, so
//! each chunk is read by itself.

#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) mod decode;
pub(crate) mod encode;

use core::mem::offset_of;

use rftrace::abi::{ADDRESS_SHIFT, ChunkHeader, RETURN_STACK_ENTRIES, kind};

/// Offset of a `u32` in the chunk's header: bytes of the packed records.
pub(crate) const N_BYTES_AT: usize = 52;
/// The offset there of the number of records, a `u32`.
pub(crate) const N_RECORDS_AT: usize = 56;

const _: () = assert!(
    offset_of!(ChunkHeader, n_resumed) + 4 <= N_BYTES_AT && offset_of!(ChunkHeader, core) + 4 <= N_BYTES_AT,
    "the header's own fields end before"
);

/// The form of a record's word: the low bits of its first number. The others are the ticks since the record before.
mod tag {
    /// The number of these bits.
    pub(super) const N_BITS: u32 = 2;
    /// It is the exit of the innermost open function.
    pub(super) const RETURN: u64 = 0;
    /// It is the last successor of the word before.
    pub(super) const FOLLOWING: u64 = 1;
    /// It is in the cache, at the place in the next byte.
    pub(super) const CACHED: u64 = 2;
    /// A byte of [`form`](super::form) follows.
    pub(super) const OTHER: u64 = 3;
}

/// The byte behind [`tag::OTHER`].
mod form {
    /// The word.
    pub(super) const WORD: u8 = 0;
    /// A number for the ticks, absent from the first one, and the word. The number is twice the ticks, or, for a record
    /// older than the one before, twice the complement of the negative difference, plus 1.
    pub(super) const TICKS_AND_WORD: u8 = 1;
}

/// More ticks than a first number holds.
const MANY_TICKS: u64 = 1 << (u64::BITS - tag::N_BITS);

const N_NEXT: usize = 1 << NEXT_BITS;
const NEXT_BITS: u32 = 10;
const N_CACHED: usize = 1 << CACHE_BITS;
const CACHE_BITS: u32 = 8;

/// The form of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Return,
    Following,
    Cached,
    Word,
    /// With its ticks: it is out of order, and nothing is learned from it.
    TicksAndWord,
}

/// The words of the records so far.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The last successor of a word, by [`next_place`].
    next: [u64; N_NEXT],
    /// Earlier words, by [`cache_place`].
    cache: [u64; N_CACHED],
    /// The exit words of the open functions, as far as they were entered in the chunk.
    open: [u64; RETURN_STACK_ENTRIES],
    n_open: usize,
    /// The word of the record before, 0 for the first.
    before: u64,
}

impl Tables {
    pub(crate) const fn new() -> Self {
        Self { next: [0; N_NEXT], cache: [0; N_CACHED], open: [0; RETURN_STACK_ENTRIES], n_open: 0, before: 0 }
    }

    /// Forgets everything. The words above `n_open` are not looked at.
    #[inline]
    fn clear(&mut self) {
        self.next.fill(0);
        self.cache.fill(0);
        self.n_open = 0;
        self.before = 0;
    }

    /// The exit of the innermost open function, if one is known.
    #[inline(always)]
    fn returning(&self) -> Option<u64> {
        self.open.get(self.n_open.wrapping_sub(1)).copied()
    }

    /// Returns the last successor of the word before, or 0.
    #[inline(always)]
    fn following(&self) -> u64 {
        self.next[next_place(self.before)]
    }

    #[inline(always)]
    fn cached(&self, place: u8) -> u64 {
        self.cache[usize::from(place)]
    }

    /// Takes note of a record's word.
    #[inline(always)]
    fn learn(&mut self, told: Told, word: u64) {
        if matches!(told, Told::Cached | Told::Word) {
            self.next[next_place(self.before)] = word;
        }
        if told == Told::Word {
            self.cache[usize::from(cache_place(word))] = word;
        }
        self.before = word;
        match told {
            Told::Return => self.n_open = self.n_open.saturating_sub(1),
            Told::Following | Told::Cached | Told::Word if word & (kind::MASK | kind::POINT) == kind::ENTRY => {
                if let Some(place) = self.open.get_mut(self.n_open) {
                    *place = word >> ADDRESS_SHIFT << ADDRESS_SHIFT | kind::EXIT;
                    self.n_open += 1;
                }
            }
            _ => {}
        }
    }
}

/// Spreads addresses; the highest bits are the best.
#[inline(always)]
const fn mixed(word: u64) -> u64 {
    (word >> ADDRESS_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the place of this word's successor: another one for an exit than for the entry of the same function.
#[inline(always)]
const fn next_place(word: u64) -> usize {
    (mixed(word ^ (word & 1) << 20) >> (u64::BITS - NEXT_BITS)) as usize
}

#[inline(always)]
const fn cache_place(word: u64) -> u8 {
    (mixed(word) >> (u64::BITS - CACHE_BITS)) as u8
}
