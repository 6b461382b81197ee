//! Contents of an image: from a kernel, or from a file of raw records.

use std::collections::HashMap;

use rftrace::abi::{ChunkHeader, Record};

use super::head;
use crate::backend::Chunk;
use crate::clock::tsc::TscSource;

/// A recording from another machine or an older version: an image from
/// [`kernel::write_image`](crate::kernel::write_image), or records from `dump_trace` of this version or of
/// rftrace-frontend 0.3.
#[derive(Debug)]
pub struct Image {
    pub(super) source: Source,
    pub(super) words: [u64; head::N_WORDS],
    pub(super) name: String,
    pub(super) open: HashMap<u32, Vec<u64>>,
    pub(super) chunks: Vec<(ChunkHeader, Vec<Record>)>,
    pub(super) warnings: Vec<String>,
}

/// The source of the records, and so the meaning of their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An image: ticks.
    Kernel,
    /// `dump_trace` of this version.
    RawNanos,
    /// `dump_trace` of rftrace-frontend 0.3.
    RawTicks,
    /// `dump_trace` of one of both.
    RawUnknown,
}

impl Image {
    /// Returns a line for each missing or unrecorded part of the image.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A complete image.
    pub(super) fn new(
        source: Source,
        words: [u64; head::N_WORDS],
        chunks: Vec<(ChunkHeader, Vec<Record>)>,
        warnings: Vec<String>,
    ) -> Self {
        Self { source, words, name: String::new(), open: HashMap::new(), chunks, warnings }
    }

    /// Returns the source of the records.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Returns the kernel's name from the image.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the frequency of the time stamp counter in Hz, or `None` if the image does not hold it.
    #[must_use]
    pub fn tsc_hz(&self) -> Option<u64> {
        Some(self.word(head::TSC_HZ)).filter(|&hz| hz > 0)
    }

    /// Returns the virtual address of the kernel's lowest loadable segment. `None` stands for the address of linking.
    #[must_use]
    pub fn load_address(&self) -> Option<u64> {
        Some(self.word(head::LOAD_ADDRESS)).filter(|&address| address > 0)
    }

    /// Returns the source of the counter's frequency.
    pub(crate) fn tsc_hz_source(&self) -> Option<TscSource> {
        TscSource::from_number(self.word(head::TSC_HZ_SOURCE))
    }

    /// A word of the HEAD section, by one of the numbers in [`head`].
    pub(crate) fn word(&self, place: usize) -> u64 {
        self.words[place]
    }

    /// All chunks, in the order of arrival.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        self.chunks.iter().map(|(header, records)| Chunk { header, records })
    }

    /// The words of the exit records of the functions open in each thread, outermost first, as far as known.
    pub(crate) fn open_functions(&self) -> &HashMap<u32, Vec<u64>> {
        &self.open
    }
}

/// A fault in an image.
pub(super) struct Bad {
    /// In bytes from the beginning of the file.
    pub(super) offset: u64,
    pub(super) problem: String,
}

pub(super) fn bad<T>(offset: usize, problem: impl Into<String>) -> Result<T, Bad> {
    Err(Bad { offset: offset as u64, problem: problem.into() })
}

/// Returns true if uftrace takes this for a thread's id.
pub(crate) fn is_tid(tid: u64) -> bool {
    (1..=i32::MAX as u64).contains(&tid)
}
