//! Sums of a task's calls, block by block: what reports of a long trace's parts are made of.
//!
//! Of each block there is what its calls sum up to, and what is open where it begins. Sums of two blocks, one behind the other, make those of
//! both ([`Block::append`]). So of a part of a trace records are read at its edges alone.
//!
//! Not here: making them (`blocking`), what is read with them (`between`), where they are kept (`rftrace-read`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rftrace_read::{CallCost, Kept, KeptFile, Mark, Task, Trace, checksum};
use serde::{Deserialize, Serialize};

use crate::correction::{Cost, Costs};
use crate::rows::CallTimes;
use crate::stack::{EndedCall, Frame};

/// So many blocks, one behind the other, have sums of all of them too.
const GROUP: usize = 16;

/// The longest directory that is read, in bytes.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;

/// The sums of a trace, and where in its records they begin and end.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) directory: Directory,
    stored: Stored,
}

/// What is where.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// Of all functions.
    pub(crate) names: Vec<String>,
    /// Whether there are the times of single calls.
    pub(crate) has_times: bool,
    /// By their numbers.
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

/// Where a block or group is: how much is before, how long it is, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    before: u64,
    length: u64,
    checksum: u64,
}

/// Those of a task.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskBlocks {
    /// The functions, by numbers of [`Blocks::names`]; blocks have numbers of these.
    pub(crate) names: Vec<u32>,
    /// The time of the first record.
    pub(crate) first_ns: u64,
    /// Between two of them is a block. There are none where records do not fit, or some are missing: then no sum is right.
    pub(crate) edges: Vec<Edge>,
    pub(crate) blocks: Vec<Extent>,
    pub(crate) groups: Vec<Extent>,
}

/// Where a block begins or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Edge {
    pub(crate) mark: Mark,
    /// Since when the task has no processor, if it has none.
    pub(crate) waiting_since: Option<u64>,
    /// How many of the functions that are open at the edge before are so here, and are as they were.
    pub(crate) n_shared: usize,
    /// The others that are open.
    pub(crate) frames: Vec<Frame>,
}

/// What there is in a block, or in several.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Block {
    pub(crate) n_records: u64,
    pub(crate) n_calls: u64,
    pub(crate) nameless_calls: u64,
    /// How long the task had no processor, if it got one again.
    pub(crate) waited_ns: Option<u64>,
    /// Of the calls that begin and end here; and of functions that are entered alone. In the order in which they are found.
    pub(crate) rows: Vec<BlockRow>,
    /// The calls that began before and end here, in that order.
    pub(crate) outer: Vec<OuterCall>,
    /// How many of those that are open at the beginning are so at the end.
    pub(crate) n_lasting: usize,
    /// The times of single calls of each row; none, if they were not asked for.
    #[serde(skip)]
    pub(crate) times: Vec<CallTimes>,
}

/// The sums of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRow {
    pub(crate) name: u32,
    /// Of calls that are not within others of the function, whenever those began.
    pub(crate) total_ns: u64,
    pub(crate) self_ns: u64,
    pub(crate) calls: u64,
    pub(crate) costs: Costs,
}

/// A call that ended in another block than it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OuterCall {
    pub(crate) name: u32,
    /// How many functions were open around it.
    pub(crate) depth: usize,
    /// As it was when it ended.
    pub(crate) frame: Frame,
    pub(crate) end_ns: u64,
    /// It was not within another call of the function.
    pub(crate) is_outermost: bool,
}

impl Blocks {
    /// What is kept of a trace.
    pub(crate) fn kept(trace: &Trace) -> Option<Self> {
        Self::read(trace.kept_file(Kept::Blocks)?, KeptFile::START)
    }

    /// Reads what [`Blocks::write`] has written there.
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
        let has_names = |task: &TaskBlocks| task.names.iter().all(|&name| (name as usize) < directory.names.len());
        let makes_sense = directory.tasks.values().all(|task| has_names(task) && task.makes_sense());
        makes_sense.then(|| Self { directory, stored: Stored::Kept { file, start: start + length, end } })
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

    /// Has all in memory, so that more can be added and all be written. Without what cannot be read.
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

    /// Those of a task, if it has any.
    pub(crate) fn of(&self, task: &Task) -> Option<&TaskBlocks> {
        self.directory.tasks.get(&task.tid()).filter(|task| task.edges.len() > 1)
    }

    /// The name of a function of a task, by the number in its blocks.
    pub(crate) fn name(&self, task: &TaskBlocks, number: u32) -> &str {
        &self.directory.names[task.names[number as usize] as usize]
    }

    /// What there is between two edges, of which the first is the earlier; `None` if it is not what it should be.
    pub(crate) fn between(
        &self,
        task: &TaskBlocks,
        (from, to): (usize, usize),
        has_times: bool,
        cost: Option<CallCost>,
    ) -> Option<Block> {
        let mut sum: Option<Block> = None;
        let mut here = from;
        while here < to {
            let is_group = here.is_multiple_of(GROUP) && here + GROUP <= to;
            let extent = if is_group { task.groups.get(here / GROUP)? } else { task.blocks.get(here)? };
            let next = Block::read(&self.stored(*extent)?, has_times)?;
            match &mut sum {
                Some(sum) => sum.append(next, has_times, cost),
                None => sum = Some(next),
            }
            here += if is_group { GROUP } else { 1 };
        }
        let has_name = |name: u32| (name as usize) < task.names.len();
        sum.filter(|sum| {
            sum.rows.iter().all(|row| has_name(row.name)) && sum.outer.iter().all(|call| has_name(call.name))
        })
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

    /// The functions that are open at an edge, outermost first.
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
    /// The edge that this one becomes when the one before it is dropped.
    pub(crate) fn without(self, before: &Self) -> Self {
        let Some(n_of_before) = self.n_shared.checked_sub(before.n_shared).filter(|&count| count > 0) else {
            return self;
        };
        let shared = before.frames.iter().take(n_of_before);
        let frames = shared.chain(&self.frames).copied().collect();
        Self { n_shared: before.n_shared, frames, ..self }
    }
}

/// Those of so many blocks each, as far as there are so many.
pub(crate) fn groups(blocks: &[Vec<u8>], has_times: bool, cost: Option<CallCost>) -> Option<Vec<Vec<u8>>> {
    blocks.chunks_exact(GROUP).map(|blocks| joined(blocks, has_times, cost)).collect()
}

/// Those of several blocks, one behind the other.
pub(crate) fn joined(blocks: &[Vec<u8>], has_times: bool, cost: Option<CallCost>) -> Option<Vec<u8>> {
    let mut blocks = blocks.iter();
    let mut sum = Block::read(blocks.next()?, has_times)?;
    for next in blocks {
        sum.append(Block::read(next, has_times)?, has_times, cost);
    }
    sum.write()
}

impl Block {
    /// The bytes that [`Block::read`] reads.
    pub(crate) fn write(&self) -> Option<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self).ok()?;
        bytes.extend(postcard::to_stdvec(&self.times).ok()?);
        Some(bytes)
    }

    /// Reads one, with the times of single calls if they are wanted.
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

    /// Adds the block that comes next, which has times if this one has.
    fn append(&mut self, next: Self, has_times: bool, cost: Option<CallCost>) {
        self.n_records += next.n_records;
        self.n_calls += next.n_calls;
        self.nameless_calls += next.nameless_calls;
        if let Some(waited_ns) = next.waited_ns {
            self.waited_ns = Some(self.waited_ns.unwrap_or(0).saturating_add(waited_ns));
        }
        let mut places: HashMap<u32, usize> = self.rows.iter().zip(0..).map(|(row, place)| (row.name, place)).collect();
        let mut times = next.times.into_iter();
        for row in next.rows {
            let place = *places.entry(row.name).or_insert(self.rows.len());
            if place == self.rows.len() {
                self.rows.push(row);
                self.times.extend(times.next());
            } else {
                self.rows[place].add(row);
                if let (Some(sum), Some(times)) = (self.times.get_mut(place), times.next()) {
                    sum.merge(&times);
                }
            }
        }
        for call in next.outer {
            if call.depth < self.n_lasting {
                self.outer.push(call);
                continue;
            }
            // It began in this block. Its row was found there, or the function was open before, too.
            let place = *places.entry(call.name).or_insert(self.rows.len());
            if place == self.rows.len() {
                self.rows.push(BlockRow { name: call.name, ..BlockRow::default() });
                self.times.extend(has_times.then(CallTimes::default));
            }
            let ended = call.ended(&call.frame);
            let costs = Costs::of(cost, &ended);
            self.rows[place].add(call.row(&ended, costs));
            if let Some(times) = self.times.get_mut(place) {
                times.add([ended.total_ns, ended.self_ns], costs);
            }
        }
        self.n_lasting = self.n_lasting.min(next.n_lasting);
    }
}

impl BlockRow {
    fn add(&mut self, other: Self) {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.calls += other.calls;
        self.costs.add(other.costs);
    }
}

impl OuterCall {
    /// The call, as it ended if it was so then.
    pub(crate) fn ended(&self, frame: &Frame) -> EndedCall {
        EndedCall { has_exit: true, ..frame.end(self.end_ns) }
    }

    /// What it adds to its function's sums.
    fn row(&self, ended: &EndedCall, costs: Costs) -> BlockRow {
        let total = if self.is_outermost { costs.total } else { Cost::default() };
        let total_ns = if self.is_outermost { ended.total_ns } else { 0 };
        BlockRow { name: self.name, total_ns, self_ns: ended.self_ns, calls: 1, costs: Costs { total, ..costs } }
    }
}
