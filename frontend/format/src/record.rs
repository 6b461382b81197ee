//! `<tid>.dat`: a sequence of records, 16 bytes each, some followed by data.
//!
//! On disk a record is two little-endian 64-bit words: the time, and a word with, from the lowest bit up, kind (2
//! bits), payload flag (1), magic (3), depth (10) and address (48).

/// The size of a record in bytes, without a payload.
pub const RECORD_BYTES: usize = 16;
/// The maximum depth in a record.
pub const MAX_DEPTH: u16 = 1023;
/// The bits of an address that a record holds.
pub const ADDRESS_MASK: u64 = 0xffff_ffff_ffff;

/// The value of bits 5:3 of a record's second word.
const MAGIC: u64 = 5;
const PAYLOAD: u64 = 1 << 2;
const MAGIC_SHIFT: u32 = 3;
const DEPTH_SHIFT: u32 = 6;
const ADDRESS_SHIFT: u32 = 16;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function was entered.
    Entry,
    /// A function returned.
    Exit,
    /// Records were lost; the address is their number.
    Lost,
    /// Another event happened; the address is the event's number.
    Event,
}

/// A record of `<tid>.dat`: an entry, an exit, a loss or another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The time in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The kind.
    pub kind: Kind,
    /// True if data follows the record: arguments, a return value or event data. The record does not give its length.
    pub has_payload: bool,
    /// The offset of that data in the file, if the reader has set it; 0 otherwise. It is not part of the encoded
    /// record.
    pub payload_at: u64,
    /// The number of functions that were open around this one, at most 1023. Some tracers always write 0.
    pub depth: u16,
    /// The low 48 bits of an address in the function; see [`Kind`] for other meanings.
    pub addr: u64,
}

impl Record {
    /// Decodes a record; `None` if its magic number is wrong.
    #[inline]
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (pair, _) = bytes.as_chunks::<8>();
        let [time_ns, word] = [pair[0], pair[1]].map(u64::from_le_bytes);
        if word >> MAGIC_SHIFT & 7 != MAGIC {
            return None;
        }
        let kind = match word & 3 {
            0 => Kind::Entry,
            1 => Kind::Exit,
            2 => Kind::Lost,
            _ => Kind::Event,
        };
        let depth = (word >> DEPTH_SHIFT) as u16 & MAX_DEPTH;
        Some(Self {
            time_ns,
            kind,
            has_payload: word & PAYLOAD != 0,
            payload_at: 0,
            depth,
            addr: word >> ADDRESS_SHIFT,
        })
    }

    /// Encodes the record. Depths are limited to 1023, addresses to their low 48 bits.
    // The writer of traces may be compiled with the program's flags: each function that is not inlined then costs two hooks.
    #[inline(always)]
    pub const fn encode(&self) -> [u8; RECORD_BYTES] {
        let kind = match self.kind {
            Kind::Entry => 0,
            Kind::Exit => 1,
            Kind::Lost => 2,
            Kind::Event => 3,
        };
        let depth = if self.depth > MAX_DEPTH { MAX_DEPTH } else { self.depth } as u64;
        let payload = if self.has_payload { PAYLOAD } else { 0 };
        let word = self.addr << ADDRESS_SHIFT | depth << DEPTH_SHIFT | MAGIC << MAGIC_SHIFT | payload | kind;
        (self.time_ns as u128 | (word as u128) << u64::BITS).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_uftrace() {
        // The first record that uftrace 0.13 wrote for a small C program.
        let bytes = b"\x90\xa3\x74\xad\x1f\x01\x00\x00\x28\x00\x70\xe0\xf4\xb1\xe5\x55";
        let record = Record {
            time_ns: 0x011f_ad74_a390,
            kind: Kind::Entry,
            has_payload: false,
            payload_at: 0,
            depth: 0,
            addr: 0x55e5_b1f4_e070,
        };
        assert_eq!(Record::decode(bytes), Some(record));
        assert_eq!(record.encode(), *bytes);
    }

    #[test]
    fn a_record_is_time_then_packed_word() {
        let record = Record {
            time_ns: 0x0102_0304_0506_0708,
            kind: Kind::Exit,
            has_payload: false,
            payload_at: 0,
            depth: 2,
            addr: 0x5555_1234_5678,
        };
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0xa9, 0, 0x78, 0x56, 0x34, 0x12, 0x55, 0x55];
        assert_eq!(record.encode(), bytes);
        assert_eq!(Record::decode(&bytes), Some(record));
    }

    #[test]
    fn every_field() {
        let word: u64 = 0x1234_5678_9abc << 16 | 0x3ff << 6 | 5 << 3 | 1 << 2 | 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&7_u64.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        let record = Record {
            time_ns: 7,
            kind: Kind::Exit,
            has_payload: true,
            payload_at: 0,
            depth: 1023,
            addr: 0x1234_5678_9abc,
        };
        assert_eq!(Record::decode(&bytes), Some(record));
        assert_eq!(record.encode(), bytes);
        let wide = Record { depth: u16::MAX, addr: 0xffff_1234_5678_9abc, ..record };
        assert_eq!(wide.encode(), bytes);
        for (kind, bits) in [(Kind::Entry, 0), (Kind::Exit, 1), (Kind::Lost, 2), (Kind::Event, 3)] {
            let bytes = Record { kind, ..record }.encode();
            assert_eq!(bytes[8] & 3, bits);
            assert_eq!(Record::decode(&bytes).map(|record| record.kind), Some(kind));
        }
    }

    #[test]
    fn bad_magic_is_no_record() {
        assert_eq!(Record::decode(&[0; 16]), None);
        assert_eq!(Record::decode(&[0xff; 16]), None);
    }
}
