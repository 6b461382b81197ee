//! `index`: places for a start in a task's records, and the functions in each part of them.
//!
//! A task's file is cut into blocks. For each block the index has its place, the open functions at its beginning, and
//! the functions entered in it.
//!
//! ```text
//! MAGIC, with the version
//! checksum of all that follows             u64
//! number of tasks                          u32
//! of each task:
//!   its number, what it was made of        u32, u64
//!   numbers of functions, places, frames, entered   4 × u32
//!   functions                              address, when it was seen: 2 × u64
//!   places                                 `PLACE_BYTES`
//!   frames, of all places                  address or all ones, time of entry: 2 × u64
//!   entered, of all places                 u32, an index of functions
//! ```
//!
//! All numbers are little-endian. A place stores only the open functions that differ from the place before.
//!
//! Not here: making one (`indexing`), reading by it (`seeker`).

use std::collections::HashMap;
use std::ops::Range;

use rftrace_format::record::RECORD_BYTES;

/// The first bytes; the last one of them is the version.
const MAGIC: &[u8; 16] = b"rftrace-index\0\0\x01";

/// The maximum number of blocks of a task: 10^8 records make 24 000, read in a millisecond.
pub(crate) const MAX_PLACES: usize = 4096;

/// The maximum number of functions, of open functions of all places, and of functions entered in all blocks. The rest
/// of the records is one block.
pub(crate) const MAX_FUNCTIONS: usize = 1 << 18;
pub(crate) const MAX_FRAMES: usize = 1 << 21;
pub(crate) const MAX_ENTERED: usize = 1 << 22;

const PLACE_BYTES: usize = 8 + RECORD_BYTES + 8 + 8 * N_FLAWS + 4 * 4;

/// The number of kinds of flaws in a task's records.
pub(crate) const N_FLAWS: usize = 4;

/// An open function: its address, if its entry is among the records, and the time of its entry.
pub(crate) type OpenFrame = (Option<u64>, u64);

/// The indices of a trace's tasks, by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) tasks: HashMap<u32, TaskIndex>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskIndex {
    /// Sizes and times of its source files.
    pub(crate) stamp: u64,
    /// The address of each, and the time of an entry there. An address may occur several times.
    pub(crate) functions: Vec<(u64, u64)>,
    /// In order.
    pub(crate) places: Vec<Place>,
    pub(crate) frames: Vec<OpenFrame>,
    pub(crate) entered: Vec<u32>,
}

/// The beginning of a block, and the block's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The offset in the file.
    pub(crate) position: u64,
    /// The record at this place.
    pub(crate) first: [u8; RECORD_BYTES],
    /// The time of the record before.
    pub(crate) last_ns: u64,
    /// The flaws met before.
    pub(crate) flaws: [u64; N_FLAWS],
    /// The number of functions open at the place before and still open here.
    pub(crate) n_shared: usize,
    /// The others, among the frames.
    pub(crate) frames: Range<usize>,
    /// The range of the functions entered in the block, within `entered`.
    pub(crate) entered: Range<usize>,
    /// True if all of the block is shown whatever is chosen, or its contents are not known.
    pub(crate) must_read: bool,
    /// The next record's depth is the number of open functions.
    pub(crate) trusts_depth: bool,
}

impl TaskIndex {
    /// The functions open at a place, outermost first.
    pub(crate) fn open_at(&self, place: usize) -> Vec<OpenFrame> {
        let mut open = Vec::new();
        for place in &self.places[..=place] {
            open.truncate(place.n_shared);
            open.extend_from_slice(&self.frames[place.frames.clone()]);
        }
        open
    }

    fn parse(input: &mut Input<'_>) -> Option<(u32, Self)> {
        let tid = input.u32()?;
        let stamp = input.u64()?;
        let mut counts = [0; 4];
        for count in &mut counts {
            *count = input.u32()? as usize;
        }
        let [n_functions, n_places, n_frames, n_entered] = counts;
        let mut index = Self { stamp, ..Self::default() };
        for _ in 0..input.has(n_functions, 16, MAX_FUNCTIONS)? {
            index.functions.push((input.u64()?, input.u64()?));
        }
        let mut ends = (0, 0);
        let mut depth = 0;
        for _ in 0..input.has(n_places, PLACE_BYTES, MAX_PLACES + 1)? {
            let place = Place::parse(input, ends)?;
            ends = (place.frames.end, place.entered.end);
            if place.n_shared > depth
                || index.places.last().is_some_and(|last| {
                    place.position <= last.position
                        || place.last_ns < last.last_ns
                        || std::iter::zip(place.flaws, last.flaws).any(|(now, before)| now < before)
                })
            {
                return None;
            }
            depth = place.n_shared + place.frames.len();
            index.places.push(place);
        }
        if ends != (n_frames, n_entered) {
            return None;
        }
        for _ in 0..input.has(n_frames, 16, MAX_FRAMES)? {
            let addr = input.u64()?;
            index.frames.push(((addr != u64::MAX).then_some(addr), input.u64()?));
        }
        for _ in 0..input.has(n_entered, 4, MAX_ENTERED)? {
            index.entered.push(input.u32().filter(|&function| (function as usize) < n_functions)?);
        }
        Some((tid, index))
    }

    fn write(&self, tid: u32, out: &mut Vec<u8>) {
        out.extend(tid.to_le_bytes());
        out.extend(self.stamp.to_le_bytes());
        for count in [self.functions.len(), self.places.len(), self.frames.len(), self.entered.len()] {
            out.extend(small(count));
        }
        for &(addr, time_ns) in &self.functions {
            out.extend(addr.to_le_bytes());
            out.extend(time_ns.to_le_bytes());
        }
        self.places.iter().for_each(|place| place.write(out));
        for &(addr, time_ns) in &self.frames {
            out.extend(addr.unwrap_or(u64::MAX).to_le_bytes());
            out.extend(time_ns.to_le_bytes());
        }
        out.extend(self.entered.iter().flat_map(|function| function.to_le_bytes()));
    }
}

impl Place {
    const MUST_READ: u32 = 1;
    const TRUSTS_DEPTH: u32 = 2;

    /// Reads a place, with its frames and functions from here on.
    fn parse(input: &mut Input<'_>, (frames, entered): (usize, usize)) -> Option<Self> {
        let position = input.u64()?;
        let first = *input.bytes(RECORD_BYTES)?.first_chunk()?;
        let last_ns = input.u64()?;
        let mut flaws = [0; N_FLAWS];
        for count in &mut flaws {
            *count = input.u64()?;
        }
        let n_shared = input.u32()? as usize;
        let frames = frames..frames + input.u32()? as usize;
        let entered = entered..entered + input.u32()? as usize;
        let flags = input.u32()?;
        let (must_read, trusts_depth) = (flags & Self::MUST_READ != 0, flags & Self::TRUSTS_DEPTH != 0);
        Some(Self { position, first, last_ns, flaws, n_shared, frames, entered, must_read, trusts_depth })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.position.to_le_bytes());
        out.extend(self.first);
        out.extend(self.last_ns.to_le_bytes());
        out.extend(self.flaws.iter().flat_map(|count| count.to_le_bytes()));
        let flags =
            if self.must_read { Self::MUST_READ } else { 0 } | if self.trusts_depth { Self::TRUSTS_DEPTH } else { 0 };
        for count in [self.n_shared, self.frames.len(), self.entered.len(), flags as usize] {
            out.extend(small(count));
        }
    }
}

impl Index {
    /// Reads one; `None` if it is none, or of another version, or anything in it cannot be.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        if u64::from_le_bytes(*sum) != hash(rest) {
            return None;
        }
        let mut input = Input(rest);
        let mut index = Self::default();
        for _ in 0..input.u32()? {
            let (tid, task) = TaskIndex::parse(&mut input)?;
            index.tasks.insert(tid, task);
        }
        input.0.is_empty().then_some(index)
    }

    /// Returns the bytes for [`Index::parse`].
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut rest = small(self.tasks.len()).to_vec();
        let mut tasks: Vec<_> = self.tasks.iter().collect();
        tasks.sort_unstable_by_key(|&(tid, _)| tid);
        tasks.iter().for_each(|(tid, task)| task.write(**tid, &mut rest));
        [MAGIC.as_slice(), &hash(&rest).to_le_bytes(), &rest].concat()
    }
}

/// All counts have a limit below this.
fn small(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes()
}

/// FNV-1a of words and the rest: detects damage, not forgery.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let values = words.iter().map(|word| u64::from_le_bytes(*word)).chain(rest.iter().map(|&byte| byte.into()));
    values.fold(0xcbf2_9ce4_8422_2325, |sum, value| (sum ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

/// The bytes left to read.
struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes(4)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes(8)?.first_chunk()?))
    }

    /// Returns `count` if so many items of this size are present, and no more than `most`.
    fn has(&self, count: usize, bytes: usize, most: usize) -> Option<usize> {
        (count <= most && count * bytes <= self.0.len()).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Index {
        let place = |position: u64, n_shared, frames, entered| Place {
            position,
            first: [7; RECORD_BYTES],
            last_ns: position,
            flaws: [0, 1, 0, position],
            n_shared,
            frames,
            entered,
            must_read: position == 16,
            trusts_depth: position == 0,
        };
        let task = TaskIndex {
            stamp: 5,
            functions: vec![(0x1000, 1), (0x2000, 2)],
            places: vec![place(0, 0, 0..2, 0..2), place(16, 1, 2..3, 2..2), place(32, 2, 3..3, 2..3)],
            frames: vec![(None, 3), (Some(0x1000), 4), (Some(0x2000), 9)],
            entered: vec![0, 1, 1],
        };
        Index { tasks: HashMap::from([(7, task), (9, TaskIndex::default())]) }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let index = sample();
        assert_eq!(Index::parse(&index.write()), Some(index));
        let open = |place| sample().tasks[&7].open_at(place);
        assert_eq!(open(0), [(None, 3), (Some(0x1000), 4)]);
        assert_eq!(open(2), [(None, 3), (Some(0x2000), 9)]);
    }

    #[test]
    fn whatever_is_wrong_it_is_none() {
        let bytes = sample().write();
        for length in 0..bytes.len() {
            assert_eq!(Index::parse(&bytes[..length]), None, "{length}");
        }
        let start = MAGIC.len() + 8;
        let mut n_read = 0;
        for place in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                if std::mem::replace(&mut bytes[place], value) == value {
                    continue;
                }
                assert_eq!(Index::parse(&bytes), None, "{place}");
                // And with a sum that fits: what is read can be used.
                let sum = hash(&bytes[start..]).to_le_bytes();
                bytes[start - 8..start].copy_from_slice(&sum);
                for index in Index::parse(&bytes).iter().flat_map(|index| index.tasks.values()) {
                    (0..index.places.len()).for_each(|place| drop(index.open_at(place)));
                    let entered = index.places.iter().flat_map(|place| &index.entered[place.entered.clone()]);
                    assert!(entered.into_iter().all(|&function| index.functions.get(function as usize).is_some()));
                    n_read += 1;
                }
            }
        }
        assert!(n_read > 100, "{n_read}");
    }
}
