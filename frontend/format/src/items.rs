//! The values of a call: as a tracer records them, behind a record of `<tid>.dat`, and as text. The
//! [specs](crate::values) define which values there are.
//!
//! | value | bytes on disk |
//! |---|---|
//! | a number | its bytes, up to a multiple of 4 |
//! | a string | its length in two bytes, its bytes without a NUL, up to a multiple of 4 |
//! | a null pointer to a string | the length 4 and four bytes `ff` |
//! | a value with fields | its [image](crate::composite) |
//!
//! The values of a record are filled up to a multiple of 8 bytes. Their length is not stored: a reader needs the specs.
//!
//! In the tracer's buffer values have the form of `rftrace::abi::value`: items, each with the [code](ValueSpec::code)
//! of its spec.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::composite::{self, Image};
use crate::layout::Layout;
use crate::text::{Shown, is_unseen};
use crate::values::{COMPOSITE, Form, NULL, ValueSpec};

/// The bytes of a null pointer on disk, in place of a string.
const NULL_BYTES: [u8; 4] = [0xff; 4];

/// The text in place of each one that is left out.
pub const OMITTED: &str = "…";

/// A value of a call with its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The spec.
    pub spec: ValueSpec,
    /// Its bytes; `None` for a string that is none.
    bytes: Option<Cow<'a, [u8]>>,
}

/// The names for the numbers in a trace.
pub trait Names {
    /// Returns the name of the function at an address.
    fn function(&self, address: u64) -> Option<String>;
    /// Returns the name of a number of one of the [enumerations](Form::Enumeration).
    fn enumerator(&self, enumeration: u16, number: i32) -> Option<String>;
    /// Returns one of the layouts of [`Form::Composite`].
    fn layout(&self, number: u16) -> Option<&Layout>;
}

/// Decodes the items that a tracer recorded of a call. It drops everything after a malformed item.
pub fn items(mut bytes: &[u8]) -> Vec<Value<'_>> {
    let mut found = Vec::new();
    while let Some((code, rest)) = bytes.split_first_chunk::<2>() {
        let code = u16::from_le_bytes(*code);
        if code & COMPOSITE != 0 {
            let Some((spec, image, rest)) = composite::item(code, rest) else { break };
            found.push(Value { spec, bytes: Some(image.into()) });
            bytes = rest;
            continue;
        }
        let Some(spec) = ValueSpec::of_code(code) else { break };
        let (length, rest) = match (spec.form.is_text(), rest.split_first_chunk::<2>()) {
            (true, Some((length, rest))) => (u16::from_le_bytes(*length), rest),
            (true, None) => break,
            _ => (spec.size() as u16, rest),
        };
        if spec.form.is_text() && length == NULL {
            found.push(Value { spec, bytes: None });
            bytes = rest;
            continue;
        }
        let Some((value, rest)) = rest.split_at_checked(length.into()) else { break };
        found.push(Value { spec, bytes: Some(value.into()) });
        bytes = rest;
    }
    found
}

/// Encodes values for a `.dat` file.
pub fn payload(values: &[Value<'_>]) -> Vec<u8> {
    let mut payload = Vec::new();
    for value in values {
        let bytes = value.bytes.as_deref().unwrap_or(&NULL_BYTES);
        if value.spec.form.is_text() {
            payload.extend((bytes.len() as u16).to_le_bytes());
        }
        payload.extend(bytes);
        let more = value.spec.size_on_disk().saturating_sub(bytes.len());
        let more = if matches!(value.spec.form, Form::Enumeration(_)) { more } else { 0 };
        payload.resize((payload.len() + more).next_multiple_of(4), 0);
    }
    payload.resize(payload.len().next_multiple_of(8), 0);
    payload
}

/// Decodes the values behind a record, by their specs. Returns them with their length in bytes, or `None` if `bytes`
/// ends too early.
pub fn read_payload<'a>(specs: &[ValueSpec], bytes: &'a [u8]) -> Option<(Vec<Value<'a>>, usize)> {
    let mut values = Vec::with_capacity(specs.len());
    let mut place = 0_usize;
    for &spec in specs {
        let mut length = spec.size_on_disk();
        if spec.form.is_text() {
            let (&own, _) = bytes.get(place..)?.split_first_chunk::<2>()?;
            length = u16::from_le_bytes(own).into();
            place += 2;
        }
        let value = bytes.get(place..place + length)?;
        let is_null = spec.form.is_text() && value == NULL_BYTES;
        values.push(Value { spec, bytes: (!is_null).then_some(value.into()) });
        place = (place + length).next_multiple_of(4);
    }
    Some((values, place.next_multiple_of(8)))
}

impl<'a> Value<'a> {
    /// The value with these bytes; none for a null pointer to a text.
    pub(crate) fn of_bytes(spec: ValueSpec, bytes: Option<&'a [u8]>) -> Self {
        Self { spec, bytes: bytes.map(Cow::Borrowed) }
    }

    /// The value in a trace without personal facts: a text is [`OMITTED`], and fields are unknown, as there are texts among them.
    pub fn without_text(self) -> Self {
        let bytes = self.bytes.map(|bytes| match self.spec.form {
            Form::Composite(..) => composite::unknown(bytes.len()).into(),
            form if form.is_text() => OMITTED.as_bytes().into(),
            _ => bytes,
        });
        Self { spec: self.spec, bytes }
    }

    /// Returns the value as text, in uftrace's form, but with control characters escaped and fields shown.
    pub fn text(&self, names: &impl Names) -> String {
        /// The minimum of numbers shown in hexadecimal, for values without a form.
        const LARGE: u64 = 100_000;
        /// The range of small negative numbers of 32 bits.
        const NEGATIVE: core::ops::RangeInclusive<u64> = 0xffff_0001..=0xffff_ffff;

        let Some(bytes) = self.bytes.as_deref() else { return "NULL".to_owned() };
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
        let word = u64::from_le_bytes(word);
        let hex = || if word == 0 { "0".to_owned() } else { format!("{word:#x}") };
        // Of a text, and of what is unknown, there is no number.
        let unused = 64 - 8 * self.spec.size().clamp(1, 8);
        let signed = (word << unused).cast_signed() >> unused;
        match self.spec.form {
            Form::Auto if NEGATIVE.contains(&word) => (word as u32).cast_signed().to_string(),
            Form::Auto if word.cast_signed().unsigned_abs() > LARGE => hex(),
            Form::Auto | Form::Signed => signed.to_string(),
            Form::Unsigned if word > LARGE => hex(),
            Form::Unsigned => word.to_string(),
            Form::Hex => hex(),
            Form::Pointer => names.function(word).map_or_else(hex, |name| format!("&{name}")),
            Form::Unknown => "?".to_owned(),
            Form::Enumeration(which) => {
                let number = (word as u32).cast_signed();
                names.enumerator(which, number).unwrap_or_else(|| number.to_string())
            }
            Form::Char if self.spec.size() == 4 => match char::from_u32(word as u32) {
                Some(letter) if letter.is_ascii() => format!("'{}'", escaped(&[letter as u8])),
                Some(letter) if !is_unseen(letter) => format!("'{letter}'"),
                _ => hex(),
            },
            Form::Char => {
                let letter = word as u8;
                let text = if letter.is_ascii() { escaped(&[letter]) } else { format!("\\x{letter:02x}").into() };
                format!("'{text}'")
            }
            Form::Composite(_, layout) => {
                let layout = names.layout(layout);
                layout.map_or_else(|| "?".to_owned(), |layout| text_of(layout, &Image::new(bytes), names))
            }
            form if form.is_text() => format!("\"{}\"", escaped(bytes)),
            Form::Float if self.spec.size() == 4 => format!("{:.6}", f32::from_bits(word as u32)),
            _ => format!("{:.6}", f64::from_bits(word)),
        }
    }
}

/// Returns the value with these bytes as text.
fn text_of(layout: &Layout, image: &Image<'_>, names: &impl Names) -> String {
    match layout {
        Layout::Unknown => "?".to_owned(),
        Layout::Leaf(spec, at) => match image.value(*spec, *at) {
            Some(bytes) => Value::of_bytes(*spec, bytes).text(names),
            None => "?".to_owned(),
        },
        Layout::Structure { name, fields, .. } if fields.is_empty() => {
            if name.is_empty() {
                "()".to_owned()
            } else {
                name.clone()
            }
        }
        Layout::Structure { name, is_named: true, fields } => {
            let fields: Vec<String> =
                fields.iter().map(|(name, field)| name.clone() + ": " + &text_of(field, image, names)).collect();
            let gap = if name.is_empty() { "" } else { " " };
            name.clone() + gap + "{ " + &fields.join(", ") + " }"
        }
        Layout::Structure { name, fields, .. } => {
            let fields: Vec<String> = fields.iter().map(|(_, field)| text_of(field, image, names)).collect();
            name.clone() + "(" + &fields.join(", ") + ")"
        }
        Layout::Variants { at: (at, size_log), variants } => {
            let Some(number) = image.number(*at, *size_log) else { return "?".to_owned() };
            let is_it = |(own, _): &&(Option<u64>, Layout)| *own == Some(number);
            let other = || variants.iter().find(|(own, _)| own.is_none());
            let variant = variants.iter().find(is_it).or_else(other);
            variant.map_or_else(|| "?".to_owned(), |(_, variant)| text_of(variant, image, names))
        }
    }
}

/// Bytes as text, as it may be shown.
fn escaped(bytes: &[u8]) -> Cow<'static, str> {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&Shown::new(chunk.valid()).text());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    use crate::composite::{Block, Composite};
    use crate::values::Place;

    /// Names of addresses only.
    struct NoNames;

    impl Names for NoNames {
        fn function(&self, address: u64) -> Option<String> {
            (address == 16).then(|| "at_16".to_owned())
        }

        fn enumerator(&self, _: u16, _: i32) -> Option<String> {
            None
        }

        fn layout(&self, _: u16) -> Option<&Layout> {
            None
        }
    }

    fn specs(text: &str) -> Vec<ValueSpec> {
        ValueSpec::parse_list(text).unwrap()
    }

    /// A number as text.
    fn shown(spec: &str, number: i64) -> String {
        let spec = specs(spec)[0];
        let bytes = number.to_le_bytes();
        Value::of_bytes(spec, Some(&bytes[..spec.size()])).text(&NoNames)
    }

    #[test]
    fn numbers_are_shown_as_by_uftrace() {
        // Each line was seen in `uftrace replay` 0.13 of a C program.
        for (spec, number, expected) in [
            ("arg1", 5, "5"),
            ("arg1", -5, "-5"),
            ("arg1", 100_000, "100000"),
            ("arg1", 100_001, "0x186a1"),
            ("arg1", -100_000, "-100000"),
            ("arg1", -100_001, "0xfffffffffffe795f"),
            ("arg1", 0xffff_0001, "-65535"),
            ("arg1", i64::MAX, "0x7fffffffffffffff"),
            ("arg1/i8", 100_000, "-96"),
            ("arg1/i16", 100_001, "-31071"),
            ("arg1/i32", 100_001, "100001"),
            ("arg1/i32", 0xffff_0001, "-65535"),
            ("arg1/i64", 0xffff_0001, "4294901761"),
            ("arg1/u", -5, "0xfffffffffffffffb"),
            ("arg1/u8", -5, "251"),
            ("arg1/u32", 100_000, "100000"),
            ("arg1/u32", -1, "0xffffffff"),
            ("arg1/x", 5, "0x5"),
            ("arg1/x16", -5, "0xfffb"),
            ("arg1/x32", 0, "0"),
            ("arg1/c", 65, "'A'"),
            ("arg1/c", 0, "'\\0'"),
            ("arg1/p", 0x186a0, "0x186a0"),
            ("arg1/p", 0, "0"),
            ("fparg1/64", 1.5_f64.to_bits().cast_signed(), "1.500000"),
            ("fparg2", (-2.0_f64).to_bits().cast_signed(), "-2.000000"),
            ("fparg1/32", 0.25_f32.to_bits().into(), "0.250000"),
        ] {
            assert_eq!(shown(spec, number), expected, "{spec} of {number}");
        }
        assert_eq!(shown("arg1/p", 16), "&at_16");
    }

    #[test]
    fn texts_are_left_out() {
        let fields = Composite { place: Place::Argument(4), block: Block::Pointed(1), parts: Vec::new() };
        let specs = [specs("arg1/i32,arg2/s,arg3/s"), vec![fields.spec()]].concat();
        let bytes = b"\x05\0\0\0\x06\0secret\x04\0\xff\xff\xff\xff\0\0\x08\0\x08\0secret!!";
        let (values, _) = read_payload(&specs, bytes).unwrap();
        let values: Vec<Value<'_>> = values.into_iter().map(Value::without_text).collect();
        let texts: Vec<String> = values.iter().map(|value| value.text(&NoNames)).collect();
        assert_eq!(texts, ["5", "\"…\"", "NULL", "?"]);
        let changed = payload(&values);
        assert!(!changed.windows(6).any(|part| part == b"secret"));
        assert_eq!(read_payload(&specs, &changed), Some((values, changed.len())));
    }

    #[test]
    fn items_become_what_uftrace_writes() {
        let mut bytes = Vec::new();
        for (spec, value) in [
            ("arg1/i32", &b"\xfe\xff\xff\xff"[..]),
            ("arg2/s", b"\x05\0hello"),
            ("arg3/s", b"\xff\xff"),
            ("arg4", b"\x01\0\0\0\0\0\0\0"),
        ] {
            bytes.extend(specs(spec)[0].code().to_le_bytes());
            bytes.extend(value);
        }
        bytes.extend([0; 5]);
        let values = items(&bytes);
        let expected = b"\xfe\xff\xff\xff\x05\0hello\0\x04\0\xff\xff\xff\xff\0\0\x01\0\0\0\0\0\0\0\0\0\0\0";
        let payload = payload(&values);
        assert_eq!(payload, expected);
        let specs: Vec<ValueSpec> = values.iter().map(|value| value.spec).collect();
        assert_eq!(read_payload(&specs, &payload), Some((values.clone(), payload.len())));
        let texts: Vec<String> = values.iter().map(|value| value.text(&NoNames)).collect();
        assert_eq!(texts, ["-2", "\"hello\"", "NULL", "1"]);
        assert_eq!(read_payload(&specs, &payload[..20]), None);
        // Flaws end it.
        for cut in 0..bytes.len() - 5 {
            assert!(items(&bytes[..cut]).len() < 4);
        }
    }

    #[test]
    fn strings_have_no_control_characters() {
        let text = |bytes: &[u8]| escaped(bytes).into_owned();
        assert_eq!(text(b"tab\there\n\x1b[m"), "tab\\there\\n\\u{1b}[m");
        assert_eq!(text("grüße".as_bytes()), "grüße");
        assert_eq!(text(b"\xff\xfe\0"), "\\xff\\xfe\\0");
    }

    /// One enumeration with one name, and a layout.
    struct Known(Layout);

    impl Names for Known {
        fn function(&self, _: u64) -> Option<String> {
            None
        }

        fn enumerator(&self, enumeration: u16, number: i32) -> Option<String> {
            (enumeration == 3 && number == 1).then(|| "true".to_owned())
        }

        fn layout(&self, _: u16) -> Option<&Layout> {
            Some(&self.0)
        }
    }

    fn layout(text: &str) -> Option<Layout> {
        Layout::parse(text, &mut |name| if name == "bool" { 3 } else { 4 })
    }

    /// A value as text, recorded as a block of `n_read` bytes of the 16, and a text.
    fn shown_fields(block: &[u8], text: &str, layout: &str) -> String {
        let spec = |place, form| ValueSpec::new(place, form, 8);
        let parts = vec![spec(Place::InBlock(1), Form::Counted)];
        let composite = Composite { place: Place::Argument(2), block: Block::Pointed(2), parts };
        let codes = composite.codes();
        let mut bytes = codes[0].to_le_bytes().to_vec();
        bytes.extend((block.len() as u16).to_le_bytes());
        bytes.extend(block);
        bytes.extend(codes[1].to_le_bytes());
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        let values = items(&bytes);
        assert_eq!(values[0].spec, composite.spec());
        for cut in 0..bytes.len() {
            assert!(items(&bytes[..cut]).is_empty());
        }
        assert_eq!((Composite::in_block(8), composite.part(0)), (12, 20));
        values[0].text(&Known(self::layout(layout).expect("a layout")))
    }

    #[test]
    fn bytes_are_shown_by_their_layout() {
        let block = [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
        let show = |layout| shown_fields(&block, "te\"xt", layout);
        assert_eq!(show("{Point|x=i32@4,y=i32@8}"), "Point { x: 1, y: -1 }");
        assert_eq!(show("{|x=e8:bool@4,y=?}"), "{ x: true, y: ? }");
        assert_eq!(show("(|i32@4,(Unit|),(|))"), "(1, Unit, ())");
        assert_eq!(show("[32@4|0=(None|),1=(Some|s@20)]"), "Some(\"te\"xt\")");
        assert_eq!(show("[32@8|0=(None|),*=(Some|i8@4)]"), "Some(1)");
        assert_eq!(show("[32@8|0=(None|)]"), "?", "a number that no variant has");
        assert_eq!(show("i64@200"), "?");
        assert_eq!(show("s@64000"), "?");
        assert_eq!(show("u64@0"), "?", "before the block");
        // Of a block that was not read to its end the first bytes are known, and no text.
        assert_eq!(shown_fields(&block[..8], "x", "(|i32@8,i32@12,s@20)"), "(-1, ?, ?)");
        assert_eq!(shown_fields(&[], "x", "[32@4|*=i32@4]"), "?");
    }
}
