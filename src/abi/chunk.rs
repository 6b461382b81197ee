//! Chunks: their size, header and lease. The control block decides which chunk is taken next.

use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::record::Record;

/// The minimum size of a chunk in bytes.
pub const MIN_CHUNK_BYTES: usize = 512;
/// The maximum size of a chunk in bytes.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024;
/// The minimum number of chunks in a region, as far as [`MIN_CHUNK_BYTES`] allows.
pub const WANTED_CHUNKS: usize = 64;
/// The minimum number of chunks. The tracer refuses a smaller region.
pub const MIN_CHUNKS: usize = 4;

/// The states of a chunk.
pub mod chunk_state {
    /// The bits of the state in a [`lease`](super::lease).
    pub const MASK: u64 = 7;
    /// The chunk holds no record of this cycle.
    pub const FREE: u64 = 0;
    /// The chunk has one writing thread. Only that thread may release it.
    pub const OWNED: u64 = 1;
    /// The chunk holds records and has no writer.
    pub const FULL: u64 = 2;
    /// Like FULL, but the writer ended early: the next new thread may continue behind its records.
    pub const PARTIAL: u64 = 3;
    /// Like FULL, but an interrupted hook may still write a reserved record into the chunk.
    pub const KEPT: u64 = 4;
    /// Like KEPT, but the thread has released the chunk.
    pub const WAITING: u64 = 5;
}

/// A chunk's lease, one word: `index << 3 | state`. The index numbers all takings of chunks in the life of a program,
/// from 1.
pub mod lease {
    use super::chunk_state;

    const INDEX_SHIFT: u32 = chunk_state::MASK.trailing_ones();

    /// Returns the lease of the chunk taken as number `index`, in this state.
    #[must_use]
    #[inline(always)]
    pub const fn new(index: u64, state: u64) -> u64 {
        index << INDEX_SHIFT | state
    }

    /// Returns the state in a lease, one of [`chunk_state`].
    #[must_use]
    #[inline(always)]
    pub const fn state(lease: u64) -> u64 {
        lease & chunk_state::MASK
    }

    /// Returns the index in a lease, from 1.
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
    /// The index of the chunk's last taking, and its state; see [`lease`].
    pub lease: AtomicU64,
    /// The index of the thread's previous chunk; 0 for its first one.
    pub prev_index: AtomicU64,
    /// The number of open functions of the thread when it took the chunk.
    pub depth: AtomicU32,
    /// The offset of the first free record in a PARTIAL chunk, in bytes.
    pub fill: AtomicU32,
    /// The number of further threads in this chunk. Each begins with a RESYNC record with the bit
    /// [`kind::NEW_THREAD`](super::kind::NEW_THREAD).
    pub n_adopted: AtomicU32,
    /// The id of the thread that took the chunk, from 1; 0 while the chunk is being prepared. Further threads are named
    /// in their RESYNC records, see `n_adopted`.
    pub tid: AtomicU32,
    /// The time of the chunk's taking in ticks. Records with earlier times belong to an earlier owner.
    pub taken_tsc: AtomicU64,
    /// The core on which the thread ran at that time, plus 1; 0 if unknown.
    pub core: AtomicU32,
    /// The number of resumed stacks in this chunk. Each begins with a RESYNC record with the bit
    /// [`kind::RESUMED`](super::kind::RESUMED).
    pub n_resumed: AtomicU32,
}

impl ChunkHeader {
    /// Returns the index of the chunk's last taking, from 1.
    #[must_use]
    #[inline(always)]
    pub fn index(&self) -> u64 {
        lease::index(self.lease.load(Relaxed))
    }
}

/// The number of bytes of a chunk before its first record.
pub const CHUNK_HEADER_BYTES: usize = size_of::<ChunkHeader>();

/// Returns the size of a chunk, in bytes, for a region of `region_bytes` bytes.
#[must_use]
pub const fn chunk_bytes(region_bytes: usize) -> usize {
    let mut bytes = MAX_CHUNK_BYTES;
    while bytes > MIN_CHUNK_BYTES && region_bytes / bytes < WANTED_CHUNKS {
        bytes /= 2;
    }
    bytes
}

/// Returns the number of records in a chunk of `chunk_bytes` bytes.
#[must_use]
pub const fn records_per_chunk(chunk_bytes: usize) -> usize {
    (chunk_bytes - CHUNK_HEADER_BYTES) / size_of::<Record>()
}

/// Returns the size in bytes of an aligned region for at least `n_records` records, or `None` if it exceeds the address
/// space.
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
