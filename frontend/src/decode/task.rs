//! Tasks, and the places of their records. A thread's chunks are linked by `prev_index`, oldest first.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{ADDRESS_SHIFT, ChunkHeader, RETURN_STACK_ENTRIES, Record, kind, state};

use super::records::{Records, Unpacked};

/// The maximum number of open functions searched for the one of an exit: more than a return stack has, for missing
/// exits. An image may have any records, and must not take for ever.
pub(super) const SEARCHED: usize = 4 * RETURN_STACK_ENTRIES;

/// Consecutive records of one task in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    /// The chunk's.
    pub(super) index: u64,
    pub(super) start: Start,
    /// The time at which the chunk was taken.
    pub(super) taken_tsc: u64,
    /// The core of the thread at the beginning, plus 1; 0 if unknown.
    pub(super) core: u32,
    /// Functions open further out in the thread, of other tasks.
    pub(super) n_outside: usize,
    pub(super) records: Records<'a>,
}

/// Predecessor of a segment in its task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The chunk with this index, 0 for none, and the number of open functions.
    Chunk { prev_index: u64, depth: usize },
    /// The last segment.
    Last,
    /// The stack was left, and resumed with so many open functions.
    Resumed { depth: usize },
}

impl<'a> Segment<'a> {
    /// Its records, in their place or in `unpacked`.
    pub(super) fn unpacked<'b>(&self, unpacked: &'b mut Unpacked<'a>) -> Timed<'b> {
        let (records, is_ordered) = unpacked.of(self.records);
        Timed { records, taken_tsc: self.taken_tsc, is_ordered }
    }
}

/// Records of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<'a> {
    records: &'a [Record],
    taken_tsc: u64,
    /// It is known without a look.
    is_ordered: bool,
}

impl<'a> Timed<'a> {
    /// Returns true if no record is younger than the one behind it.
    pub(super) fn is_ordered(self) -> bool {
        self.is_ordered || self.written().map(|(tsc, _)| tsc).is_sorted()
    }

    /// Time and word of each written record.
    pub(super) fn written(self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        self.all().flatten()
    }

    /// The same for each record; `None` for an unwritten one.
    pub(super) fn all(self) -> impl Iterator<Item = Option<(u64, u64)>> + use<'a> {
        let taken_tsc = self.taken_tsc;
        self.records.iter().map(move |record| record.read(taken_tsc))
    }
}

/// One thread of the traced program, or the stack of a coroutine.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// The tracer's id of the thread; for a stack, that of its first thread.
    pub(crate) tid: u32,
    pub(super) segments: Vec<Segment<'a>>,
    /// The words of the exit records of the functions open in it, outermost first, as far as known.
    pub(super) open: Vec<u64>,
    /// Left stacks were resumed in it.
    pub(super) resumes: bool,
}

impl Task<'_> {
    /// An upper bound for the number of its records.
    pub(crate) fn capacity(&self) -> usize {
        self.segments.iter().map(|segment| segment.records.len()).sum()
    }

    /// Returns the time of its last record, in ticks.
    #[cfg(all(feature = "std", target_os = "linux"))]
    pub(crate) fn last_tsc(&self) -> Option<u64> {
        let mut unpacked = Unpacked::default();
        self.segments
            .iter()
            .rev()
            .find_map(|segment| segment.unpacked(&mut unpacked).written().map(|(tsc, _)| tsc).max())
    }

    /// Returns true if anything was recorded since `start`, in ticks.
    pub(crate) fn has_record_since(&self, start: u64) -> bool {
        let mut unpacked = Unpacked::default();
        self.segments.iter().any(|segment| segment.unpacked(&mut unpacked).words_since(start).next().is_some())
    }

    /// Returns true if there is a record since `start` other than those of hidden functions.
    pub(crate) fn has_visible_since(&self, start: u64, is_hidden: &dyn Fn(u64) -> bool) -> bool {
        let mut unpacked = Unpacked::default();
        let is_visible = |word: u64| word & kind::MASK == kind::LOST || !is_hidden(word >> ADDRESS_SHIFT);
        self.segments.iter().any(|segment| segment.unpacked(&mut unpacked).words_since(start).any(is_visible))
    }

    /// Returns the number of events since `start`, and of lost calls.
    #[cfg(feature = "std")]
    pub(crate) fn count_since(&self, start: u64) -> (u64, u64) {
        let mut unpacked = Unpacked::default();
        self.segments.iter().fold((0, 0), |counts, segment| {
            segment.unpacked(&mut unpacked).words_since(start).fold(counts, |(events, lost), word| {
                match word & kind::MASK {
                    kind::ENTRY if word & kind::POINT != 0 => (events + 2, lost),
                    kind::ENTRY | kind::EXIT => (events + 1, lost),
                    kind::LOST => (events, lost + (word >> ADDRESS_SHIFT)),
                    _ => (events, lost),
                }
            })
        })
    }
}

impl<'a> Timed<'a> {
    fn words_since(self, start: u64) -> impl Iterator<Item = u64> + use<'a> {
        self.written().filter_map(move |(tsc, word)| (tsc >= start && !is_hidden_exit(word)).then_some(word))
    }
}

/// Returns true for the exit of a function with an entry hidden by the filter.
fn is_hidden_exit(word: u64) -> bool {
    word & kind::MASK == kind::EXIT && word & state::HIDDEN != 0
}

/// Returns the threads with records in `chunks`, by id, each with all its records.
pub(crate) fn of_threads<'a>(
    chunks: impl Iterator<Item = (Head, Records<'a>)>,
    mut open: HashMap<u32, Vec<u64>>,
) -> Vec<Task<'a>> {
    let mut tasks: HashMap<u32, Task<'a>> = HashMap::new();
    for (head, records) in chunks {
        let resumes = head.n_resumed > 0;
        for (tid, segment) in segments(head, records) {
            let new =
                || Task { tid, segments: Vec::new(), open: open.remove(&tid).unwrap_or_default(), resumes: false };
            let task = tasks.entry(tid).or_insert_with(new);
            task.segments.push(segment);
            task.resumes |= resumes;
        }
    }
    let mut tasks: Vec<Task<'a>> = tasks.into_values().collect();
    for task in &mut tasks {
        task.segments.sort_by_key(|segment| segment.index);
    }
    tasks.sort_by_key(|task| task.tid);
    tasks
}

/// Contents of a chunk's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    index: u64,
    prev_index: u64,
    depth: usize,
    tid: u32,
    taken_tsc: u64,
    core: u32,
    n_adopted: u32,
    n_resumed: u32,
}

impl From<&ChunkHeader> for Head {
    fn from(header: &ChunkHeader) -> Self {
        Self {
            index: header.index(),
            prev_index: header.prev_index.load(Relaxed),
            depth: header.depth.load(Relaxed) as usize,
            tid: header.tid.load(Relaxed),
            taken_tsc: header.taken_tsc.load(Relaxed),
            core: header.core.load(Relaxed),
            n_adopted: header.n_adopted.load(Relaxed),
            n_resumed: header.n_resumed.load(Relaxed),
        }
    }
}

/// Splits a chunk at the beginnings of further threads in it.
fn segments(head: Head, records: Records<'_>) -> Vec<(u32, Segment<'_>)> {
    let Head { index, prev_index, depth, mut tid, taken_tsc, core, mut n_adopted, .. } = head;
    let mut segment =
        Segment { index, start: Start::Chunk { prev_index, depth }, taken_tsc, core, n_outside: 0, records };
    let mut found = Vec::new();
    let mut unpacked = Unpacked::default();
    while n_adopted > 0 {
        let new_thread = |(place, record): (usize, Option<(u64, u64)>)| {
            let (_, word) = record?;
            let is_new = word & (kind::NEW_THREAD | kind::MASK) == kind::NEW_THREAD | kind::RESYNC;
            is_new.then_some((place, (word >> ADDRESS_SHIFT) as u32))
        };
        let Some((place, new_tid)) = segment.unpacked(&mut unpacked).all().enumerate().find_map(new_thread) else {
            break;
        };
        let n_records = segment.records.len();
        let (before, after) = (segment.records.part(0, place), segment.records.part(place + 1, n_records));
        found.push((tid, Segment { records: before, ..segment }));
        tid = new_tid;
        segment = Segment { start: Start::Chunk { prev_index: 0, depth: 0 }, core: 0, records: after, ..segment };
        n_adopted -= 1;
    }
    found.push((tid, segment));
    found
}
