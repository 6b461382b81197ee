//! One 16-byte record of a `<tid>.dat` file.

/// Size of a record in bytes, without the payload that may follow it.
pub const RECORD_SIZE: usize = 16;

/// The value of bits 5:3 of a record's second word.
const MAGIC: u64 = 5;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function was entered.
    Entry,
    /// A function returned.
    Exit,
    /// Records were lost; the address is how many.
    Lost,
    /// Something else happened; the address is the event's number.
    Event,
}

/// One record, decoded.
///
/// On disk it is two little-endian 64-bit words: the time, and from the lowest bit up kind (2 bits), payload flag (1),
/// magic (3), depth (10) and address (48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// What the record says.
    pub kind: Kind,
    /// Whether data of an unstated length follows the record: arguments, a return value or event data.
    pub has_payload: bool,
    /// How many functions were open around this one, at most 1023. Some tracers always write 0.
    pub depth: u16,
    /// The low 48 bits of an address in the function; see [`Kind`] for the other meanings.
    pub addr: u64,
}

impl Record {
    /// Decodes a record; `None` if its magic number is wrong.
    pub fn decode(bytes: &[u8; RECORD_SIZE]) -> Option<Self> {
        let (pair, _) = bytes.as_chunks::<8>();
        let [time_ns, word] = [pair[0], pair[1]].map(u64::from_le_bytes);
        if (word >> 3) & 0x7 != MAGIC {
            return None;
        }
        let kind = match word & 0x3 {
            0 => Kind::Entry,
            1 => Kind::Exit,
            2 => Kind::Lost,
            _ => Kind::Event,
        };
        let depth = ((word >> 6) & 0x3ff) as u16;
        Some(Self { time_ns, kind, has_payload: word & 0x4 != 0, depth, addr: word >> 16 })
    }

    /// Encodes the record. Depths and addresses that do not fit are cut: depths to 1023, addresses to their low 48 bits.
    pub fn encode(&self) -> [u8; RECORD_SIZE] {
        let kind = match self.kind {
            Kind::Entry => 0,
            Kind::Exit => 1,
            Kind::Lost => 2,
            Kind::Event => 3,
        };
        let depth = u64::from(self.depth.min(0x3ff));
        let word = self.addr << 16 | depth << 6 | MAGIC << 3 | u64::from(self.has_payload) << 2 | kind;
        let mut bytes = [0; RECORD_SIZE];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_an_entry() {
        // The first record that uftrace 0.13 wrote for a small C program.
        let bytes = b"\x90\xa3\x74\xad\x1f\x01\x00\x00\x28\x00\x70\xe0\xf4\xb1\xe5\x55";
        let record = Record {
            time_ns: 0x011f_ad74_a390,
            kind: Kind::Entry,
            has_payload: false,
            depth: 0,
            addr: 0x55e5_b1f4_e070,
        };
        assert_eq!(Record::decode(bytes), Some(record));
        assert_eq!(record.encode(), *bytes);
    }

    #[test]
    fn decodes_every_field() {
        let word: u64 = 0x1234_5678_9abc << 16 | 0x3ff << 6 | 5 << 3 | 1 << 2 | 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&7_u64.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        let record = Record { time_ns: 7, kind: Kind::Exit, has_payload: true, depth: 1023, addr: 0x1234_5678_9abc };
        assert_eq!(Record::decode(&bytes), Some(record));
        assert_eq!(record.encode(), bytes);
        let wide = Record { depth: u16::MAX, addr: 0xffff_1234_5678_9abc, ..record };
        assert_eq!(wide.encode(), bytes);
    }

    #[test]
    fn bad_magic_is_no_record() {
        assert_eq!(Record::decode(&[0; 16]), None);
        assert_eq!(Record::decode(&[0xff; 16]), None);
    }
}
