//! Tasks: whose records lie where. A thread's lie in chunks that are linked by `prev_index`, oldest first.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{ADDRESS_SHIFT, RETURN_STACK_ENTRIES, Record, kind, state};

use crate::backend::Chunk;

/// Open functions among which that of an exit is looked for: more than a return stack has, for those whose exits are missing.
/// An image may have any records; it must not take for ever.
pub(super) const SEARCHED: usize = 4 * RETURN_STACK_ENTRIES;

/// Records of one task that lie side by side in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    /// The chunk's.
    pub(super) index: u64,
    pub(super) start: Start,
    /// When the chunk was taken.
    pub(super) taken_tsc: u64,
    /// The core on which the thread was at the beginning, plus 1; 0 if unknown.
    pub(super) core: u32,
    /// Functions that are open in the thread further out, and belong to other tasks.
    pub(super) n_outside: usize,
    pub(super) records: &'a [Record],
}

/// What comes before a segment in its task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The chunk with this index, 0 for none. So many functions were open.
    Chunk { prev_index: u64, depth: usize },
    /// The last segment.
    Last,
    /// The stack was left, and resumed with so many open functions.
    Resumed { depth: usize },
}

impl Segment<'_> {
    /// Whether no record is younger than the one behind it.
    pub(super) fn is_ordered(&self) -> bool {
        self.records().map(|(tsc, _)| tsc).is_sorted()
    }

    /// Time and word of each record.
    pub(super) fn records(&self) -> impl Iterator<Item = (u64, u64)> {
        let taken_tsc = self.taken_tsc;
        self.records.iter().filter_map(move |record| record.read(taken_tsc))
    }
}

/// One thread of the traced program, or the stack of a coroutine.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// The tracer's id of the thread; of a stack, of the one on which it ran first.
    pub(crate) tid: u32,
    pub(super) segments: Vec<Segment<'a>>,
    /// The words of the exit records of the functions that are open in it, outermost first, as far as they are known.
    pub(super) open: Vec<u64>,
    /// Stacks that had been left were resumed in it.
    pub(super) resumes: bool,
}

impl Task<'_> {
    /// An upper bound for the number of its records.
    pub(crate) fn capacity(&self) -> usize {
        self.segments.iter().map(|segment| segment.records.len()).sum()
    }

    /// Whether anything was recorded since `start`, in ticks.
    pub(crate) fn has_record_since(&self, start: u64) -> bool {
        self.words_since(start).next().is_some()
    }

    /// How many events were recorded since `start`, and how many calls were lost.
    #[cfg(feature = "std")]
    pub(crate) fn count_since(&self, start: u64) -> (u64, u64) {
        self.words_since(start).fold((0, 0), |(events, lost), word| match word & kind::MASK {
            kind::ENTRY if word & kind::POINT != 0 => (events + 2, lost),
            kind::ENTRY | kind::EXIT => (events + 1, lost),
            kind::LOST => (events, lost + (word >> ADDRESS_SHIFT)),
            _ => (events, lost),
        })
    }

    fn words_since(&self, start: u64) -> impl Iterator<Item = u64> {
        let records = self.segments.iter().flat_map(Segment::records);
        records.filter_map(move |(tsc, word)| (tsc >= start && !is_hidden_exit(word)).then_some(word))
    }
}

/// Whether this is the exit of a function whose entry the filter did not let pass.
fn is_hidden_exit(word: u64) -> bool {
    word & kind::MASK == kind::EXIT && word & state::HIDDEN != 0
}

/// The threads that have records in `chunks`, by id, each with all that was recorded in it.
pub(crate) fn of_threads<'a>(
    chunks: impl Iterator<Item = Chunk<'a>>,
    mut open: HashMap<u32, Vec<u64>>,
) -> Vec<Task<'a>> {
    let mut tasks: HashMap<u32, Task<'a>> = HashMap::new();
    for chunk in chunks {
        let resumes = chunk.header.n_resumed.load(Relaxed) > 0;
        for (tid, segment) in segments(chunk) {
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

/// Splits a chunk at the places where a new thread went on in it.
fn segments(chunk: Chunk<'_>) -> Vec<(u32, Segment<'_>)> {
    let header = chunk.header;
    let (prev_index, depth) = (header.prev_index.load(Relaxed), header.depth.load(Relaxed) as usize);
    let mut tid = header.tid.load(Relaxed);
    let mut segment = Segment {
        index: header.index(),
        start: Start::Chunk { prev_index, depth },
        taken_tsc: header.taken_tsc.load(Relaxed),
        core: header.core.load(Relaxed),
        n_outside: 0,
        records: chunk.records,
    };
    let mut found = Vec::new();
    let mut n_adopted = header.n_adopted.load(Relaxed);
    while n_adopted > 0 {
        let new_thread = |(place, record): (usize, &Record)| {
            let (_, word) = record.read(segment.taken_tsc)?;
            let is_new = word & (kind::NEW_THREAD | kind::MASK) == kind::NEW_THREAD | kind::RESYNC;
            is_new.then_some((place, (word >> ADDRESS_SHIFT) as u32))
        };
        let Some((place, new_tid)) = segment.records.iter().enumerate().find_map(new_thread) else {
            break;
        };
        let (before, after) = segment.records.split_at(place);
        found.push((tid, Segment { records: before, ..segment }));
        tid = new_tid;
        segment = Segment { start: Start::Chunk { prev_index: 0, depth: 0 }, core: 0, records: &after[1..], ..segment };
        n_adopted -= 1;
    }
    found.push((tid, segment));
    found
}
