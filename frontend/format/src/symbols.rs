//! `<module>.sym`: the functions of one module; `<module>.dbg`: their source lines.
//!
//! ```text
//! # symbols: 2
//! # path name: /usr/bin/prog
//! # build-id: b43fc9ef81c4e3fe843842c1239349b5998de3c1
//! 00000000000011d9 t leaf
//! 00000000000011f2 ? __func_end
//! 0000000000001211 T main
//! 0000000000001260 T draw\t_Z4drawi
//! 0000000000001280 ? __func_end
//! ```
//!
//! Addresses are relative to the start of the module's map line. A symbol ends at the next line's address, so a line of
//! type `?` ends it earlier. The count in the first line leaves such lines out; it only tells the reader how much to
//! allocate.
//!
//! uftrace 0.14 and later have a column with the size. Older versions drop every line with that column, so none is
//! written.
//!
//! A mangled name follows the readable one behind a tab. uftrace reads no further, as a kernel's symbol has its module
//! there.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::text::{self, base_name};

/// The maximum length of a build-id that uftrace reads, in hexadecimal digits.
pub const BUILD_ID_DIGITS: usize = 40;

/// The beginning of the comment with the module's path.
const PATH: &str = "# path name: ";

/// Names that end the symbol before them.
const END_MARKS: [&str; 3] = ["__func_end", "__sym_end", "__dynsym_end"];

/// Returns the form of `build_id` in symbol files and maps: its first 40 digits.
///
/// uftrace keeps no more, and a longer one in a map line overruns a buffer of its reader.
pub fn short_build_id(build_id: &str) -> &str {
    build_id.get(..BUILD_ID_DIGITS).unwrap_or(build_id)
}

/// The first lines of a symbol file or of a file of source lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The number of symbols; `None` in files of source lines.
    pub n_symbols: Option<usize>,
    /// The path of the file's module.
    pub path: Option<String>,
    /// The module's build-id in hexadecimal, of any length. The first 40 digits are written.
    pub build_id: Option<String>,
}

impl Head {
    /// Parses the comments at the beginning of a file. `bytes` may be a part of the file: the comments take less than
    /// [`Head::MAX_BYTES`].
    pub fn parse(bytes: &[u8]) -> Self {
        let mut head = Self::default();
        for (_, line) in text::lines(bytes) {
            if !line.starts_with('#') {
                break;
            }
            head.add(&line);
        }
        head
    }

    /// An upper limit for the size of the first lines, in bytes.
    pub const MAX_BYTES: usize = 16 * 1024;

    /// Adds the content of a comment line. Returns false if the line is no comment.
    pub fn add(&mut self, line: &str) -> bool {
        let Some(comment) = line.strip_prefix("# ") else { return false };
        if let Some(path) = line.strip_prefix(PATH) {
            self.path.get_or_insert_with(|| path.into());
        } else if let Some(id) = comment.strip_prefix("build-id: ") {
            self.build_id.get_or_insert_with(|| id.into());
        } else if let Some(count) = comment.strip_prefix("symbols: ") {
            self.n_symbols = self.n_symbols.or(count.trim().parse().ok());
        }
        true
    }

    /// Returns true if uftrace takes the file for that of `module`.
    pub fn is_of(&self, module: ModuleId<'_>) -> bool {
        let is_other_build = match (&self.build_id, module.build_id) {
            (Some(own), Some(other)) => short_build_id(own) != short_build_id(other),
            _ => false,
        };
        self.path.as_ref().is_none_or(|path| path == module.path) && !is_other_build
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(count) = self.n_symbols {
            writeln!(f, "# symbols: {count}")?;
        }
        if let Some(path) = &self.path {
            writeln!(f, "{PATH}{path}")?;
        }
        if let Some(id) = &self.build_id {
            writeln!(f, "# build-id: {}", short_build_id(id))?;
        }
        Ok(())
    }
}

/// Returns a line of a file of symbols or source lines with the module's path replaced by the result of `change`. Both
/// lines include their end.
pub fn with_path(line: &[u8], change: impl FnOnce(&str) -> String) -> Cow<'_, [u8]> {
    match line.strip_prefix(PATH.as_bytes()) {
        Some(path) => format!("{PATH}{}\n", change(&text::line(path))).into_bytes().into(),
        None => line.into(),
    }
}

/// A line with a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolLine<'a> {
    /// The symbol's address relative to its module.
    pub addr: u64,
    /// The symbol's size in bytes; 0 if the line has none. It is not written.
    pub size: u64,
    /// The type, as in `nm`: `T` for a global function, `t` for a local one, `w` for a weak one.
    pub kind: char,
    /// The readable name.
    pub name: &'a str,
    /// The mangled name, which tells overloads apart.
    pub mangled: Option<&'a str>,
}

impl<'a> SymbolLine<'a> {
    /// The types of symbols that count. Readers skip lines of other types.
    pub const KINDS: &'static str = "?TtwPKDdvu";

    /// Creates a line at `addr` that ends the symbol before it.
    pub fn end(addr: u64) -> Self {
        Self { addr, size: 0, kind: '?', name: END_MARKS[0], mangled: None }
    }

    /// Returns true if the line only ends the symbol before it.
    pub fn is_end(&self) -> bool {
        self.kind == '?' || END_MARKS.contains(&self.name)
    }

    /// Parses a line, with or without a size; `None` for other lines.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (addr, rest) = line.split_once(' ')?;
        let addr = u64::from_str_radix(addr, 16).ok()?;
        let (size, rest) = match rest.split_once(' ') {
            Some((size, after)) if size.starts_with(|first: char| first.is_ascii_digit()) => {
                (u64::from_str_radix(size, 16).ok()?, after)
            }
            _ => (0, rest),
        };
        let (kind, name) = rest.split_once(' ')?;
        let mut chars = kind.chars();
        let (Some(kind), None) = (chars.next(), chars.next()) else { return None };
        // Kernel symbols have their module after a tab.
        let (name, mangled) = name.split_once('\t').unwrap_or((name, ""));
        let is_mangled = mangled.starts_with("_Z") || mangled.starts_with("_R");
        Some(Self { addr, size, kind, name, mangled: is_mangled.then_some(mangled) })
    }
}

impl fmt::Display for SymbolLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {} {}", self.addr, self.kind, self.name)?;
        match self.mangled {
            Some(mangled) => writeln!(f, "\t{mangled}"),
            None => writeln!(f),
        }
    }
}

/// The lines of a file of source lines for one function: its place, and the functions inlined into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// The function's address, as in the symbol file.
    pub addr: u64,
    /// The function's name.
    pub name: &'a str,
    /// The line number, from 1.
    pub line: u32,
    /// The path of the source file.
    pub path: &'a str,
    /// The names of functions inlined into it.
    pub inlined: &'a [String],
}

impl fmt::Display for SourceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, name, line, path, inlined } = self;
        writeln!(f, "F: {addr:x} {name}\nL: {line} {path}")?;
        inlined.iter().try_for_each(|name| writeln!(f, "{INLINED}{name}"))
    }
}

/// The recorded values of a function, as lists of specs with an `@`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuesOf {
    /// The function's name.
    pub name: String,
    /// The specs of its arguments.
    pub arguments: Option<String>,
    /// The spec of its result.
    pub result: Option<String>,
}

/// The lines of a file of source lines with the recorded values of a function.
#[derive(Clone, Copy, Debug)]
pub struct ValueLines<'a> {
    /// The function's address, as in the symbol file.
    pub addr: u64,
    /// The values.
    pub function: &'a ValuesOf,
}

impl fmt::Display for ValueLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "F: {:x} {}", self.addr, self.function.name)?;
        if let Some(arguments) = &self.function.arguments {
            writeln!(f, "A: {arguments}")?;
        }
        if let Some(result) = &self.function.result {
            writeln!(f, "R: {result}")?;
        }
        Ok(())
    }
}

/// A parsed line of a file of source lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePart<'a> {
    /// The beginning of a function's lines.
    Function {
        /// The function's address, as in the symbol file.
        addr: u64,
    },
    /// The source line at which the function begins.
    Place {
        /// The line number, from 1.
        line: u32,
        /// The path of the source file.
        path: &'a str,
    },
    /// The name of a function that was inlined into it.
    Inlined(&'a str),
    /// The recorded values of a call, as specs with an `@`; see [`values`](crate::values).
    Arguments(&'a str),
    /// The recorded value of a return, in the same form.
    Result(&'a str),
    /// An enumeration for specs `/e:NAME`.
    Enumeration {
        /// The name of the enumeration.
        name: &'a str,
        /// Its enumerators and their numbers; see [`enumerators`].
        names: &'a str,
    },
    /// The layout of a value with fields, for specs `/t16:NAME`.
    Layout {
        /// The layout's name.
        name: &'a str,
        /// Its text, see [`Layout::parse`](crate::layout::Layout::parse).
        text: &'a str,
    },
    /// Another line of uftrace's.
    Other,
}

/// The beginning of a line with a [layout](SourcePart::Layout): for uftrace it is a comment.
const LAYOUT: &str = "# layout ";

/// The beginning of a line with an [inlined function](SourcePart::Inlined): the same.
const INLINED: &str = "# inlined ";

/// The maximum number of inlined functions listed for one function.
pub const MAX_INLINED: usize = 64;

impl<'a> SourcePart<'a> {
    /// Parses a line; `None` for other lines.
    pub fn parse(line: &'a str) -> Option<Self> {
        if let Some(name) = line.strip_prefix(INLINED) {
            return Some(Self::Inlined(name));
        }
        if let Some(layout) = line.strip_prefix(LAYOUT) {
            let (name, text) = layout.split_once(' ')?;
            return Some(Self::Layout { name, text });
        }
        let (kind, rest) = line.split_once(": ")?;
        match kind {
            "F" => {
                let addr = rest.split_once(' ').map_or(rest, |(addr, _)| addr);
                Some(Self::Function { addr: u64::from_str_radix(addr, 16).ok()? })
            }
            "L" => {
                let (line, path) = rest.split_once(' ')?;
                Some(Self::Place { line: line.parse().ok()?, path })
            }
            "A" => Some(Self::Arguments(rest)),
            "R" => Some(Self::Result(rest)),
            "E" => {
                let text = rest.strip_prefix("enum ").and_then(|text| text.strip_suffix('}'));
                let parts = text.and_then(|text| text.split_once(" {"));
                Some(parts.map_or(Self::Other, |(name, names)| Self::Enumeration { name, names }))
            }
            _ => None,
        }
    }
}

/// Returns the line with a layout.
pub fn layout_line(name: &str, text: &str) -> String {
    format!("{LAYOUT}{name} {text}\n")
}

/// Parses the enumerators of an enumeration, such as `A=1,B`. One without a number has the previous number plus 1.
/// Malformed parts are left out.
pub fn enumerators(names: &str) -> impl Iterator<Item = (&str, i32)> {
    let mut next = 0_i32;
    names.split(',').filter_map(move |text| {
        let (name, number) = text.split_once('=').map_or((text, None), |(name, number)| (name, Some(number)));
        if let Some(number) = number {
            // uftrace writes numbers of 32 bits with and without a sign.
            next = number.trim().parse::<i64>().ok()? as i32;
        }
        let own = next;
        next = next.wrapping_add(1);
        Some((name.trim(), own)).filter(|(name, _)| !name.is_empty())
    })
}

/// The parts of a module's identity that determine the name of its symbol file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleId<'a> {
    /// The path as in the map.
    pub path: &'a str,
    /// The build-id in hexadecimal, of any length.
    pub build_id: Option<&'a str>,
}

impl ModuleId<'_> {
    /// Returns the name of the file for which uftrace looks first, `<name>.sym`.
    pub fn plain_name(self) -> String {
        format!("{}.sym", base_name(self.path))
    }

    /// Returns the name of the file for which uftrace looks if the plain one belongs to another module:
    /// `<name>-XXXX.sym`, with the first four digits of the build-id or, without one, of a checksum of the path.
    pub fn marked_name(self) -> String {
        let base = base_name(self.path);
        match self.build_id {
            Some(id) => format!("{base}-{}.sym", id.get(..4).unwrap_or(id)),
            None => {
                // uftrace adds the bytes up as signed numbers.
                let sum = |sum: u16, byte: u8| sum.wrapping_add_signed(byte.cast_signed().into());
                format!("{base}-{:04x}.sym", self.path.bytes().fold(0, sum))
            }
        }
    }

    fn head(self) -> Head {
        Head { n_symbols: None, path: Some(self.path.into()), build_id: self.build_id.map(Into::into) }
    }
}

/// The names of symbol files for modules, given in sequence.
///
/// The first module with a name gets `<name>.sym`, a different one `<name>-XXXX.sym`. Several loads of one module share
/// a name, so write a name once. Leave out modules without a file: if the first module of a name had none, uftrace
/// would look only for the plain name.
#[derive(Clone, Debug, Default)]
pub struct SymbolFileNames {
    owners: BTreeMap<String, Head>,
}

impl SymbolFileNames {
    /// Registers an existing file with its first lines.
    pub fn take(&mut self, name: String, head: Head) {
        self.owners.insert(name, head);
    }

    /// Returns the name for `module`. `None` if another module has the name for which uftrace would look, so that
    /// uftrace could not tell them apart.
    pub fn name(&mut self, module: ModuleId<'_>) -> Option<String> {
        [module.plain_name(), module.marked_name()].into_iter().find(|name| {
            let owner = self.owners.entry(name.clone()).or_insert_with(|| module.head());
            owner.is_of(module)
        })
    }

    /// Returns the names for several modules, in their order.
    pub fn of<'a>(modules: impl IntoIterator<Item = ModuleId<'a>>) -> Vec<Option<String>> {
        let mut names = Self::default();
        modules.into_iter().map(|module| names.name(module)).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn id<'a>(path: &'a str, build_id: Option<&'a str>) -> ModuleId<'a> {
        ModuleId { path, build_id }
    }

    #[test]
    fn a_file_both_ways() {
        let head = Head { n_symbols: Some(2), path: Some("/bin/a".into()), build_id: Some("ab".repeat(32)) };
        let text = "# symbols: 2\n# path name: /bin/a\n# build-id: abababababababababababababababababababab\n";
        assert_eq!(head.to_string(), text);
        let symbol = SymbolLine { addr: 0x11d9, size: 0, kind: 't', name: "<a as b>::c", mangled: None };
        assert_eq!(symbol.to_string(), "00000000000011d9 t <a as b>::c\n");
        let overload = SymbolLine { addr: 0x1260, size: 0, kind: 'T', name: "draw", mangled: Some("_Z4drawi") };
        assert_eq!(overload.to_string(), "0000000000001260 T draw\t_Z4drawi\n");
        assert_eq!(SymbolLine::parse("1260 T draw\t_Z4drawi"), Some(overload));
        assert_eq!(SymbolLine::end(0x11f2).to_string(), "00000000000011f2 ? __func_end\n");
        let file = format!("{text}{symbol}# build-id: no head\n");
        assert_eq!(Head::parse(file.as_bytes()).build_id, Some("ab".repeat(20)));
        assert_eq!(SymbolLine::parse("00000000000011d9 t <a as b>::c"), Some(symbol));
        assert!(SymbolLine::parse("00000000000011f2 ? __func_end").unwrap().is_end());
        let inlined = [String::from("g<1, 2>")];
        let source = SourceLine { addr: 0x11d9, name: "f", line: 3, path: "/a.c", inlined: &inlined };
        assert_eq!(source.to_string(), "F: 11d9 f\nL: 3 /a.c\n# inlined g<1, 2>\n");
        assert_eq!(SourcePart::parse("# inlined g<1, 2>"), Some(SourcePart::Inlined("g<1, 2>")));
        assert_eq!(SourcePart::parse("F: 11d9 <a as b>::f"), Some(SourcePart::Function { addr: 0x11d9 }));
        assert_eq!(SourcePart::parse("L: 3 /a b.c"), Some(SourcePart::Place { line: 3, path: "/a b.c" }));
        let parsed = SourcePart::parse("E: enum a::b {X=-1,Y,,Z=4294967295,W=z}");
        let Some(SourcePart::Enumeration { name: "a::b", names }) = parsed else { panic!("{parsed:?}") };
        assert_eq!(enumerators(names).collect::<Vec<_>>(), [("X", -1), ("Y", 0), ("Z", -1)]);
        assert_eq!(SourcePart::parse("E: enum x"), Some(SourcePart::Other));
        assert_eq!(SourcePart::parse("A: @arg1/i32"), Some(SourcePart::Arguments("@arg1/i32")));
        for bad in ["", "F:", "F: x f", "L: 3", "L: -1 a.c", "X: 1"] {
            assert_eq!(SourcePart::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn another_path() {
        let changed = |line| with_path(line, |path| path.replace('a', "b")).into_owned();
        assert_eq!(changed(b"# path name: /bin/a\n"), b"# path name: /bin/b\n");
        assert_eq!(changed(b"0000000000001000 T a\xff\n"), b"0000000000001000 T a\xff\n");
    }

    #[test]
    fn lines_of_others() {
        let line = SymbolLine { addr: 0x10, size: 8, kind: 'T', name: "f", mangled: None };
        assert_eq!(SymbolLine::parse("10 00000008 T f\t[module]"), Some(line));
        assert!(SymbolLine::parse("10 P __sym_end").unwrap().is_end());
        for bad in ["", "nonsense", "xyz T f", "10 T", "10 TT f", "10 5zz T f"] {
            assert_eq!(SymbolLine::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn modules_of_one_name_get_marks() {
        let names = SymbolFileNames::of([
            id("/bin/prog", Some("aaaa1111")),
            id("/lib/x.so", Some("bbbb1111")),
            // The same module loaded again.
            id("/lib/x.so", Some("bbbb1111")),
            // Same basename, other path; other path without build-id; other file at the same path.
            id("/opt/x.so", Some("cccc1111")),
            id("/usr/x.so", None),
            id("/lib/x.so", Some("dddd1111")),
            // Cannot be told from /opt/x.so.
            id("/srv/x.so", Some("cccc2222")),
            // The name that another file was given.
            id("/bin/x.so-cccc", Some("eeee1111")),
            id("plain", None),
        ]);
        let expected = [
            Some("prog.sym"),
            Some("x.so.sym"),
            Some("x.so.sym"),
            Some("x.so-cccc.sym"),
            Some("x.so-0340.sym"),
            Some("x.so-dddd.sym"),
            None,
            Some("x.so-cccc-eeee.sym"),
            Some("plain.sym"),
        ];
        assert_eq!(names.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        let sum = (0x2f + 0xc3 - 0x100 + 0xa4 - 0x100_i32) as u16;
        assert_eq!(id("/ä", None).marked_name(), format!("ä-{sum:04x}.sym"), "bytes are signed");
    }

    #[test]
    fn files_that_are_there_are_taken() {
        let mut names = SymbolFileNames::default();
        names.take("x.sym".into(), Head::parse(b"# symbols: 1\n# path name: /a/x\n"));
        assert_eq!(names.name(id("/b/x", Some("5678cd"))).as_deref(), Some("x-5678.sym"));
        assert_eq!(names.name(id("/a/x", Some("5678cd"))).as_deref(), Some("x.sym"));
    }
}
