//! Streams: records go to the disk while the program runs.
//!
//! Not here: the writer of the stream (`bank/writer.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;
use crate::bank::writer::Wanted;
use crate::host;

/// The options of a recording to disk, for [`Config::stream`](crate::Config::stream).
#[derive(Clone, Debug)]
#[must_use = "these are only options"]
pub struct StreamOptions {
    most_bytes: u64,
    waits: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamOptions {
    /// Sets no limit except the room on the disk. While the buffer is full, threads wait for room.
    pub fn new() -> Self {
        Self { most_bytes: u64::MAX, waits: true }
    }

    /// Limits the records to this number of bytes, 16 for each entry and exit. Later calls are not recorded.
    pub fn max_bytes(self, bytes: u64) -> Self {
        Self { most_bytes: bytes, ..self }
    }

    /// Sets whether threads wait for room while the buffer is full, for one second at most while nothing is written.
    /// Otherwise they go on, and the trace lacks their calls. On by default.
    pub fn waits(self, waits: bool) -> Self {
        Self { waits, ..self }
    }

    pub(super) fn wanted(&self, buffer_bytes: usize) -> Wanted {
        /// The maximum wait for an inactive writer.
        const PATIENCE: Duration = Duration::from_secs(1);

        let patience = if self.waits { PATIENCE } else { Duration::ZERO };
        Wanted { buffer_bytes, most_bytes: self.most_bytes, patience }
    }
}

const VARIABLE: &str = "RFTRACE_STREAM";

/// Reads the variable: a directory, and the size of the buffer in bytes if it has one.
pub(super) fn from_variable() -> Result<Option<(PathBuf, Option<usize>)>, Error> {
    let Some(value) = host::variable(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    let bad = || {
        let value = value.to_string_lossy();
        let problem = format!(
            "the environment variable {VARIABLE} is {value:?}; write a directory and, after a comma, the size of the buffer: trace,64M"
        );
        Error::NoStream { problem }
    };
    let Some((directory, size)) = value.to_str().and_then(|text| text.rsplit_once(',')) else {
        return Ok(Some((PathBuf::from(&value), None)));
    };
    let size = bytes(size).ok_or_else(bad)?;
    Ok(Some((Path::new(directory).to_owned(), Some(size))))
}

/// A size, with K, M or G.
fn bytes(text: &str) -> Option<usize> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let sizes = ["64M", "1G", "4096", "16k", "", "M", "x", "-1M", "99999999999G"].map(bytes);
        assert_eq!(sizes, [Some(64 << 20), Some(1 << 30), Some(4096), Some(16 << 10), None, None, None, None, None]);
    }
}
