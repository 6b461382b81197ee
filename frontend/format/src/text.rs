//! Lines of text with their offsets, and common parts of lines of several files.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use core::fmt::{self, Write};

/// The number of nanoseconds in a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the lines of `bytes`, each with its byte offset, in the form of [`line()`].
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, Cow<'_, str>)> {
    let mut offset = 0;
    bytes.split_inclusive(|&byte| byte == b'\n').map(move |line| {
        let start = offset;
        offset += line.len() as u64;
        (start, self::line(line))
    })
}

/// Returns a line without its end, safe for terminals.
///
/// It replaces bytes that are not UTF-8, and [`Shown`] escapes unseen characters except tabs.
pub fn line(bytes: &[u8]) -> Cow<'_, str> {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
    let shown = Shown { text: &line, kept: &['\t'] };
    if shown.is_plain() { line } else { shown.to_string().into() }
}

/// Returns true for characters that a terminal does not simply show: controls, changes of the writing direction,
/// invisible ones.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text from an untrusted source (names of functions, paths, command lines) for a terminal, with unseen characters
/// escaped. Escaping it twice changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    text: &'a str,
    kept: &'static [char],
}

impl<'a> Shown<'a> {
    /// Wraps a part of a line.
    pub fn new(text: &'a str) -> Self {
        Self { text, kept: &[] }
    }

    /// Wraps several lines. Line ends and tabs stay.
    pub fn lines(text: &'a str) -> Self {
        Self { text, kept: &['\n', '\t'] }
    }

    /// Returns the escaped text. It allocates only if there is something to escape.
    pub fn text(self) -> Cow<'a, str> {
        if self.is_plain() { self.text.into() } else { self.to_string().into() }
    }

    fn is_plain(&self) -> bool {
        !self.text.contains(|c| self.is_escaped(c))
    }

    fn is_escaped(&self, c: char) -> bool {
        is_unseen(c) && !self.kept.contains(&c)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.chars().try_for_each(|c| match c {
            c if !self.is_escaped(c) => f.write_char(c),
            '\0' => f.write_str("\\0"),
            '\n' => f.write_str("\\n"),
            '\t' => f.write_str("\\t"),
            '\r' => f.write_str("\\r"),
            c => write!(f, "{}", c.escape_unicode()),
        })
    }
}

/// Returns the lines `key=value` of `bytes` in order, and skips other lines.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = (String, String)> {
    lines(bytes).filter_map(|(_, line)| line.split_once('=').map(|(key, value)| (key.into(), value.into())))
}

/// A time in nanoseconds, displayed as seconds with nine decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

impl Seconds {
    /// Parses the [displayed](fmt::Display) form; `None` for other text, and for times beyond 64 bits.
    pub fn parse(text: &str) -> Option<Self> {
        let (seconds, nanos) = text.split_once('.')?;
        if nanos.len() != 9 || ![seconds, nanos].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
            return None;
        }
        let seconds: u64 = seconds.parse().ok()?;
        seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos.parse().ok()?).map(Self)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / NANOS_PER_SECOND, self.0 % NANOS_PER_SECOND)
    }
}

/// Returns the form of a path's character in a trace directory. White space and quotes would end a path there; these
/// and control characters become `_`.
pub fn spelled(c: char) -> char {
    if c.is_whitespace() || is_unseen(c) || c == '"' { '_' } else { c }
}

/// Returns the file name of a path, without the folders.
pub fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn lines_have_offsets() {
        let found: Vec<_> = lines(b"a\r\n\n\xff\x1bc\td").map(|(offset, line)| (offset, line.into_owned())).collect();
        assert_eq!(found, [(0, "a".into()), (3, String::new()), (4, "\u{fffd}\\u{1b}c\td".into())]);
        assert_eq!(lines(b"").count(), 0);
    }

    #[test]
    fn nothing_but_letters_is_shown() {
        let evil = "a\x1b[31m\u{9b}b\tc\n\u{202e}d\0\u{61c}\u{2066}";
        let shown = Shown::new(evil).to_string();
        assert_eq!(shown, "a\\u{1b}[31m\\u{9b}b\\tc\\n\\u{202e}d\\0\\u{61c}\\u{2066}");
        assert_eq!(Shown::new(&shown).text(), shown);
        assert_eq!(Shown::lines("a\tb\r\n").text(), "a\tb\\r\n");
        assert!(matches!(Shown::new("größe<T>\\").text(), Cow::Borrowed("größe<T>\\")));
    }

    #[test]
    fn times_have_nine_decimals() {
        assert_eq!(Seconds(1_000_000_002).to_string(), "1.000000002");
        assert_eq!(Seconds::parse("1.000000002"), Some(Seconds(1_000_000_002)));
        assert_eq!(Seconds::parse("18446744073.709551615"), Some(Seconds(u64::MAX)));
        for bad in ["1", "1.5", "+1.000000000", "1.+00000000", "18446744073.709551616", "x.000000000", "-1.000000000"] {
            assert_eq!(Seconds::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn paths_are_spelled() {
        assert_eq!("/a b\"c\n".chars().map(spelled).collect::<String>(), "/a_b_c_");
        assert_eq!(base_name("/usr/bin/x"), "x");
        assert_eq!(base_name("x"), "x");
    }
}
