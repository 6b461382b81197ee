//! Unpacks the records of a chunk. The bytes may be anything.

#![forbid(unsafe_code)]

use rftrace::abi::Record;

use super::{MANY_TICKS, Tables, Told, form, tag};

/// Packed records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) bytes: &'a [u8],
    /// Further bytes are missing: a record cut in the middle is unknown.
    pub(crate) is_cut: bool,
    /// The number of records if none is missing; the caller has checked it against the chunk's size.
    pub(crate) n_records: usize,
    /// The time at which the chunk was taken, in ticks.
    pub(crate) taken_tsc: u64,
}

/// The reason for a missing record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRecord {
    /// The bytes end before it or in it.
    End,
    /// It is invalid, for this reason.
    Bad(&'static str),
}

impl Payload<'_> {
    /// Returns the records, or their fault.
    pub(crate) fn unpack(self) -> Result<Vec<Record>, &'static str> {
        // Each has a byte at least.
        let mut records = Vec::with_capacity(self.n_records.min(self.bytes.len()));
        self.unpack_into(&mut records)?;
        Ok(records)
    }

    /// Appends the records. Returns true if they are in order of time.
    pub(crate) fn unpack_into(self, records: &mut Vec<Record>) -> Result<bool, &'static str> {
        let n_records = records.len().saturating_add(self.n_records);
        let mut is_ordered = true;
        let mut tables = Tables::new();
        let mut input = Input(self.bytes);
        let mut tsc = self.taken_tsc;
        while records.len() < n_records {
            let (ticks, word) = match input.record(&mut tables) {
                Ok(record) => record,
                Err(NoRecord::End) if self.is_cut => return Ok(is_ordered),
                Err(NoRecord::End) => return Err("it has fewer packed records than its header announces"),
                Err(NoRecord::Bad(problem)) => return Err(problem),
            };
            is_ordered &= tsc.checked_add(ticks).is_some();
            tsc = tsc.wrapping_add(ticks);
            if tsc < self.taken_tsc {
                return Err("a packed record is older than the chunk");
            }
            records.push(Record { tsc: tsc.into(), word: word.into() });
        }
        if input.0.is_empty() { Ok(is_ordered) } else { Err("it has more packed records than its header announces") }
    }
}

/// The unread bytes.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next record: ticks since the one before, modulo 2^64, and the word.
    #[inline(always)]
    fn record(&mut self, tables: &mut Tables) -> Result<(u64, u64), NoRecord> {
        let first = self.number()?;
        let mut ticks = first >> tag::N_BITS;
        let (told, word) = match first % (1 << tag::N_BITS) {
            tag::RETURN => {
                let word = tables.returning().ok_or(NoRecord::Bad("a packed record returns from no function"))?;
                (Told::Return, word)
            }
            tag::FOLLOWING => (Told::Following, tables.following()),
            tag::CACHED => {
                let [place] = self.bytes()?;
                (Told::Cached, tables.cached(place))
            }
            _ => match self.bytes()? {
                [form::WORD] => (Told::Word, u64::from_le_bytes(self.bytes()?)),
                [form::TICKS_AND_WORD] if ticks == 0 => {
                    let number = self.number()?;
                    ticks = if number & 1 == 1 { !(number >> 1) } else { number >> 1 };
                    if ticks < MANY_TICKS {
                        return Err(NoRecord::Bad("a packed record has the form for many ticks, but few ticks"));
                    }
                    (Told::TicksAndWord, u64::from_le_bytes(self.bytes()?))
                }
                _ => return Err(NoRecord::Bad("a packed record has an unknown form")),
            },
        };
        tables.learn(told, word);
        Ok((ticks, word))
    }

    #[inline(always)]
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], NoRecord> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(NoRecord::End)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// A number of 64 bits at most.
    #[inline(always)]
    fn number(&mut self) -> Result<u64, NoRecord> {
        // Most have one byte or two. Which of both cannot be foreseen, so nothing branches on it.
        if let [first, second, ..] = *self.0
            && first & second < 0x80
        {
            let is_long = first >> 7;
            self.0 = &self.0[1 + usize::from(is_long)..];
            return Ok(u64::from(first & 0x7f) | u64::from(second & is_long.wrapping_neg()) << 7);
        }
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.bytes()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(NoRecord::Bad("a packed record has a number of more than 64 bits"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rftrace::abi::{ADDRESS_SHIFT, MAX_CHUNK_BYTES, kind, records_per_chunk};

    use super::*;
    use crate::image::packed::encode::{Packer, Shared};

    const TAKEN: u64 = 1_000;

    fn packed(records: &[(u64, u64)]) -> Vec<u8> {
        let mut packer = Box::new(Packer::new());
        let packed = packer.pack(TAKEN, records.iter().copied()).unwrap();
        assert_eq!(packed.n_records, records.len());
        packed.bytes.to_vec()
    }

    fn unpacked(bytes: &[u8], is_cut: bool, n_records: usize) -> Result<Vec<(u64, u64)>, &'static str> {
        let records = Payload { bytes, is_cut, n_records, taken_tsc: TAKEN }.unpack()?;
        Ok(records.iter().map(|record| record.read(TAKEN).expect("a valid record")).collect())
    }

    const ENTRY: u64 = 0x1000 << ADDRESS_SHIFT;
    const EXIT: u64 = ENTRY | kind::EXIT;

    /// Each form of a record, by docs/image-format.md.
    const EXAMPLE: [(u64, u64, &[u8]); 9] = [
        // 5 ticks, a word.
        (1_005, ENTRY, b"\x17\0\0\0\0\x10\0\0\0\0"),
        // 5 ticks, a return.
        (1_010, EXIT, b"\x14"),
        // 100 ticks; 0x1000 * 0x9e3779b97f4a7c15 is 0x9e3_779b97f4a7c15000, so the place in the cache is 0x77.
        (1_110, ENTRY, b"\x92\x03\x77"),
        (1_110, EXIT, b"\0"),
        // 1 tick, and what followed the exit the last time.
        (1_111, ENTRY, b"\x05"),
        // 3 ticks earlier: the complement of -3 is 2.
        (1_108, ENTRY, b"\x03\x01\x05\0\0\0\x10\0\0\0\0"),
        // Of this nothing is learned but that it is the word before: another word comes, and is entered without an exit.
        (1_109, ENTRY | kind::POINT, b"\x07\0\x04\0\0\x10\0\0\0\0"),
        (1_110, EXIT, b"\x04"),
        // More than the first number holds.
        (1_110 + (1 << 62), EXIT, b"\x03\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01\0\0\x10\0\0\0\0"),
    ];

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let records = EXAMPLE.map(|(tsc, word, _)| (tsc, word));
        let bytes = EXAMPLE.map(|(_, _, bytes)| bytes).concat();
        assert_eq!(packed(&records), bytes);
        assert_eq!(unpacked(&bytes, false, records.len()).unwrap(), records);
    }

    #[test]
    fn whole_records_of_cut_bytes_are_kept() {
        let records = EXAMPLE.map(|(tsc, word, _)| (tsc, word));
        let bytes = EXAMPLE.map(|(_, _, bytes)| bytes).concat();
        let ends: Vec<usize> =
            (0..=records.len()).map(|n| EXAMPLE[..n].iter().map(|record| record.2.len()).sum()).collect();
        for length in 0..bytes.len() {
            let n_whole = ends.iter().rposition(|&end| end <= length).unwrap();
            assert_eq!(unpacked(&bytes[..length], true, records.len()).unwrap(), records[..n_whole], "{length}");
            assert_eq!(
                unpacked(&bytes[..length], false, records.len()).unwrap_err(),
                "it has fewer packed records than its header announces"
            );
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let problem = |bytes: &[u8]| unpacked(bytes, true, 10).unwrap_err();
        assert!(problem(b"\0").contains("returns from no function"));
        assert!(problem(b"\x07\x02\0\0\0\0\0\0\0\0").contains("form"));
        assert!(problem(b"\x07\x01\x05\0\0\0\0\0\0\0\0").contains("form"), "ticks twice");
        assert!(problem(b"\x03\x01\x04\0\0\0\0\0\0\0\0").contains("few ticks"));
        assert!(problem(b"\x03\x01\x01\0\0\0\0\0\0\0\0").contains("older than the chunk"));
        assert!(problem(&[0x81; 11]).contains("more than 64 bits"));
        assert!(problem(b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x02").contains("more than 64 bits"));
        assert_eq!(
            unpacked(b"\x05\x05", false, 1).unwrap_err(),
            "it has more packed records than its header announces"
        );
        // One byte, a record: no more memory is needed, whatever is told.
        let records =
            Payload { bytes: b"\x05", is_cut: true, n_records: usize::MAX, taken_tsc: TAKEN }.unpack().unwrap();
        assert_eq!((records.len(), records.capacity()), (1, 1));
    }

    #[test]
    fn the_deepest_stack_is_packed() {
        let function = |depth: u64| (depth + 1) << ADDRESS_SHIFT;
        let entries = (0..1_500).map(|depth| (TAKEN + depth, function(depth)));
        let exits = (0..1_500).rev().map(|depth| (TAKEN + 4_000 - depth, function(depth) | kind::EXIT));
        let records: Vec<_> = entries.chain(exits).collect();
        assert_eq!(unpacked(&packed(&records), false, records.len()).unwrap(), records);
    }

    #[test]
    fn what_does_not_fit_is_not_packed() {
        let n_records = records_per_chunk(MAX_CHUNK_BYTES) as u64;
        let mut packer = Box::new(Packer::new());
        let at_random = |place: u64| (TAKEN + place, place.wrapping_mul(0x1234_5678_9abc_def1));
        assert!(packer.pack(TAKEN, (0..n_records).map(at_random)).is_none());
        // The rest of it is not in the way.
        assert_eq!(packer.pack(TAKEN, [(1_005, ENTRY)].into_iter()).unwrap().bytes, EXAMPLE[0].2);
        assert!(packer.pack(TAKEN, [].into_iter()).unwrap().bytes.is_empty());
    }

    #[test]
    fn a_packer_is_one_users() {
        static SHARED: Shared = Shared::new();
        let first = SHARED.take();
        // A failed `take` does not give it back.
        assert!(first.is_some() && SHARED.take().is_none() && SHARED.take().is_none());
        drop(first);
        assert!(SHARED.take().is_some() && SHARED.take().is_some());
    }

    /// Few functions, for all forms of records; and any other word.
    fn word() -> impl Strategy<Value = u64> {
        let few = (0..12_u64, prop_oneof![4 => 0..2_u64, 1 => 0..64_u64]);
        let few = few.prop_map(|(function, bits)| (0xffff_8000_0000 + 0x40 * function) << ADDRESS_SHIFT | bits);
        prop_oneof![8 => few, 1 => any::<u64>()]
    }

    fn records() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let ticks = prop_oneof![8 => 0..300_u64, 1 => any::<u64>(), 1 => (0..300_u64).prop_map(u64::wrapping_neg)];
        prop::collection::vec((ticks, word()), 0..if cfg!(miri) { 30 } else { 600 }).prop_map(|steps| {
            let mut tsc = TAKEN;
            let steps = steps.into_iter().map(|(ticks, word)| {
                tsc = tsc.wrapping_add(ticks).max(TAKEN);
                (tsc, word)
            });
            steps.collect()
        })
    }

    fn cases() -> ProptestConfig {
        let cases = if cfg!(miri) { 4 } else { 512 };
        ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn any_records_are_unpacked_as_they_were(records in records(), cut in any::<prop::sample::Index>()) {
            let bytes = packed(&records);
            prop_assert_eq!(&unpacked(&bytes, false, records.len()).unwrap(), &records);
            let cut = unpacked(&bytes[..cut.index(bytes.len() + 1)], true, records.len()).unwrap();
            prop_assert!(records.starts_with(&cut));
        }

        /// Bytes with a meaning more often than by chance.
        #[test]
        fn any_bytes_are_unpacked_or_refused(
            bytes in prop::collection::vec(prop_oneof![0..16_u8, any::<u8>()], 0..200),
            is_cut in any::<bool>(),
            n_records in 0..300_usize,
        ) {
            if let Ok(records) = unpacked(&bytes, is_cut, n_records) {
                prop_assert!(records.len() <= n_records.min(bytes.len()));
                prop_assert!(is_cut || records.len() == n_records);
            }
        }
    }
}
