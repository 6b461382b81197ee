//! Sums of a task's calls for each block of records, for reports on parts of a long trace.
//!
//! A block has the sums of its calls, and the functions open at its beginning. The sums of two consecutive blocks add
//! up to the sums of both ([`Block::append`]). So a report on a part of a trace reads records only at the part's edges.
//!
//! Not here: making the sums (`blocking`), reading with them (`between`), and their storage (`rftrace-read`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rftrace_read::{CallCost, Kept, KeptFile, Mark, OffCpu, Task, Trace, checksum};
use serde::{Deserialize, Serialize};

use crate::collector::{CallSums, OffCpuTimes};
use crate::keys::Keys;
use crate::rows::CallTimes;
use crate::stack::{EndedCall, Frame};

/// The number of consecutive blocks with common sums.
const GROUP: usize = 16;

/// The maximum size of a directory in bytes.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;

/// The sums of a trace, and their beginnings and ends in its records.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) directory: Directory,
    stored: Stored,
}

/// The directory of the blocks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// All functions, or ways to them.
    pub(crate) keys: Keys,
    /// True if there are the times of single calls.
    pub(crate) has_times: bool,
    /// By the tasks' numbers.
    pub(crate) tasks: BTreeMap<u32, TaskBlocks>,
}

/// All blocks and groups, each as [`Block::write`] has it.
#[derive(Debug)]
enum Stored {
    Made(Vec<u8>),
    /// In a file, from this place on, up to its end.
    Kept {
        file: File,
        start: u64,
        end: u64,
    },
}

impl Default for Stored {
    fn default() -> Self {
        Self::Made(Vec::new())
    }
}

/// The place of a block or group: its offset, its length, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    before: u64,
    length: u64,
    checksum: u64,
}

/// The blocks of a task.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskBlocks {
    /// Its functions or ways, by the common numbers; blocks have numbers of these.
    pub(crate) keys: Vec<u32>,
    /// The time of the first record.
    pub(crate) first_ns: u64,
    /// Between two of them is a block. There are none where records do not fit, or some are missing: then no sum is
    /// right.
    pub(crate) edges: Vec<Edge>,
    pub(crate) blocks: Vec<Extent>,
    pub(crate) groups: Vec<Extent>,
}

/// The beginning or end of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Edge {
    pub(crate) mark: Mark,
    /// The kind and the beginning of the task's present time without a processor, if any.
    pub(crate) off_cpu_since: Option<(OffCpu, u64)>,
    /// The number of functions open at the edge before that are still open here, unchanged.
    pub(crate) n_shared: usize,
    /// The other open functions.
    pub(crate) frames: Vec<Frame>,
}

/// The sums of a block, or of several.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Block {
    pub(crate) n_records: u64,
    pub(crate) n_calls: u64,
    pub(crate) nameless_calls: u64,
    /// The task's time without a processor, up to its next start.
    pub(crate) off_cpu: Option<OffCpuTimes>,
    /// The sums of calls with beginning and end here, and of functions with entries only. In the order of their first
    /// occurrence.
    pub(crate) rows: Vec<BlockRow>,
    /// The calls with an earlier beginning and an end here, in that order.
    pub(crate) outer: Vec<OuterCall>,
    /// The number of functions open at both the beginning and the end.
    pub(crate) n_lasting: usize,
    /// The times of single calls of each row; none, if they were not asked for.
    #[serde(skip)]
    pub(crate) times: Vec<CallTimes>,
}

/// The sums of a function, or of a way to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRow {
    pub(crate) key: u32,
    /// Calls are within others of the function whenever those began.
    pub(crate) sums: CallSums,
}

/// A call with its end in another block than its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OuterCall {
    pub(crate) key: u32,
    /// The number of functions open around it.
    pub(crate) depth: usize,
    /// The frame at its end.
    pub(crate) frame: Frame,
    pub(crate) end_ns: u64,
    /// It was not within another call of the function; always so of a way.
    pub(crate) is_outermost: bool,
}

impl Blocks {
    /// The kept blocks of a trace.
    pub(crate) fn kept(trace: &Trace, what: Kept) -> Option<Self> {
        Self::read(trace.kept_file(what)?, KeptFile::START)
    }

    /// Reads the output of [`Blocks::write`].
    pub(crate) fn read(file: File, start: u64) -> Option<Self> {
        let end = file.metadata().ok()?.len();
        let mut words = [0; 16];
        file.read_exact_at(&mut words, start).ok()?;
        let [length, sum] = [0, 8].map(|at| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default()));
        let start = start + words.len() as u64;
        if length > MAX_DIRECTORY_BYTES || start + length > end {
            return None;
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, start).ok()?;
        let directory: Directory = postcard::from_bytes(&bytes).ok().filter(|_| checksum(&bytes) == sum)?;
        let n_keys = directory.keys.len();
        let has_keys = |task: &TaskBlocks| task.keys.iter().all(|&key| (key as usize) < n_keys);
        let makes_sense = directory.tasks.values().all(|task| has_keys(task) && task.makes_sense());
        (makes_sense && directory.keys.makes_sense())
            .then(|| Self { directory, stored: Stored::Kept { file, start: start + length, end } })
    }

    /// Writes all to a place in a file.
    ///
    /// # Errors
    ///
    /// It cannot be written, or the directory is too long.
    pub(crate) fn write(&self, file: &File, start: u64) -> io::Result<()> {
        let directory = postcard::to_stdvec(&self.directory).map_err(io::Error::other)?;
        if directory.len() as u64 > MAX_DIRECTORY_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let words = [directory.len() as u64, checksum(&directory)].map(u64::to_le_bytes);
        file.write_all_at(words.as_flattened(), start)?;
        file.write_all_at(&directory, start + 16)?;
        if let Stored::Made(bytes) = &self.stored {
            file.write_all_at(bytes, start + 16 + directory.len() as u64)?;
        }
        Ok(())
    }

    /// Loads everything into memory, for additions and a new file. Leaves out unreadable parts.
    pub(crate) fn into_memory(mut self) -> Self {
        if let Stored::Kept { file, start, end } = &self.stored {
            let mut bytes = vec![0; (end - start) as usize];
            match file.read_exact_at(&mut bytes, *start) {
                Ok(()) => self.stored = Stored::Made(bytes),
                Err(_) => self = Self::default(),
            }
        }
        self
    }

    /// Adds a block or group.
    pub(crate) fn store(&mut self, bytes: &[u8]) -> Extent {
        let Stored::Made(all) = &mut self.stored else { unreachable!("only what is in memory has more added") };
        let extent = Extent { before: all.len() as u64, length: bytes.len() as u64, checksum: checksum(bytes) };
        all.extend(bytes);
        extent
    }

    fn stored(&self, extent: Extent) -> Option<Cow<'_, [u8]>> {
        let range = extent.before..extent.before.checked_add(extent.length)?;
        let bytes = match &self.stored {
            Stored::Made(all) => Cow::Borrowed(all.get(range.start as usize..range.end as usize)?),
            Stored::Kept { file, start, end } => {
                if range.end > end - start {
                    return None;
                }
                let mut bytes = vec![0; extent.length as usize];
                file.read_exact_at(&mut bytes, start + extent.before).ok()?;
                Cow::Owned(bytes)
            }
        };
        (checksum(&bytes) == extent.checksum).then_some(bytes)
    }

    /// Returns the blocks of a task, if it has any.
    pub(crate) fn of(&self, task: &Task) -> Option<&TaskBlocks> {
        self.directory.tasks.get(&task.tid()).filter(|task| task.edges.len() > 1)
    }

    /// Returns the sums between two edges, the earlier one first; `None` if a block is damaged.
    pub(crate) fn between(
        &self,
        task: &TaskBlocks,
        (from, to): (usize, usize),
        has_times: bool,
        cost: Option<CallCost>,
    ) -> Option<Block> {
        let mut sum = Sum::new(task.keys.len(), has_times, cost);
        let mut here = from;
        while here < to {
            let is_group = here.is_multiple_of(GROUP) && here + GROUP <= to;
            let extent = if is_group { task.groups.get(here / GROUP)? } else { task.blocks.get(here)? };
            sum.append(&self.stored(*extent)?)?;
            here += if is_group { GROUP } else { 1 };
        }
        sum.block
    }
}

impl TaskBlocks {
    fn makes_sense(&self) -> bool {
        let mut n_open = 0;
        self.edges.iter().all(|edge| {
            let is_right = edge.n_shared <= n_open && edge.frames.iter().all(|frame| frame.addr.is_some());
            n_open = edge.n_shared + edge.frames.len();
            is_right
        }) && self.edges.is_sorted_by(|a, b| a.mark.position < b.mark.position && a.mark.last_ns <= b.mark.last_ns)
    }

    /// Returns the functions open at an edge, outermost first.
    pub(crate) fn open_at(&self, edge: usize) -> Vec<Frame> {
        let mut open = Vec::new();
        for edge in &self.edges[..=edge] {
            open.truncate(edge.n_shared);
            open.extend_from_slice(&edge.frames);
        }
        open
    }
}

impl Edge {
    /// Returns this edge after a removal of the edge before it.
    pub(crate) fn without(self, before: &Self) -> Self {
        let Some(n_of_before) = self.n_shared.checked_sub(before.n_shared).filter(|&count| count > 0) else {
            return self;
        };
        let shared = before.frames.iter().take(n_of_before);
        let frames = shared.chain(&self.frames).copied().collect();
        Self { n_shared: before.n_shared, frames, ..self }
    }
}

/// Returns groups of this number of blocks each, as far as there are enough.
pub(crate) fn groups(
    blocks: &[Vec<u8>],
    n_keys: usize,
    has_times: bool,
    cost: Option<CallCost>,
) -> Option<Vec<Vec<u8>>> {
    blocks.chunks_exact(GROUP).map(|blocks| joined(blocks, n_keys, has_times, cost)).collect()
}

/// Returns the common sums of several consecutive blocks.
pub(crate) fn joined(blocks: &[Vec<u8>], n_keys: usize, has_times: bool, cost: Option<CallCost>) -> Option<Vec<u8>> {
    let mut sum = Sum::new(n_keys, has_times, cost);
    for next in blocks {
        sum.append(next)?;
    }
    sum.block?.write()
}

impl Block {
    /// Returns the bytes for [`Block::read`].
    pub(crate) fn write(&self) -> Option<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self).ok()?;
        bytes.extend(postcard::to_stdvec(&self.times).ok()?);
        Some(bytes)
    }

    /// Reads a block, with the times of single calls if `has_times`.
    fn read(bytes: &[u8], has_times: bool) -> Option<Self> {
        let (mut block, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        if has_times {
            block.times = postcard::from_bytes(rest).ok()?;
            if block.times.len() != block.rows.len() {
                return None;
            }
        }
        Some(block)
    }
}

/// Sums up blocks, one behind the other.
struct Sum {
    /// `None` before the first one.
    block: Option<Block>,
    /// The place of each key's row; [`NO_ROW`] for a key without one.
    places: Vec<u32>,
    has_times: bool,
    cost: Option<CallCost>,
}

const NO_ROW: u32 = u32::MAX;

impl Sum {
    fn new(n_keys: usize, has_times: bool, cost: Option<CallCost>) -> Self {
        Self { block: None, places: vec![NO_ROW; n_keys], has_times, cost }
    }

    /// Adds the next block; `None` if it is malformed.
    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        let next = Block::read(bytes, self.has_times)?;
        let n_keys = self.places.len();
        let mut keys = next.rows.iter().map(|row| row.key).chain(next.outer.iter().map(|call| call.key));
        if keys.any(|key| key as usize >= n_keys) {
            return None;
        }
        let Some(sum) = &mut self.block else {
            for (row, place) in next.rows.iter().zip(0..) {
                self.places[row.key as usize] = place;
            }
            self.block = Some(next);
            return Some(());
        };
        sum.n_records += next.n_records;
        sum.n_calls += next.n_calls;
        sum.nameless_calls += next.nameless_calls;
        if let Some(times) = next.off_cpu {
            sum.off_cpu.get_or_insert_default().add(times);
        }
        let mut times = next.times.into_iter();
        for row in next.rows {
            let place = &mut self.places[row.key as usize];
            if *place == NO_ROW {
                *place = sum.rows.len() as u32;
                sum.rows.push(row);
                sum.times.extend(times.next());
            } else {
                sum.rows[*place as usize].sums.add(row.sums);
                if let (Some(sum), Some(times)) = (sum.times.get_mut(*place as usize), times.next()) {
                    sum.merge(&times);
                }
            }
        }
        for call in next.outer {
            if call.depth < sum.n_lasting {
                sum.outer.push(call);
                continue;
            }
            // It began in what was added before. Its row was found there, or the function was open before, too.
            let place = &mut self.places[call.key as usize];
            if *place == NO_ROW {
                *place = sum.rows.len() as u32;
                sum.rows.push(BlockRow { key: call.key, sums: CallSums::default() });
                sum.times.extend(self.has_times.then(CallTimes::default));
            }
            let ended = call.ended(&call.frame);
            let sums = CallSums::of(self.cost, &ended);
            sum.rows[*place as usize].sums.add(if call.is_outermost { sums } else { sums.within() });
            if let Some(times) = sum.times.get_mut(*place as usize) {
                times.add([ended.total_ns, ended.self_ns], sums.costs);
            }
        }
        sum.n_lasting = sum.n_lasting.min(next.n_lasting);
        Some(())
    }
}

impl OuterCall {
    /// The call, as it ended if it was so then.
    pub(crate) fn ended(&self, frame: &Frame) -> EndedCall {
        let ended = frame.end(self.end_ns);
        EndedCall { has_exit: !ended.did_not_return, ..ended }
    }
}
