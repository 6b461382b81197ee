//! Where a parameter is when its function is entered.

use gimli::{AttributeValue, Expression, Operation, Unit, UnitRef};

use super::entry::{Source, Stores};
use super::object::{Dwarf, Reader};

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// All of it there.
    Whole(Source),
    /// Two words.
    Pair(Source, Source),
    /// There is its address.
    Indirect(Source),
}

/// What a function's places are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameBase {
    /// The canonical frame address.
    Cfa,
    /// rbp.
    Rbp,
    Other,
}

/// How the code of a function was made, and where that begins.
pub(super) struct Function<'c> {
    pub(super) address: u64,
    pub(super) frame_base: FrameBase,
    /// What its first instructions store, if it is not optimised.
    pub(super) stores: Option<&'c Stores>,
}

/// DWARF numbers of rdi, rsi, rdx, rcx, r8 and r9.
const INTEGERS: [u16; 6] = [5, 4, 1, 2, 8, 9];
/// DWARF number of rbp.
const RBP: u16 = 6;
/// That of xmm0.
const XMM0: u16 = 17;
/// Vector registers with arguments.
const N_VECTORS: u16 = 8;

impl FrameBase {
    pub(super) fn of(unit: &Unit<Reader<'_>>, value: Option<AttributeValue<Reader<'_>>>) -> Self {
        let Some(AttributeValue::Exprloc(expression)) = value else { return Self::Other };
        match operations(unit, expression).as_deref() {
            Some([Operation::CallFrameCFA]) => Self::Cfa,
            Some([Operation::Register { register }]) if register.0 == RBP => Self::Rbp,
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
        while let Ok(Some(entry)) = list.next() {
            if entry.range.begin <= function.address && function.address < entry.range.end {
                return described(function, &operations(unit, entry.data)?);
            }
        }
        return None;
    };
    let operations = operations(unit, expression)?;
    let Some(stores) = function.stores else { return described(function, &operations) };
    let (&Operation::FrameOffset { offset }, rest) = operations.split_first()? else { return None };
    let place = match function.frame_base {
        FrameBase::Cfa => offset,
        FrameBase::Rbp => stores.rbp?.checked_add(offset)?,
        FrameBase::Other => return None,
    };
    match rest {
        [] if place >= 0 => on_stack(place).map(Place::Whole),
        [] if n_bytes == 16 => {
            Some(Place::Pair(stores.at(place, 8, false)?, stores.at(place.checked_add(8)?, 8, false)?))
        }
        [] => stores.at(place, n_bytes, is_bool).map(Place::Whole),
        [Operation::Deref { .. }] => stores.at(place, 8, false).map(Place::Indirect),
        _ => None,
    }
}

/// What debug information says of a value at the first instruction.
fn described(function: &Function<'_>, operations: &[Operation<Reader<'_>>]) -> Option<Place> {
    /// Bits of a word.
    const WORD: u64 = 64;

    Some(match operations {
        [Operation::Register { register }] => Place::Whole(in_register(*register)?),
        [Operation::RegisterOffset { register, offset: 0, .. }, Operation::StackValue] => {
            Place::Whole(in_register(*register)?)
        }
        [Operation::RegisterOffset { register, offset: 0, .. }] => Place::Indirect(in_register(*register)?),
        [Operation::FrameOffset { offset }] if function.frame_base == FrameBase::Cfa => {
            Place::Whole(on_stack(*offset)?)
        }
        [
            Operation::Register { register: first },
            Operation::Piece { size_in_bits: WORD, bit_offset: None },
            Operation::Register { register: second },
            Operation::Piece { size_in_bits: WORD, bit_offset: None },
        ] => Place::Pair(in_register(*first)?, in_register(*second)?),
        _ => return None,
    })
}

fn in_register(register: gimli::Register) -> Option<Source> {
    let integer = INTEGERS.iter().position(|&number| number == register.0);
    let vector = register.0.checked_sub(XMM0).filter(|&number| number < N_VECTORS);
    integer.map(|place| Source::Integer(place as u8 + 1)).or(vector.map(|number| Source::Float(number as u8 + 1)))
}

/// A word above the canonical frame address.
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
