//! `resources.dat`: who took memory, and gave it back. The file, and the memory that recorded processes write the same units to.
//!
//! The file is [`MAGIC`] and blocks, each of a [head](BlockHead) and units of 16 bytes. A block is what one thread has written to
//! one chunk of the memory, in which [`pool`] says where things lie.
//!
//! A unit is two words of 64 bits. The first one has the unit's [kind](Kind) in its highest byte, and below it the time, in ticks since the
//! recording began. Units of the kind [`Kind::More`] belong to the one before them.
//!
//! | kind | first unit, second word | further units |
//! |---|---|---|
//! | an allocation | address | size; number of its stack, or 0 |
//! | a release | address | |
//! | [`Kind::Stack`] | number; how many frames, in the highest 16 bits | two return addresses each, the innermost first |
//! | [`Kind::Process`] | process; in the highest half the number of its parent, or 0 | `CLOCK_MONOTONIC` in nanoseconds; bytes of the text. Then the program's path |
//! | [`Kind::Module`] | base address: what is added to the file's addresses | begin, end. Bytes of build-id and path; bytes of the build-id. Then both |
//! | [`Kind::Clock`] | `CLOCK_MONOTONIC` in nanoseconds | |
//! | [`Kind::End`] | events that were lost | 1 if a limit was reached; 0 |
//!
//! Text lies in second words, eight bytes in each.

use alloc::vec::Vec;

/// The file's first bytes: what it is, and the version of its form.
pub const MAGIC: &[u8; 16] = b"rftrace res. 01\n";

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 16;

/// The most frames of a stack.
pub const MAX_FRAMES: usize = 64;

/// The most bytes of a path, or a build-id with a path.
pub const MAX_TEXT_BYTES: usize = 4096;

/// Bits of a unit's first word that are not its kind.
pub const LOW: u64 = (1 << 56) - 1;

/// Two words.
pub type Unit = [u64; 2];

/// What a unit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// `malloc`.
    Malloc = 1,
    /// `calloc`.
    Calloc = 2,
    /// The allocation of a `realloc`.
    Realloc = 3,
    /// `memalign`.
    Memalign = 4,
    /// `posix_memalign`.
    PosixMemalign = 5,
    /// `aligned_alloc`.
    AlignedAlloc = 6,
    /// `valloc`.
    Valloc = 7,
    /// `pvalloc`.
    Pvalloc = 8,
    /// `free`.
    Free = 32,
    /// The release of a `realloc`.
    ReallocFree = 33,
    /// A stack.
    Stack = 64,
    /// A process has begun to be recorded.
    Process = 65,
    /// A program or library that is in a process.
    Module = 66,
    /// What time it was.
    Clock = 67,
    /// The recording has ended.
    End = 68,
    /// Goes on with the unit before.
    More = 255,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Malloc,
        Self::Calloc,
        Self::Realloc,
        Self::Memalign,
        Self::PosixMemalign,
        Self::AlignedAlloc,
        Self::Valloc,
        Self::Pvalloc,
        Self::Free,
        Self::ReallocFree,
        Self::Stack,
        Self::Process,
        Self::Module,
        Self::Clock,
        Self::End,
        Self::More,
    ];

    /// Of a unit's first word.
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        let byte = (word >> 56) as u8;
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }

    /// Whether something was taken.
    #[must_use]
    pub fn is_allocation(self) -> bool {
        (self as u8) < Self::Free as u8
    }

    /// Whether something was given back.
    #[must_use]
    pub fn is_release(self) -> bool {
        matches!(self, Self::Free | Self::ReallocFree)
    }

    /// The function that was called.
    #[must_use]
    pub fn function(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Realloc | Self::ReallocFree => "realloc",
            Self::Memalign => "memalign",
            Self::PosixMemalign => "posix_memalign",
            Self::AlignedAlloc => "aligned_alloc",
            Self::Valloc => "valloc",
            Self::Pvalloc => "pvalloc",
            Self::Free => "free",
            Self::Stack | Self::Process | Self::Module | Self::Clock | Self::End | Self::More => "",
        }
    }

    /// The first word of a unit of this kind.
    #[must_use]
    #[inline(always)]
    pub const fn word(self, low: u64) -> u64 {
        (self as u64) << 56 | low & LOW
    }
}

/// What a block begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Units that follow.
    pub units: u32,
    /// The number of the process, from 1 on: one that runs another program gets another number. 0 for the recorder's own.
    pub process: u32,
    /// The thread.
    pub tid: u32,
    /// When the thread got the chunk. Units that are older were another's.
    pub taken: u64,
}

impl BlockHead {
    /// Its bytes in the file.
    pub const BYTES: usize = 32;
    const MAGIC: &[u8; 4] = b"blk\n";

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(Self::MAGIC);
        for (place, number) in [self.units, self.process, self.tid].into_iter().enumerate() {
            bytes[4 + 4 * place..][..4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.taken.to_le_bytes());
        bytes
    }

    /// Reads it; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let number = |place: usize| u32::from_le_bytes(words[place]);
        let taken = u64::from(number(4)) | u64::from(number(5)) << 32;
        (words[0] == *Self::MAGIC && number(1) as usize <= pool::CHUNK_UNITS).then(|| Self {
            units: number(1),
            process: number(2),
            tid: number(3),
            taken,
        })
    }
}

/// Leaves those of a chunk's units that were written since `taken`.
pub fn written(units: &[Unit], taken: u64, out: &mut Vec<Unit>) {
    let mut is_kept = false;
    for unit in units {
        match Kind::of(unit[0]) {
            Some(Kind::More) => {}
            Some(_) => is_kept = unit[0] & LOW >= taken,
            None => is_kept = false,
        }
        if is_kept {
            out.push(*unit);
        }
    }
}

/// The memory that a recorder shares with the processes that it records: places in it, in bytes, and what is said there.
///
/// Numbers of 32 or 64 bits, all of which are changed atomically. A chunk is a thread's from [`TAKEN`](pool::TAKEN) on, until that makes it [`FULL`](pool::FULL)
/// or is gone; then it is the recorder's, who makes it [`FREE`](pool::FREE).
pub mod pool {
    /// The first word.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"rftpool1");
    /// 64 bits: [`MAGIC`].
    pub const MAGIC_AT: usize = 0;
    /// 64 bits: the ticks from which all times are counted.
    pub const BASE_AT: usize = 8;
    /// 32 bits: the recorder changes it all the time while it is at work.
    pub const BEATS_AT: usize = 16;
    /// 32 bits: the number of the last process.
    pub const PROCESSES_AT: usize = 20;
    /// 64 bits: events for which there was no chunk.
    pub const LOST_AT: usize = 24;
    /// 32 bits: not 0 when nothing more is to be recorded.
    pub const OVER_AT: usize = 32;
    /// The chunks' states, of 32 bits each.
    pub const STATES_AT: usize = 4096;
    /// What is known of each chunk, [`HEAD_BYTES`] each.
    pub const HEADS_AT: usize = STATES_AT + 4 * CHUNKS;
    /// Bytes of what is known of a chunk: when it was taken (64 bits), by which process' number and thread (32 each).
    pub const HEAD_BYTES: usize = 16;
    /// The chunks.
    pub const CHUNKS_AT: usize = (HEADS_AT + HEAD_BYTES * CHUNKS).next_multiple_of(4096);
    /// How many there are.
    pub const CHUNKS: usize = 4096;
    /// Bytes of each.
    pub const CHUNK_BYTES: usize = 16 << 10;
    /// Units of each.
    pub const CHUNK_UNITS: usize = CHUNK_BYTES / super::UNIT_BYTES;
    /// All of it.
    pub const BYTES: usize = CHUNKS_AT + CHUNKS * CHUNK_BYTES;

    /// Nobody's chunk.
    pub const FREE: u32 = 0;
    /// A thread's.
    pub const TAKEN: u32 = 1;
    /// The thread has let it go.
    pub const FULL: u32 = 2;
    /// A chunk that is nobody's was taken at no time.
    pub const NEVER: u64 = u64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_both_ways() {
        let head = BlockHead { units: 3, process: 2, tid: 70_000, taken: 1 << 40 };
        let mut bytes = head.encode();
        assert_eq!(BlockHead::decode(&bytes), Some(head));
        bytes[7] = 1;
        assert_eq!(BlockHead::decode(&bytes), None, "more units than a chunk has");
        assert_eq!(BlockHead::decode(&[0; 32]), None);
    }

    #[test]
    fn kinds_both_ways() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.word(u64::MAX)), Some(kind));
            assert_eq!(kind.is_allocation() || kind.is_release(), !kind.function().is_empty());
        }
        assert_eq!(Kind::of(0), None);
    }

    #[test]
    fn what_another_thread_has_written_is_left_out() {
        let old = [[Kind::Malloc.word(5), 1], [Kind::More.word(64), 0]];
        let new = [[Kind::Malloc.word(7), 2], [Kind::More.word(64), 9]];
        let units = [new[0], new[1], old[0], old[1], [0, 0], [Kind::More.word(7), 7]];
        let mut out = Vec::new();
        written(&units, 6, &mut out);
        assert_eq!(out, new);
        written(&units, pool::NEVER, &mut out);
        assert_eq!(out.len(), 2);
    }
}
