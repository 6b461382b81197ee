//! Makes the sums of a trace's blocks.
//!
//! Not here: the content of the sums (`blocks`).

use std::fs;

use rftrace_read::{Error, KeptFile, Mark, Result, Task, Trace, some_at_a_time};

use crate::blocks::{Block, BlockRow, Blocks, Edge, OuterCall, TaskBlocks, groups, joined};
use crate::collector::{Collector, TaskCalls};
use crate::keys::Keys;
use crate::stack::{CallStack, Frame, Step};
use crate::stats::TaskStats;

/// Bytes of records that take seconds to read.
pub(crate) const LONG_BYTES: u64 = 256 << 20;

/// The conditions for blocks, their size, and their number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Traces with fewer bytes of records are read as quickly without.
    pub(crate) min_bytes: u64,
    /// They are made when so many would be read without.
    pub(crate) min_making_bytes: u64,
    /// The maximum number of blocks of a task: each then has a hundredth of a second of work in 10^8 records.
    pub(crate) max_blocks: u64,
    /// The minimum bytes of records in a block.
    pub(crate) min_block_bytes: u64,
    /// The maximum bytes of all blocks' sums. Beyond it, blocks become larger.
    pub(crate) max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_bytes: 16 << 20,
            min_making_bytes: LONG_BYTES,
            max_blocks: 256,
            min_block_bytes: 64 << 10,
            max_bytes: 112 << 20,
        }
    }
}

/// The minimum ratio of the bytes of records to those of kept sums.
const MIN_SHARE: u64 = 8;

/// The maximum number of functions or ways of all tasks together, in units of the maximum for one task.
const MAX_TASKS_FULL: usize = 4;

impl Blocks {
    /// Returns the sums of blocks for reading the chosen times; `None` where reading without them is as quick, or the
    /// choice prevents it. They are made if that is worthwhile, and kept for the next time.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub(crate) fn of_part<'t, C: Collector<'t>>(
        trace: &'t Trace,
        has_times: bool,
        limits: Limits,
    ) -> Result<Option<Self>> {
        if trace.chosen_times().is_none() || !trace.keeps_this(C::KEPT) {
            return Ok(None);
        }
        let bytes = trace.chosen_bytes()?;
        if bytes < limits.min_bytes {
            return Ok(None);
        }
        // Without the times of single calls they are made in a third of the time.
        let kept = Self::kept(trace, C::KEPT).filter(|kept| !has_times || kept.directory.has_times).unwrap_or_default();
        let is_missing = |task: &&Task| !kept.directory.tasks.contains_key(&task.tid());
        let missing: Vec<_> = trace.tasks().iter().filter(is_missing).collect();
        if missing.is_empty() || bytes < limits.min_making_bytes {
            return Ok(Some(kept));
        }
        let mut blocks = kept.into_memory();
        // Where they cannot be kept they would be made each time, which takes longer than to read the records.
        let Some(file) = trace.keep_file(C::KEPT) else { return Ok(None) };
        trace.tell_of_index();
        blocks.directory.has_times |= has_times;
        let max_bytes = limits.max_bytes.min(trace.records_bytes() / MIN_SHARE);
        blocks.make::<C>(trace, &missing, Limits { max_bytes, ..limits })?;
        if blocks.write(file.file(), KeptFile::START).is_ok() {
            // A file that is not kept is made anew the next time.
            let _ = file.finish();
        }
        Ok(Some(blocks))
    }

    /// Makes those of some tasks.
    pub(crate) fn make<'t, C: Collector<'t>>(
        &mut self,
        trace: &'t Trace,
        tasks: &[&'t Task],
        limits: Limits,
    ) -> Result<()> {
        let has_times = self.directory.has_times;
        let length = |task| fs::metadata(trace.dat_file(task)).map_or(0, |file| file.len());
        let all_bytes: u64 = tasks.iter().map(|task| length(task)).sum();
        let made = some_at_a_time(tasks.len(), |number| {
            let length = length(tasks[number]);
            let max_bytes = (u128::from(limits.max_bytes) * u128::from(length) / u128::from(all_bytes.max(1))) as u64;
            let block_bytes = length.div_ceil(limits.max_blocks).max(limits.min_block_bytes);
            Maker::new(trace, tasks[number], has_times, block_bytes, max_bytes).read::<C>()
        })?;
        self.directory.keys.find_all();
        let mut n_keys: usize = self.directory.tasks.values().map(|task| task.keys.len()).sum();
        for (task, made) in tasks.iter().zip(made) {
            let mut blocks = TaskBlocks::default();
            // More than there may be: the task is read without.
            let has_room = |made: &Made| {
                self.directory.keys.len() <= C::MAX_KEPT && n_keys + made.keys.len() <= MAX_TASKS_FULL * C::MAX_KEPT
            };
            if let Some(made) = made.filter(has_room) {
                n_keys += made.keys.len();
                for key in made.keys.all() {
                    let around = key.around.map(|around| blocks.keys[around as usize]);
                    blocks.keys.push(self.directory.keys.number(around, made.keys.last(key)));
                }
                (blocks.first_ns, blocks.edges) = (made.first_ns, made.edges);
                blocks.blocks = made.blocks.iter().map(|bytes| self.store(bytes)).collect();
                blocks.groups = made.groups.iter().map(|bytes| self.store(bytes)).collect();
            }
            self.directory.tasks.insert(task.tid(), blocks);
        }
        Ok(())
    }
}

/// The keys, edges and blocks made of a task.
#[derive(Debug, Default)]
struct Made {
    keys: Keys,
    first_ns: u64,
    edges: Vec<Edge>,
    blocks: Vec<Vec<u8>>,
    groups: Vec<Vec<u8>>,
}

/// Goes through the records of a task.
struct Maker<'t> {
    trace: &'t Trace,
    task: &'t Task,
    made: Made,
    has_times: bool,
    block_bytes: u64,
    max_bytes: u64,
    /// The functions open at the last edge.
    open: Vec<Frame>,
}

impl<'t> Maker<'t> {
    fn new(trace: &'t Trace, task: &'t Task, has_times: bool, block_bytes: u64, max_bytes: u64) -> Self {
        Self { trace, task, made: Made::default(), has_times, block_bytes, max_bytes, open: Vec::new() }
    }

    /// `None`: the records do not fit, or some are missing, or there is more than may be kept.
    fn read<C: Collector<'t>>(mut self) -> Result<Option<Made>> {
        let (trace, task) = (self.trace, self.task);
        let mut records = trace.records(task);
        records.take_all();
        let mut stack = CallStack::new();
        let mut calls = TaskCalls::new(trace, task);
        let mut steps = Vec::new();
        // Where a place cannot be told no block can begin: records of the kernel are among those of the task.
        let Some(start) = records.mark() else { return Ok(None) };
        self.add_edge(&stack, start);
        let mut next = self.block_bytes;
        let mut is_at_end = false;
        while !is_at_end {
            let mut collector = C::new(trace, self.has_times);
            calls.open.clear();
            enter_all(&mut collector, &mut calls, &self.open);
            let n_open_rows = collector.n_rows();
            let mut block = Block { n_lasting: calls.open.len(), ..Block::default() };
            let mut stats = TaskStats::new(task);
            loop {
                let Some(record) = records.next().transpose()? else {
                    is_at_end = true;
                    break;
                };
                let n_lasting = block.n_lasting;
                let mut innermost = stack.frames().last().copied().filter(|_| stack.n_open() == n_lasting);
                stats.add(trace, &record);
                stack.apply(&record, |a, b| calls.functions.are_same(record.time_ns, a, b), &mut steps);
                for step in &steps {
                    // It may end with the call.
                    if let (Step::Event { off_cpu: Some((_, ns)), .. }, Some(frame)) = (step, &mut innermost) {
                        frame.children_ns = frame.children_ns.saturating_add(*ns);
                    }
                    match *step {
                        Step::Assume { .. } | Step::StrayExit { .. } | Step::Lost { .. } => return Ok(None),
                        Step::Leave(ended) if calls.open.len() == block.n_lasting => {
                            let closed = collector.close(&mut calls, &ended);
                            let (Some(frame), Some((row, is_outermost))) = (innermost, closed) else { return Ok(None) };
                            block.n_lasting -= 1;
                            let (depth, end_ns) = (block.n_lasting, ended.end_ns);
                            // Of the row, until the keys of all rows are known.
                            block.outer.push(OuterCall { key: row as u32, depth, frame, end_ns, is_outermost });
                        }
                        _ => match collector.apply(&mut calls, step, Some(&record)) {
                            Err(Error::Stopped) => return Ok(None),
                            applied => applied?,
                        },
                    }
                }
                if records.mark().is_some_and(|mark| mark.position >= next) {
                    break;
                }
            }
            let is_flawless = records.warnings().is_empty() && stack.warnings().is_empty();
            if !is_flawless || stats.lost_calls > 0 || stats.overwritten {
                return Ok(None);
            }
            if stats.records == 0 {
                break;
            }
            if self.made.blocks.is_empty() {
                self.made.first_ns = stats.first_ns;
            }
            (block.n_records, block.n_calls) = (stats.records, stats.calls);
            (block.nameless_calls, block.off_cpu) = collector.uncounted();
            self.add_rows(&mut block, collector, n_open_rows);
            if self.made.keys.len() > C::MAX_KEPT {
                return Ok(None);
            }
            let (Some(mark), Some(bytes)) = (records.mark(), block.write()) else { return Ok(None) };
            self.made.blocks.push(bytes);
            self.add_edge(&stack, mark);
            next = mark.position + self.block_bytes;
            while self.n_bytes() > self.max_bytes {
                if self.made.blocks.len() < 2 || self.thin_out().is_none() {
                    return Ok(None);
                }
            }
        }
        let groups = groups(&self.made.blocks, self.made.keys.len(), self.has_times, trace.cost());
        Ok(groups.map(|groups| Made { groups, ..self.made }))
    }

    fn add_edge(&mut self, stack: &CallStack, mark: Mark) {
        let now = stack.frames();
        let n_shared = std::iter::zip(now, &self.open).take_while(|(now, before)| now == before).count();
        let frames = now[n_shared..].to_vec();
        self.open.truncate(n_shared);
        self.open.extend(&frames);
        self.made.edges.push(Edge { mark, off_cpu_since: stack.off_cpu_since(), n_shared, frames });
    }

    /// Adds the results of a block, except rows of functions that were only open at its beginning.
    fn add_rows<C: Collector<'t>>(&mut self, block: &mut Block, mut collector: C, n_open_rows: usize) {
        let mut keys: Vec<u32> = Vec::with_capacity(collector.n_rows());
        for row in 0..collector.n_rows() {
            let (around, last) = collector.key(row);
            let key = self.made.keys.number(around.map(|around| keys[around]), last);
            keys.push(key);
            let (sums, times) = collector.take(row);
            if sums.calls == 0 && row < n_open_rows {
                continue;
            }
            block.rows.push(BlockRow { key, sums });
            if self.has_times {
                block.times.push(times.map_or_else(Default::default, |times| *times));
            }
        }
        for call in &mut block.outer {
            call.key = keys[call.key as usize];
        }
    }

    /// About how many bytes there are.
    fn n_bytes(&self) -> u64 {
        /// Of most open functions.
        const FRAME_BYTES: usize = 24;

        let frames: usize = self.made.edges.iter().map(|edge| edge.frames.len()).sum();
        (self.made.blocks.iter().map(Vec::len).sum::<usize>() + FRAME_BYTES * frames) as u64
    }

    /// Makes one block of two.
    fn thin_out(&mut self) -> Option<()> {
        let (n_keys, cost) = (self.made.keys.len(), self.trace.cost());
        let joined = |blocks| joined(blocks, n_keys, self.has_times, cost);
        self.made.blocks = self.made.blocks.chunks(2).map(joined).collect::<Option<_>>()?;
        let mut kept: Vec<Edge> = Vec::new();
        let mut dropped: Option<Edge> = None;
        let n_edges = self.made.edges.len();
        for (number, mut edge) in self.made.edges.drain(..).enumerate() {
            if let Some(before) = dropped.take() {
                edge = edge.without(&before);
            }
            if number.is_multiple_of(2) || number + 1 == n_edges { kept.push(edge) } else { dropped = Some(edge) }
        }
        self.made.edges = kept;
        self.block_bytes *= 2;
        Some(())
    }
}

/// Enters the open functions of a place without earlier records.
pub(crate) fn enter_all<'t>(collector: &mut impl Collector<'t>, calls: &mut TaskCalls<'_>, open: &[Frame]) {
    for frame in open {
        if let Some(addr) = frame.addr {
            let name = calls.functions.name(frame.start_ns, addr);
            collector.enter_known(calls, &name, addr);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rftrace_read::{Choice, Kind, Record};

    use super::*;
    use crate::rows::ReportOptions;
    use crate::sums::{blocks as blocks_of, read_with};

    /// A trace of sufficient length for kept results: a function calls another one, again and again.
    fn trace() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        write("info", &info);
        let lines: Vec<_> = [7, 8].map(|tid| format!("TASK timestamp=0.000000001 tid={tid} pid=7\n")).into();
        write("task.txt", lines.concat().as_bytes());
        for tid in [7, 8_u64] {
            let mut records = Vec::new();
            for call in 0..270_000_u64 {
                let kinds = [(Kind::Entry, 0), (Kind::Entry, 1), (Kind::Exit, 1), (Kind::Exit, 0)];
                for ((kind, depth), time_ns) in kinds.into_iter().zip(10 * call + tid..) {
                    let addr = 0x1000 * (u64::from(depth) + 1) + 16 * (call % 3);
                    let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr };
                    records.extend(record.encode());
                }
            }
            write(&format!("{tid}.dat"), &records);
        }
        dir
    }

    #[test]
    fn they_are_kept_and_made_anew_for_other_data() {
        let dir = trace();
        let open = || {
            let mut trace = Trace::open(dir.path()).unwrap();
            let mut choice = Choice::default();
            choice.times = 100_000..2_400_000;
            trace.choose(choice);
            trace.use_index().unwrap();
            trace
        };
        let options = ReportOptions::default();
        let limits = Limits { min_bytes: 1 << 20, min_making_bytes: 8 << 20, ..Limits::default() };
        let kept = dir.path().join("index-blocks");
        // Too few records to read, or too few to make blocks for.
        for (min_bytes, min_making_bytes) in [(1 << 30, 0), (0, 1 << 30)] {
            let limits = Limits { min_bytes, min_making_bytes, ..limits };
            let blocks = blocks_of(&open(), &options, limits).unwrap();
            assert!(blocks.is_none_or(|blocks| blocks.directory.tasks.is_empty()) && !kept.exists());
        }
        let trace = open();
        let check = |trace: &Trace| {
            let blocks = blocks_of(trace, &options, limits).unwrap().unwrap();
            assert!(trace.tasks().iter().all(|task| blocks.of(task).is_some_and(|own| own.blocks.len() > 100)));
            let bytes = |blocks| postcard::to_stdvec(&read_with(trace, &options, blocks).unwrap()).unwrap();
            assert!(bytes(Some(&blocks)) == bytes(None));
            fs::read(&kept).unwrap()
        };
        let modified = || fs::metadata(&kept).unwrap().modified().unwrap();
        let made = check(&trace);
        let before = modified();
        // They are found again, whatever times and tasks are shown.
        let mut one = open();
        one.keep_tasks(&[8]).unwrap();
        assert!(check(&one) == made && check(&open()) == made && modified() == before);
        // Damaged ones are made anew, and those of other data.
        let mut damaged = made.clone();
        damaged[100] ^= 1;
        fs::write(&kept, &damaged).unwrap();
        assert!(check(&open()) == made);
        // Those of another version, too.
        let mut older = made.clone();
        older[15] -= 1;
        fs::write(&kept, &older).unwrap();
        assert!(check(&open()) == made);
        // Of a block that is damaged records are read.
        damaged.clone_from(&made);
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&kept, &damaged).unwrap();
        assert!(check(&open()) == damaged);
        // With the times of single calls there is more, of which others are made too.
        let spread = ReportOptions { spread: true, ..ReportOptions::default() };
        blocks_of(&open(), &spread, limits).unwrap().unwrap();
        let with_times = fs::read(&kept).unwrap();
        assert!(with_times.len() > made.len() * 3 / 2 && check(&open()) == with_times);
        let data = dir.path().join("7.dat");
        let records = fs::read(&data).unwrap();
        fs::write(&data, &records[..records.len() / 64 / 2 * 64]).unwrap();
        let file = fs::File::options().write(true).open(&data).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
        assert!(check(&open()) != made);
    }
}
