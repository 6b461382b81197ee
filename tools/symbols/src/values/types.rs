//! The display of a value by its type.

use gimli::{AttributeValue, constants};
use rftrace_format::values::Form;

use super::module::{Enumeration, Enumerations};
use crate::debug::units::{Entry, Units};

/// A type, as far as its values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) n_bytes: u64,
    pub(super) kind: Kind,
}

/// The kind of a type's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A word, or its lower part, in a register for integers.
    Number(Form),
    /// The same, with names of an enumeration.
    Named(usize),
    /// The same, a truth value.
    Bool(usize),
    Float,
    /// `&str`: an address and a length; `std::string_view` has them in the other order.
    Text {
        is_length_first: bool,
    },
    /// `&[T]`.
    Slice,
    /// `String` and `std::string`, which are in memory, and which words of that are the address and the length.
    Owned {
        address: u8,
        length: u8,
    },
    /// A reference to one.
    OwnedPointer {
        address: u8,
        length: u8,
    },
    /// Nothing of it is shown, but fields may be.
    Other,
}

/// How deep types are looked into.
const MAX_DEPTH: u32 = 16;

/// Makes types of debug information.
pub(super) struct Types<'u, 'd> {
    pub(super) units: &'u Units<'d>,
    pub(super) is_rust: bool,
    enumerations: &'u mut Enumerations,
}

impl<'u, 'd> Types<'u, 'd> {
    pub(super) fn new(units: &'u Units<'d>, is_rust: bool, enumerations: &'u mut Enumerations) -> Self {
        Self { units, is_rust, enumerations }
    }

    /// The type that an entry refers to; `None` if it has none.
    pub(super) fn of(&mut self, holder: &Entry<'d>) -> Option<Type> {
        let entry = self.resolved(holder)?;
        Some(self.simple(&entry))
    }

    /// The type that an entry refers to, without what only renames or qualifies it.
    pub(super) fn resolved(&self, holder: &Entry<'d>) -> Option<Entry<'d>> {
        let mut entry = self.units.follow(holder, constants::DW_AT_type)?;
        for _ in 0..MAX_DEPTH {
            match entry.tag() {
                constants::DW_TAG_typedef
                | constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_restrict_type => entry = self.units.follow(&entry, constants::DW_AT_type)?,
                _ => return Some(entry),
            }
        }
        None
    }

    /// A type as far as it is shown without fields.
    pub(super) fn simple(&mut self, entry: &Entry<'d>) -> Type {
        self.read(entry, MAX_DEPTH)
    }

    fn read(&mut self, entry: &Entry<'d>, depth: u32) -> Type {
        let n_bytes = entry.number(constants::DW_AT_byte_size).unwrap_or(0);
        let other = Type { n_bytes, kind: Kind::Other };
        if depth == 0 {
            return other;
        }
        let of_type = |this: &mut Self| match this.units.follow(entry, constants::DW_AT_type) {
            Some(inner) => this.read(&inner, depth - 1),
            None => Type { n_bytes, kind: Kind::Other },
        };
        match entry.tag() {
            constants::DW_TAG_typedef
            | constants::DW_TAG_const_type
            | constants::DW_TAG_volatile_type
            | constants::DW_TAG_restrict_type => of_type(self),
            constants::DW_TAG_base_type => self.base(entry, n_bytes),
            constants::DW_TAG_pointer_type => Type { n_bytes: 8, kind: self.pointer(entry) },
            constants::DW_TAG_reference_type | constants::DW_TAG_rvalue_reference_type => {
                let target = self.resolved(entry);
                let kind = match target.map(|target| self.text_of_cpp(&target)) {
                    Some(Kind::Owned { address, length }) => Kind::OwnedPointer { address, length },
                    _ => Kind::Number(Form::Pointer),
                };
                Type { n_bytes: 8, kind }
            }
            constants::DW_TAG_enumeration_type => self.enumeration(entry, n_bytes),
            constants::DW_TAG_structure_type if self.is_rust => {
                Type { n_bytes, kind: self.structure(entry, n_bytes, depth) }
            }
            constants::DW_TAG_structure_type | constants::DW_TAG_class_type => {
                Type { n_bytes, kind: self.text_of_cpp(entry) }
            }
            _ => other,
        }
    }

    fn base(&mut self, entry: &Entry<'d>, n_bytes: u64) -> Type {
        let encoding = match entry.attribute(constants::DW_AT_encoding) {
            Some(AttributeValue::Encoding(encoding)) => Some(encoding),
            _ => None,
        };
        let is_word = matches!(n_bytes, 1 | 2 | 4 | 8);
        let is_char = n_bytes == 1 && self.units.name(entry) == "char";
        let kind = match encoding {
            Some(constants::DW_ATE_boolean) if n_bytes == 1 => {
                let names = [("false", 0), ("true", 1)].map(|(name, value)| (name.to_owned(), value));
                Kind::Bool(self.enumerations.number(Enumeration { name: "bool".to_owned(), names: names.into() }))
            }
            Some(constants::DW_ATE_signed_char | constants::DW_ATE_unsigned_char) if is_char => {
                Kind::Number(Form::Char)
            }
            Some(constants::DW_ATE_signed | constants::DW_ATE_signed_char) if is_word => Kind::Number(Form::Signed),
            Some(constants::DW_ATE_UTF) if n_bytes == 4 => Kind::Number(Form::Char),
            Some(constants::DW_ATE_unsigned | constants::DW_ATE_unsigned_char | constants::DW_ATE_UTF) if is_word => {
                Kind::Number(Form::Unsigned)
            }
            Some(constants::DW_ATE_float) if matches!(n_bytes, 4 | 8) => Kind::Float,
            _ => Kind::Other,
        };
        Type { n_bytes, kind }
    }

    fn pointer(&mut self, entry: &Entry<'d>) -> Kind {
        let mut target = self.units.follow(entry, constants::DW_AT_type);
        for _ in 0..MAX_DEPTH {
            match target {
                Some(ref qualified)
                    if matches!(
                        qualified.tag(),
                        constants::DW_TAG_const_type | constants::DW_TAG_volatile_type | constants::DW_TAG_typedef
                    ) =>
                {
                    target = self.units.follow(qualified, constants::DW_AT_type);
                }
                _ => break,
            }
        }
        let address = Kind::Number(Form::Pointer);
        let Some(target) = target else { return address };
        match target.tag() {
            constants::DW_TAG_base_type if !self.is_rust => match self.base(&target, 1).kind {
                Kind::Number(Form::Char) if target.number(constants::DW_AT_byte_size) == Some(1) => {
                    Kind::Number(Form::String)
                }
                _ => address,
            },
            constants::DW_TAG_structure_type if self.is_rust => {
                self.owned(&target).map_or(address, |(address, length)| Kind::OwnedPointer { address, length })
            }
            _ => address,
        }
    }

    fn enumeration(&mut self, entry: &Entry<'d>, n_bytes: u64) -> Type {
        let mut names = Vec::new();
        for child in self.units.children(entry, constants::DW_TAG_enumerator) {
            let Some(value) = child.number_of_any_sign(constants::DW_AT_const_value) else { continue };
            // As they stand in four bytes of a trace.
            let value = match n_bytes {
                1 => i32::from(value as u8),
                2 => i32::from(value as u16),
                _ => value as i32,
            };
            names.push((self.units.name(&child), value));
        }
        let kind = match n_bytes {
            1 | 2 | 4 if !names.is_empty() => {
                Kind::Named(self.enumerations.number(Enumeration { name: self.units.name(entry), names }))
            }
            1 | 2 | 4 | 8 => Kind::Number(Form::Signed),
            _ => Kind::Other,
        };
        Type { n_bytes, kind }
    }

    /// A structure of Rust.
    fn structure(&mut self, entry: &Entry<'d>, n_bytes: u64, depth: u32) -> Kind {
        let name = self.units.name(entry);
        let members = self.units.children(entry, constants::DW_TAG_member);
        let has = |place: usize, name: &str, offset: u64| {
            members.get(place).is_some_and(|member| {
                self.units.name(member) == name && member.number(constants::DW_AT_data_member_location) == Some(offset)
            })
        };
        if n_bytes == 16 && members.len() == 2 && has(0, "data_ptr", 0) && has(1, "length", 8) {
            return match &*name {
                "&str" | "&mut str" => Kind::Text { is_length_first: false },
                _ if last_part(&name) == "Box" && name.split_once('<').is_some_and(|(_, of)| of.starts_with("str")) => {
                    Kind::Text { is_length_first: false }
                }
                _ if name.starts_with("&[") || name.starts_with("&mut [") => Kind::Slice,
                _ => Kind::Other,
            };
        }
        if let Some((address, length)) = self.owned(entry) {
            return Kind::Owned { address, length };
        }
        if !self.units.children(entry, constants::DW_TAG_variant_part).is_empty() {
            return Kind::Other;
        }
        // One with a single value, all else in it takes no room, is that value.
        let mut inner = members.iter().filter_map(|member| {
            let of_member = self.units.follow(member, constants::DW_AT_type)?;
            Some(self.read(&of_member, depth - 1)).filter(|inner| inner.n_bytes > 0)
        });
        match (inner.next(), inner.next()) {
            (Some(only), None) if only.n_bytes == n_bytes && n_bytes <= 8 => only.kind,
            _ => Kind::Other,
        }
    }

    /// Where a `String` has its address and its length, if this is one.
    fn owned(&self, entry: &Entry<'d>) -> Option<(u8, u8)> {
        const WORD: u64 = 8;

        let is_string =
            self.units.name(entry) == "String" && entry.number(constants::DW_AT_byte_size) == Some(3 * WORD);
        let members = self.units.children(entry, constants::DW_TAG_member);
        let [vec] = &*members else { return None };
        let of_bytes = self.units.follow(vec, constants::DW_AT_type).map(|vec| self.units.name(&vec));
        if !is_string || !of_bytes.is_some_and(|name| name.starts_with("Vec<u8,")) {
            return None;
        }
        let mut leaves = Vec::new();
        self.leaves(entry, 0, MAX_DEPTH, &mut leaves);
        let place = |wanted: &dyn Fn(&(String, u64, bool)) -> bool| {
            let mut found = leaves.iter().filter(|leaf| wanted(leaf)).map(|(_, offset, _)| *offset);
            found
                .next()
                .filter(|offset| found.next().is_none() && offset % WORD == 0)
                .map(|offset| (offset / WORD) as u8)
        };
        Some((place(&|leaf| leaf.2)?, place(&|leaf| leaf.0 == "len" && !leaf.2)?))
    }

    /// A member with a name, of members of members too, and where it is.
    pub(super) fn member(&self, entry: &Entry<'d>, at: u64, name: &str, depth: u32) -> Option<(Entry<'d>, u64)> {
        let bases = self.units.children(entry, constants::DW_TAG_inheritance);
        let members = self.units.children(entry, constants::DW_TAG_member);
        for member in bases.into_iter().chain(members) {
            let place = at + member.number(constants::DW_AT_data_member_location).unwrap_or(0);
            if self.units.name(&member) == name {
                return Some((member, place));
            }
            let inner = self.resolved(&member).filter(|_| depth > 0);
            if let Some(found) = inner.and_then(|inner| self.member(&inner, place, name, depth - 1)) {
                return Some(found);
            }
        }
        None
    }

    /// `std::string` and `std::string_view`, as libstdc++ has them.
    fn text_of_cpp(&self, entry: &Entry<'d>) -> Kind {
        const WORD: u64 = 8;

        let name = self.units.name(entry);
        let place = |name, depth| {
            let (_, at) = self.member(entry, 0, name, depth)?;
            (at % WORD == 0 && at / WORD < 3).then_some((at / WORD) as u8)
        };
        if name.starts_with("basic_string<char,") {
            if let (Some(address), Some(length)) = (place("_M_p", 2), place("_M_string_length", 1))
                && address != length
            {
                return Kind::Owned { address, length };
            }
        } else if name.starts_with("basic_string_view<char,") {
            match (place("_M_str", 1), place("_M_len", 1)) {
                (Some(1), Some(0)) => return Kind::Text { is_length_first: true },
                (Some(0), Some(1)) => return Kind::Text { is_length_first: false },
                _ => {}
            }
        }
        Kind::Other
    }

    /// The members of members: names, offsets, and whether they are pointers.
    fn leaves(&self, entry: &Entry<'d>, offset: u64, depth: u32, leaves: &mut Vec<(String, u64, bool)>) {
        for member in self.units.children(entry, constants::DW_TAG_member) {
            let place = offset + member.number(constants::DW_AT_data_member_location).unwrap_or(0);
            let Some(of_member) = self.units.follow(&member, constants::DW_AT_type) else { continue };
            match of_member.tag() {
                constants::DW_TAG_structure_type if depth > 0 => self.leaves(&of_member, place, depth - 1, leaves),
                tag => leaves.push((self.units.name(&member), place, tag == constants::DW_TAG_pointer_type)),
            }
        }
    }
}

/// A type's name without what it is generic over, and where it is.
pub(super) fn last_part(name: &str) -> &str {
    let plain = name.split(['<', '(']).next().unwrap_or_default();
    plain.rsplit("::").next().unwrap_or_default()
}

impl Entry<'_> {
    /// An attribute that is a number without a sign.
    pub(super) fn number(&self, name: gimli::DwAt) -> Option<u64> {
        self.attribute(name).and_then(|value| value.udata_value())
    }

    /// One that may have a sign, as a word.
    pub(super) fn number_of_any_sign(&self, name: gimli::DwAt) -> Option<u64> {
        let value = self.attribute(name)?;
        match value {
            AttributeValue::Data1(value) => Some(value.into()),
            AttributeValue::Data2(value) => Some(value.into()),
            AttributeValue::Data4(value) => Some(value.into()),
            _ => value.sdata_value().map(i64::cast_unsigned).or_else(|| value.udata_value()),
        }
    }
}
