//! Specs: the recorded arguments and results of functions, in uftrace's spelling: `arg1/i32,arg2/s`.
//!
//! `<module>.dbg` holds them by the function's address (`A: @arg1/i32`, `R: @retval`). For uftrace a value with fields
//! is a structure with the size of its [image](crate::composite): `arg1/t16:NAME`.
//!
//! Not here: the values themselves (`items`).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// The maximum number of bytes of values behind a record.
pub const MAX_PAYLOAD: usize = 1024;

/// The length of a null pointer among items.
pub(crate) const NULL: u16 = u16::MAX;
/// The maximum number of bytes of a string: the tracer cuts it there.
pub(crate) const STRING_BYTES: usize = 98;
/// Codes: the bit of a [value with fields](crate::composite).
pub(crate) const COMPOSITE: u16 = 1 << 15;

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The argument with this number, from 1, among integers and pointers.
    Argument(u8),
    /// The argument with this number, from 1, among floating-point numbers.
    FloatArgument(u8),
    /// The result, from 0 by its registers: rax and rdx for integers, xmm0 and xmm1 for floating-point numbers; on
    /// aarch64 x0 and x1, and v0 to v3.
    Result(u8),
    /// The word with this number, from 0, in the block of the [value](crate::composite) that has this part.
    InBlock(u8),
}

/// The form in which a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Small numbers in decimal, others in hexadecimal.
    Auto,
    /// In decimal.
    Signed,
    /// Unsigned; large numbers in hexadecimal.
    Unsigned,
    /// In hexadecimal.
    Hex,
    /// A character.
    Char,
    /// The bytes at the pointer, up to a NUL.
    String,
    /// The name of the function at the pointer, or the address.
    Pointer,
    /// A floating-point number.
    Float,
    /// The bytes at the pointer; the next argument, or the second word of a result, is their number. Shown and written
    /// as [`Form::String`].
    Counted,
    /// The same, with the number of bytes in the word before.
    CountedBefore,
    /// The bytes of a structure of three words at the pointer. Two of the words are an address and a length, see
    /// [`Form::owned`]. Shown and written as [`Form::String`].
    Owned(u8),
    /// An unknown value, which is not recorded.
    Unknown,
    /// A name of the enumeration with this number in a list of the reader's; [`Form::NO_NAMES`] if the names are
    /// unknown. On disk it takes eight bytes, and the lower four are the number.
    Enumeration(u16),
    /// A [value with fields](crate::composite): the number of bytes, and the number of the layout in a list of the
    /// reader's; [`Form::NO_NAMES`] if the layout is unknown.
    Composite(u16, u16),
}

impl Form {
    /// The number of an enumeration without known names, and of an unknown layout.
    pub const NO_NAMES: u16 = u16::MAX;
    /// The bit of a code that tells an [enumeration](Form::Enumeration) from other numbers, and one order of texts from the other.
    const ENUMERATION: u16 = 1 << 6;
    /// The first of the six codes of [`Form::Owned`].
    const OWNED: u16 = 10;

    /// Returns the form of an [owned](Form::Owned) string, by the words of its structure with the address and the
    /// length.
    #[must_use]
    pub fn owned(address: u8, length: u8) -> Option<Self> {
        (address < 3 && length < 3 && address != length).then(|| Self::Owned(2 * address + (length + 2 - address) % 3))
    }

    fn code(self) -> u16 {
        match self {
            Self::Auto => 0,
            Self::Signed => 1,
            Self::Unsigned => 2,
            Self::Enumeration(_) => Self::ENUMERATION | 2,
            Self::Hex => 3,
            Self::Char => 4,
            Self::String => 5,
            Self::Pointer => 6,
            Self::Float => 7,
            Self::Counted => 8,
            Self::CountedBefore => Self::ENUMERATION | 8,
            // It has several.
            Self::Unknown | Self::Composite(..) => 9,
            Self::Owned(which) => Self::OWNED + u16::from(which),
        }
    }

    fn of_code(code: u16) -> Self {
        if code & Self::ENUMERATION != 0 {
            if code & 15 == 8 {
                return Self::CountedBefore;
            }
            return Self::Enumeration(Self::NO_NAMES);
        }
        match code & 15 {
            0 => Self::Auto,
            1 => Self::Signed,
            2 => Self::Unsigned,
            3 => Self::Hex,
            4 => Self::Char,
            5 => Self::String,
            6 => Self::Pointer,
            7 => Self::Float,
            8 => Self::Counted,
            9 => Self::Unknown,
            form => Self::Owned((form - Self::OWNED) as u8),
        }
    }

    /// True if a byte count precedes its bytes where they are written.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::String | Self::Counted | Self::CountedBefore | Self::Owned(_))
    }
}

/// A recorded value: its place and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueSpec {
    /// The place.
    pub place: Place,
    /// The form.
    pub form: Form,
    /// Its size: so many doublings of a byte.
    size_log: u8,
}

impl ValueSpec {
    /// The maximum number of arguments of a function, of each kind.
    const MAX_NUMBER: u8 = 63;
    /// The number of floating-point arguments in registers.
    const MAX_FLOAT_NUMBER: u8 = 8;
    /// The form of an unknown value: uftrace shows `?{}`.
    const UNKNOWN: &str = "t0:?";

    /// Creates the spec of a value of `size` bytes: 1, 2, 4 or 8.
    ///
    /// # Panics
    ///
    /// With another size.
    #[must_use]
    pub const fn new(place: Place, form: Form, size: u64) -> Self {
        assert!(size.is_power_of_two() && size <= 8);
        Self { place, form, size_log: size.trailing_zeros() as u8 }
    }

    /// Returns the same spec with the names of an [enumeration](Form::Enumeration).
    #[must_use]
    pub fn with_names(self, enumeration: u16) -> Self {
        Self { form: Form::Enumeration(enumeration), ..self }
    }

    /// The image of a value with fields.
    pub(crate) fn of_image(place: Place, n_bytes: u16) -> Self {
        Self { place, form: Form::Composite(n_bytes, Form::NO_NAMES), size_log: 0 }
    }

    /// Parses a spec from a `.dbg` file. `enumeration` and `layout` return numbers for names.
    ///
    /// # Errors
    ///
    /// The errors of [`ValueSpec::parse`].
    pub fn parse_recorded(
        text: &str,
        enumeration: impl FnOnce(&str) -> u16,
        layout: impl FnOnce(&str) -> u16,
    ) -> Result<Self, String> {
        // Where it was is of no interest.
        let text = text.split_once('%').map_or(text, |(text, _)| text);
        if let Some((place, name)) = text.split_once("/e:") {
            return Ok(Self::parse(place)?.with_names(enumeration(name)));
        }
        let structure = text.split_once("/t").and_then(|(place, rest)| Some((place, rest.split_once(':')?)));
        if let Some((place, (n_bytes, name))) = structure
            && let Some(n_bytes @ 1..) = n_bytes.parse().ok().filter(|&n_bytes| usize::from(n_bytes) < MAX_PAYLOAD)
        {
            return Ok(Self { form: Form::Composite(n_bytes, layout(name)), size_log: 0, ..Self::parse(place)? });
        }
        Self::parse(text)
    }

    /// Parses a spec in uftrace's spelling.
    ///
    /// # Errors
    ///
    /// The fault in the spec.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (place, form) = text.split_once('/').map_or((text, None), |(place, form)| (place, Some(form)));
        if text.contains('%') {
            return Err(format!(
                "`{text}`: rftrace does not record registers and stack slots (`%`); write arg1, fparg1 or retval"
            ));
        }
        let number = |digits: &str| digits.parse().ok().filter(|number| (1..=Self::MAX_NUMBER).contains(number));
        let place = if place == "retval" {
            Some(Place::Result(0))
        } else if let Some(digits) = place.strip_prefix("fparg") {
            number(digits).filter(|&number| number <= Self::MAX_FLOAT_NUMBER).map(Place::FloatArgument)
        } else {
            place.strip_prefix("arg").and_then(number).map(Place::Argument)
        };
        if form == Some(Self::UNKNOWN)
            && let Some(place) = place
        {
            return Ok(Self { place, form: Form::Unknown, size_log: 0 });
        }
        let place = place
            .ok_or_else(|| format!("`{text}`: no such value; write arg1 and so on, fparg1 to fparg8, or retval"))?;
        let bad_form = || {
            format!(
                "`{text}`: no such format; after `/` write d, i, u or x with 8, 16, 32 or 64, f with 32 or 64, s, c or p"
            )
        };
        let (letter, digits) = match form {
            Some(form) => {
                let (letter, digits) = form.split_at_checked(1).ok_or_else(bad_form)?;
                (letter, digits)
            }
            None if matches!(place, Place::FloatArgument(_)) => ("f", ""),
            None => ("d", ""),
        };
        let bits = if digits.is_empty() { None } else { Some(digits.parse::<u8>().map_err(|_| bad_form())?) };
        // `fparg1/32`.
        let (letter, bits) = match (form, place) {
            (Some(form), Place::FloatArgument(_)) if form.starts_with(|first: char| first.is_ascii_digit()) => {
                ("f", Some(form.parse().map_err(|_| bad_form())?))
            }
            _ => (letter, bits),
        };
        let form = match letter {
            "d" => Form::Auto,
            "i" => Form::Signed,
            "u" => Form::Unsigned,
            "x" => Form::Hex,
            "c" => Form::Char,
            "s" => Form::String,
            "p" => Form::Pointer,
            "f" => Form::Float,
            _ => return Err(bad_form()),
        };
        let size_log = match (form, bits) {
            (Form::Char, None) => 0,
            // A character of Rust.
            (Form::Char, Some(32)) => 2,
            (Form::Auto | Form::Signed | Form::Unsigned | Form::Hex, Some(8)) => 0,
            (Form::Auto | Form::Signed | Form::Unsigned | Form::Hex, Some(16)) => 1,
            (Form::Auto | Form::Signed | Form::Unsigned | Form::Hex | Form::Float, Some(32)) => 2,
            (Form::Auto | Form::Signed | Form::Unsigned | Form::Hex | Form::Float, Some(64)) => 3,
            (_, None) => 3,
            _ => return Err(bad_form()),
        };
        // uftrace takes `arg1/f32` for `fparg1/32`.
        let place = match (place, form) {
            (Place::Argument(number), Form::Float) if number <= Self::MAX_FLOAT_NUMBER => Place::FloatArgument(number),
            (Place::FloatArgument(_), form) if form != Form::Float => return Err(bad_form()),
            (place, _) => place,
        };
        Ok(Self { place, form, size_log })
    }

    /// Parses a list of specs, such as `arg1/i32,arg2/s`.
    ///
    /// # Errors
    ///
    /// The errors of [`ValueSpec::parse`]; or a call would have more values than fit behind a record.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let specs = text.split(',').map(|spec| Self::parse(spec.trim())).collect::<Result<Vec<_>, _>>()?;
        if !fit(&specs) {
            return Err(format!("`{text}`: too many values for a call; write at most nine strings or eighty numbers"));
        }
        Ok(specs)
    }

    /// Returns the code of this value among the items of a tracer.
    pub fn code(self) -> u16 {
        let (place, number) = match self.place {
            Place::Argument(number) => (0, number),
            Place::FloatArgument(number) => (1, number),
            Place::Result(number) => (2, number),
            Place::InBlock(number) => (3, number),
        };
        place | u16::from(number) << 2 | (self.form.code() << 8) | u16::from(self.size_log) << 12
    }

    /// Returns the spec with this code, if any has it.
    pub(crate) fn of_code(code: u16) -> Option<Self> {
        let number = (code >> 2 & 0x3f) as u8;
        let place = match (code & 3, number) {
            (0, 1..) => Place::Argument(number),
            (1, 1..) => Place::FloatArgument(number),
            (2, _) => Place::Result(number),
            (3, _) => Place::InBlock(number),
            _ => return None,
        };
        let form = Form::of_code(code >> 8);
        Some(Self { place, form, size_log: (code >> 12 & 3) as u8 })
    }

    /// Bytes of the value, if that is no string.
    pub(crate) fn size(self) -> usize {
        match self.form {
            Form::Unknown => 0,
            Form::Composite(n_bytes, _) => n_bytes.into(),
            _ => 1 << self.size_log,
        }
    }

    /// Bytes of such a value on disk.
    pub(crate) fn size_on_disk(self) -> usize {
        if matches!(self.form, Form::Enumeration(_)) { 8 } else { self.size() }
    }
}

impl fmt::Display for ValueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Argument(number) => write!(f, "arg{number}")?,
            Place::FloatArgument(number) if self.form == Form::Unknown => write!(f, "fparg{number}")?,
            Place::FloatArgument(number) => return write!(f, "fparg{number}/{}", 8 * self.size()),
            Place::Result(_) | Place::InBlock(_) => write!(f, "retval")?,
        }
        let letter = match self.form {
            Form::Auto => 'd',
            Form::Signed => 'i',
            Form::Unsigned => 'u',
            Form::Enumeration(_) => return write!(f, "/d64"),
            Form::Hex => 'x',
            Form::Char if self.size_log == 2 => return write!(f, "/c32"),
            Form::Char => return write!(f, "/c"),
            form if form.is_text() => return write!(f, "/s"),
            Form::Composite(n_bytes, _) => return write!(f, "/t{n_bytes}:?"),
            Form::Unknown => return write!(f, "/{}", Self::UNKNOWN),
            Form::Pointer => return write!(f, "/p"),
            _ => 'f',
        };
        write!(f, "/{letter}{}", 8 * self.size())
    }
}

/// Returns true if these values fit behind a call.
pub fn fit(specs: &[ValueSpec]) -> bool {
    /// Bytes for the codes of a value with fields among items, and for rounding up its size.
    const COMPOSITE_CODES: usize = 24;

    let bytes = |spec: &ValueSpec| match spec.form {
        Form::Unknown => 2,
        Form::Composite(n_bytes, _) => usize::from(n_bytes) + COMPOSITE_CODES,
        form if form.is_text() => 6 + STRING_BYTES,
        _ => 8 + 4,
    };
    specs.iter().map(bytes).sum::<usize>() <= MAX_PAYLOAD
}

/// Returns the text of specs in a `.dbg` file and in filters.
pub fn list(specs: &[ValueSpec]) -> String {
    let specs: Vec<String> = specs.iter().map(ToString::to_string).collect();
    format!("@{}", specs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(text: &str) -> Vec<ValueSpec> {
        ValueSpec::parse_list(text).unwrap()
    }

    #[test]
    fn specs_in_text_and_as_codes() {
        let text = "arg1/d64,arg2/i8,arg3/u16,arg4/x32,arg5/c,arg6/s,arg7/p,fparg1/64,fparg8/32,retval/f32";
        let all = specs(text);
        assert_eq!(list(&all), format!("@{text}"));
        for spec in all {
            assert_eq!(ValueSpec::of_code(spec.code()), Some(spec));
        }
        assert_eq!(specs("arg1,arg2/d,retval"), specs("arg1/d64,arg2/d64,retval/d64"));
        assert_eq!(specs("arg2/f32"), specs("fparg2/32"));
        for bad in
            ["", "arg", "arg0", "arg64", "arg1/", "arg1/i7", "arg1/z", "arg1/s8", "arg1/f16", "fparg9", "fparg1/s"]
        {
            assert!(ValueSpec::parse(bad).is_err(), "{bad}");
        }
        // Forms unknown in C.
        for form in
            [Form::Counted, Form::CountedBefore, Form::Unknown, Form::owned(0, 1).unwrap(), Form::owned(2, 1).unwrap()]
        {
            let spec = ValueSpec::new(Place::Argument(9), form, 1);
            assert_eq!(ValueSpec::of_code(spec.code()), Some(spec));
            assert!(ValueSpec::parse(&spec.to_string()).is_ok(), "{spec}");
        }
        let all: Vec<Form> = (0..9).filter_map(|pair| Form::owned(pair / 3, pair % 3)).collect();
        assert_eq!(all, [0, 1, 3, 2, 4, 5].map(Form::Owned));
        assert!(ValueSpec::parse("arg1%rdi").unwrap_err().contains('%'));
        assert!(ValueSpec::parse_list(&["arg1/s"; 10].join(",")).is_err());
        assert_eq!(ValueSpec::of_code(0), None, "what fills up the last record");
    }
}
