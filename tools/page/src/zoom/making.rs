//! Makes the file of all calls of a trace: task by task, several at a time.

use std::fs::File;
use std::mem;
use std::sync::atomic::AtomicUsize;

use rftrace_read::{Task, Trace, some_at_a_time};
use rftrace_views::Walked;

use super::blocks::{Block, Encoder, Kind, Merger};
use super::store::{CHUNK, Chunk, ChunkFile, Cursor, Directory, Lane, Level, Mark, TaskLanes};
use super::sums::Summer;
use crate::calls::{Sink, read_calls};
use crate::dictionary::Dictionary;
use crate::error::{Error, Result};
use crate::pack::MAX_NS;

/// The most depths of a task. Tracers record no deeper stacks; what is deeper counts for the caller.
const MAX_DEPTHS: usize = 4096;

/// Each level has pixels eight times as wide as the one before, or a power of that.
const LEVEL_SHIFT: u32 = 3;

/// How many levels there may be: the widest pixels are 26 days.
const N_LEVELS: usize = 17;

/// A level is kept if it has so much less than the one before.
const GAIN: u64 = 4;

/// Sums of a task are kept each so many calls, and each so many times as many as it has nodes: they take less space than the calls.
const CALLS_OF_MARK: u64 = 1 << 14;
const CALLS_OF_NODE: u64 = 4;

/// The most functions that a chunk says it has.
const MAX_SAID: usize = 128;

/// Reads all that is chosen of a trace, and writes it to `file`.
pub(crate) fn make(trace: &Trace, file: &File) -> Result<Directory> {
    let shared = Shared {
        trace,
        base_ns: trace.start_ns()?.unwrap_or(0),
        dictionary: Dictionary::default(),
        chunks: ChunkFile::new(file),
        file,
        n_nodes: AtomicUsize::new(0),
    };
    let mut directory = Directory { base_ns: shared.base_ns, ..Directory::default() };
    let mut begin = u64::MAX;
    let tasks = trace.tasks();
    for (walked, nameless_calls, made) in some_at_a_time(tasks.len(), |number| make_task(&shared, &tasks[number]))? {
        walked.add_to(&mut directory.summary);
        directory.summary.nameless_calls += nameless_calls;
        let stats = &walked.stats;
        if stats.records > 0 {
            begin = begin.min(stats.first_ns.saturating_sub(shared.base_ns));
            directory.end = directory.end.max(stats.last_ns.saturating_sub(shared.base_ns));
        }
        directory.n_too_deep += made.n_too_deep;
        if !made.lanes.lanes.is_empty() {
            directory.tasks.push(made.lanes);
        }
    }
    if directory.end >= MAX_NS {
        return Err(Error::TooLong);
    }
    directory.begin = begin.min(directory.end);
    let (functions, texts) = shared.dictionary.into_parts();
    directory.functions = functions;
    (directory.values, directory.n_lost_values) = (texts.texts, texts.n_lost);
    shared.chunks.finish(&directory)?;
    Ok(directory)
}

/// The state shared by the makers of all tasks.
struct Shared<'t> {
    trace: &'t Trace,
    base_ns: u64,
    dictionary: Dictionary,
    chunks: ChunkFile<'t>,
    file: &'t File,
    n_nodes: AtomicUsize,
}

struct Made {
    lanes: TaskLanes,
    n_too_deep: u64,
}

fn make_task(shared: &Shared<'_>, task: &Task) -> Result<(Walked, u64, Made)> {
    let mut maker = Maker {
        shared,
        lanes: Vec::new(),
        open: Vec::new(),
        summer: Summer::new(&shared.n_nodes),
        marks: Vec::new(),
        n_unmarked: 0,
        now: 0,
        seen: Seen::default(),
        n_deeper: 0,
        n_too_deep: 0,
    };
    let (walked, nameless_calls) = read_calls(shared.trace, task, shared.base_ns, &shared.dictionary, &mut maker)?;
    let Maker { lanes, summer, n_too_deep, marks, mut seen, .. } = maker;
    let finish = |lane: LaneMaker| lane.finish(shared, &mut seen);
    let lanes = lanes.into_iter().map(finish).collect::<Result<_>>()?;
    let lanes = TaskLanes {
        tid: task.tid(),
        pid: task.pid(),
        name: task.name().to_owned(),
        process: task.process_name().to_owned(),
        lanes,
        sums: summer.finish(),
        marks,
    };
    Ok((walked, nameless_calls, Made { lanes, n_too_deep }))
}

/// Takes the calls of a task.
struct Maker<'s, 't> {
    shared: &'s Shared<'t>,
    lanes: Vec<LaneMaker>,
    /// The open calls, in full but for their ends.
    open: Vec<Block>,
    summer: Summer<'s>,
    marks: Vec<Mark>,
    /// How many calls came behind the last one.
    n_unmarked: u64,
    /// When the last call began or ended.
    now: u64,
    seen: Seen,
    /// How many of the open calls are deeper than all lanes.
    n_deeper: u64,
    n_too_deep: u64,
}

/// Of each function the chunk that had it last, by a number; and how many chunks there were.
#[derive(Default)]
struct Seen {
    chunks: Vec<u32>,
    n_chunks: u32,
}

impl Maker<'_, '_> {
    /// Keeps the sums until now, if that is to be.
    fn mark(&mut self, time: u64) -> Result<()> {
        let is_due = self.n_unmarked >= CALLS_OF_MARK.max(CALLS_OF_NODE * self.summer.n_nodes() as u64);
        if is_due && time > self.now {
            let lasting: Vec<_> = self.open.iter().map(|open| time - open.start).collect();
            self.marks.push(self.shared.chunks.mark(time, &self.summer.prefix(&lasting))?);
            self.n_unmarked = 0;
        }
        self.now = time;
        Ok(())
    }
}

impl Sink for Maker<'_, '_> {
    fn enter(&mut self, time: u64, function: u32) -> Result<()> {
        self.mark(time)?;
        let depth = self.open.len();
        if depth >= MAX_DEPTHS {
            self.n_deeper += 1;
            self.n_too_deep += 1;
            return Ok(());
        }
        if depth == self.lanes.len() {
            self.lanes.push(LaneMaker::new());
        }
        let caller = depth.checked_sub(1).map_or(0, |above| self.lanes[above].n_calls);
        self.open.push(Block { start: time, n: 1, function, caller, ..Block::default() });
        self.summer.enter(function);
        self.n_unmarked += 1;
        Ok(())
    }

    fn exit(&mut self, time: u64) -> Result<()> {
        self.now = time;
        if self.n_deeper > 0 {
            self.n_deeper -= 1;
            return Ok(());
        }
        let Some(open) = self.open.pop() else { return Ok(()) };
        let busy = time - open.start;
        let call = Block { end: time, busy, part: self.summer.exit(busy), ..open };
        let lane = &mut self.lanes[self.open.len()];
        lane.add(&call);
        if lane.encoder.count == CHUNK {
            lane.flush(self.shared, &mut self.seen)?;
        }
        Ok(())
    }

    fn values(&mut self, which: usize, number: u32) {
        if self.n_deeper == 0
            && let Some(open) = self.open.last_mut()
        {
            open.values[which] = number;
        }
    }
}

/// Takes the calls of one depth.
struct LaneMaker {
    encoder: Encoder,
    chunks: Vec<Chunk>,
    n_calls: u64,
    /// The functions of the calls in the chunk, those that follow each other once.
    functions: Vec<u32>,
    /// Of each possible level how many blocks it has, and the pixel of the last one, if that is narrow.
    levels: [(u64, Option<u64>); N_LEVELS],
}

impl LaneMaker {
    fn new() -> Self {
        Self {
            encoder: Encoder::new(Kind::Calls),
            chunks: Vec::new(),
            n_calls: 0,
            functions: Vec::new(),
            levels: [(0, None); N_LEVELS],
        }
    }

    fn add(&mut self, call: &Block) {
        self.n_calls += 1;
        self.encoder.add(call);
        if self.functions.last() != Some(&call.function) {
            self.functions.push(call.function);
        }
        for (shift, (count, last)) in (1..).map(|level| level * LEVEL_SHIFT).zip(&mut self.levels) {
            let cell = (call.busy >> shift == 0).then_some(call.start >> shift);
            // A call that merges with the call before does so with wider pixels too.
            if cell.is_some() && cell == *last {
                break;
            }
            *count += 1;
            *last = cell;
        }
    }

    /// Writes the chunk.
    fn flush(&mut self, shared: &Shared<'_>, seen: &mut Seen) -> Result<()> {
        let Seen { chunks, n_chunks } = seen;
        *n_chunks += 1;
        let mut functions = mem::take(&mut self.functions);
        functions.retain(|&function| {
            chunks.resize(chunks.len().max(function as usize + 1), 0);
            mem::replace(&mut chunks[function as usize], *n_chunks) != *n_chunks
        });
        functions.sort_unstable();
        if functions.len() > MAX_SAID {
            functions.clear();
        }
        functions.shrink_to_fit();
        let call = self.n_calls - u64::from(self.encoder.count);
        self.chunks.push(shared.chunks.append(&mut self.encoder, call, functions)?);
        Ok(())
    }

    /// Writes the rest, and the levels.
    fn finish(mut self, shared: &Shared<'_>, seen: &mut Seen) -> Result<Lane> {
        if self.encoder.count > 0 {
            self.flush(shared, seen)?;
        }
        let calls = Level { width: 0, chunks: self.chunks };
        // The calls of a single chunk are read as quickly.
        let mut last = if calls.chunks.len() > 1 { self.n_calls } else { 0 };
        let widths = (1..).map(|level| 1 << (level * LEVEL_SHIFT)).zip(self.levels);
        let kept = widths.filter(|(_, (count, _))| {
            let gains = *count <= last / GAIN;
            if gains {
                last = *count;
            }
            gains
        });
        let mut stages: Vec<_> = kept.map(|(width, _)| Stage::new(width)).collect();
        if !stages.is_empty() {
            let mut cursor = Cursor::at_chunk(shared.file, &calls, 0);
            while let Some((_, call)) = cursor.next()? {
                Stage::pass(&mut stages, call, shared)?;
            }
        }
        let mut levels = vec![calls];
        let mut rest = &mut stages[..];
        while let [stage, others @ ..] = rest {
            if let Some(block) = stage.merger.finish() {
                stage.add(&block, shared)?;
                Stage::pass(others, block, shared)?;
            }
            rest = others;
        }
        for mut stage in stages {
            stage.flush(shared)?;
            levels.push(Level { width: stage.width, chunks: stage.chunks });
        }
        Ok(Lane { n_calls: self.n_calls, levels })
    }
}

/// Makes a level of the one before.
struct Stage {
    width: u64,
    merger: Merger,
    encoder: Encoder,
    chunks: Vec<Chunk>,
    /// How many calls are in what was packed, and in what is in the encoder.
    n_calls: u64,
    n_packed: u64,
}

impl Stage {
    fn new(width: u64) -> Self {
        let (merger, encoder) = (Merger::new(width), Encoder::new(Kind::Blocks));
        Self { width, merger, encoder, chunks: Vec::new(), n_calls: 0, n_packed: 0 }
    }

    /// Has a block go through the levels, as far as others become whole by it.
    fn pass(stages: &mut [Self], block: Block, shared: &Shared<'_>) -> Result<()> {
        let mut block = block;
        for stage in stages {
            let Some(whole) = stage.merger.add(block) else { break };
            stage.add(&whole, shared)?;
            block = whole;
        }
        Ok(())
    }

    fn add(&mut self, block: &Block, shared: &Shared<'_>) -> Result<()> {
        self.encoder.add(block);
        self.n_packed += block.n;
        if self.encoder.count == CHUNK { self.flush(shared) } else { Ok(()) }
    }

    fn flush(&mut self, shared: &Shared<'_>) -> Result<()> {
        if self.encoder.count > 0 {
            self.chunks.push(shared.chunks.append(&mut self.encoder, self.n_calls, Vec::new())?);
            self.n_calls += mem::take(&mut self.n_packed);
        }
        Ok(())
    }
}
