//! Where a result with fields is when its function returns.
//!
//! No debug information tells that, so it is told only where the calling convention leaves no doubt:
//!
//! - of C and C++ what is larger than two words, or has to be in memory, has its address in rax (on aarch64 nowhere); else each word is in the
//!   next register for integers, or for floating-point numbers, as the processor's [`Structures`] say, which may be four floating-point numbers;
//! - of Rust two values without fields are each in a register of their kind, if they are all there is; what is not larger than a word is in rax
//!   (x0) as it would be in memory. All else is in memory; its address is in rax only where that is [proven](super::returned).

use gimli::{AttributeValue, constants};
use rftrace_format::values::Place;

use super::composed::{Held, Holder};
use super::processor::Structures;
use super::types::Types;
use crate::debug::units::Entry;

/// Bytes of a word.
const WORD: u64 = 8;
/// Registers for results: of integers, and of floating-point numbers.
const N_REGISTERS: u8 = 2;
/// The most members of a homogeneous aggregate of floating-point numbers.
const N_HOMOGENEOUS: usize = 4;
/// How deep types are looked into.
const MAX_DEPTH: u32 = 16;
/// The most values that are looked at in a type.
const MAX_SCALARS: usize = 32;

/// A value without fields in another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scalar {
    at: u64,
    n_bytes: u64,
    is_float: bool,
    is_signed: bool,
}

/// Where a result is of a structure's type, of a function of a `unit`; `None` if that is not sure. `returns_address`: if it is in memory, rax has its address.
pub(super) fn holder<'d>(
    structures: Structures,
    types: &Types<'_, 'd>,
    (entry, unit): (&Entry<'d>, usize),
    n_bytes: u64,
    returns_address: impl FnOnce() -> bool,
) -> Option<Holder> {
    let pieces = if types.is_rust {
        if n_bytes > 2 * WORD { None } else { rust_pieces(types, entry, n_bytes)? }
    } else {
        match convention(types, entry, unit) {
            Convention::Memory => None,
            _ if n_bytes > 2 * WORD && structures == Structures::ByWord => None,
            Convention::Value => c_pieces(structures, types, entry, n_bytes)?,
            Convention::Unknown => return None,
        }
    };
    match pieces {
        Some(pieces) => Some(Holder::Pieces(pieces)),
        None => returns_address().then_some(Holder::Pointed(Place::Result(0))),
    }
}

enum Convention {
    Value,
    Memory,
    Unknown,
}

/// The way in which a structure of C or C++ is returned.
fn convention<'d>(types: &Types<'_, 'd>, entry: &Entry<'d>, unit: usize) -> Convention {
    match entry.attribute(constants::DW_AT_calling_convention) {
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_value)) => Convention::Value,
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_reference)) => Convention::Memory,
        // C has no other. The type may be in a unit that several languages have in common; and older debug information of C++ does not tell.
        None if types.units.is_c(unit) => Convention::Value,
        _ => Convention::Unknown,
    }
}

/// `Some(None)`: it is in memory.
fn c_pieces<'d>(
    structures: Structures,
    types: &Types<'_, 'd>,
    entry: &Entry<'d>,
    n_bytes: u64,
) -> Option<Option<Vec<Held>>> {
    let all = Scalars::of(types, entry)?;
    let are_floats = !all.found.is_empty() && all.found.iter().all(|scalar| scalar.is_float);
    if structures == Structures::Homogeneous && are_floats {
        // Of an array it is not known how many there are.
        let is_alike = all.found.iter().all(|scalar| scalar.n_bytes == all.found[0].n_bytes) && !all.has_array;
        return (is_alike && all.found.len() <= N_HOMOGENEOUS).then(|| Some(homogeneous(&all.found)));
    }
    if n_bytes > 2 * WORD {
        return Some(None);
    }
    let mut registers = Registers::default();
    let words = (0..n_bytes.div_ceil(WORD)).map(|word| {
        let first = word * WORD;
        let own = all.found.iter().filter(|scalar| scalar.at < first + WORD && first < scalar.at + scalar.n_bytes);
        let is_vector = own.clone().all(|scalar| scalar.is_float) && own.count() > 0;
        registers.next(first, WORD.min(n_bytes - first), is_vector && structures == Structures::ByWord)
    });
    words.collect::<Option<_>>().map(Some)
}

/// Each in a register for floating-point numbers.
fn homogeneous(all: &[Scalar]) -> Vec<Held> {
    let held = all.iter().zip(0..).map(|(scalar, number)| Held {
        offset: scalar.at,
        n_bytes: scalar.n_bytes,
        is_bit: false,
        place: Place::Result(number),
        is_vector: true,
    });
    held.collect()
}

/// Of a type that is not larger than two words. `Some(None)`: it is in memory.
fn rust_pieces<'d>(types: &Types<'_, 'd>, entry: &Entry<'d>, n_bytes: u64) -> Option<Option<Vec<Held>>> {
    let part = types.units.children(entry, constants::DW_TAG_variant_part).into_iter().next();
    let Some(part) = part else { return of_structure(&Scalars::of(types, entry)?, n_bytes) };
    let number = types.units.follow(&part, constants::DW_AT_discr)?;
    let number = Scalars::of_member(types, &number)?;
    let [number] = *number.found else { return None };
    let variants = types.units.children(&part, constants::DW_TAG_variant);
    let variants = variants.iter().map(|variant| {
        let members = types.units.children(variant, constants::DW_TAG_member);
        let [member] = &*members else { return None };
        Scalars::of_member(types, member)
    });
    let variants: Vec<Scalars> = variants.collect::<Option<_>>()?;
    let with_data: Vec<&Scalars> = variants.iter().filter(|variant| !variant.found.is_empty()).collect();
    let is_in_data = |scalar: &Scalar| scalar.at < number.at + number.n_bytes && number.at < scalar.at + scalar.n_bytes;
    let all = || with_data.iter().flat_map(|variant| &variant.found);
    if all().any(is_in_data) {
        return match *with_data {
            // A number that the data cannot have.
            [only] => of_structure(only, n_bytes),
            _ => None,
        };
    }
    if with_data.iter().any(|variant| variant.found.len() > 1 || variant.has_array) {
        return as_in_memory(n_bytes);
    }
    let first = *all().next()?;
    if all().all(|other| *other == first) {
        return in_registers(&[number, first]).map(Some);
    }
    // Numbers of one size may be taken for the same whether they have a sign or not.
    let is_different =
        |other: &Scalar| (other.at, other.n_bytes, other.is_float) != (first.at, first.n_bytes, first.is_float);
    if all().any(is_different) { as_in_memory(n_bytes) } else { None }
}

/// A structure, or an enumeration that is as large as what one variant has.
fn of_structure(all: &Scalars, n_bytes: u64) -> Option<Option<Vec<Held>>> {
    match *all.found {
        // Some arrays of one are as what is in them.
        _ if all.has_array && all.found.len() < 3 => None,
        [only] => in_registers(&[only]).map(Some),
        [first, second] => {
            let (first, second) = if first.at < second.at { (first, second) } else { (second, first) };
            let is_near = first.at == 0 && second.at == first.n_bytes.next_multiple_of(second.n_bytes);
            if is_near { in_registers(&[first, second]).map(Some) } else { None }
        }
        [] => None,
        _ => as_in_memory(n_bytes),
    }
}

fn in_registers(all: &[Scalar]) -> Option<Vec<Held>> {
    let mut registers = Registers::default();
    all.iter().map(|scalar| registers.next(scalar.at, scalar.n_bytes, scalar.is_float)).collect()
}

/// In rax as it would be in memory, or in memory.
fn as_in_memory(n_bytes: u64) -> Option<Option<Vec<Held>>> {
    if n_bytes > WORD {
        return Some(None);
    }
    Some(Some(vec![Registers::default().next(0, n_bytes, false)?]))
}

/// The registers of results that are taken.
#[derive(Default)]
struct Registers {
    n_integers: u8,
    n_floats: u8,
}

impl Registers {
    fn next(&mut self, offset: u64, n_bytes: u64, is_vector: bool) -> Option<Held> {
        let taken = if is_vector { &mut self.n_floats } else { &mut self.n_integers };
        if *taken == N_REGISTERS {
            return None;
        }
        let place = Place::Result(*taken);
        *taken += 1;
        Some(Held { offset, n_bytes, is_bit: false, place, is_vector })
    }
}

/// The values without fields in a type.
#[derive(Debug, Default)]
struct Scalars {
    found: Vec<Scalar>,
    has_array: bool,
}

impl Scalars {
    /// `None` where something is not known.
    fn of<'d>(types: &Types<'_, 'd>, entry: &Entry<'d>) -> Option<Self> {
        let mut all = Self::default();
        all.add(types, entry, 0, MAX_DEPTH)?;
        Some(all)
    }

    /// Those of a member, at its place.
    fn of_member<'d>(types: &Types<'_, 'd>, member: &Entry<'d>) -> Option<Self> {
        let mut all = Self::default();
        let place = member.number(constants::DW_AT_data_member_location).unwrap_or(0);
        all.add(types, &types.resolved(member)?, place, MAX_DEPTH)?;
        Some(all)
    }

    fn add<'d>(&mut self, types: &Types<'_, 'd>, entry: &Entry<'d>, at: u64, depth: u32) -> Option<()> {
        if depth == 0 || self.found.len() > MAX_SCALARS {
            return None;
        }
        let n_bytes = entry.number(constants::DW_AT_byte_size);
        let mut scalar = |n_bytes, is_float, is_signed| {
            self.found.push(Scalar { at, n_bytes, is_float, is_signed });
            Some(())
        };
        match entry.tag() {
            constants::DW_TAG_base_type => {
                let Some(AttributeValue::Encoding(encoding)) = entry.attribute(constants::DW_AT_encoding) else {
                    return None;
                };
                let is_signed = matches!(encoding, constants::DW_ATE_signed | constants::DW_ATE_signed_char);
                match n_bytes? {
                    0 => Some(()),
                    n_bytes @ (1 | 2 | 4 | 8) => scalar(n_bytes, encoding == constants::DW_ATE_float, is_signed),
                    _ => None,
                }
            }
            constants::DW_TAG_pointer_type
            | constants::DW_TAG_reference_type
            | constants::DW_TAG_rvalue_reference_type => scalar(WORD, false, false),
            constants::DW_TAG_enumeration_type => scalar(n_bytes?, false, false),
            constants::DW_TAG_array_type => {
                self.has_array = true;
                let mut element = Self::default();
                element.add(types, &types.resolved(entry)?, 0, depth - 1)?;
                let is_float = !element.found.is_empty() && element.found.iter().all(|scalar| scalar.is_float);
                let is_mixed = element.found.iter().any(|scalar| scalar.is_float) && !is_float;
                let ranges = types.units.children(entry, constants::DW_TAG_subrange_type);
                let [range] = &*ranges else { return None };
                let upper = range.number(constants::DW_AT_upper_bound).map(|upper| upper + 1);
                let count = range.number(constants::DW_AT_count).or(upper)?;
                let size = types.resolved(entry)?.number(constants::DW_AT_byte_size)?.checked_mul(count)?;
                if is_mixed {
                    return None;
                }
                if size > 0 {
                    self.found.push(Scalar { at, n_bytes: size, is_float, is_signed: false });
                }
                Some(())
            }
            constants::DW_TAG_structure_type | constants::DW_TAG_class_type => {
                if !types.units.children(entry, constants::DW_TAG_variant_part).is_empty() || n_bytes.is_none() {
                    return None;
                }
                let bases = types.units.children(entry, constants::DW_TAG_inheritance);
                let members = types.units.children(entry, constants::DW_TAG_member);
                for member in bases.into_iter().chain(members) {
                    if member.attribute(constants::DW_AT_external).is_some() {
                        continue;
                    }
                    if member.attribute(constants::DW_AT_bit_size).is_some() {
                        return None;
                    }
                    let place = member.number(constants::DW_AT_data_member_location).unwrap_or(0);
                    self.add(types, &types.resolved(&member)?, at + place, depth - 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}
