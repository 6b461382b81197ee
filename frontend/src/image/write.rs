//! Sends an image, with a few hundred bytes of stack and nothing else.

use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{self, CHUNK_HEADER_BYTES, ChunkHeader};

use super::{Checksum, MAGIC, VERSION, tag};
use crate::backend::Chunk;

/// Bytes that are collected before they are passed on.
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
        let mut writer =
            Self { out, block: [0; BLOCK_BYTES], n_filled: 0, sum: Checksum::default(), n_open: 0, n_chunks: 0 };
        writer.put(u64::from_le_bytes(MAGIC))?;
        writer.put(u64::from(VERSION) | u64::from(abi::VERSION) << 32)?;
        Ok(writer)
    }

    /// The HEAD section.
    pub(crate) fn head(&mut self, words: &[u64; super::head::N_WORDS], name: &[u8]) -> Result<(), E> {
        self.begin(tag::HEAD, words.len() + name.len().div_ceil(8))?;
        words.iter().try_for_each(|&word| self.word(word))?;
        for part in name.chunks(8) {
            let mut bytes = [0; 8];
            for (byte, &from) in bytes.iter_mut().zip(part) {
                *byte = from;
            }
            self.word(u64::from_le_bytes(bytes))?;
        }
        self.end()
    }

    /// The OPEN section of a thread. Of the `n_open` words those that have gone since they were counted are unknown: 0.
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

    /// The CHUNK section of a chunk.
    pub(crate) fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), E> {
        let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
        let n_records =
            chunk.records.iter().rposition(|record| record.read(taken_tsc).is_some()).map_or(0, |last| last + 1);
        self.n_chunks += 1;
        self.begin(tag::CHUNK, CHUNK_HEADER_BYTES / 8 + 2 * n_records)?;
        for word in header_words(chunk.header) {
            self.word(word)?;
        }
        for record in chunk.records.iter().take(n_records) {
            let (tsc, word) = record.read(taken_tsc).unwrap_or((0, 0));
            self.word(tsc)?;
            self.word(word)?;
        }
        self.end()
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
        for (place, byte) in self.block.iter_mut().skip(self.n_filled).zip(word.to_le_bytes()) {
            *place = byte;
        }
        self.n_filled += 8;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), E> {
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
    let mut put = |offset: usize, value: u64| {
        if let Some(word) = words.get_mut(offset / 8) {
            *word |= value << (offset % 8 * 8);
        }
    };
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
