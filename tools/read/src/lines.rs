//! Lines of a text file of any length, one at a time.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files;

/// The longest line in bytes: names of C++ functions are long, but not as long as this.
const MAX_LINE_BYTES: u64 = 1024 * 1024;

/// A reader of lines and their offsets.
pub struct Lines {
    path: PathBuf,
    input: Box<dyn BufRead>,
    buffer: Vec<u8>,
    text: String,
    number: u64,
    /// The beginnings of the current line and of the next one.
    offsets: (u64, u64),
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("path", &self.path).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Lines {
    /// Opens a regular file.
    ///
    /// # Errors
    ///
    /// The errors of [`files::open`].
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::new(path, Box::new(BufReader::with_capacity(64 * 1024, files::open(path)?))))
    }

    /// Reads from another source. `path` is for messages.
    pub fn new(path: &Path, input: Box<dyn BufRead>) -> Self {
        let (buffer, text) = (Vec::new(), String::new());
        Self { path: path.to_owned(), input, buffer, text, number: 0, offsets: (0, 0) }
    }

    /// Reads the next line, in the form of [`rftrace_format::text::line()`]; `None` at the end.
    ///
    /// # Errors
    ///
    /// The line cannot be read, or is longer than 1 MiB.
    #[allow(clippy::should_implement_trait, reason = "an iterator's items cannot be borrowed from it")]
    pub fn next(&mut self) -> Result<Option<&str>> {
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
            return Err(self.error(
                "the line is longer than 1 MiB, the limit for text files of a trace; was another file put here?",
            ));
        }
        self.text.clear();
        self.text.push_str(&rftrace_format::text::line(&self.buffer));
        Ok(Some(&self.text))
    }

    /// Returns the line of the last [`Lines::next`].
    pub fn current(&self) -> &str {
        &self.text
    }

    /// Returns the bytes of that line in the file, with its end.
    pub fn current_bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Parses the current line.
    ///
    /// # Errors
    ///
    /// The parser's error, with its place.
    pub fn parsed<'a, T>(&'a self, parse: impl FnOnce(&'a str) -> std::result::Result<T, &'static str>) -> Result<T> {
        parse(&self.text).map_err(|reason| self.error(reason))
    }

    /// Creates the error for a fault in the current line.
    pub fn error(&self, reason: &str) -> Error {
        Error::malformed(&self.path, self.offsets.0, format!("line {}: {reason}", self.number))
    }
}

fn read_line(input: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<u64> {
    input.read_until(b'\n', buffer).map(|count| count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_where_they_are() {
        let mut lines = Lines::new(Path::new("f"), Box::new(&b"one\r\ntwo \xff\x1b\n\nlast"[..]));
        for expected in ["one", "two \u{fffd}\\u{1b}", "", "last"] {
            assert_eq!(lines.next().unwrap(), Some(expected));
        }
        let error = lines.error("bad").to_string();
        assert_eq!(error, "f: byte 13: line 4: bad");
        assert_eq!(lines.next().unwrap(), None);
        let mut endless = Lines::new(Path::new("f"), Box::new(io::BufReader::new(io::repeat(b'x'))));
        assert!(matches!(endless.next(), Err(Error::Malformed { offset: 0, .. })));
    }
}
