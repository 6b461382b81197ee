//! What the bytes of a value with fields are: which of them are read as what, as `# layout NAME TEXT` in `<module>.dbg` says it. For uftrace
//! that is a comment, and the value a structure with this name and size.
//!
//! | text | value |
//! |---|---|
//! | `i32@4`, `s@8` | one as in specs of [values](crate::values), and where it is |
//! | `e8:NAME@4` | one of the names of an enumeration, a number of so many bits |
//! | `{Point\|x=i32@4,y=i32@8}` | fields with names |
//! | `(Some\|i32@8)` | fields without |
//! | `[32@4\|0=(None\|),*=(Some\|i32@8)]` | by a number of so many bits, in hexadecimal, and what it is otherwise |
//! | `?` | not known |
//!
//! Not here: how these bytes come about (`composite`).

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::composite::Image;
use crate::values::{Form, Names, Place, ValueSpec};

/// What separates the parts of a text.
const MARKS: [char; 11] = ['{', '}', '(', ')', '[', ']', '|', ',', '=', '@', '*'];
/// How deep a layout may be.
const MAX_DEPTH: u32 = 8;
/// The most parts of one.
const MAX_PARTS: usize = 256;

/// What the bytes of a value are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Nothing is known.
    Unknown,
    /// A value without fields: what it is, and where it is in the image.
    Leaf(ValueSpec, u16),
    /// Fields, with names or without.
    Structure {
        /// The type, or variant; may be empty.
        name: String,
        /// Whether fields have names.
        is_named: bool,
        /// Each with its name.
        fields: Vec<(String, Self)>,
    },
    /// One of several, by a number.
    Variants {
        /// Where the number is, and its size as doublings of a byte.
        at: (u16, u8),
        /// Each with its number; `None`: all others.
        variants: Vec<(Option<u64>, Self)>,
    },
}

impl Layout {
    /// A value without fields, of `size` bytes: 1, 2, 4 or 8.
    pub fn leaf(form: Form, size: u64, at: u16) -> Self {
        Self::Leaf(ValueSpec::new(Place::Argument(1), form, size), at)
    }

    /// Whether any of it would be shown.
    pub fn is_known(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Leaf(..) | Self::Variants { .. } => true,
            Self::Structure { fields, .. } => fields.iter().any(|(_, field)| field.is_known()),
        }
    }

    /// The text in a file. `enumeration` names those with a number.
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

    /// Reads such a text; `None` if it is none. `enumeration` numbers those with a name.
    pub fn parse(text: &str, enumeration: &mut impl FnMut(&str) -> u16) -> Option<Self> {
        let mut parser = Parser { rest: text, n_parts: 0, enumeration };
        let layout = parser.layout(MAX_DEPTH)?;
        parser.rest.is_empty().then_some(layout)
    }

    /// The value that has these bytes, as text.
    pub(crate) fn text(&self, image: &Image<'_>, names: &impl Names) -> String {
        match self {
            Self::Unknown => "?".to_owned(),
            Self::Leaf(spec, at) => match image.value(*spec, *at) {
                Some(value) => value.text(names),
                None => "?".to_owned(),
            },
            Self::Structure { name, fields, .. } if fields.is_empty() => {
                if name.is_empty() {
                    "()".to_owned()
                } else {
                    name.clone()
                }
            }
            Self::Structure { name, is_named: true, fields } => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, field)| name.clone() + ": " + &field.text(image, names)).collect();
                let gap = if name.is_empty() { "" } else { " " };
                name.clone() + gap + "{ " + &fields.join(", ") + " }"
            }
            Self::Structure { name, fields, .. } => {
                let fields: Vec<String> = fields.iter().map(|(_, field)| field.text(image, names)).collect();
                name.clone() + "(" + &fields.join(", ") + ")"
            }
            Self::Variants { at: (at, size_log), variants } => {
                let Some(number) = image.number(*at, *size_log) else { return "?".to_owned() };
                let is_it = |(own, _): &&(Option<u64>, Self)| *own == Some(number);
                let other = || variants.iter().find(|(own, _)| own.is_none());
                let variant = variants.iter().find(is_it).or_else(other);
                variant.map_or_else(|| "?".to_owned(), |(_, variant)| variant.text(image, names))
            }
        }
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

    /// What is up to `end`, by comma.
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

    /// What is up to the next mark.
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
    use crate::composite::{Block, Composite};
    use crate::values::items;

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

    /// What a value is shown as whose tracer has recorded a block of `n_read` bytes of the 16, and a text.
    fn shown(block: &[u8], text: &str, layout: &str) -> String {
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
        values[0].text(&Known(parse(layout).expect("a layout")))
    }

    #[test]
    fn bytes_are_shown_by_their_layout() {
        let block = [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
        let show = |layout| shown(&block, "te\"xt", layout);
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
        assert_eq!(shown(&block[..8], "x", "(|i32@8,i32@12,s@20)"), "(-1, ?, ?)");
        assert_eq!(shown(&[], "x", "[32@4|*=i32@4]"), "?");
    }
}
