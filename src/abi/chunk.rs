//! Chunks: their size, header and lease. Which chunk is taken next is the control block's.

use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::record::Record;

/// Smallest chunk, in bytes.
pub const MIN_CHUNK_BYTES: usize = 512;
/// Largest chunk, in bytes.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that a region is cut into at least, as far as [`MIN_CHUNK_BYTES`] allows.
pub const WANTED_CHUNKS: usize = 64;
/// Chunks without which a region is refused.
pub const MIN_CHUNKS: usize = 4;

/// States of a chunk.
pub mod chunk_state {
    /// The bits of a [`lease`](super::lease) that hold it.
    pub const MASK: u64 = 7;
    /// Holds nothing of this cycle.
    pub const FREE: u64 = 0;
    /// One thread writes into it, and only that thread may let it go.
    pub const OWNED: u64 = 1;
    /// Holds records and has no writer.
    pub const FULL: u64 = 2;
    /// Like FULL, but its writer ended early: the next new thread may go on behind what is there.
    pub const PARTIAL: u64 = 3;
    /// Like FULL, but a hook that a signal has interrupted may still write a record that it has reserved here.
    pub const KEPT: u64 = 4;
    /// Like KEPT, but its thread has let it go.
    pub const WAITING: u64 = 5;
}

/// A chunk's lease, one word: `index << 3 | state`. The index tells the takings of all chunks apart, in the life of a program.
pub mod lease {
    use super::chunk_state;

    const INDEX_SHIFT: u32 = chunk_state::MASK.trailing_ones();

    /// That of the chunk that was taken as number `index`.
    #[must_use]
    #[inline(always)]
    pub const fn new(index: u64, state: u64) -> u64 {
        index << INDEX_SHIFT | state
    }

    /// One of [`chunk_state`].
    #[must_use]
    #[inline(always)]
    pub const fn state(lease: u64) -> u64 {
        lease & chunk_state::MASK
    }

    /// The chunk's place in the order in which all chunks were taken, from 1.
    #[must_use]
    #[inline(always)]
    pub const fn index(lease: u64) -> u64 {
        lease >> INDEX_SHIFT
    }
}

/// The first 64 bytes of a chunk. Records fill the rest.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ChunkHeader {
    /// When it was taken last, by number, and what state it is in; see [`lease`].
    pub lease: AtomicU64,
    /// Index of the chunk that the same thread filled before, 0 for its first one.
    pub prev_index: AtomicU64,
    /// Functions that were open in the thread when it took the chunk.
    pub depth: AtomicU32,
    /// Offset of the first free record in a PARTIAL chunk.
    pub fill: AtomicU32,
    /// How many further threads went on in this chunk, each behind a RESYNC record with the bit [`kind::NEW_THREAD`](super::kind::NEW_THREAD).
    pub n_adopted: AtomicU32,
    /// The thread that writes or wrote into it; ids count from 1, 0 means that the chunk is being prepared.
    pub tid: AtomicU32,
    /// When the chunk was taken, in ticks: records with earlier times are an earlier owner's.
    pub taken_tsc: AtomicU64,
    /// The core on which the thread ran then, plus 1; 0 if nobody has told.
    pub core: AtomicU32,
    /// How many stacks were resumed in this chunk, each with a RESYNC record with the bit [`kind::RESUMED`](super::kind::RESUMED).
    pub n_resumed: AtomicU32,
}

impl ChunkHeader {
    /// The chunk's place in the order in which all chunks were taken, from 1.
    #[must_use]
    #[inline(always)]
    pub fn index(&self) -> u64 {
        lease::index(self.lease.load(Relaxed))
    }
}

/// Bytes of a chunk before its first record.
pub const CHUNK_HEADER_BYTES: usize = size_of::<ChunkHeader>();

/// The size of the chunks that a region is cut into.
#[must_use]
pub const fn chunk_bytes(region_bytes: usize) -> usize {
    let mut bytes = MAX_CHUNK_BYTES;
    while bytes > MIN_CHUNK_BYTES && region_bytes / bytes < WANTED_CHUNKS {
        bytes /= 2;
    }
    bytes
}

/// Records that a chunk holds.
#[must_use]
pub const fn records_per_chunk(chunk_bytes: usize) -> usize {
    (chunk_bytes - CHUNK_HEADER_BYTES) / size_of::<Record>()
}

/// Bytes of an aligned region that holds at least `n_records` records, or `None` if that exceeds the address space.
#[must_use]
pub const fn region_bytes(n_records: usize) -> Option<usize> {
    let Some(raw) = n_records.checked_mul(size_of::<Record>()) else {
        return None;
    };
    // Headers make the region larger than `raw`, which may double the chunk size; a multiple of that holds enough then.
    let chunk = chunk_bytes(raw);
    let n_chunks = n_records.div_ceil(records_per_chunk(chunk));
    match n_chunks.checked_mul(chunk) {
        Some(bytes) => bytes.checked_next_multiple_of(2 * chunk),
        None => None,
    }
}

const _: () = assert!(CHUNK_HEADER_BYTES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_holds_what_was_asked_for() {
        for n_records in (1..5_000).chain([10_000, 99_999, 262_080, 262_081, 1_000_000, 20_000_000]) {
            let bytes = region_bytes(n_records).unwrap();
            let chunk = chunk_bytes(bytes);
            assert!(bytes / chunk * records_per_chunk(chunk) >= n_records, "{n_records} records in {bytes} bytes");
            // Headers and rounding cost little where the region is not tiny.
            assert!(n_records < 1_000 || bytes < n_records * 16 * 5 / 4, "{bytes} bytes for {n_records} records");
        }
        assert_eq!(region_bytes(usize::MAX), None);
    }

    #[test]
    fn chunks_are_as_large_as_their_number_allows() {
        assert_eq!(chunk_bytes(0), MIN_CHUNK_BYTES);
        assert_eq!(chunk_bytes(64 * 1024), 1024);
        assert_eq!(chunk_bytes(4 * 1024 * 1024), MAX_CHUNK_BYTES);
        assert_eq!(chunk_bytes(1 << 40), MAX_CHUNK_BYTES);
    }
}
