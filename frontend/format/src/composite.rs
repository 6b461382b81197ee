//! Values with fields: the parts that a tracer records, and their bytes on disk, the *image*.
//!
//! A tracer records a block of memory, and parts: registers, and texts whose addresses are in the block or in
//! registers. In the image these have fixed offsets, so that a [layout](crate::layout) can refer to them:
//!
//! | bytes | contents |
//! |---|---|
//! | 2 | the number of bytes of the block that were read |
//! | 2 | the size of the block in bytes |
//! | 8 for each word | the block |
//! | for each part a multiple of 4 | a number: its bytes; a text: its length, as in items, and 98 bytes |
//!
//! Not here: the meaning of the bytes.

use alloc::vec::Vec;

use crate::values::{NULL, Place, STRING_BYTES, ValueSpec};

/// Codes: the bit of such a value.
const COMPOSITE: u16 = 1 << 15;
/// Its block is on the stack.
const ON_STACK: u16 = 1;
/// A value without a block.
const GATHERED: u16 = 3;
/// The number of bits below the number of words, less 1.
const WORDS_SHIFT: u32 = 8;
/// The number of bits below the number of parts.
const PARTS_SHIFT: u32 = 12;
/// The number of arguments in registers.
const N_REGISTERS: u8 = 6;

/// Before the block.
const HEAD_BYTES: usize = 4;

/// The recorded parts of a value with fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composite {
    /// The key of the value: the argument or result with its address. A value without a block uses an argument that no
    /// other value has.
    pub place: Place,
    /// The place of the block.
    pub block: Block,
    /// The values recorded beside the block.
    pub parts: Vec<ValueSpec>,
}

/// The block of a value, with its number of words, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The value has no block.
    None,
    /// The block's address is in the value's place.
    Pointed(u8),
    /// The block is on the stack; the value's place is that of its first word.
    OnStack(u8),
}

impl Composite {
    /// The maximum length of a block, in words.
    pub const MAX_WORDS: u64 = 16;
    /// The maximum number of parts.
    pub const MAX_PARTS: usize = 7;

    fn n_words(&self) -> u8 {
        match self.block {
            Block::None => 0,
            Block::Pointed(n_words) | Block::OnStack(n_words) => n_words,
        }
    }

    /// Returns the codes of the value: for the tracer's items, and for the request to record it.
    pub fn codes(&self) -> Vec<u16> {
        let (place, number) = match (self.place, self.block) {
            (Place::Argument(number), Block::OnStack(_)) => (ON_STACK, number - N_REGISTERS),
            (Place::Argument(number), Block::Pointed(_)) => (0, number),
            (Place::Argument(number), Block::None) => (GATHERED, number),
            (_, Block::None) => (GATHERED, 0),
            _ => (2, 0),
        };
        let words = u16::from(self.n_words().max(1) - 1) << WORDS_SHIFT;
        let parts = (self.parts.len() as u16) << PARTS_SHIFT;
        let head = COMPOSITE | place | u16::from(number) << 2 | words | parts;
        core::iter::once(head).chain(self.parts.iter().map(|part| part.code())).collect()
    }

    /// Returns the spec on disk, without the name of the layout.
    pub fn spec(&self) -> ValueSpec {
        let n_bytes = self.block_end() + self.parts.iter().map(part_bytes).sum::<usize>();
        ValueSpec::of_image(self.place, n_bytes as u16)
    }

    fn block_end(&self) -> usize {
        HEAD_BYTES + 8 * usize::from(self.n_words())
    }

    /// Returns the offset in the image of a byte of the block.
    pub fn in_block(byte: u64) -> u16 {
        (HEAD_BYTES as u64 + byte) as u16
    }

    /// Returns the offset in the image of a part.
    pub fn part(&self, number: usize) -> u16 {
        (self.block_end() + self.parts[..number].iter().map(part_bytes).sum::<usize>()) as u16
    }
}

/// Bytes of a part in the image.
fn part_bytes(part: &ValueSpec) -> usize {
    if part.form.is_text() { 2 + STRING_BYTES } else { part.size().next_multiple_of(4) }
}

/// Reads the item of such a value behind its code: its form on disk, its image, and the rest. `None` for an invalid
/// one.
pub(crate) fn item(code: u16, bytes: &[u8]) -> Option<(ValueSpec, Vec<u8>, &[u8])> {
    let number = (code >> 2 & 0x3f) as u8;
    let n_words = usize::from(code >> WORDS_SHIFT & 0xf) + 1;
    let (place, n_words) = match (code & 3, number) {
        (GATHERED, 0) => (Place::Result(0), 0),
        (GATHERED, number) => (Place::Argument(number), 0),
        (ON_STACK, number) => (Place::Argument(number + N_REGISTERS), n_words),
        (0, 1..) => (Place::Argument(number), n_words),
        (2, _) => (Place::Result(0), n_words),
        _ => return None,
    };
    let (n_read, rest) = bytes.split_first_chunk::<2>()?;
    let (block, mut rest) = rest.split_at_checked(u16::from_le_bytes(*n_read).into())?;
    if block.len() > 8 * n_words {
        return None;
    }
    let mut image = n_read.to_vec();
    image.extend_from_slice(&(8 * n_words as u16).to_le_bytes());
    image.extend_from_slice(block);
    image.resize(HEAD_BYTES + 8 * n_words, 0);
    for _ in 0..code >> PARTS_SHIFT & 7 {
        let (part, after) = rest.split_first_chunk::<2>()?;
        let spec = ValueSpec::of_code(u16::from_le_bytes(*part))?;
        let end = image.len() + part_bytes(&spec);
        let length = if spec.form.is_text() {
            let (length, _) = after.split_first_chunk::<2>()?;
            match u16::from_le_bytes(*length) {
                NULL => 2,
                length => 2 + usize::from(length),
            }
        } else {
            spec.size()
        };
        let (own, after) = after.split_at_checked(length)?;
        image.extend_from_slice(own);
        if image.len() > end {
            return None;
        }
        image.resize(end, 0);
        rest = after;
    }
    Some((ValueSpec::of_image(place, image.len() as u16), image, rest))
}

/// Returns an image of so many unread bytes.
pub(crate) fn unknown(n_bytes: usize) -> Vec<u8> {
    let mut image = alloc::vec![0, 0, 0xff, 0xff];
    image.resize(n_bytes, 0);
    image
}

/// The bytes of a value on disk.
pub(crate) struct Image<'a>(&'a [u8]);

impl<'a> Image<'a> {
    /// Whatever bytes they are.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes at a place. `None` beyond the image, and for unread bytes. Parts depend on the whole block.
    fn bytes(&self, at: u16, n_bytes: usize) -> Option<&'a [u8]> {
        let (n_read, rest) = self.0.split_first_chunk::<2>()?;
        let (n_block, _) = rest.split_first_chunk::<2>()?;
        let [n_read, n_block] = [*n_read, *n_block].map(|bytes| usize::from(u16::from_le_bytes(bytes)));
        let at = usize::from(at);
        let known = if at < HEAD_BYTES + n_block { HEAD_BYTES + n_read } else { self.0.len() };
        let is_known = at >= HEAD_BYTES && at + n_bytes <= known && (at < HEAD_BYTES + n_block || n_read == n_block);
        self.0.get(at..at + n_bytes).filter(|_| is_known)
    }

    /// A number of so many doublings of a byte.
    pub(crate) fn number(&self, at: u16, size_log: u8) -> Option<u64> {
        let bytes = self.bytes(at, 1 << size_log)?;
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
        Some(u64::from_le_bytes(word))
    }

    /// Returns the bytes of the value of `spec` at a place: none for a null pointer to a text.
    pub(crate) fn value(&self, spec: ValueSpec, at: u16) -> Option<Option<&'a [u8]>> {
        if !spec.form.is_text() {
            return self.bytes(at, spec.size()).map(Some);
        }
        match self.number(at, 1)? as u16 {
            NULL => Some(None),
            length => self.bytes(at.checked_add(2)?, length.into()).map(Some),
        }
    }
}
