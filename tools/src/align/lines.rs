//! Lines of a text file of any length, one at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Longer lines are in no file of the kinds that are read here.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Reads lines, and knows where they are.
pub(super) struct Lines {
    path: PathBuf,
    input: Box<dyn BufRead>,
    buffer: Vec<u8>,
    text: String,
    number: u64,
    /// Where the current line begins, and where the next one does.
    offsets: (u64, u64),
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Self::new(path, Box::new(BufReader::with_capacity(256 * 1024, file))))
    }

    pub(super) fn new(path: &Path, input: Box<dyn BufRead>) -> Self {
        let (buffer, text) = (Vec::new(), String::new());
        Self { path: path.to_owned(), input, buffer, text, number: 0, offsets: (0, 0) }
    }

    /// The next line without its end; what is not UTF-8 is replaced, and so are control characters but for tabs.
    pub(super) fn next(&mut self) -> Result<Option<&str>> {
        self.buffer.clear();
        let limited = &mut self.input.by_ref().take(MAX_LINE_BYTES);
        let count =
            read_line(limited, &mut self.buffer).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.number += 1;
        self.offsets = (self.offsets.1, self.offsets.1.saturating_add(count));
        if count == 0 {
            return Ok(None);
        }
        if count == MAX_LINE_BYTES && self.buffer.last() != Some(&b'\n') {
            return Err(self.error("a line of more than 64 KiB: this is no such text"));
        }
        let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.text.clear();
        match std::str::from_utf8(line) {
            Ok(line) if !line.contains(is_control) => self.text.push_str(line),
            _ => self.text.push_str(&String::from_utf8_lossy(line).replace(is_control, "\u{fffd}")),
        }
        Ok(Some(&self.text))
    }

    /// The line that [`Lines::next`] has returned last.
    pub(super) fn current(&self) -> &str {
        &self.text
    }

    /// What is wrong with the current line.
    pub(super) fn error(&self, reason: &str) -> Error {
        Error::malformed(&self.path, self.offsets.0, format!("line {}: {reason}", self.number))
    }
}

fn read_line(input: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<u64> {
    input.read_until(b'\n', buffer).map(|count| count as u64)
}

fn is_control(c: char) -> bool {
    c.is_control() && c != '\t'
}

/// Seconds with up to nine decimals, in nanoseconds.
pub(super) fn nanos_of_seconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if seconds.is_empty() || fraction.len() > 9 || !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(super::clock::NANOS_PER_SECOND)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_where_they_are() {
        let mut lines = Lines::new(Path::new("f"), Box::new(&b"one\r\ntwo \xff\x1b\n\nlast"[..]));
        for expected in ["one", "two \u{fffd}\u{fffd}", "", "last"] {
            assert_eq!(lines.next().unwrap(), Some(expected));
        }
        let error = lines.error("bad").to_string();
        assert_eq!(error, "f: byte 13: line 4: bad");
        assert_eq!(lines.next().unwrap(), None);
        let mut endless = Lines::new(Path::new("f"), Box::new(io::BufReader::new(io::repeat(b'x'))));
        assert!(matches!(endless.next(), Err(Error::Malformed { offset: 0, .. })));
    }

    #[test]
    fn seconds() {
        assert_eq!(nanos_of_seconds("1.5"), Some(1_500_000_000));
        assert_eq!(nanos_of_seconds("24577.817284184"), Some(24_577_817_284_184));
        assert_eq!(nanos_of_seconds("7"), Some(7_000_000_000));
        for bad in ["", ".5", "-1.5", "1.0123456789", "1.-5", "1e3", "99999999999999.0", "+1"] {
            assert_eq!(nanos_of_seconds(bad), None, "{bad}");
        }
    }
}
