//! Packs the records of a chunk, in the caller's memory. It allocates nothing.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use rftrace::abi::MAX_CHUNK_BYTES;

use super::{MANY_TICKS, Tables, Told, cache_place, form, tag};

/// The maximum size of packed records: half of the largest chunk. Beyond it, packing gains little.
const MAX_BYTES: usize = MAX_CHUNK_BYTES / 2;

/// Longest number: 64 bits, 7 in each byte.
const MAX_NUMBER_BYTES: usize = 10;

/// The maximum size of a record: the first number, one byte then, the form, the ticks, the word; rounded up.
const MAX_RECORD_BYTES: usize = 32;

const _: () = assert!(MAX_RECORD_BYTES >= 2 + MAX_NUMBER_BYTES + 8 && MAX_RECORD_BYTES >= MAX_NUMBER_BYTES + 1 + 8);

/// The memory for packing: 51 KiB.
#[derive(Debug)]
pub(crate) struct Packer {
    tables: Tables,
    bytes: [u8; MAX_BYTES],
}

/// Packed records.
#[derive(Debug)]
pub(crate) struct Packed<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) n_records: usize,
}

impl Packer {
    pub(crate) const fn new() -> Self {
        Self { tables: Tables::new(), bytes: [0; MAX_BYTES] }
    }

    /// Packs records, times and words, of a chunk taken at `taken_tsc`. `None` without enough room.
    pub(crate) fn pack(&mut self, taken_tsc: u64, records: impl Iterator<Item = (u64, u64)>) -> Option<Packed<'_>> {
        self.tables.clear();
        let (mut n_bytes, mut n_records) = (0, 0);
        let mut tsc_before = taken_tsc;
        for (tsc, word) in records {
            let room = self.bytes.get_mut(n_bytes..)?.first_chunk_mut()?;
            n_bytes += put_record(&mut self.tables, tsc.wrapping_sub(tsc_before), word, room);
            n_records += 1;
            tsc_before = tsc;
        }
        Some(Packed { bytes: self.bytes.get(..n_bytes)?, n_records })
    }
}

/// Writes a record, so many ticks (modulo 2^64) after the one before. Returns its length.
#[inline(always)]
fn put_record(tables: &mut Tables, ticks: u64, word: u64, room: &mut [u8; MAX_RECORD_BYTES]) -> usize {
    let mut out = Out { room, n_bytes: 0 };
    let told = if ticks >= MANY_TICKS {
        Told::TicksAndWord
    } else if tables.returning() == Some(word) {
        Told::Return
    } else if tables.following() == word {
        Told::Following
    } else if tables.cached(cache_place(word)) == word {
        Told::Cached
    } else {
        Told::Word
    };
    match told {
        Told::Return => out.number(ticks << tag::N_BITS | tag::RETURN),
        Told::Following => out.number(ticks << tag::N_BITS | tag::FOLLOWING),
        Told::Cached => {
            out.number(ticks << tag::N_BITS | tag::CACHED);
            out.bytes([cache_place(word)]);
        }
        Told::Word => {
            out.number(ticks << tag::N_BITS | tag::OTHER);
            out.bytes([form::WORD]);
            out.bytes(word.to_le_bytes());
        }
        Told::TicksAndWord => {
            out.number(tag::OTHER);
            out.bytes([form::TICKS_AND_WORD]);
            let is_negative = ticks.cast_signed() < 0;
            out.number(if is_negative { !ticks << 1 | 1 } else { ticks << 1 });
            out.bytes(word.to_le_bytes());
        }
    }
    tables.learn(told, word);
    out.n_bytes
}

/// Room for a record, and the number of used bytes.
struct Out<'a> {
    room: &'a mut [u8; MAX_RECORD_BYTES],
    n_bytes: usize,
}

impl Out<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.room.get_mut(self.n_bytes..).and_then(|room| room.first_chunk_mut()) {
            *place = bytes;
            self.n_bytes += N;
        }
    }

    /// Seven bits in each byte, the lowest first; the highest bit means that another byte follows.
    #[inline(always)]
    fn number(&mut self, mut number: u64) {
        // Most have one or two. Which of both cannot be foreseen, so nothing branches on it: the second is written over where it is none.
        if number < 0x4000 {
            let is_long = number >= 0x80;
            self.bytes([number as u8 & 0x7f | u8::from(is_long) << 7, (number >> 7) as u8]);
            self.n_bytes -= usize::from(!is_long);
            return;
        }
        while number >= 0x80 {
            self.bytes([number as u8 | 0x80]);
            number >>= 7;
        }
        self.bytes([number as u8]);
    }
}

/// A packer for one at a time.
#[derive(Debug)]
pub(crate) struct Shared {
    is_taken: AtomicBool,
    packer: UnsafeCell<Packer>,
}

// SAFETY: the packer is reached by `Taken` alone, of which there is one at a time.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) const fn new() -> Self {
        Self { is_taken: AtomicBool::new(false), packer: UnsafeCell::new(Packer::new()) }
    }

    /// Returns the packer, if it is free. It never waits: the holder may have been interrupted by the caller, or
    /// stopped.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        (!self.is_taken.swap(true, Acquire)).then(|| Taken(self))
    }
}

/// The right to use the packer. Dropping it gives the packer back.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Shared);

impl Deref for Taken<'_> {
    type Target = Packer;

    fn deref(&self) -> &Packer {
        // SAFETY: there is one `Taken`, and this borrows it.
        unsafe { &*self.0.packer.get() }
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Packer {
        // SAFETY: there is one `Taken`, and this borrows it for writing.
        unsafe { &mut *self.0.packer.get() }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Release);
    }
}
