//! Arguments that the first instructions of a function store in its frame, where code is not optimised.
//!
//! Not here: following instructions, which each processor has its own file for.

use std::collections::HashMap;

/// How far to look: bytes.
pub(super) const MAX_BYTES: u64 = 1024;

/// Where an argument is when the function is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In one of the registers for integers (rdi, rsi, rdx, rcx, r8, r9; x0 to x7), from 1 on.
    Integer(u8),
    /// In xmm0 to xmm7, or v0 to v7: 1 to 8.
    Float(u8),
    /// In a word of the stack, from 0 on at the canonical frame address.
    Stack(u64),
}

/// A piece of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first of its bytes.
    pub(super) offset: u64,
    pub(super) n_bytes: u64,
    /// In the lowest bytes there.
    pub(super) source: Source,
    /// Only the lowest bit counts.
    pub(super) is_bit: bool,
}

/// The values stored in the frame, by distance from the canonical frame address (above the return address).
#[derive(Debug, Default)]
pub(super) struct Stores {
    /// The first value stored there: from where, how many bytes, and whether only its lowest bit is kept.
    first: HashMap<i64, Stored>,
    /// The distance of the frame pointer from the canonical frame address, when the frame was made.
    pub(super) frame_pointer: Option<i64>,
    /// The same of the stack pointer, where that stays so.
    pub(super) stack_pointer: Option<i64>,
    /// Where registers for integers are first written to, or anybody is called, by the numbers of [`Source::Integer`].
    written: HashMap<u8, u64>,
}

/// A copy of an argument, or of its lower part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// `None`: something else.
    pub(super) source: Option<Source>,
    pub(super) n_bytes: u64,
    pub(super) is_bit: bool,
}

impl Stores {
    /// Where the argument comes from that is stored at `place`, if it is one, of so many bytes. Only a `bool` may have been cut down to its
    /// lowest bit.
    pub(super) fn at(&self, place: i64, n_bytes: u64, is_bool: bool) -> Option<Source> {
        let stored = self.first.get(&place)?;
        let is_whole = stored.n_bytes == n_bytes && (!stored.is_bit || is_bool);
        stored.source.filter(|_| is_whole)
    }

    /// True if a register for integers, by its number, still has its argument where an instruction begins.
    pub(super) fn keeps(&self, number: u8, address: u64) -> bool {
        self.written.get(&number).is_some_and(|&written| address <= written)
    }

    /// The pieces of arguments that are stored between `place` and `n_bytes` later, in their order.
    pub(super) fn within(&self, place: i64, n_bytes: u64) -> Vec<Piece> {
        let piece = |(&at, stored): (&i64, &Stored)| {
            let offset = u64::try_from(at.checked_sub(place)?).ok()?;
            let is_within = offset.checked_add(stored.n_bytes)? <= n_bytes;
            let source = stored.source.filter(|_| is_within)?;
            Some(Piece { offset, n_bytes: stored.n_bytes, source, is_bit: stored.is_bit })
        };
        let mut pieces: Vec<Piece> = self.first.iter().filter_map(piece).collect();
        pieces.sort_by_key(|piece| piece.offset);
        pieces
    }

    /// A register for integers is written to there, or anybody is called.
    pub(super) fn written_at(&mut self, number: u8, address: u64) {
        self.written.entry(number).or_insert(address);
    }
}

/// The contents of the frame at an instruction.
#[derive(Debug, Default)]
pub(super) struct Frame {
    now: HashMap<i64, Stored>,
    pub(super) stores: Stores,
}

impl Frame {
    pub(super) fn get(&self, place: i64) -> Option<&Stored> {
        self.now.get(&place)
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        self.now.clear();
    }

    /// Writes to the frame. What was stored over is nothing known any more.
    pub(super) fn put(&mut self, place: i64, stored: Stored) {
        let end = place.wrapping_add(stored.n_bytes.cast_signed());
        self.now.retain(|&other, was| other >= end || other.wrapping_add(was.n_bytes.cast_signed()) <= place);
        self.now.insert(place, stored);
        // Part of what was stored earlier is not first.
        let is_new = !self
            .stores
            .first
            .iter()
            .any(|(&other, was)| other < end && other.wrapping_add(was.n_bytes.cast_signed()) > place);
        if is_new {
            self.stores.first.insert(place, stored);
        }
    }
}
