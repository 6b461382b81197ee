//! The file of all calls, and of what they merge into for wider and wider pixels; and what is known of it in memory.
//!
//! ```text
//! what it was made of, or nothing      `KeptFile::START` bytes
//! MAGIC, with the version              8 bytes
//! where the directory is, its length, its checksum   3 × u64, little-endian
//! chunks                               of 4096 calls or blocks of one depth (`blocks`)
//! sums until some times                among the chunks: `Prefix`, by postcard
//! directory                            `Directory`, by postcard
//! ```
//!
//! Only the directory is in memory. All else is read when it is needed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Crc;
use rftrace_read::{KeptFile, Summary};
use serde::{Deserialize, Serialize};

use super::blocks::{Block, Decoder, Encoder, Kind};
use super::sums::{MAX_NODES, Prefix, Sums};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"rfzoom\0\x02";

/// Where the chunks begin.
const CHUNKS: u64 = KeptFile::START + 8 + 24;

/// The most calls or blocks of a chunk.
pub(crate) const CHUNK: u32 = 4096;

/// The most bytes of one: nine numbers each, of ten bytes at the most.
const MAX_CHUNK_BYTES: u32 = CHUNK * 90;

/// The most chunks of all, as each has its place in memory.
const MAX_CHUNKS: u64 = 1 << 21;

/// The most calls, were all chunks full.
pub(crate) const MAX_CALLS: u64 = MAX_CHUNKS * CHUNK as u64;

/// The longest sums until some time: so many nodes, and as many functions, of three numbers each.
const MAX_PREFIX_BYTES: u32 = 2 * 30 * MAX_NODES as u32;

/// The longest directory.
const MAX_DIRECTORY_BYTES: u64 = 1 << 30;

/// The directory of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// Time 0, in nanoseconds of the trace's clock.
    pub(crate) base_ns: u64,
    /// The first record and the last one, since then.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) functions: Vec<String>,
    pub(crate) values: Vec<String>,
    pub(crate) n_lost_values: u64,
    /// Calls that were nested deeper than any lane.
    pub(crate) n_too_deep: u64,
    pub(crate) tasks: Vec<TaskLanes>,
    pub(crate) summary: Summary,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskLanes {
    pub(crate) tid: u32,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) process: String,
    /// Its calls, by depth.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) sums: Sums,
    /// Parts of that, in order of time.
    pub(crate) marks: Vec<Mark>,
}

/// The sums of a task until some time, at which a call begins, and before which there was nothing at the same time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) time: u64,
    extent: Extent,
}

impl Mark {
    pub(crate) fn read(&self, file: &File) -> Result<Prefix> {
        let mut bytes = Vec::new();
        self.extent.read(file, &mut bytes)?;
        postcard::from_bytes(&bytes).map_err(|_| Error::Damaged)
    }
}

/// A part of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    offset: u64,
    length: u32,
    checksum: u32,
}

impl Extent {
    fn read(&self, file: &File, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(self.length as usize, 0);
        file.read_exact_at(bytes, self.offset).map_err(|_| Error::Damaged)?;
        if checksum(bytes) != self.checksum || bytes.is_empty() {
            return Err(Error::Damaged);
        }
        Ok(())
    }
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) n_calls: u64,
    /// The calls, then blocks for wider and wider pixels.
    pub(crate) levels: Vec<Level>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Level {
    /// Calls narrower than this are merged, in nanoseconds; 0 for the calls themselves.
    pub(crate) width: u64,
    pub(crate) chunks: Vec<Chunk>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    extent: Extent,
    /// Of the first block, and the end of the last one.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Which call of its depth is the first.
    pub(crate) call: u64,
    pub(crate) caller: u64,
    /// The functions of the calls, in order; none where they are many, or not known.
    pub(crate) functions: Vec<u32>,
}

impl Level {
    pub(crate) fn kind(&self) -> Kind {
        if self.width == 0 { Kind::Calls } else { Kind::Blocks }
    }
}

impl Lane {
    /// The level for a picture with pixels of this width.
    pub(crate) fn level(&self, px: u64) -> &Level {
        let n_narrow = self.levels.partition_point(|level| level.width <= px);
        &self.levels[n_narrow.max(1) - 1]
    }

    pub(crate) fn calls(&self) -> &Level {
        &self.levels[0]
    }
}

/// Takes chunks, of several tasks at a time.
#[derive(Debug)]
pub(crate) struct ChunkFile<'f> {
    file: &'f File,
    end: AtomicU64,
    n_chunks: AtomicU64,
}

impl<'f> ChunkFile<'f> {
    pub(crate) fn new(file: &'f File) -> Self {
        Self { file, end: AtomicU64::new(CHUNKS), n_chunks: AtomicU64::new(0) }
    }

    /// Writes what is packed, whose first block has the call of this number. Then the encoder is empty.
    pub(crate) fn append(&self, encoder: &mut Encoder, call: u64, functions: Vec<u32>) -> Result<Chunk> {
        if self.n_chunks.fetch_add(1, Ordering::Relaxed) >= MAX_CHUNKS {
            return Err(Error::TooManyCalls { max: MAX_CALLS });
        }
        let (first, end) = (encoder.first, encoder.last_end);
        let extent = self.write(&encoder.bytes)?;
        encoder.clear();
        Ok(Chunk { extent, start: first.start, end, call, caller: first.caller, functions })
    }

    /// Writes the sums until some time.
    pub(crate) fn mark(&self, time: u64, prefix: &Prefix) -> Result<Mark> {
        let bytes = postcard::to_stdvec(prefix).expect("memory is all that it needs");
        Ok(Mark { time, extent: self.write(&bytes)? })
    }

    fn write(&self, bytes: &[u8]) -> Result<Extent> {
        let offset = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_all_at(bytes, offset).map_err(Error::Index)?;
        Ok(Extent { offset, length: bytes.len() as u32, checksum: checksum(bytes) })
    }

    /// Writes the directory: the file is whole.
    pub(crate) fn finish(self, directory: &Directory) -> Result<()> {
        let bytes = postcard::to_stdvec(directory).expect("memory is all that it needs");
        let offset = self.end.into_inner();
        self.file.write_all_at(&bytes, offset).map_err(Error::Index)?;
        let place = [offset, bytes.len() as u64, checksum(&bytes).into()].map(u64::to_le_bytes);
        let start = [MAGIC.as_slice(), place.as_flattened()].concat();
        self.file.write_all_at(&start, KeptFile::START).map_err(Error::Index)
    }
}

/// Reads the directory of a file, if it makes sense.
pub(crate) fn read_directory(file: &File) -> Option<Directory> {
    let mut start = [0; (CHUNKS - KeptFile::START) as usize];
    file.read_exact_at(&mut start, KeptFile::START).ok()?;
    let (words, _) = start.strip_prefix(MAGIC)?.as_chunks::<8>();
    let &[offset, length, sum] = words else { return None };
    let [offset, length, sum] = [offset, length, sum].map(u64::from_le_bytes);
    if length > MAX_DIRECTORY_BYTES || length > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    if u64::from(checksum(&bytes)) != sum {
        return None;
    }
    postcard::from_bytes(&bytes).ok().filter(makes_sense)
}

/// True if all numbers in it are valid.
fn makes_sense(directory: &Directory) -> bool {
    let n_functions = directory.functions.len();
    let is_chunk = |chunk: &Chunk| {
        chunk.start <= chunk.end
            && chunk.extent.length <= MAX_CHUNK_BYTES
            && chunk.functions.is_sorted()
            && chunk.functions.last().is_none_or(|&last| (last as usize) < n_functions)
    };
    let is_level = |level: &Level| {
        level.chunks.iter().all(is_chunk) && level.chunks.is_sorted_by(|a, b| a.end <= b.start && a.call < b.call)
    };
    let is_lane = |lane: &Lane| {
        lane.levels.first().is_some_and(|level| level.width == 0)
            && lane.levels.is_sorted_by(|a, b| a.width < b.width)
            && lane.levels.iter().all(is_level)
    };
    directory.begin <= directory.end
        && directory.tasks.iter().all(|task| {
            task.lanes.iter().all(is_lane)
                && task.sums.makes_sense(n_functions)
                && task.marks.iter().all(|mark| mark.extent.length <= MAX_PREFIX_BYTES)
                && task.marks.is_sorted_by(|a, b| a.time < b.time)
        })
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// A reader of a file: each call or block of a level, from one on.
#[derive(Debug)]
pub(crate) struct Cursor<'l> {
    file: &'l File,
    level: &'l Level,
    /// The chunk that is read next.
    next: usize,
    bytes: Vec<u8>,
    /// Where in them, behind which time, and with the calls of which caller.
    at: usize,
    end: u64,
    caller: u64,
    /// Which call of its depth comes next.
    call: u64,
}

impl<'l> Cursor<'l> {
    /// Before the first chunk that ends at this time or later.
    pub(crate) fn at_time(file: &'l File, level: &'l Level, from: u64) -> Self {
        let next = level.chunks.partition_point(|chunk| chunk.end < from);
        Self::at_chunk(file, level, next)
    }

    pub(crate) fn at_chunk(file: &'l File, level: &'l Level, next: usize) -> Self {
        Self { file, level, next, bytes: Vec::new(), at: 0, end: 0, caller: 0, call: 0 }
    }

    /// Passes over the next chunks that are not wanted, if the one that is read has no more. Returns whether there is more.
    pub(crate) fn skip(&mut self, mut is_wanted: impl FnMut(&Chunk) -> bool) -> bool {
        if self.at < self.bytes.len() {
            return true;
        }
        while let Some(chunk) = self.level.chunks.get(self.next) {
            if is_wanted(chunk) {
                return true;
            }
            self.next += 1;
        }
        false
    }

    /// True if all of the chunk was read.
    pub(crate) fn is_between(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next one, with the number of its first call.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Block)>> {
        if self.at >= self.bytes.len() && !self.fill()? {
            return Ok(None);
        }
        let mut decoder = Decoder::new(self.level.kind(), &self.bytes[self.at..], self.end, self.caller);
        let block = decoder.next().ok_or(Error::Damaged)?;
        self.at = self.bytes.len() - decoder.rest().len();
        (self.end, self.caller) = (block.end, block.caller);
        let call = self.call;
        self.call = call.checked_add(block.n).ok_or(Error::Damaged)?;
        Ok(Some((call, block)))
    }

    /// Reads the next chunk. Returns whether there is one.
    fn fill(&mut self) -> Result<bool> {
        let Some(chunk) = self.level.chunks.get(self.next) else { return Ok(false) };
        self.next += 1;
        self.at = 0;
        (self.end, self.caller, self.call) = (chunk.start, chunk.caller, chunk.call);
        chunk.extent.read(self.file, &mut self.bytes)?;
        Ok(true)
    }
}
