//! The shape of a value that has fields: the meaning of its bytes, by its type.

use gimli::constants;
use rftrace_format::values::Form;

use super::types::{Kind, Type, Types, last_part};
use crate::debug::units::Entry;

/// How deep fields of fields are shown.
const MAX_DEPTH: u32 = 3;
/// The most fields and variants of one type that are shown.
const MAX_FIELDS: usize = 32;
/// Bytes of a word.
const WORD: u64 = 8;

/// A value, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Nothing of it is shown.
    Unknown,
    /// A value without fields, from its first byte on.
    Leaf(u64, Leaf),
    /// Fields, with names or without.
    Structure { name: String, is_named: bool, fields: Vec<(String, Self)> },
    /// One of several, by a number of so many bytes; `None`: all others.
    Variants { at: u64, n_bytes: u64, variants: Vec<(Option<u64>, Self)> },
}

/// The display of a value without fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaf {
    /// A number, an address of a text that ends with a NUL, or a floating-point number: so many bytes.
    Number(Form, u64),
    /// The same, with names of an enumeration.
    Named(usize, u64),
    /// A truth value.
    Bool(usize),
    /// The address of a text, whose length is in the word behind it, or before.
    Text { is_length_first: bool },
}

impl Shape {
    fn unit(name: &str) -> Self {
        Self::Structure { name: name.to_owned(), is_named: false, fields: Vec::new() }
    }

    /// Calls `each` for the values without fields.
    pub(super) fn for_leaves(&self, each: &mut impl FnMut(u64, Leaf)) {
        match self {
            Self::Unknown => {}
            Self::Leaf(at, leaf) => each(*at, *leaf),
            Self::Structure { fields, .. } => fields.iter().for_each(|(_, field)| field.for_leaves(each)),
            Self::Variants { variants, .. } => variants.iter().for_each(|(_, variant)| variant.for_leaves(each)),
        }
    }

    /// True if anything is shown that depends on the value's bytes.
    pub(super) fn is_known(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Leaf(..) | Self::Variants { .. } => true,
            Self::Structure { fields, .. } => fields.iter().any(|(_, field)| field.is_known()),
        }
    }
}

impl<'d> Types<'_, 'd> {
    /// The shape of a value of the type that an entry refers to, if that type has fields of which any is shown.
    pub(super) fn shape(&mut self, holder: &Entry<'d>) -> Option<Shape> {
        let entry = self.resolved(holder)?;
        let is_other = is_structure(&entry) && self.simple(&entry).kind == Kind::Other;
        let shape = is_other.then(|| self.structure_shape(&entry, 0, MAX_DEPTH));
        shape.filter(Shape::is_known)
    }

    /// The shape of a value whose first byte is `at`, of the type that `holder` refers to.
    fn shape_of(&mut self, holder: &Entry<'d>, at: u64, depth: u32) -> Shape {
        let Some(entry) = self.resolved(holder) else { return Shape::Unknown };
        if self.is_rust && self.units.name(&entry) == "()" {
            return Shape::unit("");
        }
        let Type { n_bytes, kind } = self.simple(&entry);
        let leaf = match kind {
            Kind::Number(form) => Leaf::Number(form, n_bytes),
            Kind::Named(names) => Leaf::Named(names, n_bytes),
            Kind::Bool(names) => Leaf::Bool(names),
            Kind::Float => Leaf::Number(Form::Float, n_bytes),
            Kind::Text { is_length_first } => {
                return Shape::Leaf(at + u64::from(is_length_first) * WORD, Leaf::Text { is_length_first });
            }
            Kind::Slice => return Shape::Leaf(at + WORD, Leaf::Number(Form::Unsigned, WORD)),
            Kind::Owned { address, length } => return text(at, address.into(), length.into()),
            // A text behind two addresses.
            Kind::OwnedPointer { .. } => Leaf::Number(Form::Pointer, WORD),
            Kind::Other if is_structure(&entry) && depth > 0 => {
                return self.structure_shape(&entry, at, depth);
            }
            Kind::Other => return Shape::Unknown,
        };
        Shape::Leaf(at, leaf)
    }

    fn structure_shape(&mut self, entry: &Entry<'d>, at: u64, depth: u32) -> Shape {
        let name = self.units.name(entry);
        let plain = last_part(&name);
        if let Some(part) = self.units.children(entry, constants::DW_TAG_variant_part).first() {
            return self.variants(entry, part, at, depth);
        }
        if !self.is_rust && plain == "optional" {
            return self.optional(entry, at, depth);
        }
        if self.is_rust && plain == "Vec" {
            return self.length(entry, at).unwrap_or(Shape::Unknown);
        }
        // Addresses with what the language has beside them, and internals of libraries.
        let is_internal = name.starts_with(['&', '*']) || ["Box", "Rc", "Arc", "Pin"].contains(&plain);
        if is_internal || name.starts_with("{closure") {
            return Shape::Unknown;
        }
        let mut fields = Vec::new();
        self.fields(entry, at, depth, &mut fields);
        if fields.len() > MAX_FIELDS {
            return Shape::Unknown;
        }
        let is_named = !self.is_rust || !fields.iter().all(|(name, _)| name.starts_with("__"));
        Shape::Structure { name: plain.to_owned(), is_named: is_named && !fields.is_empty(), fields }
    }

    /// The fields of a structure, with those of what it inherits.
    fn fields(&mut self, entry: &Entry<'d>, at: u64, depth: u32, fields: &mut Vec<(String, Shape)>) {
        for base in self.units.children(entry, constants::DW_TAG_inheritance) {
            let place = base.number(constants::DW_AT_data_member_location);
            match (self.resolved(&base), place) {
                (Some(of_base), Some(place)) if depth > 0 && fields.len() <= MAX_FIELDS => {
                    self.fields(&of_base, at + place, depth - 1, fields);
                }
                _ => fields.push((self.units.name(&base), Shape::Unknown)),
            }
        }
        for member in self.units.children(entry, constants::DW_TAG_member) {
            let name = self.units.name(&member);
            let is_of_type = member.attribute(constants::DW_AT_external).is_some();
            let is_compilers = member.attribute(constants::DW_AT_artificial).is_some();
            if fields.len() > MAX_FIELDS || is_of_type || is_compilers || name.starts_with("_vptr") {
                continue;
            }
            let is_of_bits = member.attribute(constants::DW_AT_bit_size).is_some();
            let place = member.number(constants::DW_AT_data_member_location).unwrap_or(0);
            let shape = if is_of_bits || name.starts_with("_M_") {
                Shape::Unknown
            } else {
                self.shape_of(&member, at + place, depth.saturating_sub(1))
            };
            if !matches!(&shape, Shape::Structure { name, .. } if name == "PhantomData") {
                fields.push((name, shape));
            }
        }
    }

    /// An enumeration of Rust whose variants have data.
    fn variants(&mut self, entry: &Entry<'d>, part: &Entry<'d>, at: u64, depth: u32) -> Shape {
        let number = self.units.follow(part, constants::DW_AT_discr);
        let all = self.units.children(part, constants::DW_TAG_variant);
        let of_variant = |this: &mut Self, variant: &Entry<'d>| {
            let members = this.units.children(variant, constants::DW_TAG_member);
            let [member] = &*members else { return Shape::Unknown };
            let place = member.number(constants::DW_AT_data_member_location).unwrap_or(0);
            let name = this.units.name(member);
            let Some(of_member) = this.resolved(member) else { return Shape::unit(&name) };
            let mut fields = Vec::new();
            this.fields(&of_member, at + place, depth, &mut fields);
            let is_named = !fields.iter().all(|(name, _)| name.starts_with("__"));
            Shape::Structure { name, is_named, fields }
        };
        let Some(number) = number else {
            // There is one that can be.
            let [only] = &*all else { return Shape::Unknown };
            return of_variant(self, only);
        };
        let place = number.number(constants::DW_AT_data_member_location).unwrap_or(0);
        let n_bytes = self.resolved(&number).and_then(|entry| entry.number(constants::DW_AT_byte_size)).unwrap_or(0);
        let size = entry.number(constants::DW_AT_byte_size).unwrap_or(0);
        if !matches!(n_bytes, 1 | 2 | 4 | 8) || place + n_bytes > size || all.len() > MAX_FIELDS {
            return Shape::Unknown;
        }
        let mask = u64::MAX >> (64 - 8 * n_bytes);
        let mut variants = Vec::new();
        for variant in &all {
            // A list of numbers is not read.
            if variant.attribute(constants::DW_AT_discr_list).is_some() {
                return Shape::Unknown;
            }
            let value = variant.number_of_any_sign(constants::DW_AT_discr_value).map(|value| value & mask);
            variants.push((value, of_variant(self, variant)));
        }
        Shape::Variants { at: at + place, n_bytes, variants }
    }

    /// `std::optional`.
    fn optional(&mut self, entry: &Entry<'d>, at: u64, depth: u32) -> Shape {
        let is_there = self.member(entry, at, "_M_engaged", MAX_DEPTH + 3);
        let value = self.member(entry, at, "_M_value", MAX_DEPTH + 3);
        let (Some((_, is_there)), Some((value, at))) = (is_there, value) else { return Shape::Unknown };
        let fields = vec![(String::new(), self.shape_of(&value, at, depth.saturating_sub(1)))];
        let some = Shape::Structure { name: "optional".to_owned(), is_named: false, fields };
        Shape::Variants { at: is_there, n_bytes: 1, variants: vec![(Some(0), Shape::unit("nullopt")), (Some(1), some)] }
    }

    /// The number of elements of a `Vec`.
    fn length(&mut self, entry: &Entry<'d>, at: u64) -> Option<Shape> {
        let members = self.units.children(entry, constants::DW_TAG_member);
        let length = members.iter().find(|member| self.units.name(member) == "len")?;
        let place = length.number(constants::DW_AT_data_member_location)?;
        match self.shape_of(length, at + place, 1) {
            leaf @ Shape::Leaf(..) => Some(leaf),
            _ => None,
        }
    }
}

/// A text in a structure that is in memory, by the words of that which are its address and its length.
fn text(at: u64, address: u64, length: u64) -> Shape {
    match () {
        () if length == address + 1 => Shape::Leaf(at + address * WORD, Leaf::Text { is_length_first: false }),
        () if address == length + 1 => Shape::Leaf(at + address * WORD, Leaf::Text { is_length_first: true }),
        () => Shape::Unknown,
    }
}

fn is_structure(entry: &Entry<'_>) -> bool {
    matches!(entry.tag(), constants::DW_TAG_structure_type | constants::DW_TAG_class_type)
}
