//! Lines of text, with where they start, and the parts that lines of several files have.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;

/// Nanoseconds of a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The lines of `bytes`, each with its byte offset, as [`line()`] has them.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, Cow<'_, str>)> {
    let mut offset = 0;
    bytes.split_inclusive(|&byte| byte == b'\n').map(move |line| {
        let start = offset;
        offset += line.len() as u64;
        (start, self::line(line))
    })
}

/// A line without its end.
///
/// What is not UTF-8 is replaced, and so are control characters but for tabs: lines end up on terminals.
pub fn line(bytes: &[u8]) -> Cow<'_, str> {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
    let is_control = |c: char| c.is_control() && c != '\t';
    if line.contains(is_control) { line.replace(is_control, "\u{fffd}").into() } else { line }
}

/// The lines `key=value` of `bytes`, in their order; others are left out.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = (String, String)> {
    lines(bytes).filter_map(|(_, line)| line.split_once('=').map(|(key, value)| (key.into(), value.into())))
}

/// A time in nanoseconds, as seconds with nine decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

impl Seconds {
    /// Reads what [`Display`](fmt::Display) writes; `None` for anything else, and for what 64 bits do not hold.
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

/// A character of a path as it may stand in a trace directory, where white space and quotes end a path: these and control
/// characters become `_`.
pub fn spelled(c: char) -> char {
    if c.is_whitespace() || c.is_control() || c == '"' { '_' } else { c }
}

/// A file's name, without the folders before it.
pub fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn lines_have_offsets() {
        let found: Vec<_> = lines(b"a\r\n\n\xff\x1bc\td").map(|(offset, line)| (offset, line.into_owned())).collect();
        assert_eq!(found, [(0, "a".into()), (3, String::new()), (4, "\u{fffd}\u{fffd}c\td".into())]);
        assert_eq!(lines(b"").count(), 0);
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
