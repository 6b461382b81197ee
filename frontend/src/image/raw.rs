//! Reads the output of [`dump_trace`](crate::dump_trace): records of uftrace's format and nothing else.
//!
//! There are two kinds. Since this version a record has its time in nanoseconds and its depth; with several threads,
//! each one's records follow an EVENT record with its id. Up to rftrace-frontend 0.3.2 times are ticks, depths are 0,
//! and the records of all threads are mixed.

use std::collections::BTreeMap;

use rftrace::abi::{ADDRESS_SHIFT, ChunkHeader, RETURN_STACK_ENTRIES, Record, chunk_state, kind, lease};

use super::contents::{Bad, Image, Source, bad, is_tid};
use super::head;
use rftrace_format::events::USER_EVENTS;
use rftrace_format::record::{self, Kind, RECORD_BYTES};

/// The thread of a file without thread ids.
const ONLY_THREAD: u32 = 1;

/// The maximum number of open functions searched for the one of an exit: a file may have any records, and must not take
/// for ever.
const SEARCHED: usize = 4 * RETURN_STACK_ENTRIES;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Returns true if a file begins like one of records.
pub(super) fn is_raw(bytes: &[u8]) -> bool {
    bytes.first_chunk().and_then(Entry::decode).is_some()
}

/// A record of the file.
#[derive(Clone, Copy)]
struct Entry(record::Record);

impl Entry {
    /// `None` for bytes that are no record of `dump_trace`.
    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let entry = Self(record::Record::decode(bytes)?);
        let is_known = match entry.0.kind {
            Kind::Entry | Kind::Exit => true,
            Kind::Event => entry.thread().is_some(),
            Kind::Lost => false,
        };
        (is_known && !entry.0.has_payload).then_some(entry)
    }

    /// Returns the thread of the following records, if this record names it.
    fn thread(&self) -> Option<u32> {
        let tid = self.0.addr.checked_sub(USER_EVENTS.start).filter(|&tid| is_tid(tid))?;
        (self.0.kind == Kind::Event).then_some(tid as u32)
    }
}

/// A thread's records, and the results of matching its exits with its entries.
#[derive(Default)]
struct Thread {
    records: Vec<Record>,
    open: Vec<u64>,
    deepest: usize,
    /// Exits of functions entered before the first record.
    n_open_at_start: usize,
    /// Further exits without an open function, and functions without exits.
    n_misfits: u64,
}

impl Thread {
    fn add(&mut self, entry: &Entry) {
        let record::Record { time_ns, addr, .. } = entry.0;
        let is_exit = entry.0.kind == Kind::Exit;
        let word = addr << ADDRESS_SHIFT | if is_exit { kind::EXIT } else { kind::ENTRY };
        self.records.push(Record { tsc: time_ns.into(), word: word.into() });
        if !is_exit {
            self.open.push(addr);
            self.deepest = self.deepest.max(self.open.len());
            return;
        }
        let n_passed_over = self.open.len().saturating_sub(SEARCHED);
        match self.open[n_passed_over..].iter().rposition(|&open| open == addr) {
            Some(place) => {
                let n_open = n_passed_over + place;
                self.n_misfits += (self.open.len() - n_open - 1) as u64;
                self.open.truncate(n_open);
            }
            None if self.open.is_empty() && self.n_open_at_start < RETURN_STACK_ENTRIES => self.n_open_at_start += 1,
            None => self.n_misfits += 1,
        }
    }
}

/// Turns the records into the contents of an image.
pub(super) fn parse(bytes: &[u8]) -> Result<Image, Bad> {
    let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
    let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
    let mut tid = ONLY_THREAD;
    let (mut has_depths, mut first, mut last) = (false, u64::MAX, 0);
    for (place, bytes) in records.iter().enumerate() {
        let offset = place * RECORD_BYTES;
        let Some(entry) = Entry::decode(bytes) else {
            return bad(
                offset,
                "this place has no record of `dump_trace`: 16 bytes with the magic number 5 in bits 3 to 5 of byte 8; the file \
                 is damaged, or has other data",
            );
        };
        if let Some(next) = entry.thread() {
            tid = next;
            has_depths = true;
            continue;
        }
        has_depths |= entry.0.depth > 0;
        first = first.min(entry.0.time_ns);
        last = last.max(entry.0.time_ns);
        threads.entry(tid).or_default().add(&entry);
    }

    let is_nested = threads.values().any(|thread| thread.deepest > 1);
    let source = match (has_depths, is_nested) {
        (true, _) => Source::RawNanos,
        (false, true) => Source::RawTicks,
        (false, false) => Source::RawUnknown,
    };
    let mut warnings = Vec::new();
    if !rest.is_empty() {
        warnings.push(format!(
            "the file ends within a record, at byte {}: the newest records are missing; was the disk full?",
            bytes.len()
        ));
    }
    let n_misfits: u64 = threads.values().map(|thread| thread.n_misfits).sum();
    if n_misfits > 0 && source != Source::RawNanos {
        warnings.push(format!(
            "{n_misfits} calls or returns have no counterpart: `dump_trace` of rftrace-frontend 0.3 stores no threads, so the \
             tree is right for a single thread only; trace with this version of rftrace-frontend"
        ));
    }
    let mut words = [0; head::N_WORDS];
    // Time 0 would say that nothing was recorded.
    words[head::FIRST_TSC] = if threads.is_empty() { 0 } else { first.max(1) };
    words[head::STOP_TSC] = last;
    words[head::TSC_HZ] = if source == Source::RawNanos { NANOS_PER_SECOND } else { 0 };
    let chunk = |(index, (&tid, thread)): (u64, (&u32, &mut Thread))| {
        let header = ChunkHeader {
            lease: lease::new(index, chunk_state::FULL).into(),
            tid: tid.into(),
            prev_index: 0.into(),
            depth: (thread.n_open_at_start as u32).into(),
            fill: 0.into(),
            n_adopted: 0.into(),
            n_resumed: 0.into(),
            taken_tsc: 1.into(),
            core: 0.into(),
        };
        (header, std::mem::take(&mut thread.records))
    };
    let chunks = (1..).zip(threads.iter_mut()).map(chunk).collect();
    Ok(Image::new(source, words, chunks, warnings))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::catch_unwind;
    use std::path::Path;

    use proptest::prelude::*;
    use rftrace_format::events::DID_NOT_RETURN;

    use super::*;
    use crate::Error;
    use crate::elf::testutil::Scratch;
    use crate::import::{ImportOptions, Imported};

    const A: u64 = 0x5555_0000_1005;
    const B: u64 = 0x5555_0000_2005;

    /// A record by its bits, kinds from 0 on: entry, exit, loss, event.
    fn record(time: u64, kind: u64, depth: usize, address: u64) -> [u8; RECORD_BYTES] {
        let word = address << 16 | (depth as u64) << 6 | 5 << 3 | kind;
        *[time.to_le_bytes(), word.to_le_bytes()].as_flattened().first_chunk().unwrap()
    }

    fn enter(time: u64, depth: usize, address: u64) -> [u8; RECORD_BYTES] {
        record(time, 0, depth, address)
    }

    fn exit(time: u64, depth: usize, address: u64) -> [u8; RECORD_BYTES] {
        record(time, 1, depth, address)
    }

    fn thread(tid: u64) -> [u8; RECORD_BYTES] {
        record(5, 3, 0, 1_000_000 + tid)
    }

    fn read(bytes: &[u8]) -> Result<Image, Error> {
        Image::parse(bytes, Path::new("file"))
    }

    /// Imports a file, and returns the records of each thread: time, kind, depth, address.
    fn import(name: &str, bytes: &[u8], options: &ImportOptions) -> (Imported, BTreeMap<u32, Vec<[u64; 4]>>) {
        let scratch = Scratch::new(name);
        let imported = read(bytes).unwrap().write_directory(&scratch.path("trace"), options).unwrap();
        let mut threads = BTreeMap::new();
        for tid in 1..10 {
            let Ok(bytes) = fs::read(scratch.path(&format!("trace/{tid}.dat"))) else { continue };
            let record = |bytes: &[u8; RECORD_BYTES]| {
                let (words, _) = bytes.as_chunks();
                let [time, word] = [words[0], words[1]].map(u64::from_le_bytes);
                [time, word & 3, word >> 6 & 1023, word >> 16]
            };
            threads.insert(tid, bytes.as_chunks().0.iter().map(record).collect());
        }
        (imported, threads)
    }

    #[test]
    fn files_of_this_version_have_threads_and_nanoseconds() {
        let bytes =
            [thread(2), enter(10, 0, A), enter(20, 1, B), exit(30, 1, B), exit(40, 0, A), thread(7), enter(15, 0, B)];
        let (imported, threads) = import("raw-threads", &bytes.concat(), &ImportOptions::default());
        assert_eq!((imported.events, imported.threads), (6, 2));
        assert!(imported.warnings.iter().all(|warning| warning.contains("--binary")), "{:?}", imported.warnings);
        assert_eq!(threads[&2], [[10, 0, 0, A], [20, 0, 1, B], [30, 1, 1, B], [40, 1, 0, A]]);
        let open = [[15, 0, 0, B], [40, 3, 1, DID_NOT_RETURN], [40, 1, 0, B]];
        assert_eq!(threads[&7], open, "what is open ends with the recording");
        let options = ImportOptions { tsc_hz: Some(2), ..ImportOptions::default() };
        let (imported, again) = import("raw-hz", &bytes.concat(), &options);
        assert_eq!(again, threads);
        assert!(imported.warnings.iter().any(|warning| warning.contains("--tsc-hz")), "{:?}", imported.warnings);
    }

    #[test]
    fn files_of_0_3_have_ticks_and_no_depths() {
        // A ring that begins within a call; an entry whose exit is missing.
        let bytes = [
            exit(900, 0, B),
            enter(1000, 0, A),
            enter(2000, 0, B),
            enter(3000, 0, A),
            exit(4000, 0, B),
            exit(6000, 0, A),
        ];
        let options = ImportOptions { tsc_hz: Some(2_000_000_000), ..ImportOptions::default() };
        let (imported, threads) = import("raw-ticks", &bytes.concat(), &options);
        assert!(imported.warnings[0].starts_with("1 calls or returns"), "{:?}", imported.warnings);
        let expected = [
            [450, 0, 0, B],
            [450, 1, 0, B],
            [500, 0, 0, A],
            [1000, 0, 1, B],
            [1500, 0, 2, A],
            [2000, 1, 2, A],
            [2000, 1, 1, B],
            [3000, 1, 0, A],
        ];
        assert_eq!(threads[&1], expected);
        let (imported, _) = import("raw-no-hz", &bytes.concat(), &ImportOptions::default());
        assert!(imported.warnings.iter().any(|warning| warning.contains("--tsc-hz")), "{:?}", imported.warnings);
    }

    #[test]
    fn calls_of_threads_that_are_mixed_are_told_of() {
        let bytes = [
            enter(1, 0, A),
            enter(2, 0, B),
            exit(3, 0, A),
            exit(4, 0, B),
            enter(5, 0, A),
            exit(6, 0, B),
            exit(7, 0, A),
        ];
        let image = read(&bytes.concat()).unwrap();
        assert!(image.warnings()[0].starts_with("2 calls or returns have no counterpart"), "{:?}", image.warnings());
    }

    #[test]
    fn cut_and_damaged_files() {
        let bytes = [enter(10, 0, A), enter(20, 1, B), exit(30, 1, B), exit(40, 0, A)].concat();
        for length in 1..bytes.len() {
            match read(&bytes[..length]) {
                Ok(image) => {
                    let warned = image.warnings().iter().any(|line| line.contains(&format!("at byte {length}")));
                    assert_eq!(warned, length % 16 != 0, "{:?}", image.warnings());
                }
                Err(Error::BadImage { offset: 0, problem, .. }) if length < 16 => {
                    assert!(problem.contains("the file has no image"), "{problem}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        for place in [24, 40, 56] {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x38;
            match read(&damaged).unwrap_err() {
                Error::BadImage { offset, problem, .. } => {
                    assert_eq!(offset, place as u64 - 8);
                    assert!(problem.contains("dump_trace"), "{problem}");
                }
                error => panic!("{error}"),
            }
        }
        assert!(matches!(
            read(&thread(3)).unwrap().write_directory(Path::new("/nonexistent/trace"), &ImportOptions::default()),
            Err(Error::NoEvents { .. })
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever records a file has, and wherever it is cut, it is imported or refused.
        #[test]
        fn any_records_are_imported_or_refused(
            records in prop::collection::vec((prop_oneof![4 => 0..5_000_u64, 1 => any::<u64>()], 0..4_u64, 0..6_u64, 0..1024_usize), 1..80),
            n_cut in 0..16_usize,
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let word = |(time, kind, address, depth): (u64, u64, u64, usize)| match kind {
                2 => record(time, 0, 0, address),
                3 => thread(address),
                _ => record(time, kind, depth, address),
            };
            let mut bytes: Vec<u8> = records.into_iter().flat_map(word).collect();
            bytes.truncate(bytes.len() - n_cut);
            if let Some((place, byte)) = change && !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let result = catch_unwind(|| {
                let Ok(image) = read(&bytes) else { return };
                let scratch = Scratch::new("raw-any");
                match image.write_directory(&scratch.path("trace"), &ImportOptions::default()) {
                    Ok(_) | Err(Error::NoEvents { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            });
            prop_assert!(result.is_ok());
        }
    }
}
