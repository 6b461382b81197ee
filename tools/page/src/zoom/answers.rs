//! The page's questions, and the answers.
//!
//! A question is JSON, an answer numbers (`numbers`):
//!
//! ```text
//! picture, hits   of each row: how many blocks, and if there are any
//!                   the start of the first, which call of its depth that has first
//!                   the blocks, as in `blocks`
//! next            0; or 1, task, depth, which call, start, end, function, own time, arguments, result
//! sums            calls without a node, nodes, total time, of each node but the first: above, function, sum
//!                 rows, of each: function, sum
//! a sum           calls, total time, own time
//! ```

use std::fs::File;
use std::sync::atomic::AtomicUsize;

use rftrace_read::some_at_a_time;
use serde::Deserialize;

use super::blocks::{Block, Encoder, Kind, Merger};
use super::store::{Chunk, Cursor, Directory, Lane, TaskLanes};
use super::sums::{Sum, Summer, Sums};
use crate::error::{Error, Result};
use crate::numbers::number;

/// The most pixels of a picture.
const MAX_PIXELS: u64 = 1 << 22;

/// A request for a picture of some rows.
#[derive(Debug, Deserialize)]
pub(crate) struct Picture {
    from: u64,
    to: u64,
    /// How wide a pixel is, in nanoseconds.
    px: u64,
    /// Of each task its index, and the depths from one up to another.
    rows: Vec<(usize, usize, usize)>,
}

/// Where calls of some functions are in that.
#[derive(Debug, Deserialize)]
pub(crate) struct Hits {
    #[serde(flatten)]
    picture: Picture,
    find: Vec<u32>,
}

/// The next call of some functions, or the one before.
#[derive(Debug, Deserialize)]
pub(crate) struct Next {
    find: Vec<u32>,
    /// The call that it is next to: its start, task, depth, and number; without one it is the first of all, or the last.
    here: Option<Place>,
    back: bool,
}

/// In order of time, then of task and depth.
type Place = (u64, usize, usize, u64);

/// Sums of the calls of a range.
#[derive(Debug, Deserialize)]
pub(crate) struct Range {
    from: u64,
    to: u64,
    /// True for sums by task.
    apart: bool,
}

/// The data that questions are answered by.
#[derive(Debug)]
pub(crate) struct Answers<'d> {
    pub(crate) file: &'d File,
    pub(crate) directory: &'d Directory,
    /// How many functions and values there are.
    pub(crate) n_functions: usize,
    pub(crate) n_values: usize,
}

impl Answers<'_> {
    pub(crate) fn picture(&self, asked: &Picture) -> Result<Vec<u8>> {
        self.rows(asked, None)
    }

    pub(crate) fn hits(&self, asked: &Hits) -> Result<Vec<u8>> {
        self.rows(&asked.picture, Some(&self.found(&asked.find)))
    }

    /// Of each function whether it is among some.
    fn found(&self, find: &[u32]) -> Vec<bool> {
        let mut found = vec![false; self.n_functions];
        for &function in find {
            if let Some(found) = found.get_mut(function as usize) {
                *found = true;
            }
        }
        found
    }

    fn rows(&self, asked: &Picture, found: Option<&[bool]>) -> Result<Vec<u8>> {
        let n_rows: usize = asked.rows.iter().map(|&(_, begin, end)| end.saturating_sub(begin)).sum();
        let px = asked.px.max(1);
        if asked.to.saturating_sub(asked.from) / px > MAX_PIXELS / n_rows.max(1) as u64 {
            return Err(Error::Question);
        }
        let mut out = Vec::new();
        for &(task, begin, end) in &asked.rows {
            let lanes = self.directory.tasks.get(task).map(|task| &task.lanes).ok_or(Error::Question)?;
            for lane in lanes.get(begin..end).ok_or(Error::Question)? {
                let level = if found.is_some() { lane.calls() } else { lane.level(px) };
                let mut row = Row { encoder: Encoder::new(Kind::Blocks), call: 0, merger: Merger::new(px) };
                let mut cursor = Cursor::at_time(self.file, level, asked.from);
                let is_wanted = |chunk: &Chunk| found.is_none_or(|found| may_have(chunk, found));
                while cursor.skip(|chunk| chunk.start >= asked.to || is_wanted(chunk))
                    && let Some((call, block)) = cursor.next()?
                    && block.start < asked.to
                {
                    self.check(&block)?;
                    let is_found = found.is_none_or(|found| found[block.function as usize]);
                    if is_found && block.end >= asked.from {
                        row.add(call, block);
                    }
                }
                row.finish(&mut out);
            }
        }
        Ok(out)
    }

    /// Refuses a block with functions or values that do not exist.
    fn check(&self, block: &Block) -> Result<()> {
        let has_values = block.values.iter().all(|&value| value as usize <= self.n_values);
        if (block.function as usize) < self.n_functions && has_values { Ok(()) } else { Err(Error::Damaged) }
    }

    pub(crate) fn next(&self, asked: &Next) -> Result<Vec<u8>> {
        let found = self.found(&asked.find);
        let mut best: Option<(Place, Block)> = None;
        for (task, TaskLanes { lanes, .. }) in self.directory.tasks.iter().enumerate() {
            for (depth, lane) in lanes.iter().enumerate() {
                let place = |call: u64, block: &Block| (block.start, task, depth, call);
                let limit = best.map(|(place, _)| place);
                if asked.back {
                    self.before(lane, &found, asked.here, limit, place, &mut best)?;
                } else {
                    self.after(lane, &found, asked.here, limit, place, &mut best)?;
                }
            }
        }
        let mut out = Vec::new();
        number(&mut out, best.is_some().into());
        if let Some(((start, task, depth, call), block)) = best {
            let values = block.values.map(u64::from);
            let rest = [call, start, block.end, block.function.into(), block.part, values[0], values[1]];
            [task as u64, depth as u64].into_iter().chain(rest).for_each(|value| number(&mut out, value));
        }
        Ok(out)
    }

    /// The first call of a lane behind `here`, if it is before `limit`.
    fn after(
        &self,
        lane: &Lane,
        found: &[bool],
        here: Option<Place>,
        limit: Option<Place>,
        place: impl Fn(u64, &Block) -> Place,
        best: &mut Option<(Place, Block)>,
    ) -> Result<()> {
        let mut cursor = Cursor::at_time(self.file, lane.calls(), here.map_or(0, |here| here.0));
        while cursor.skip(|chunk| may_have(chunk, found))
            && let Some((call, block)) = cursor.next()?
        {
            self.check(&block)?;
            let place = place(call, &block);
            if limit.is_some_and(|limit| place >= limit) {
                break;
            }
            if found[block.function as usize] && here.is_none_or(|here| place > here) {
                *best = Some((place, block));
                break;
            }
        }
        Ok(())
    }

    /// The last call of a lane before `here`, if it is behind `limit`.
    fn before(
        &self,
        lane: &Lane,
        found: &[bool],
        here: Option<Place>,
        limit: Option<Place>,
        place: impl Fn(u64, &Block) -> Place,
        best: &mut Option<(Place, Block)>,
    ) -> Result<()> {
        let calls = lane.calls();
        let n_before =
            here.map_or(calls.chunks.len(), |here| calls.chunks.partition_point(|chunk| chunk.start <= here.0));
        for (number, chunk) in calls.chunks[..n_before].iter().enumerate().rev() {
            if limit.is_some_and(|limit| chunk.end < limit.0) {
                break;
            }
            if !may_have(chunk, found) {
                continue;
            }
            let mut cursor = Cursor::at_chunk(self.file, calls, number);
            let mut last = None;
            while let Some((call, block)) = cursor.next()? {
                self.check(&block)?;
                let place = place(call, &block);
                if found[block.function as usize] && here.is_none_or(|here| place < here) {
                    last = Some((place, block));
                }
                if cursor.is_between() {
                    break;
                }
            }
            if let Some(last) = last {
                if limit.is_none_or(|limit| last.0 > limit) {
                    *best = Some(last);
                }
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn sums(&self, asked: &Range) -> Result<Vec<u8>> {
        let Directory { begin, end, tasks, .. } = self.directory;
        // A call that ends a trace at its last nanosecond is in it.
        let to = if asked.to >= *end { u64::MAX } else { asked.to };
        let is_whole = asked.from <= *begin && to == u64::MAX;
        let made = if is_whole { Vec::new() } else { self.sum_up(asked.from, to)? };
        let apart = asked.apart.then_some(self.n_functions as u32);
        let kept = tasks.iter().map(|task| &task.sums);
        let sums = if is_whole { Sums::together(kept, apart) } else { Sums::together(&made, apart) };
        let mut out = Vec::new();
        number(&mut out, sums.missing);
        number(&mut out, sums.nodes.len() as u64);
        number(&mut out, sums.nodes[0].sum.total);
        for node in &sums.nodes[1..] {
            number(&mut out, node.above.into());
            number(&mut out, node.function.into());
            write_sum(&mut out, node.sum);
        }
        let rows = || (0..).zip(&sums.rows).filter(|(_, row)| row.calls > 0);
        number(&mut out, rows().count() as u64);
        for (function, row) in rows() {
            number(&mut out, function);
            write_sum(&mut out, *row);
        }
        Ok(out)
    }

    /// Those of each task, some at a time.
    fn sum_up(&self, from: u64, to: u64) -> Result<Vec<Sums>> {
        let tasks = &self.directory.tasks;
        let n_nodes = AtomicUsize::new(0);
        some_at_a_time(tasks.len(), |number| self.sum_up_task(&tasks[number], from, to, &n_nodes))
    }

    /// Those of a task: what is kept of the most of a long range, and the calls at its edges.
    fn sum_up_task(&self, task: &TaskLanes, from: u64, to: u64, n_nodes: &AtomicUsize) -> Result<Sums> {
        let TaskLanes { lanes, sums, marks, .. } = task;
        let within = marks.partition_point(|mark| mark.time <= from)..marks.partition_point(|mark| mark.time < to);
        let Some([first, .., last]) = marks.get(within) else {
            return self.sum_up_calls(lanes, from, to, true, n_nodes);
        };
        let (prefixes, file) = ([first, last], self.file);
        let [earlier, later] = prefixes.map(|mark| mark.read(file));
        let between = sums.between(&earlier?, &later?).ok_or(Error::Damaged)?;
        let before = self.sum_up_calls(lanes, from, first.time, true, n_nodes)?;
        let after = self.sum_up_calls(lanes, last.time, to, false, n_nodes)?;
        Ok(Sums::together([&before, &between, &after], None))
    }

    /// Goes through the calls of a range as they were made. They count for the time that they were in it; those that began before are calls
    /// only if that is so.
    fn sum_up_calls(
        &self,
        lanes: &[Lane],
        from: u64,
        to: u64,
        counts_open: bool,
        n_nodes: &AtomicUsize,
    ) -> Result<Sums> {
        let mut summer = Summer::new(n_nodes);
        let mut heads: Vec<Head<'_>> = Vec::new();
        // Of each open call its number, its time in the range, and whether it counts.
        let mut open: Vec<(u64, u64, bool)> = Vec::new();
        loop {
            let depth = open.len();
            if depth == heads.len() && depth < lanes.len() {
                heads.push(Head::new(self.file, &lanes[depth], from)?);
            }
            let caller = open.last().map(|(call, ..)| *call);
            let next = match heads.get_mut(depth) {
                Some(head) => head.take(caller, to)?,
                None => None,
            };
            if let Some((call, block)) = next {
                self.check(&block)?;
                summer.enter(block.function);
                let counts = counts_open || block.start >= from;
                open.push((call, block.end.min(to) - block.start.max(from), counts));
            } else if let Some((_, time, counts)) = open.pop() {
                summer.exit_part(time, counts.into());
            } else {
                return Ok(summer.finish());
            }
        }
    }
}

fn write_sum(out: &mut Vec<u8>, sum: Sum) {
    [sum.calls, sum.total, sum.own].into_iter().for_each(|value| number(out, value));
}

/// True if one of these functions may be in a chunk.
fn may_have(chunk: &Chunk, found: &[bool]) -> bool {
    chunk.functions.is_empty() || chunk.functions.iter().any(|&function| found[function as usize])
}

/// A row of a picture.
struct Row {
    encoder: Encoder,
    merger: Merger,
    /// Which call of its depth is the first.
    call: u64,
}

impl Row {
    fn add(&mut self, call: u64, block: Block) {
        if self.encoder.count == 0 && self.merger.is_empty() {
            self.call = call;
        }
        if let Some(whole) = self.merger.add(block) {
            self.encoder.add(&whole);
        }
    }

    fn finish(mut self, out: &mut Vec<u8>) {
        if let Some(last) = self.merger.finish() {
            self.encoder.add(&last);
        }
        number(out, self.encoder.count.into());
        if self.encoder.count > 0 {
            number(out, self.encoder.first.start);
            number(out, self.call);
            out.append(&mut self.encoder.bytes);
        }
    }
}

/// The next call of one depth in a range.
struct Head<'l> {
    cursor: Cursor<'l>,
    next: Option<(u64, Block)>,
}

impl<'l> Head<'l> {
    /// At the first call that is open in the range, or takes no time at its beginning.
    fn new(file: &'l File, lane: &'l Lane, from: u64) -> Result<Self> {
        let mut cursor = Cursor::at_time(file, lane.calls(), from);
        let next = loop {
            match cursor.next()? {
                Some((_, block)) if block.end <= from && block.start < from => {}
                next => break next,
            }
        };
        Ok(Self { cursor, next })
    }

    /// Takes the next call, if it begins before `to` and this one has made it.
    fn take(&mut self, caller: Option<u64>, to: u64) -> Result<Option<(u64, Block)>> {
        while let Some((call, block)) = self.next.filter(|(_, block)| block.start < to) {
            match caller {
                Some(caller) if block.caller > caller => break,
                // One at the range's very edge, whose caller is outside.
                Some(caller) if block.caller < caller => self.next = self.cursor.next()?,
                _ => {
                    self.next = self.cursor.next()?;
                    return Ok(Some((call, block)));
                }
            }
        }
        Ok(None)
    }
}
