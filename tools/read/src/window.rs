//! A part of a file in memory, for sequential readers: its size depends on their number. The file is not kept open.
//!
//! Not here: the content of the files.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::files;

/// The memory for all files read at once, and the maximum and minimum for each.
const ALL_WINDOWS_BYTES: usize = 128 << 20;
const WINDOW_BYTES: std::ops::RangeInclusive<usize> = 1024..=64 * 1024;

/// A part of a file in memory.
#[derive(Debug)]
pub(crate) struct Window {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The reader's place in `bytes`.
    pos: usize,
    /// The offset in the file of the end of `bytes`.
    end: u64,
    is_at_end: bool,
    /// The number of bytes of one read.
    size: usize,
}

impl Clone for Window {
    /// Without the bytes: they are read anew.
    fn clone(&self) -> Self {
        let n_left = self.rest().len();
        Self {
            path: self.path.clone(),
            bytes: Vec::new(),
            pos: 0,
            end: self.end - n_left as u64,
            is_at_end: self.is_at_end && n_left == 0,
            size: self.size,
        }
    }
}

impl Window {
    /// The beginning of a file, while as many are read at once.
    pub(crate) fn new(path: PathBuf, n_readers: usize) -> Self {
        let size = (ALL_WINDOWS_BYTES / n_readers.max(1)).clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end());
        Self { path, bytes: Vec::new(), pos: 0, end: 0, is_at_end: false, size }
    }

    /// Reads at least the next `count` bytes, or all up to the end.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize) -> Result<()> {
        if self.rest().len() < count && !self.is_at_end {
            self.read()?;
        }
        Ok(())
    }

    /// Their offset in the file.
    pub(crate) fn position(&self) -> u64 {
        self.end - self.rest().len() as u64
    }

    /// The next bytes.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.pos..]
    }

    /// Moves on by `count` bytes of the [`Window::rest`].
    pub(crate) fn consume(&mut self, count: usize) {
        self.pos = self.bytes.len().min(self.pos + count);
    }

    /// Moves to a place in the file. Bytes near the last read are in memory already.
    pub(crate) fn seek(&mut self, position: u64) {
        let start = self.end - self.bytes.len() as u64;
        if (start..=self.end).contains(&position) {
            self.pos = (position - start) as usize;
        } else {
            self.bytes.clear();
            (self.pos, self.end, self.is_at_end) = (0, position, false);
        }
    }

    /// Pretends that the file ends here.
    pub(crate) fn close(&mut self) {
        self.bytes = Vec::new();
        self.pos = 0;
        self.is_at_end = true;
    }

    #[cold]
    fn read(&mut self) -> Result<()> {
        self.bytes.drain(..self.pos);
        self.pos = 0;
        let file = match files::open(&self.path) {
            opened if self.end == 0 => files::if_present(opened)?,
            opened => Some(opened?),
        };
        let Some(mut file) = file else {
            self.is_at_end = true;
            return Ok(());
        };
        let sought = file.seek(SeekFrom::Start(self.end));
        let count = sought.and_then(|_| file.take(self.size as u64).read_to_end(&mut self.bytes));
        let count = count.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.end += count as u64;
        self.is_at_end = count < self.size;
        Ok(())
    }
}
