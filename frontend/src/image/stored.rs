//! Sections CHNK and CHNZ of a file written chunk by chunk: read one at a time, and unpacked on demand, so a file may
//! be larger than memory. Such a file begins like an image; it has no HEAD and no END, and may end anywhere.
//!
//! Not here: the writer of such a file (`bank/collect.rs`).

use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{self, CHUNK_HEADER_BYTES, ChunkHeader, Record};

use super::packed::decode::Payload;
use super::packed::{N_BYTES_AT, N_RECORDS_AT};
use super::read::{Reader, Section, chunk_header, field, wrong_thread};
use super::{MAGIC, VERSION, tag};

/// The records of a chunk in the file, and the chosen range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    bytes: &'a [u8],
    taken_tsc: u64,
    is_packed: bool,
    /// The number of records in the chunk.
    n_all: u32,
    start: u32,
    end: u32,
}

impl<'a> Stored<'a> {
    pub(crate) fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn part(self, start: usize, end: usize) -> Self {
        let place = |place: usize| (self.start + place as u32).min(self.end);
        Self { start: place(start), end: place(end), ..self }
    }

    pub(crate) fn n_bytes(self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_of_one_chunk_with(self, other: Self) -> bool {
        self.bytes.as_ptr_range() == other.bytes.as_ptr_range()
    }

    /// Replaces the contents of `records` by all records of the chunk; none for a damaged one. Returns true if they are
    /// in order of time for certain.
    pub(crate) fn unpack_chunk(self, records: &mut Vec<Record>) -> bool {
        let Self { bytes, taken_tsc, is_packed, n_all, .. } = self;
        records.clear();
        if !is_packed {
            records.extend(bytes.as_chunks::<16>().0.iter().map(|bytes| {
                let [tsc, word] = [0, 8].map(|at| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 8])));
                Record { tsc: tsc.into(), word: word.into() }
            }));
            return false;
        }
        let payload = Payload { bytes, is_cut: false, n_records: n_all as usize, taken_tsc };
        payload.unpack_into(records).unwrap_or_else(|_| {
            records.clear();
            true
        })
    }

    /// Returns true if all further threads in it are possible.
    fn names_threads(self) -> bool {
        let mut records = Vec::new();
        self.unpack_chunk(&mut records);
        wrong_thread(&records, self.taken_tsc).is_none()
    }

    /// These, of the unpacked chunk.
    pub(crate) fn of_chunk(self, records: &[Record]) -> &[Record] {
        records.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Goes through the chunks of a file.
#[derive(Debug)]
pub(crate) struct StoredChunks<'a> {
    reader: Reader<'a>,
    chunk_bytes: usize,
    n_damaged: usize,
    /// The end of the last complete section so far.
    end: usize,
}

impl<'a> StoredChunks<'a> {
    /// Starts at the first section in `bytes`. `None` for another version, or another kind of file.
    pub(crate) fn new(bytes: &'a [u8], chunk_bytes: usize) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let is_known = reader.word() == Some(u64::from_le_bytes(MAGIC))
            && reader.word() == Some(u64::from(VERSION) | u64::from(abi::VERSION) << 32);
        let end = reader.offset();
        is_known.then_some(Self { reader, chunk_bytes, n_damaged: 0, end })
    }

    /// Returns the number of sections so far without a tracer's chunk. The missing end of a file with this minimum size
    /// is one.
    pub(crate) fn n_damaged(&self, least_bytes: u64) -> usize {
        self.n_damaged + usize::from((self.end as u64) < least_bytes)
    }

    /// Goes on at the next complete section, behind one with an implausible length. Returns false without one.
    fn find_next(&mut self, from: usize) -> bool {
        let found = self.reader.find_chunk(from, self.chunk_bytes);
        self.end = if found { self.reader.offset() } else { self.end };
        found
    }

    /// The chunk of a section, if a tracer can have written it.
    fn chunk(&self, section: &Section<'a>) -> Option<(ChunkHeader, Stored<'a>)> {
        let (words, contents) = section.contents.split_first_chunk::<CHUNK_HEADER_BYTES>()?;
        let (words, _) = words.as_chunks();
        let words: &[[u8; 8]; CHUNK_HEADER_BYTES / 8] = words.first_chunk()?;
        let words = words.map(u64::from_le_bytes);
        let is_packed = match section.tag {
            tag::PACKED => true,
            tag::CHUNK => false,
            _ => return None,
        };
        let [n_bytes, n_all] = if is_packed {
            [N_BYTES_AT, N_RECORDS_AT].map(|offset| field(&words, offset) as usize)
        } else {
            [contents.len(), contents.len() / size_of::<Record>()]
        };
        let is_right =
            n_bytes.next_multiple_of(8) == contents.len() && n_all <= abi::records_per_chunk(self.chunk_bytes);
        let header = chunk_header(&words).filter(|_| is_right)?;
        let stored = Stored {
            bytes: contents.get(..n_bytes)?,
            taken_tsc: header.taken_tsc.load(Relaxed),
            is_packed,
            n_all: n_all as u32,
            start: 0,
            end: n_all as u32,
        };
        (header.n_adopted.load(Relaxed) == 0 || stored.names_threads()).then_some((header, stored))
    }
}

impl<'a> Iterator for StoredChunks<'a> {
    type Item = (ChunkHeader, Stored<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let before = self.reader.offset();
            match self.reader.section(self.chunk_bytes) {
                Ok(Some(section)) if !section.is_cut => {
                    self.end = self.reader.offset();
                    match self.chunk(&section) {
                        None => self.n_damaged += 1,
                        chunk => return chunk,
                    }
                }
                Ok(None) => return None,
                // It was being written when its writer ended, unless something comes behind.
                Ok(Some(_)) => {
                    if !self.find_next(before + 8) {
                        return None;
                    }
                    self.n_damaged += 1;
                }
                Err(_) => {
                    self.n_damaged += 1;
                    if !self.find_next(before + 8) {
                        self.end = usize::MAX;
                        return None;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rftrace::abi::{chunk_state, lease};

    use super::*;
    use crate::backend::Chunk;
    use crate::image::packed::encode::Packer;
    use crate::image::write::Writer;

    const CHUNK_BYTES: usize = 1024;

    fn header(index: u64, n_adopted: u32) -> ChunkHeader {
        ChunkHeader {
            lease: lease::new(index, chunk_state::FULL).into(),
            prev_index: (index - 1).into(),
            depth: 0.into(),
            fill: 0.into(),
            n_adopted: n_adopted.into(),
            tid: 1.into(),
            taken_tsc: 100.into(),
            core: 0.into(),
            n_resumed: 0.into(),
        }
    }

    /// Contents of chunks: calls of one function, random words and times (longer when packed), and nothing.
    fn contents() -> [Vec<(u64, u64)>; 4] {
        let calls = (0..50).map(|n| (101 + n, 0x1000_0000 | n & 1)).collect();
        let at_random = (0..20_u64).map(|n| (101 + n + (n << 63), n.wrapping_mul(0x1234_5678_9abc_def1) << 2));
        [calls, at_random.collect(), Vec::new(), vec![(107, 0x1000_0000), (109, 0x1000_0001)]]
    }

    /// A file, and the end of each chunk in it.
    fn file() -> (Vec<u8>, Vec<usize>) {
        let mut file = Vec::new();
        let mut ends = Vec::new();
        let mut packer = Box::new(Packer::new());
        for (index, records) in (1..).zip(contents()) {
            let records: Vec<Record> =
                records.iter().map(|&(tsc, word)| Record { tsc: tsc.into(), word: word.into() }).collect();
            let is_first = file.is_empty();
            let out = |bytes: &[u8]| {
                file.extend_from_slice(bytes);
                Ok::<(), Infallible>(())
            };
            let Ok(mut writer) = if is_first { Writer::new(out) } else { Ok(Writer::going_on(out)) };
            let Ok(_) = writer.chunk(&Chunk { header: &header(index, 0), records: &records }, Some(&mut packer));
            let Ok(()) = writer.flush();
            ends.push(file.len());
        }
        (file, ends)
    }

    fn records_of(stored: Stored<'_>) -> Vec<(u64, u64)> {
        let mut chunk = Vec::new();
        stored.unpack_chunk(&mut chunk);
        stored.of_chunk(&chunk).iter().filter_map(|record| record.read(stored.taken_tsc)).collect()
    }

    #[test]
    fn chunks_are_read_as_they_were() {
        let (file, ends) = file();
        let mut chunks = StoredChunks::new(&file, CHUNK_BYTES).expect("this version");
        let found: Vec<_> = chunks.by_ref().collect();
        assert_eq!(chunks.n_damaged(file.len() as u64), 0);
        assert_eq!(found.iter().map(|(header, _)| header.index()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(found.iter().map(|&(_, stored)| records_of(stored)).collect::<Vec<_>>(), contents());
        assert_eq!(found.iter().map(|(_, stored)| stored.is_packed).collect::<Vec<_>>(), [true, false, false, true]);
        assert!(ends[0] < 16 + 16 + 64 + 50 * 3, "{ends:?}");
        // Parts, and parts of parts.
        let (_, calls) = found[0];
        assert_eq!((calls.len(), calls.part(3, 3).len()), (50, 0));
        assert_eq!(records_of(calls.part(10, 20).part(1, 4)), contents()[0][11..14]);
        assert!(calls.part(1, 2).is_of_one_chunk_with(calls) && !calls.is_of_one_chunk_with(found[3].1));
    }

    #[test]
    fn a_file_that_ends_anywhere_has_its_whole_chunks() {
        let (file, ends) = file();
        for length in 0..=file.len() {
            let n_whole = ends.iter().filter(|&&end| end <= length).count();
            match StoredChunks::new(&file[..length], CHUNK_BYTES) {
                Some(mut chunks) => {
                    assert_eq!(chunks.by_ref().count(), n_whole, "{length}");
                    assert_eq!(chunks.n_damaged(0), 0, "{length}");
                    let is_whole = ends.contains(&length) || length == 16;
                    assert_eq!(chunks.n_damaged(length as u64), usize::from(!is_whole), "{length}");
                }
                None => assert!(length < 16),
            }
        }
    }

    #[test]
    fn damage_is_noticed() {
        let (file, _) = file();
        for place in 0..file.len() {
            let mut damaged = file.clone();
            damaged[place] ^= 0x11;
            match StoredChunks::new(&damaged, CHUNK_BYTES) {
                Some(mut chunks) => {
                    // It costs the one chunk.
                    let n_found = chunks.by_ref().count();
                    assert_eq!((n_found, chunks.n_damaged(file.len() as u64)), (3, 1), "{place}");
                }
                None => assert!(place < 16),
            }
        }
    }
}
