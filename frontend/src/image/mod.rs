//! The format of a kernel's recording: `docs/image-format.md`.
//!
//! An image is [`MAGIC`], the versions, and sections: one HEAD, an OPEN for each thread with known open functions, a
//! PACKED or CHUNK for each chunk in use, one END. All parts are little-endian words of 8 bytes.
//!
//! Not here: the meaning of the records in a chunk (`decode`), and an image as a directory (`import`).

#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) mod contents;
pub(crate) mod packed;
#[cfg(all(feature = "import", target_os = "linux"))]
mod raw;
#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) mod read;
#[cfg(all(feature = "import", target_os = "linux"))]
#[cfg_attr(not(feature = "std"), allow(dead_code, reason = "what reads such files is not there"))]
pub(crate) mod stored;
pub(crate) mod write;

/// The first bytes of an image. Like PNG's, they reveal a transfer that changes line ends or drops the eighth bit.
pub(crate) const MAGIC: [u8; 8] = *b"\x93RFT\r\n\x1a\n";
/// Version of the format.
pub(crate) const VERSION: u32 = 2;
/// The oldest readable version. It has no PACKED.
#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) const OLDEST_VERSION: u32 = 1;
/// A word whose bytes show the byte order.
pub(crate) const BYTE_ORDER: u64 = 0x0807_0605_0403_0201;

/// Contents of a section: the low half of its first word. The high half is the number of further bytes, without the
/// checksum.
pub(crate) mod tag {
    /// [`head`](super::head), then the kernel's name.
    pub(crate) const HEAD: u32 = u32::from_le_bytes(*b"HEAD");
    /// A thread's id, then the words of the exit records of the functions open in it, outermost first.
    pub(crate) const OPEN: u32 = u32::from_le_bytes(*b"OPEN");
    /// A chunk's header and records as in memory, up to the last written record.
    pub(crate) const CHUNK: u32 = u32::from_le_bytes(*b"CHNK");
    /// The same for less: the header, and the records as [`packed`](super::packed) has them.
    pub(crate) const PACKED: u32 = u32::from_le_bytes(*b"CHNZ");
    /// The number of OPEN sections, and of CHUNK and PACKED sections together.
    pub(crate) const END: u32 = u32::from_le_bytes(*b"END\n");
}

/// The words of a HEAD section, by their place.
pub(crate) mod head {
    /// [`BYTE_ORDER`](super::BYTE_ORDER).
    pub(crate) const BYTE_ORDER: usize = 0;
    /// Bytes of a chunk of the buffer.
    pub(crate) const CHUNK_BYTES: usize = 1;
    /// Chunks of the buffer.
    pub(crate) const N_CHUNKS: usize = 2;
    /// Chunks in use: CHUNK and PACKED sections to come.
    pub(crate) const N_CHUNKS_USED: usize = 3;
    /// The kernel's address at run time; 0 if it runs at its link address.
    pub(crate) const LOAD_ADDRESS: usize = 4;
    /// The time of the first start of recording, in ticks.
    pub(crate) const FIRST_TSC: usize = 5;
    /// The time of the last stop, in ticks.
    pub(crate) const STOP_TSC: usize = 6;
    /// Nanoseconds of Unix time at `FIRST_TSC`; 0: unknown.
    pub(crate) const WALL_NANOS: usize = 7;
    /// Ticks per second; 0: unknown.
    pub(crate) const TSC_HZ: usize = 8;
    /// Its source: a number of [`TscSource`](crate::clock::tsc::TscSource).
    pub(crate) const TSC_HZ_SOURCE: usize = 9;
    /// Bits of [`flag`](super::flag).
    pub(crate) const FLAGS: usize = 10;
    /// The number of reused full chunks.
    pub(crate) const N_OVERWRITTEN: usize = 11;
    /// The number of calls lost because a ring had no chunk for them.
    pub(crate) const N_LOST_NO_CHUNK: usize = 12;
    /// The number of threads without a block.
    pub(crate) const N_UNTRACED_THREADS: usize = 13;
    /// The time of sending, in ticks.
    pub(crate) const SENT_TSC: usize = 14;
    /// The number of bytes of the name behind the words, without the zeros up to a whole word.
    pub(crate) const NAME_BYTES: usize = 15;
    /// Number of words before the name.
    pub(crate) const N_WORDS: usize = 16;
}

/// Bits of the word [`head::FLAGS`].
pub(crate) mod flag {
    /// The buffer is a ring.
    pub(crate) const RING: u64 = 1 << 0;
    /// The buffer was used up, and recording stopped.
    pub(crate) const FULL: u64 = 1 << 1;
    /// A thread was taking a chunk at the time of sending: one chunk may be half prepared.
    pub(crate) const UNQUIET: u64 = 1 << 2;
    /// The time stamp counter runs at one rate.
    pub(crate) const INVARIANT_TSC: u64 = 1 << 3;
    /// The image is one of several for one recording. All but the last one have no END, and none knows the number of
    /// coming chunks.
    pub(crate) const STREAMED: u64 = 1 << 4;
}

/// The maximum length of the name in bytes; longer ones are cut.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// The checksum of a section's words. Each step is a bijection of the word and of the sum before, so a change of any
/// single word changes the sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checksum(pub(crate) u64);

impl Checksum {
    #[inline]
    pub(crate) fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
