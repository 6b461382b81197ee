//! The layout of a value with fields: the form and place of each field among its bytes. A line `# layout NAME TEXT` in
//! `<module>.dbg` holds it. uftrace sees a comment, and a structure with this name and size.
//!
//! | text | value |
//! |---|---|
//! | `i32@4`, `s@8` | a form as in the specs of [values](crate::values), and its offset |
//! | `e8:NAME@4` | a name of an enumeration, for a number of so many bits |
//! | `{Point\|x=i32@4,y=i32@8}` | named fields |
//! | `(Some\|i32@8)` | unnamed fields |
//! | `[32@4\|0=(None\|),*=(Some\|i32@8)]` | variants, by a number of so many bits, in hexadecimal; `*` for all others |
//! | `?` | unknown |
//!
//! Not here: the recording of these bytes (`composite`), and values as text (`items`).

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::values::{Form, Place, ValueSpec};

/// The separators of a text's parts.
const MARKS: [char; 11] = ['{', '}', '(', ')', '[', ']', '|', ',', '=', '@', '*'];
/// The maximum depth of a layout.
const MAX_DEPTH: u32 = 8;
/// The maximum number of its parts.
const MAX_PARTS: usize = 256;

/// The meaning of a value's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The meaning is unknown.
    Unknown,
    /// A value without fields: its spec, and its offset in the image.
    Leaf(ValueSpec, u16),
    /// A structure with named or unnamed fields.
    Structure {
        /// The name of the type or variant; may be empty.
        name: String,
        /// True if the fields have names.
        is_named: bool,
        /// The fields with their names.
        fields: Vec<(String, Self)>,
    },
    /// One of several variants, chosen by a number.
    Variants {
        /// The offset of the deciding number in the image, and its size as a number of doublings of a byte.
        at: (u16, u8),
        /// The variants with their numbers; `None` stands for all other numbers.
        variants: Vec<(Option<u64>, Self)>,
    },
}

impl Layout {
    /// Creates the layout of a value without fields, of `size` bytes: 1, 2, 4 or 8.
    pub fn leaf(form: Form, size: u64, at: u16) -> Self {
        Self::Leaf(ValueSpec::new(Place::Argument(1), form, size), at)
    }

    /// Returns true if any part has a known meaning.
    pub fn is_known(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Leaf(..) | Self::Variants { .. } => true,
            Self::Structure { fields, .. } => fields.iter().any(|(_, field)| field.is_known()),
        }
    }

    /// Returns the text for a file. `enumeration` names enumerations by number.
    pub fn to_text(&self, enumeration: &mut impl FnMut(u16) -> String) -> String {
        let mut text = String::new();
        self.write(&mut text, enumeration);
        text
    }

    fn write(&self, text: &mut String, enumeration: &mut impl FnMut(u16) -> String) {
        // Writing to a string cannot fail.
        match self {
            Self::Unknown => text.push('?'),
            Self::Leaf(spec, at) => {
                let _ = match spec.form {
                    Form::Enumeration(which) => {
                        write!(text, "e{}:{}@{at}", 8 * spec.size(), plain(&enumeration(which)))
                    }
                    _ => {
                        let spec = spec.to_string();
                        write!(text, "{}@{at}", spec.split_once('/').map_or("", |(_, form)| form))
                    }
                };
            }
            Self::Structure { name, is_named, fields } => {
                text.push(if *is_named { '{' } else { '(' });
                text.push_str(&plain(name));
                text.push('|');
                for (idx, (name, field)) in fields.iter().enumerate() {
                    text.push_str(if idx > 0 { "," } else { "" });
                    if *is_named {
                        text.push_str(&plain(name));
                        text.push('=');
                    }
                    field.write(text, enumeration);
                }
                text.push(if *is_named { '}' } else { ')' });
            }
            Self::Variants { at: (at, size_log), variants } => {
                let _ = write!(text, "[{}@{at}|", 8_u32 << size_log);
                for (idx, (number, variant)) in variants.iter().enumerate() {
                    text.push_str(if idx > 0 { "," } else { "" });
                    let _ = match number {
                        Some(number) => write!(text, "{number:x}="),
                        None => write!(text, "*="),
                    };
                    variant.write(text, enumeration);
                }
                text.push(']');
            }
        }
    }

    /// Parses such a text; `None` if it is malformed. `enumeration` numbers enumerations by name.
    pub fn parse(text: &str, enumeration: &mut impl FnMut(&str) -> u16) -> Option<Self> {
        let mut parser = Parser { rest: text, n_parts: 0, enumeration };
        let layout = parser.layout(MAX_DEPTH)?;
        parser.rest.is_empty().then_some(layout)
    }
}

/// A name as it stands in a text.
fn plain(name: &str) -> String {
    name.chars().map(|c| if MARKS.contains(&c) || c.is_control() { '_' } else { c }).collect()
}

struct Parser<'t, 'e, E> {
    rest: &'t str,
    n_parts: usize,
    enumeration: &'e mut E,
}

impl<'t, E: FnMut(&str) -> u16> Parser<'t, '_, E> {
    fn layout(&mut self, depth: u32) -> Option<Layout> {
        self.n_parts += 1;
        if depth == 0 || self.n_parts > MAX_PARTS {
            return None;
        }
        let first = self.rest.chars().next()?;
        match first {
            '?' => self.take("?").map(|()| Layout::Unknown),
            '{' | '(' => {
                self.rest = &self.rest[1..];
                let (is_named, end) = (first == '{', if first == '{' { "}" } else { ")" });
                let name = self.word().to_owned();
                self.take("|")?;
                let fields = self.list(end, |this| {
                    let name = if is_named { this.word().to_owned() } else { String::new() };
                    if is_named {
                        this.take("=")?;
                    }
                    Some((name, this.layout(depth - 1)?))
                })?;
                Some(Layout::Structure { name, is_named, fields })
            }
            '[' => {
                self.rest = &self.rest[1..];
                let size_log = size_log(self.word())?;
                let at = self.place()?;
                self.take("|")?;
                let variants = self.list("]", |this| {
                    let number = match this.take("*") {
                        Some(()) => None,
                        None => Some(u64::from_str_radix(this.word(), 16).ok()?),
                    };
                    this.take("=")?;
                    Some((number, this.layout(depth - 1)?))
                })?;
                Some(Layout::Variants { at: (at, size_log), variants })
            }
            _ => {
                let form = self.word();
                let spec = match form.strip_prefix('e').and_then(|form| form.split_once(':')) {
                    Some((bits, name)) => {
                        let size = 1 << size_log(bits)?;
                        let spec = ValueSpec::new(Place::Argument(1), Form::Enumeration(Form::NO_NAMES), size);
                        spec.with_names((self.enumeration)(name))
                    }
                    None => {
                        let mut spec = ValueSpec::parse(&("arg1/".to_owned() + form)).ok()?;
                        spec.place = Place::Argument(1);
                        spec
                    }
                };
                Some(Layout::Leaf(spec, self.place()?))
            }
        }
    }

    /// `@` and a place.
    fn place(&mut self) -> Option<u16> {
        self.take("@")?;
        self.word().parse().ok()
    }

    /// Items up to `end`, separated by commas.
    fn list<T>(&mut self, end: &str, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        if self.take(end).is_some() {
            return Some(all);
        }
        loop {
            all.push(each(self)?);
            if self.take(end).is_some() {
                return Some(all);
            }
            self.take(",")?;
        }
    }

    fn take(&mut self, mark: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(mark)?;
        Some(())
    }

    /// The text up to the next mark.
    fn word(&mut self) -> &'t str {
        let end = self.rest.find(MARKS).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }
}

/// The size with so many bits, as doublings of a byte.
fn size_log(bits: &str) -> Option<u8> {
    ["8", "16", "32", "64"].iter().position(|own| *own == bits).map(|size| size as u8)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn parse(text: &str) -> Option<Layout> {
        Layout::parse(text, &mut |name| if name == "bool" { 3 } else { 4 })
    }

    #[test]
    fn texts_both_ways() {
        for text in [
            "?",
            "i32@4",
            "c@5",
            "c32@8",
            "f32@4",
            "f64@4",
            "p@4",
            "s@12",
            "e8:bool@4",
            "(|)",
            "{Point|x=i32@4,y=(|i8@8,?)}",
            "[32@4|0=(None|),ff=(Some|u64@8),*=?]",
        ] {
            let layout = parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(layout.to_text(&mut |_| "bool".to_owned()), text);
        }
        for bad in
            ["", "i32", "i32@", "i33@4", "(a", "(a|", "{a|x}", "[32@4|]x", "[9@4|]", "[32@4|g=?]", "s@4s@4", "(a|?,)"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let deep = "(|".repeat(100);
        assert_eq!(parse(&(deep + &")".repeat(100))), None);
        let name = Layout::Structure { name: "a{|}\n".into(), is_named: false, fields: vec![] };
        assert_eq!(name.to_text(&mut |_| String::new()), "(a____|)");
    }
}
