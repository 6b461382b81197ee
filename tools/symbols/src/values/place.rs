//! Where a parameter is when its function is entered.

use gimli::{AttributeValue, Expression, Operation, Unit, UnitRef};

use super::entry::{Piece, Source, Stores};
use super::processor::Processor;
use crate::debug::sections::{Dwarf, Reader};

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// All of it there.
    Whole(Source),
    /// Pieces of it, in their order; of others it is not known.
    Pieces(Vec<Piece>),
    /// There is its address.
    Indirect(Source),
}

/// The base that a function's places are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBase {
    /// The canonical frame address.
    Cfa,
    /// The frame pointer.
    FramePointer,
    /// The stack pointer, which stays as it is.
    StackPointer,
    Other,
}

/// How the code of a function was made, and where that begins.
pub(super) struct Function<'c> {
    pub(super) processor: &'static Processor,
    pub(super) address: u64,
    pub(super) frame_base: FrameBase,
    /// The stores of its first instructions, if it is not optimised.
    pub(super) stores: Option<&'c Stores>,
}

impl FrameBase {
    pub(super) fn of(
        processor: &Processor,
        unit: &Unit<Reader<'_>>,
        value: Option<AttributeValue<Reader<'_>>>,
    ) -> Self {
        let Some(AttributeValue::Exprloc(expression)) = value else { return Self::Other };
        match operations(unit, expression).as_deref() {
            Some([Operation::CallFrameCFA]) => Self::Cfa,
            Some(&[Operation::Register { register }]) => Self::in_register(processor, register),
            _ => Self::Other,
        }
    }

    fn in_register(processor: &Processor, register: gimli::Register) -> Self {
        match register.0 {
            number if number == processor.frame_pointer => Self::FramePointer,
            number if Some(number) == processor.stack_pointer => Self::StackPointer,
            _ => Self::Other,
        }
    }
}

/// Where the parameter is that has this location; `n_bytes` and `is_bool` are of its type. `None`: nothing proves it.
pub(super) fn place(
    dwarf: &Dwarf<'_>,
    unit: &Unit<Reader<'_>>,
    function: &Function<'_>,
    location: AttributeValue<Reader<'_>>,
    (n_bytes, is_bool): (u64, bool),
) -> Option<Place> {
    let AttributeValue::Exprloc(expression) = location else {
        let unit_ref = UnitRef::new(dwarf, unit);
        let mut list = unit_ref.attr_locations(location).ok()??;
        let mut first = None;
        while let Ok(Some(entry)) = list.next() {
            first = first.or(Some((entry.range.begin, entry.data)));
            if entry.range.begin <= function.address && function.address < entry.range.end {
                return described(function, &operations(unit, entry.data)?);
            }
        }
        let (begin, data) = first?;
        return described_later(function, begin, &operations(unit, data)?);
    };
    let operations = operations(unit, expression)?;
    let Some(stores) = function.stores else { return described(function, &operations) };
    let (first, rest) = operations.split_first()?;
    let place = in_frame(function, stores, first)?;
    match rest {
        [] if place >= 0 => on_stack(place).map(Place::Whole),
        [] => match stores.at(place, n_bytes, is_bool) {
            Some(source) => Some(Place::Whole(source)),
            None => pieces(stores.within(place, n_bytes)),
        },
        [Operation::Deref { .. }] => stores.at(place, 8, false).map(Place::Indirect),
        _ => None,
    }
}

/// The distance from the canonical frame address, for a place in the frame of a function that is not optimised.
fn in_frame(function: &Function<'_>, stores: &Stores, operation: &Operation<Reader<'_>>) -> Option<i64> {
    let processor = function.processor;
    let (base, offset) = match *operation {
        Operation::FrameOffset { offset } => (function.frame_base, offset),
        Operation::RegisterOffset { register, offset, .. } => (FrameBase::in_register(processor, register), offset),
        _ => return None,
    };
    let base = match base {
        FrameBase::Cfa => 0,
        FrameBase::FramePointer => stores.frame_pointer?,
        FrameBase::StackPointer => stores.stack_pointer?,
        FrameBase::Other => return None,
    };
    base.checked_add(offset)
}

/// Of code that is not optimised: what is told first of a structure's address, at `begin`, behind instructions that have stored it, or have
/// left it where it was.
fn described_later(function: &Function<'_>, begin: u64, operations: &[Operation<Reader<'_>>]) -> Option<Place> {
    let stores = function.stores?;
    match operations {
        [first, Operation::Deref { .. }] => {
            stores.at(in_frame(function, stores, first)?, 8, false).map(Place::Indirect)
        }
        [Operation::RegisterOffset { register, offset: 0, .. }] => match function.processor.in_register(*register)? {
            source @ Source::Integer(number) if stores.keeps(number, begin) => Some(Place::Indirect(source)),
            _ => None,
        },
        _ => None,
    }
}

/// The place of a value at the first instruction, by debug information.
fn described(function: &Function<'_>, operations: &[Operation<Reader<'_>>]) -> Option<Place> {
    Some(match operations {
        [Operation::Register { register }] => Place::Whole(function.processor.in_register(*register)?),
        [Operation::RegisterOffset { register, offset: 0, .. }, Operation::StackValue] => {
            Place::Whole(function.processor.in_register(*register)?)
        }
        [Operation::RegisterOffset { .. }, .., Operation::StackValue] => {
            let (source, is_bit) = in_piece(function.processor, operations)?;
            return pieces(vec![Piece { offset: 0, n_bytes: 1, source, is_bit }]);
        }
        [Operation::RegisterOffset { register, offset: 0, .. }] => {
            Place::Indirect(function.processor.in_register(*register)?)
        }
        [Operation::FrameOffset { offset }] if function.frame_base == FrameBase::Cfa => {
            Place::Whole(on_stack(*offset)?)
        }
        [.., Operation::Piece { .. }] => return in_pieces(function.processor, operations),
        _ => return None,
    })
}

/// The place of a value that is described piece by piece.
fn in_pieces(processor: &Processor, operations: &[Operation<Reader<'_>>]) -> Option<Place> {
    let (mut found, mut offset) = (Vec::new(), 0);
    for piece in operations.split_inclusive(|operation| matches!(operation, Operation::Piece { .. })) {
        let Some((Operation::Piece { size_in_bits, bit_offset: None }, value)) = piece.split_last() else {
            return None;
        };
        if size_in_bits % 8 != 0 {
            return None;
        }
        let n_bytes = size_in_bits / 8;
        found.extend(in_piece(processor, value).map(|(source, is_bit)| Piece { offset, n_bytes, source, is_bit }));
        offset += n_bytes;
    }
    pieces(found)
}

/// Where a piece is, and whether only the lowest bit of it counts. `None` for constants, and what is computed.
fn in_piece(processor: &Processor, operations: &[Operation<Reader<'_>>]) -> Option<(Source, bool)> {
    match operations {
        [Operation::Register { register }] => Some((processor.in_register(*register)?, false)),
        [Operation::RegisterOffset { register, offset: 0, .. }, rest @ .., Operation::StackValue] => {
            let source = processor.in_register(*register)?;
            match rest {
                [] => Some((source, false)),
                [Operation::UnsignedConstant { value: 0xffff_ffff }, Operation::And, bit @ ..] | bit => match bit {
                    [Operation::UnsignedConstant { value: 1 }, Operation::And] => Some((source, true)),
                    _ => None,
                },
            }
        }
        _ => None,
    }
}

fn pieces(found: Vec<Piece>) -> Option<Place> {
    (!found.is_empty()).then_some(Place::Pieces(found))
}

/// A word from the canonical frame address on.
fn on_stack(offset: i64) -> Option<Source> {
    (offset >= 0 && offset % 8 == 0).then(|| Source::Stack(offset.cast_unsigned() / 8))
}

/// The operations of an expression; `None` if it cannot be read.
fn operations<'d>(unit: &Unit<Reader<'d>>, expression: Expression<Reader<'d>>) -> Option<Vec<Operation<Reader<'d>>>> {
    let mut all = Vec::new();
    let mut operations = expression.operations(unit.encoding());
    while let Some(operation) = operations.next().ok()? {
        // The same values while the function is entered.
        if let Operation::EntryValue { expression } = operation {
            let mut inner = Expression(expression).operations(unit.encoding());
            all.push(inner.next().ok()??);
            if inner.next().ok()?.is_some() || operations.next().ok()? != Some(Operation::StackValue) {
                return None;
            }
            continue;
        }
        all.push(operation);
    }
    Some(all)
}
