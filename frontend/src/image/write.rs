//! Sends an image, with a few hundred bytes of stack and nothing else.

use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{self, CHUNK_HEADER_BYTES, ChunkHeader, Record};

use super::packed::encode::Packer;
use super::packed::{N_BYTES_AT, N_RECORDS_AT};
use super::{Checksum, MAGIC, VERSION, tag};
use crate::backend::Chunk;

/// The number of bytes collected for one call of the output.
const BLOCK_BYTES: usize = 512;

/// Passes an image on, block by block.
pub(crate) struct Writer<F> {
    out: F,
    block: [u8; BLOCK_BYTES],
    n_filled: usize,
    sum: Checksum,
    n_open: u64,
    n_chunks: u64,
}

impl<E, F: FnMut(&[u8]) -> Result<(), E>> Writer<F> {
    /// Begins an image.
    pub(crate) fn new(out: F) -> Result<Self, E> {
        let mut writer = Self::going_on(out);
        writer.put(u64::from_le_bytes(MAGIC))?;
        writer.put(u64::from(VERSION) | u64::from(abi::VERSION) << 32)?;
        Ok(writer)
    }

    /// Continues a file without END and counts.
    pub(crate) fn going_on(out: F) -> Self {
        Self { out, block: [0; BLOCK_BYTES], n_filled: 0, sum: Checksum::default(), n_open: 0, n_chunks: 0 }
    }

    /// The HEAD section.
    pub(crate) fn head(&mut self, words: &[u64; super::head::N_WORDS], name: &[u8]) -> Result<(), E> {
        self.begin(tag::HEAD, words.len() + name.len().div_ceil(8))?;
        words.iter().try_for_each(|&word| self.word(word))?;
        self.bytes(name)?;
        self.end()
    }

    /// Writes the OPEN section of a thread. Of the `n_open` words, those gone since the count are unknown: 0.
    pub(crate) fn open_functions(
        &mut self,
        tid: u32,
        n_open: usize,
        words: impl Iterator<Item = u64>,
    ) -> Result<(), E> {
        self.n_open += 1;
        self.begin(tag::OPEN, 1 + n_open)?;
        self.word(tid.into())?;
        for word in words.chain(core::iter::repeat(0)).take(n_open) {
            self.word(word)?;
        }
        self.end()
    }

    /// Writes the PACKED section of a chunk, or its CHUNK section without a packer or if that is shorter. Returns the
    /// number of records up to the last written one.
    pub(crate) fn chunk(&mut self, chunk: &Chunk<'_>, packer: Option<&mut Packer>) -> Result<usize, E> {
        let mut header = header_words(chunk.header);
        // As it is sent: a processor that was stopped, and goes on, may prepare the chunk anew.
        let taken_tsc = header[offset_of!(ChunkHeader, taken_tsc) / 8];
        let n_records =
            chunk.records.iter().rposition(|record| record.read(taken_tsc).is_some()).map_or(0, |last| last + 1);
        let records = chunk.records.iter().take(n_records);
        self.n_chunks += 1;
        let written = records.clone().filter_map(|record| record.read(taken_tsc));
        if let Some(packed) = packer.and_then(|packer| packer.pack(taken_tsc, written))
            && packed.bytes.len().next_multiple_of(8) < n_records * size_of::<Record>()
        {
            put(&mut header, N_BYTES_AT, packed.bytes.len() as u64);
            put(&mut header, N_RECORDS_AT, packed.n_records as u64);
            self.begin(tag::PACKED, CHUNK_HEADER_BYTES / 8 + packed.bytes.len().div_ceil(8))?;
            header.into_iter().try_for_each(|word| self.word(word))?;
            self.bytes(packed.bytes)?;
        } else {
            self.begin(tag::CHUNK, CHUNK_HEADER_BYTES / 8 + 2 * n_records)?;
            header.into_iter().try_for_each(|word| self.word(word))?;
            for record in records {
                let (tsc, word) = record.read(taken_tsc).unwrap_or((0, 0));
                self.word(tsc)?;
                self.word(word)?;
            }
        }
        self.end()?;
        Ok(n_records)
    }

    /// The END section. The image is complete then.
    pub(crate) fn finish(mut self) -> Result<(), E> {
        self.begin(tag::END, 2)?;
        self.word(self.n_open)?;
        self.word(self.n_chunks)?;
        self.end()?;
        self.flush()
    }

    fn begin(&mut self, tag: u32, n_words: usize) -> Result<(), E> {
        self.sum = Checksum::default();
        self.word(u64::from(tag) | (n_words as u64 * 8) << 32)
    }

    /// Bytes, filled up with zeros to whole words.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), E> {
        let (words, rest) = bytes.as_chunks();
        words.iter().try_for_each(|&word| self.word(u64::from_le_bytes(word)))?;
        if rest.is_empty() {
            return Ok(());
        }
        let mut word = [0; 8];
        for (byte, &from) in word.iter_mut().zip(rest) {
            *byte = from;
        }
        self.word(u64::from_le_bytes(word))
    }

    fn word(&mut self, word: u64) -> Result<(), E> {
        self.sum.add(word);
        self.put(word)
    }

    fn end(&mut self) -> Result<(), E> {
        self.put(self.sum.0)
    }

    fn put(&mut self, word: u64) -> Result<(), E> {
        if self.n_filled == BLOCK_BYTES {
            self.flush()?;
        }
        if let Some(place) = self.block.get_mut(self.n_filled..).and_then(|rest| rest.first_chunk_mut()) {
            *place = word.to_le_bytes();
        }
        self.n_filled += 8;
        Ok(())
    }

    /// Passes on the collected bytes.
    pub(crate) fn flush(&mut self) -> Result<(), E> {
        let filled = self.block.get(..self.n_filled).unwrap_or(&self.block);
        self.n_filled = 0;
        (self.out)(filled)
    }
}

/// A chunk's header as it is in memory.
#[inline]
fn header_words(header: &ChunkHeader) -> [u64; CHUNK_HEADER_BYTES / 8] {
    let ChunkHeader { lease, tid, prev_index, depth, fill, n_adopted, taken_tsc, core, n_resumed } = header;
    let mut words = [0; CHUNK_HEADER_BYTES / 8];
    let mut put = |offset, value| put(&mut words, offset, value);
    put(offset_of!(ChunkHeader, lease), lease.load(Relaxed));
    put(offset_of!(ChunkHeader, tid), tid.load(Relaxed).into());
    put(offset_of!(ChunkHeader, prev_index), prev_index.load(Relaxed));
    put(offset_of!(ChunkHeader, depth), depth.load(Relaxed).into());
    put(offset_of!(ChunkHeader, fill), fill.load(Relaxed).into());
    put(offset_of!(ChunkHeader, n_adopted), n_adopted.load(Relaxed).into());
    put(offset_of!(ChunkHeader, n_resumed), n_resumed.load(Relaxed).into());
    put(offset_of!(ChunkHeader, taken_tsc), taken_tsc.load(Relaxed));
    put(offset_of!(ChunkHeader, core), core.load(Relaxed).into());
    words
}

/// Writes a field of a header over zeros.
#[inline]
fn put(words: &mut [u64; CHUNK_HEADER_BYTES / 8], offset: usize, value: u64) {
    if let Some(word) = words.get_mut(offset / 8) {
        *word |= value << (offset % 8 * 8);
    }
}
