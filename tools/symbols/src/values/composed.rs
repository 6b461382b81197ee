//! The recording of a value with fields whose bytes were found: the parts that the tracer reads, and their form for
//! readers.

use rftrace_format::composite::{Block, Composite};
use rftrace_format::layout::Layout;
use rftrace_format::values::{Form, Place, ValueSpec};

use super::processor::Processor;
use super::shape::{Leaf, Shape};

/// Bytes of a word.
const WORD: u64 = 8;

/// Where the bytes of a value are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// In memory, whose address is there.
    Pointed(Place),
    /// On the stack, from this word on.
    OnStack(Place),
    /// In registers, and words of the stack.
    Pieces(Vec<Held>),
}

/// Some bytes of a value, in the lowest bytes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The first of them.
    pub(super) offset: u64,
    pub(super) n_bytes: u64,
    /// It is a truth value, and only the lowest bit counts.
    pub(super) is_bit: bool,
    pub(super) place: Place,
    /// It is a register of vectors.
    pub(super) is_vector: bool,
}

/// A value with fields is recorded so, and is that; `None` if nothing of it can be known. One without a block is known as `name`.
pub(super) fn composed(
    processor: &Processor,
    shape: &Shape,
    holder: Holder,
    name: Place,
) -> Option<(Composite, Layout)> {
    let mut end = 0;
    shape.for_leaves(&mut |at, leaf| end = end.max(at + leaf.n_bytes()));
    if let Shape::Variants { at, n_bytes, .. } = shape {
        end = end.max(at + n_bytes);
    }
    let n_words = end.div_ceil(WORD).clamp(1, Composite::MAX_WORDS) as u8;
    let (place, block, held) = match holder {
        Holder::Pointed(place) => (place, Block::Pointed(n_words), Vec::new()),
        Holder::OnStack(place) => (place, Block::OnStack(n_words), Vec::new()),
        Holder::Pieces(held) => (name, Block::None, held),
    };
    let composite = Composite { place, block, parts: Vec::new() };
    let last_in_register = processor.last_in_register();
    let mut composing =
        Composing { last_in_register, composite, n_block: u64::from(n_words) * WORD, held, parts: Vec::new() };
    let layout = composing.layout(shape);
    layout.is_known().then_some((composing.composite, layout))
}

impl Leaf {
    /// From its first byte on. Of a text these are the address.
    fn n_bytes(self) -> u64 {
        match self {
            Self::Number(_, n_bytes) | Self::Named(_, n_bytes) => n_bytes,
            Self::Bool(_) => 1,
            Self::Text { is_length_first: true } => WORD,
            Self::Text { is_length_first: false } => 2 * WORD,
        }
    }
}

struct Composing {
    /// The last argument in a register.
    last_in_register: u8,
    composite: Composite,
    /// Bytes of the block.
    n_block: u64,
    held: Vec<Held>,
    /// The held pieces that are parts, by their numbers.
    parts: Vec<(usize, usize)>,
}

impl Composing {
    fn layout(&mut self, shape: &Shape) -> Layout {
        match shape {
            Shape::Unknown => Layout::Unknown,
            Shape::Leaf(at, leaf) => self.leaf(*at, *leaf).unwrap_or(Layout::Unknown),
            Shape::Structure { name, is_named, fields } => {
                let fields = fields.iter().map(|(name, field)| (name.clone(), self.layout(field))).collect();
                Layout::Structure { name: name.clone(), is_named: *is_named, fields }
            }
            Shape::Variants { at, n_bytes, variants } => {
                let Some(place) = self.bytes(*at, *n_bytes, *n_bytes == 1) else { return Layout::Unknown };
                let variants = variants.iter().map(|(number, variant)| (*number, self.layout(variant))).collect();
                Layout::Variants { at: (place, n_bytes.trailing_zeros() as u8), variants }
            }
        }
    }

    fn leaf(&mut self, at: u64, leaf: Leaf) -> Option<Layout> {
        Some(match leaf {
            Leaf::Number(Form::String, _) => {
                let place = self.word(at)?;
                let part = self.part(ValueSpec::new(place, Form::String, WORD))?;
                Layout::leaf(Form::String, WORD, self.composite.part(part))
            }
            Leaf::Number(form, n_bytes) => Layout::leaf(form, n_bytes, self.bytes(at, n_bytes, false)?),
            Leaf::Named(names, n_bytes) => {
                let names = u16::try_from(names).ok()?;
                Layout::leaf(Form::Enumeration(names), n_bytes, self.bytes(at, n_bytes, false)?)
            }
            Leaf::Bool(names) => {
                let names = u16::try_from(names).ok()?;
                Layout::leaf(Form::Enumeration(names), 1, self.bytes(at, 1, true)?)
            }
            Leaf::Text { is_length_first } => {
                let form = if is_length_first { Form::CountedBefore } else { Form::Counted };
                let (address, length) =
                    (self.word(at)?, self.word(if is_length_first { at - WORD } else { at + WORD })?);
                let (first, second) = if is_length_first { (length, address) } else { (address, length) };
                if !self.follows(first, second) {
                    return None;
                }
                let part = self.part(ValueSpec::new(address, form, WORD))?;
                Layout::leaf(Form::String, WORD, self.composite.part(part))
            }
        })
    }

    /// Where bytes of the value are in the image.
    fn bytes(&mut self, at: u64, n_bytes: u64, is_bool: bool) -> Option<u16> {
        if self.composite.block != Block::None {
            return (at + n_bytes <= self.n_block).then(|| Composite::in_block(at));
        }
        let is_it = |held: &Held| {
            held.offset <= at && at + n_bytes <= held.offset + held.n_bytes.min(WORD) && (!held.is_bit || is_bool)
        };
        let which = self.held.iter().position(is_it)?;
        let held = self.held[which];
        let part = match self.parts.iter().find(|(own, _)| *own == which) {
            Some(&(_, part)) => part,
            None => {
                let form = if held.is_vector { Form::Float } else { Form::Hex };
                let part = self.part(ValueSpec::new(held.place, form, WORD))?;
                self.parts.push((which, part));
                part
            }
        };
        Some(self.composite.part(part) + (at - held.offset) as u16)
    }

    /// The place of a word of the value for the tracer.
    fn word(&self, at: u64) -> Option<Place> {
        if self.composite.block != Block::None {
            let is_in_block = at.is_multiple_of(WORD) && at + WORD <= self.n_block;
            return is_in_block.then_some(Place::InBlock((at / WORD) as u8));
        }
        let is_it = |held: &&Held| held.offset == at && held.n_bytes == WORD && !held.is_vector;
        self.held.iter().find(is_it).map(|held| held.place)
    }

    /// Adds a part, if there is room for it.
    fn part(&mut self, spec: ValueSpec) -> Option<usize> {
        if self.composite.parts.len() == Composite::MAX_PARTS {
            return None;
        }
        self.composite.parts.push(spec);
        Some(self.composite.parts.len() - 1)
    }

    /// True if the tracer finds the second word by the first.
    fn follows(&self, first: Place, second: Place) -> bool {
        match (first, second) {
            (Place::Argument(first), Place::Argument(second)) => second == first + 1 && first != self.last_in_register,
            (Place::InBlock(first), Place::InBlock(second)) => second == first + 1,
            (Place::Result(0), Place::Result(1)) => true,
            _ => false,
        }
    }
}
