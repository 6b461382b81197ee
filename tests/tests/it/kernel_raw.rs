//! An image that a kernel has sent, read without the frontend.

use std::collections::BTreeMap;
use std::fs;
use std::mem::{self, offset_of};
use std::path::Path;

use rftrace::abi::{ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, kind, lease};

/// The records of each task as they were sent, read without the frontend, which mends what is not balanced.
pub(crate) struct RawTrace {
    /// By task and the chunk's place in time.
    chunks: BTreeMap<(u32, u64), RawChunk>,
}

struct RawChunk {
    /// Where its task was before.
    prev_index: u64,
    /// Functions that were open before.
    n_open: usize,
    words: Vec<u64>,
    ticks: Vec<u64>,
}

/// Times and words of a packed chunk's records, by docs/image-format.md.
fn unpacked(header: &[u64], payload: &[u64]) -> Vec<u64> {
    let (n_bytes, n_records) = ((header[6] >> 32) as usize, header[7] as usize);
    let payload: Vec<u8> = payload.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(payload.len(), n_bytes.next_multiple_of(8));
    let mut bytes = payload[..n_bytes].iter().copied();
    let mix = |word: u64| (word >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (mut next, mut cache, mut open) = ([0; 1024], [0; 256], Vec::new());
    let (mut tsc, mut before) = (header[4], 0_u64);
    let mut records = Vec::new();
    for _ in 0..n_records {
        let place = (mix(before ^ (before & 1) << 20) >> 54) as usize;
        let first = number(&mut bytes);
        tsc += first >> 2;
        let form = if first & 3 == 3 { bytes.next().unwrap() } else { 0 };
        if form != 0 {
            // Older than the record before.
            let number = number(&mut bytes);
            assert!(form == 1 && first == 3 && number & 1 == 1, "{form}, {first:#x}, {number:#x}");
            tsc -= (number >> 1) + 1;
        }
        let word = match first & 3 {
            0 => open.pop().unwrap(),
            1 => next[place],
            2 => cache[usize::from(bytes.next().unwrap())],
            _ => u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap())),
        };
        if form == 0 {
            if first & 3 != 0 {
                next[place] = word;
            }
            if first & 3 == 3 {
                cache[(mix(word) >> 56) as usize] = word;
            }
            if word & 7 == 0 && open.len() < 1023 {
                open.push(word >> 16 << 16 | 1);
            }
        }
        before = word;
        records.extend([tsc, word]);
    }
    assert_eq!(bytes.next(), None);
    records
}

/// Seven bits in each byte, the lowest first.
fn number(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes.next().unwrap();
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

impl RawTrace {
    pub(crate) fn read(path: &Path) -> Self {
        let image = fs::read(path).unwrap();
        let words: Vec<u64> =
            image.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        let mut chunks = BTreeMap::new();
        let mut n_packed = 0;
        // The magic and the versions; then sections: tag and size, content, checksum.
        let mut rest = &words[2..];
        while let [head, following @ ..] = rest {
            let (content, behind) = following.split_at((head >> 32) as usize / 8);
            let tag = (*head as u32).to_le_bytes();
            if [*b"CHNK", *b"CHNZ"].contains(&tag) {
                let (header, records) = content.split_at(CHUNK_HEADER_BYTES / 8);
                let field = |offset: usize| header[offset / 8] >> (offset % 8 * 8);
                let taken_tsc = field(offset_of!(ChunkHeader, taken_tsc));
                let unpacked = if tag == *b"CHNZ" { unpacked(header, records) } else { records.to_vec() };
                n_packed += usize::from(tag == *b"CHNZ");
                let n_open = field(offset_of!(ChunkHeader, depth)) as u32 as usize;
                let index = lease::index(field(offset_of!(ChunkHeader, lease)));
                let mut tid = field(offset_of!(ChunkHeader, tid)) as u32;
                let mut chunk = RawChunk {
                    prev_index: field(offset_of!(ChunkHeader, prev_index)),
                    n_open,
                    words: Vec::new(),
                    ticks: Vec::new(),
                };
                for record in unpacked.chunks_exact(2).filter(|record| record[0] >= taken_tsc) {
                    const NEW_THREAD: u64 = kind::RESYNC | kind::NEW_THREAD;
                    if record[1] & (kind::MASK | kind::NEW_THREAD) == NEW_THREAD {
                        // A task has ended, and another one goes on in its chunk.
                        assert!(chunks.insert((tid, index), chunk).is_none());
                        tid = (record[1] >> ADDRESS_SHIFT) as u32;
                        chunk = RawChunk { prev_index: 0, n_open: 0, words: Vec::new(), ticks: Vec::new() };
                    } else {
                        chunk.words.push(record[1]);
                        chunk.ticks.push(record[0]);
                    }
                }
                assert!(chunks.insert((tid, index), chunk).is_none());
            }
            rest = &behind[1..];
        }
        assert!(n_packed > 0, "no chunk is packed");
        Self { chunks }
    }

    /// When each task entered and left functions, in ticks.
    pub(crate) fn ticks(&self) -> BTreeMap<u32, Vec<u64>> {
        let mut ticks: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (&(tid, _), chunk) in &self.chunks {
            for (&word, &tick) in chunk.words.iter().zip(&chunk.ticks) {
                let n_events = match word & kind::MASK {
                    // A call that takes no time has one record.
                    kind::ENTRY if word & kind::POINT != 0 => 2,
                    kind::ENTRY | kind::EXIT => 1,
                    _ => 0,
                };
                ticks.entry(tid).or_default().extend((0..n_events).map(|_| tick));
            }
        }
        ticks
    }

    pub(crate) fn n_records(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.words.len()).sum()
    }

    /// Checks that each exit is that of the innermost open function, and that each chunk begins where the one before has ended.
    /// Returns how many functions are open at the end.
    pub(crate) fn check(&self) -> usize {
        struct Task {
            last_index: u64,
            /// The addresses of open functions, as far as they are known.
            open: Vec<Option<u64>>,
            /// True if one more may be open: the first chunk that is left says one too few where an interrupt has struck a hook.
            may_have_one_more: bool,
            /// The allowed difference between chunks and known depths: one where an interrupt has struck a hook and the first chunk that is left.
            tolerance: usize,
        }
        let mut tasks: BTreeMap<u32, Task> = BTreeMap::new();
        for (&(tid, index), chunk) in &self.chunks {
            let first = || Task {
                last_index: chunk.prev_index,
                open: vec![None; chunk.n_open],
                may_have_one_more: chunk.prev_index != 0,
                tolerance: 1 + usize::from(chunk.prev_index != 0),
            };
            let task = tasks.entry(tid).or_insert_with(first);
            if task.last_index != chunk.prev_index {
                // The ring has passed over the task's chunk from long ago, and has overwritten some since.
                *task = first();
            }
            task.last_index = index;
            let open = &mut task.open;
            // A function whose hook an interrupt has struck when the exit was recorded still counts as open, and one whose entry
            // has a place does not count yet.
            assert!(
                chunk.n_open.abs_diff(open.len()) <= task.tolerance,
                "task {tid}: {} functions are open before chunk {index}, which says {}",
                open.len(),
                chunk.n_open
            );
            for (place, word) in chunk.words.iter().enumerate() {
                let here = || format!("task {tid}, chunk {index}, record {place}: {word:#x}, open: {open:x?}");
                let address = word >> ADDRESS_SHIFT;
                match word & kind::MASK {
                    kind::ENTRY if word & kind::POINT != 0 => {}
                    kind::ENTRY => open.push(Some(address)),
                    kind::EXIT if open.is_empty() && mem::take(&mut task.may_have_one_more) => {}
                    kind::EXIT => {
                        let entered = open.last().copied().unwrap_or_else(|| panic!("no function is open: {}", here()));
                        assert!(entered.is_none_or(|entered| entered == address), "another function: {}", here());
                        open.pop();
                    }
                    kind::RESYNC if word & (kind::CORE | kind::SUSPENDED | kind::RESUMED) != 0 => {}
                    _ => panic!("records were lost: {}", here()),
                }
            }
        }
        tasks.values().map(|task| task.open.len()).sum()
    }
}
