//! Left and resumed stacks, as of coroutines: the calls on one become a task of its own, so each call counts once, in
//! spite of interruptions.
//!
//! The tracer reports when a whole stack is left and when it is resumed. It records exits and entries of the functions
//! open there, as it cannot know whether the stack will be resumed.
//!
//! A *run* of a stack is a thread's records on it between two switches. All runs of a stack, on all threads, are put
//! together here, without the exits and entries in between.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use rftrace::abi::{ADDRESS_SHIFT, kind, state};

use super::records::Unpacked;
use super::task::{SEARCHED, Segment, Start, Task};
use crate::backend::exit_word;

/// Puts the records of resumed stacks into tasks of their own, behind that of the stack's first thread. Stacks without
/// a common lifetime share a task.
pub(super) fn apart(threads: Vec<Task<'_>>) -> Vec<Task<'_>> {
    if !threads.iter().any(|thread| thread.resumes) {
        return threads;
    }
    let mut found: Vec<Found> = threads.iter().map(find).collect();
    let stacks = put_together(&mut found);
    let mut cut: Vec<Cut<'_>> = threads.iter().zip(&found).map(|(thread, found)| cut(thread, found)).collect();
    let mut lanes = Vec::new();
    // For each thread when each of its lanes is free again.
    let mut free: HashMap<usize, BinaryHeap<Reverse<(u64, usize)>>> = HashMap::new();
    for stack in stacks {
        let thread = stack[0].thread;
        let free = free.entry(thread).or_default();
        let began = found[thread].runs[stack[0].run].began;
        let lane = match free.peek() {
            Some(&Reverse((since, lane))) if since <= began => {
                free.pop();
                lane
            }
            _ => {
                lanes.push((thread, Vec::new()));
                lanes.len() - 1
            }
        };
        let mut ended = 0;
        for RunId { thread, run } in stack {
            ended = ended.max(found[thread].runs[run].ended);
            lanes[lane].1.append(&mut cut[thread].runs[run]);
        }
        free.push(Reverse((ended, lane)));
    }
    lanes.sort_by_key(|&(thread, _)| thread);
    let mut lanes = lanes.into_iter().peekable();
    let mut tasks = Vec::new();
    for (number, (thread, cut)) in threads.into_iter().zip(cut).enumerate() {
        let tid = thread.tid;
        tasks.push(Task { segments: cut.rest, ..thread });
        while let Some((_, segments)) = lanes.next_if(|&(thread, _)| thread == number) {
            tasks.push(Task { tid, segments, open: Vec::new(), resumes: false });
        }
    }
    tasks
}

/// An unbroken sequence of a thread's records on one stack. Records of a thread are counted from its first.
#[derive(Debug)]
struct Run {
    /// The stack's number.
    stack: u64,
    /// Ticks.
    began: u64,
    /// [`u64::MAX`] if it did not.
    ended: u64,
    start: usize,
    end: usize,
    /// Functions open in the thread around it.
    n_outside: usize,
    /// `None` for the stack's first run, otherwise the number of functions entered again.
    resumed: Option<usize>,
    /// The number of functions open at the end of the run.
    n_left: usize,
    /// Its part in the stack's task; `None` if it belongs to its thread.
    part: Option<Part>,
}

impl Run {
    fn new(stack: u64, began: u64, start: usize, n_outside: usize) -> Self {
        Self { stack, began, ended: u64::MAX, start, end: start, n_outside, resumed: None, n_left: 0, part: None }
    }
}

/// Part of a run in its stack's task.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Functions open at its beginning: they are not entered again.
    depth: usize,
    /// The stack is not resumed later: its exits at the end are true.
    is_last: bool,
}

/// One of a thread's runs.
#[derive(Clone, Copy, Debug)]
struct RunId {
    thread: usize,
    run: usize,
}

/// The record of a function's repeated entry in a run, behind `n_before` others.
#[derive(Clone, Copy, Debug)]
struct Again {
    place: usize,
    run: usize,
    n_before: usize,
}

/// The runs of a thread.
#[derive(Debug, Default)]
struct Found {
    runs: Vec<Run>,
    entries: Vec<Again>,
    /// Exits of open functions at the end of a run: record and run.
    exits: Vec<(usize, usize)>,
    /// From a record on the thread is on this core, plus 1; 0 if unknown.
    cores: Vec<(usize, u32)>,
}

impl Found {
    fn core_at(&self, record: usize) -> u32 {
        let n_before = self.cores.partition_point(|&(since, _)| since <= record);
        n_before.checked_sub(1).map_or(0, |last| self.cores[last].1)
    }
}

/// Chooses the runs for stacks' tasks: those of stacks ever resumed. Returns the runs of each stack in their order, in
/// the order of the stacks' beginnings.
fn put_together(found: &mut [Found]) -> Vec<Vec<RunId>> {
    let mut by_number: HashMap<u64, Vec<RunId>> = HashMap::new();
    for (thread, found) in found.iter().enumerate() {
        for (run, Run { stack, .. }) in found.runs.iter().enumerate() {
            by_number.entry(*stack).or_default().push(RunId { thread, run });
        }
    }
    let mut stacks: Vec<Vec<RunId>> = by_number.into_values().flat_map(|runs| by_beginning(runs, found)).collect();
    let is_resumed = |id: &RunId| found[id.thread].runs[id.run].resumed.is_some();
    let began = |id: &RunId| (found[id.thread].runs[id.run].began, id.thread, id.run);
    stacks.retain(|runs| runs.iter().any(is_resumed));
    stacks.iter_mut().for_each(|runs| runs.sort_by_key(began));
    stacks.sort_by_key(|runs| began(&runs[0]));
    let resumed: Vec<Vec<bool>> = stacks.iter().map(|runs| runs.iter().map(is_resumed).collect()).collect();
    for (runs, resumed) in stacks.iter().zip(resumed) {
        for (place, id) in runs.iter().enumerate() {
            let n_left = place.checked_sub(1).map_or(0, |last| found[runs[last].thread].runs[runs[last].run].n_left);
            let run = &mut found[id.thread].runs[id.run];
            let depth = run.resumed.unwrap_or(0).min(n_left);
            run.part = Some(Part { depth, is_last: resumed.get(place + 1) != Some(&true) });
        }
    }
    stacks
}

/// Separates stacks with the same number, the time of their beginning: on two processors it may be the same. A run
/// belongs to the stack begun in its thread; runs of other threads go to the first stack.
fn by_beginning(runs: Vec<RunId>, found: &[Found]) -> Vec<Vec<RunId>> {
    let begins = |id: &&RunId| found[id.thread].runs[id.run].resumed.is_none();
    let mut homes: Vec<usize> = runs.iter().filter(begins).map(|id| id.thread).collect();
    homes.dedup();
    if homes.len() < 2 {
        return vec![runs];
    }
    let mut stacks = vec![Vec::new(); homes.len()];
    for id in runs {
        let home = homes.iter().position(|&thread| thread == id.thread).unwrap_or(0);
        stacks[home].push(id);
    }
    stacks
}

/// A function open at the finder's place.
#[derive(Clone, Copy, Debug)]
struct Function {
    /// The word of its exit record; 0 if unknown.
    exit_word: u64,
    /// The record of its entry and its time, if known.
    entered: Option<(usize, u64)>,
    /// The resumed run with it as its outermost function, if any.
    run: Option<usize>,
}

#[derive(Debug, Default)]
struct Finder {
    found: Found,
    open: Vec<Function>,
    /// Expected exit words of functions on left stacks, and the run; not more than [`SEARCHED`].
    left: VecDeque<(u64, usize)>,
    /// The run at its beginning, until its outermost function is entered again.
    resuming: Option<usize>,
}

/// Finds the runs of a thread.
fn find(thread: &Task<'_>) -> Found {
    let mut finder = Finder::default();
    let (mut position, mut last_index, mut last_tsc) = (0, None, 0);
    let mut unpacked = Unpacked::default();
    for segment in &thread.segments {
        if let Start::Chunk { prev_index, depth } = segment.start
            && last_index != Some(prev_index)
        {
            finder.close_to(0, position, last_tsc);
            finder.open.resize(depth, Function { exit_word: 0, entered: None, run: None });
        }
        last_index = Some(segment.index);
        finder.found.cores.push((position, segment.core));
        for record in segment.unpacked(&mut unpacked).all() {
            if let Some((tsc, word)) = record {
                last_tsc = tsc.max(last_tsc);
                finder.record(position, last_tsc, word);
            }
            position += 1;
        }
    }
    finder.found
}

impl Finder {
    fn record(&mut self, place: usize, tsc: u64, word: u64) {
        let field = word >> ADDRESS_SHIFT;
        match word & kind::MASK {
            kind::ENTRY if word & kind::POINT != 0 => {}
            kind::ENTRY => {
                let run = if word & kind::AGAIN != 0 { self.enter_again(place) } else { None };
                self.open.push(Function { exit_word: exit_word(word), entered: Some((place, tsc)), run });
            }
            kind::EXIT if word & (kind::LEFT | state::HIDDEN) != 0 => {}
            kind::EXIT => self.exit(place, tsc, exit_word(word)),
            kind::RESYNC if word & kind::VALUES == kind::VALUES => {}
            kind::RESYNC if word & kind::SUSPENDED != 0 => {
                let n_functions = (word & kind::FUNCTIONS_MASK) / kind::FUNCTIONS_ONE;
                self.suspend(place, tsc, field, n_functions as usize);
            }
            kind::RESYNC if word & kind::RESUMED != 0 => {
                self.left.retain(|&(_, run)| self.found.runs[run].stack != field);
                self.resuming = Some(self.found.runs.len());
                // It has an end when it has a function.
                let run = Run::new(field, tsc, place, self.open.len());
                self.found.runs.push(Run { resumed: Some(0), ..run });
            }
            kind::RESYNC if word & kind::CORE != 0 => {
                self.found.cores.push((place + 1, (field as u32).wrapping_add(1)));
            }
            kind::RESYNC => self.close_to(field as usize, place, tsc),
            _ => {}
        }
    }

    /// Enters a left function again. Returns the run with it as its outermost function.
    fn enter_again(&mut self, place: usize) -> Option<usize> {
        let begins = self.resuming.take();
        // A handler that strikes while a stack is resumed may leave a part of it, which is resumed again.
        let number = begins.or_else(|| self.open.iter().rev().take(SEARCHED).find_map(|function| function.run))?;
        let run = &mut self.found.runs[number];
        let n_before = run.resumed.unwrap_or(0);
        run.resumed = Some(n_before + 1);
        self.found.entries.push(Again { place, run: number, n_before });
        if begins.is_some() {
            run.end = usize::MAX;
        }
        begins
    }

    fn exit(&mut self, place: usize, tsc: u64, exit_word: u64) {
        if self.open.last().is_some_and(|top| top.exit_word == exit_word) {
            return self.close_to(self.open.len() - 1, place + 1, tsc);
        }
        if let Some(n_missing) = self.left.iter().position(|&(left, _)| left == exit_word) {
            let (_, run) = self.left[n_missing];
            self.left.drain(..=n_missing);
            return self.found.exits.push((place, run));
        }
        let n_passed_over = self.open.len().saturating_sub(SEARCHED);
        let is_it = |function: &Function| function.exit_word == exit_word || function.exit_word == 0;
        if let Some(above) = self.open[n_passed_over..].iter().rposition(is_it) {
            self.close_to(n_passed_over + above + 1, place, tsc);
            self.close_to(n_passed_over + above, place + 1, tsc);
        }
    }

    /// The stack with the innermost `n_functions` is left.
    fn suspend(&mut self, place: usize, tsc: u64, stack: u64, n_functions: usize) {
        // A signal handler that came in between told it again.
        if self.left.iter().any(|&(_, run)| self.found.runs[run].stack == stack) {
            return;
        }
        let n_outside = self.open.len().saturating_sub(n_functions);
        let Some(&outermost) = self.open.get(n_outside) else {
            return;
        };
        let run = match (outermost.run, outermost.entered) {
            (Some(run), _) => (self.found.runs[run].stack == stack).then_some(run),
            (None, Some((start, began))) => {
                self.found.runs.push(Run { ended: tsc, end: place, ..Run::new(stack, began, start, n_outside) });
                Some(self.found.runs.len() - 1)
            }
            (None, None) => None,
        };
        if let Some(run) = run {
            self.found.runs[run].n_left = n_functions;
            let inner_first = self.open[n_outside..].iter().rev();
            self.left.extend(inner_first.map(|function| (function.exit_word, run)));
            // Exits that never came are not waited for.
            self.left.drain(..self.left.len().saturating_sub(SEARCHED));
        }
        self.close_to(n_outside, place, tsc);
    }

    /// Only the outermost `n_open` functions are open; the records of the others end at `end`.
    fn close_to(&mut self, n_open: usize, end: usize, tsc: u64) {
        while self.open.len() > n_open {
            if let Some(run) = self.open.pop().and_then(|function| function.run) {
                let run = &mut self.found.runs[run];
                (run.end, run.ended) = (end, tsc);
            }
        }
    }
}

/// A thread's segments, as runs and the rest.
struct Cut<'a> {
    runs: Vec<Vec<Segment<'a>>>,
    rest: Vec<Segment<'a>>,
}

fn cut<'a>(thread: &Task<'a>, found: &Found) -> Cut<'a> {
    // Ranges of records, which lie side by side or one in the other.
    let mut ranges: Vec<(usize, usize, Belongs)> = Vec::new();
    for (number, run) in found.runs.iter().enumerate() {
        if run.part.is_some() && run.start < run.end {
            ranges.push((run.start, run.end, Belongs::Run(number)));
        }
    }
    for &Again { place, run, n_before } in &found.entries {
        if found.runs[run].part.is_some_and(|part| n_before < part.depth) {
            ranges.push((place, place + 1, Belongs::Nowhere));
        }
    }
    for &(place, run) in &found.exits {
        if let Some(part) = found.runs[run].part {
            let belongs = if part.is_last { Belongs::Run(run) } else { Belongs::Nowhere };
            ranges.push((place, place + 1, belongs));
        }
    }
    ranges.sort_by_key(|&(start, end, _)| (start, Reverse(end)));
    let mut cutter = Cutter {
        thread,
        found,
        cut: Cut { runs: found.runs.iter().map(|_| Vec::new()).collect(), rest: Vec::new() },
        number: 0,
        offset: 0,
        place: 0,
    };
    cutter.begin_segment();
    let mut around: Vec<(usize, Belongs)> = vec![(usize::MAX, Belongs::Rest)];
    for (start, end, belongs) in ranges {
        cutter.take_up_to(start, &mut around);
        around.push((end, belongs));
    }
    cutter.take_up_to(usize::MAX, &mut around);
    cutter.cut
}

/// The target of records.
#[derive(Clone, Copy, Debug)]
enum Belongs {
    Rest,
    Run(usize),
    Nowhere,
}

struct Cutter<'a, 'b> {
    thread: &'b Task<'a>,
    found: &'b Found,
    cut: Cut<'a>,
    /// The number of the current segment, and the record at its beginning.
    number: usize,
    offset: usize,
    /// The next record.
    place: usize,
}

impl Cutter<'_, '_> {
    /// Takes all records up to a place; `around` has their owners and the ends of their parts, from the outside in.
    fn take_up_to(&mut self, place: usize, around: &mut Vec<(usize, Belongs)>) {
        while let Some(&(end, belongs)) = around.last() {
            self.take(end.min(place), belongs);
            if end > place || end == usize::MAX {
                return;
            }
            around.pop();
        }
    }

    fn take(&mut self, end: usize, belongs: Belongs) {
        while self.place < end
            && let Some(segment) = self.thread.segments.get(self.number)
        {
            let segment_end = self.offset + segment.records.len();
            if self.place == segment_end {
                (self.number, self.offset) = (self.number + 1, segment_end);
                self.begin_segment();
                continue;
            }
            let upto = end.min(segment_end);
            let records = segment.records.part(self.place - self.offset, upto - self.offset);
            let piece = Segment { start: Start::Last, core: self.found.core_at(self.place), records, ..*segment };
            match belongs {
                Belongs::Rest => self.cut.rest.push(piece),
                Belongs::Run(number) => {
                    let run = &self.found.runs[number];
                    let pieces = &mut self.cut.runs[number];
                    let depth = run.part.map_or(0, |part| part.depth);
                    let start = if pieces.is_empty() { Start::Resumed { depth } } else { Start::Last };
                    pieces.push(Segment { start, n_outside: run.n_outside, ..piece });
                }
                Belongs::Nowhere => {}
            }
            self.place = upto;
        }
    }

    /// Begins a segment with a chunk of the thread, even if all its records may belong to others.
    fn begin_segment(&mut self) {
        if let Some(segment) = self.thread.segments.get(self.number) {
            self.cut.rest.push(Segment { records: segment.records.part(0, 0), ..*segment });
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use proptest::prelude::*;
    use rftrace::abi::ADDRESS_SHIFT;

    use super::super::Minima;
    use super::super::tests::{enter, leave, outline_of, resync, segment};
    use super::*;

    const RESUME: u64 = 0x1000;
    const BODY: u64 = 0x2000;
    const INNER: u64 = 0x3000;

    fn suspended(tsc: u64, stack: u64, n_functions: u64) -> (u64, u64) {
        let n_functions = n_functions * kind::FUNCTIONS_ONE;
        (tsc, stack << ADDRESS_SHIFT | n_functions | kind::SUSPENDED | kind::RESYNC)
    }

    fn resumed(tsc: u64, stack: u64) -> (u64, u64) {
        (tsc, stack << ADDRESS_SHIFT | kind::RESUMED | kind::RESYNC)
    }

    fn again(tsc: u64, address: u64) -> (u64, u64) {
        (tsc, enter(tsc, address).1 | kind::AGAIN)
    }

    /// One thread for each list of segments, by id from 1.
    fn outlines(threads: Vec<Vec<Segment<'static>>>) -> Vec<(u32, String)> {
        let threads = threads.into_iter().zip(1..);
        let thread = |(segments, tid)| Task { tid, segments, open: Vec::new(), resumes: true };
        let tasks = apart(threads.map(thread).collect());
        tasks.iter().map(|task| (task.tid, outline_of(task, 1, &Minima::default()))).collect()
    }

    fn begun(from: u64) -> Vec<(u64, u64)> {
        vec![
            enter(from, RESUME),
            enter(from + 1, BODY),
            enter(from + 2, INNER),
            suspended(from + 3, 77, 2),
            leave(from + 4, INNER),
            leave(from + 5, BODY),
            leave(from + 6, RESUME),
        ]
    }

    fn ended(from: u64) -> Vec<(u64, u64)> {
        vec![
            enter(from, RESUME),
            resumed(from + 1, 77),
            again(from + 1, BODY),
            again(from + 1, INNER),
            leave(from + 2, INNER),
            leave(from + 3, BODY),
            leave(from + 4, RESUME),
        ]
    }

    const CALLS: &str = "2 0 +2000\n3 1 +3000\n12 1 -3000\n13 0 -2000\n";

    #[test]
    fn a_call_that_was_left_and_resumed_counts_once() {
        let records = [begun(1), ended(10)].concat();
        let threads = "1 0 +1000\n7 0 -1000\n10 0 +1000\n14 0 -1000\n".to_owned();
        assert_eq!(outlines(vec![vec![segment(1, 0, 0, &records)]]), [(1, threads.clone()), (1, CALLS.to_owned())]);
        // Whatever chunks they are in.
        for place in 1..records.len() {
            let (first, second) = records.split_at(place);
            let segments = vec![segment(1, 0, 0, first), segment(2, 1, 9, second)];
            assert_eq!(outlines(vec![segments]), [(1, threads.clone()), (1, CALLS.to_owned())], "cut at {place}");
        }
    }

    #[test]
    fn a_stack_may_go_on_in_another_thread() {
        let threads = vec![vec![segment(1, 0, 0, &begun(1))], vec![segment(2, 0, 0, &ended(10))]];
        let own = ["1 0 +1000\n7 0 -1000\n", "10 0 +1000\n14 0 -1000\n"].map(str::to_owned);
        let [first, second] = own;
        assert_eq!(outlines(threads), [(1, first), (1, CALLS.to_owned()), (2, second)]);
    }

    #[test]
    fn stacks_of_two_threads_may_have_begun_at_the_same_time() {
        let both = |first| vec![segment(first, 0, 0, &begun(1)), segment(first + 1, first, 0, &ended(10))];
        let own = "1 0 +1000\n7 0 -1000\n10 0 +1000\n14 0 -1000\n".to_owned();
        let [own, calls] = [own, CALLS.to_owned()];
        let expected = [(1, own.clone()), (1, calls.clone()), (2, own), (2, calls)];
        assert_eq!(outlines(vec![both(1), both(3)]), expected);
    }

    #[test]
    fn what_is_never_resumed_stays_where_it_was() {
        let text = "1 0 +1000\n2 1 +2000\n3 2 +3000\n5 2 -3000\n6 1 -2000\n7 0 -1000\n";
        assert_eq!(outlines(vec![vec![segment(1, 0, 0, &begun(1))]]), [(1, text.to_owned())]);
    }

    #[test]
    fn it_ends_where_it_was_left_last() {
        let records = [begun(1), ended(10)[..4].to_vec(), begun(15)[3..].to_vec()].concat();
        let text = "2 0 +2000\n3 1 +3000\n19 1 -3000\n20 0 -2000\n";
        let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
        assert_eq!(outlines[1].1, text);
        assert_eq!(outlines[0].1, "1 0 +1000\n7 0 -1000\n10 0 +1000\n21 0 -1000\n");
    }

    #[test]
    fn functions_that_are_not_resumed_have_ended() {
        let mut records = [begun(1), ended(10)].concat();
        records.retain(|&record| record != again(11, INNER) && record != leave(12, INNER));
        let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
        assert_eq!(outlines[1].1, "2 0 +2000\n3 1 +3000\n3 1 -3000\n13 0 -2000\n");
    }

    #[test]
    fn stacks_that_follow_each_other_share_a_task() {
        let other = |records: Vec<(u64, u64)>| {
            let renamed = records.into_iter().map(|(tsc, word)| {
                let is_switch = word & kind::MASK == kind::RESYNC;
                (tsc, if is_switch { word + (1 << ADDRESS_SHIFT) } else { word })
            });
            renamed.collect::<Vec<_>>()
        };
        let in_turns = [begun(1), ended(10), other(begun(20)), other(ended(30))].concat();
        assert_eq!(outlines(vec![vec![segment(1, 0, 0, &in_turns)]]).len(), 2);
        let at_a_time = [begun(1), other(begun(10)), ended(20), other(ended(30))].concat();
        let outlines = outlines(vec![vec![segment(1, 0, 0, &at_a_time)]]);
        assert_eq!(outlines.len(), 3);
        assert_eq!(outlines[2].1, "11 0 +2000\n12 1 +3000\n32 1 -3000\n33 0 -2000\n");
    }

    #[test]
    fn one_stack_resumes_another() {
        let outer = [enter(1, 0x8000), suspended(9, 5, 1), leave(9, 0x8000), resumed(9, 5), again(9, 0x8000)];
        let records = [outer[..1].to_vec(), begun(2), outer[1..].to_vec(), ended(10), vec![leave(20, 0x8000)]].concat();
        let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
        let texts: Vec<&str> = outlines.iter().map(|(_, text)| text.as_str()).collect();
        let outer = "1 0 +8000\n2 1 +1000\n8 1 -1000\n10 1 +1000\n14 1 -1000\n20 0 -8000\n";
        assert_eq!(texts, ["", outer, "3 0 +2000\n4 1 +3000\n12 1 -3000\n13 0 -2000\n"]);
    }

    #[test]
    fn a_handler_amid_a_switch_has_its_own_calls() {
        let handler = |tsc| [enter(tsc, 0x9100), leave(tsc, 0x9100)].to_vec();
        let whole = [begun(1), ended(10)].concat();
        for place in 4..whole.len() {
            let mut records = whole.clone();
            records.splice(place..place, handler(whole[place - 1].0));
            let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
            assert_eq!(without(&outlines[1].1, "9100"), CALLS, "at {place}");
        }
        // It may leave the stack itself: then it tells of that again.
        let mut records = whole;
        records.insert(4, suspended(4, 77, 2));
        assert_eq!(outlines(vec![vec![segment(1, 0, 0, &records)]])[1].1, CALLS);
    }

    fn without(text: &str, name: &str) -> String {
        text.lines().filter(|line| !line.ends_with(name)).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_part_that_is_resumed_later_is_not_entered_twice() {
        let mut records = [begun(1), ended(10)].concat();
        let place = records.iter().position(|&record| record == again(11, INNER)).unwrap();
        records.splice(place..place, [enter(11, 0x9100), leave(11, 0x9100)]);
        let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
        assert_eq!(without(&outlines[1].1, "9100"), CALLS);
    }

    #[test]
    fn a_ring_begins_with_a_stack_that_is_resumed() {
        let text = "11 0 +2000\n11 1 +3000\n12 1 -3000\n13 0 -2000\n";
        let outlines = outlines(vec![vec![segment(9, 8, 0, &ended(10))]]);
        assert_eq!(outlines[1].1, text);
    }

    #[test]
    fn returns_while_recording_was_off_concern_the_stack_that_runs() {
        // INNER has returned unseen: of the thread two functions are open.
        let mut records = [begun(1), ended(10)].concat();
        let place = records.iter().position(|&record| record == leave(12, INNER)).unwrap();
        records[place] = resync(12, 2);
        let outlines = outlines(vec![vec![segment(1, 0, 0, &records)]]);
        assert_eq!(outlines[1].1, CALLS);
    }

    /// A record of any kind, with few functions and stacks.
    fn any_record() -> impl Strategy<Value = u64> {
        let kinds = prop_oneof![
            4 => Just(kind::ENTRY),
            4 => Just(kind::EXIT),
            2 => Just(kind::ENTRY | kind::AGAIN),
            1 => Just(kind::ENTRY | kind::POINT),
            1 => Just(kind::EXIT | kind::LEFT),
            2 => (0..4 * kind::FUNCTIONS_ONE).prop_map(|n| n & kind::FUNCTIONS_MASK | kind::SUSPENDED | kind::RESYNC),
            2 => Just(kind::RESUMED | kind::RESYNC),
            1 => Just(kind::RESYNC),
            1 => Just(kind::CORE | kind::RESYNC),
            1 => Just(kind::LOST),
        ];
        (kinds, 0..4u64).prop_map(|(kind, field)| kind | field << ADDRESS_SHIFT)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 2_000 },
            failure_persistence: None, // Miri has no files.
            ..ProptestConfig::default()
        })]

        /// Images are untrusted: shown calls are nested, and none is made up.
        #[test]
        fn any_records_make_nested_calls(
            threads in prop::collection::vec(prop::collection::vec((any_record(), any::<bool>()), 0..40), 1..4)
        ) {
            let n_entries: usize = threads
                .iter()
                .flatten()
                .filter(|(word, _)| word & kind::MASK == kind::ENTRY)
                .count();
            let mut tsc = 0;
            let mut segments_of = |records: &[(u64, bool)]| {
                let chunks = records.chunk_by(|_, (_, goes_on)| *goes_on).zip(1..);
                let segments = chunks.map(|(chunk, index)| {
                    let timed: Vec<(u64, u64)> = chunk.iter().map(|&(word, _)| { tsc += 1; (tsc, word) }).collect();
                    segment(index, index - 1, 0, &timed)
                });
                segments.collect::<Vec<_>>()
            };
            let shown = outlines(threads.iter().map(|records| segments_of(records)).collect());
            let mut n_shown = 0;
            for (_, text) in &shown {
                let mut open = Vec::new();
                for line in text.lines().filter(|line| line.contains(['+', '-'])) {
                    let (_, what) = line.rsplit_once(' ').unwrap();
                    match what.split_at(1) {
                        ("+", name) => open.push(name),
                        (_, name) => prop_assert_eq!(open.pop(), Some(name), "{}", text),
                    }
                    n_shown += usize::from(what.starts_with('+'));
                }
                prop_assert!(open.is_empty(), "{}", text);
            }
            prop_assert!(n_shown <= n_entries, "{} calls of {}: {:?}", n_shown, n_entries, shown);
        }
    }

    /// Processor time of this thread, in nanoseconds.
    #[cfg(not(miri))]
    fn processor_time() -> i64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(result, 0);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    }

    #[test]
    #[cfg(not(miri))]
    fn stacks_that_are_left_without_exits_take_time_by_their_number() {
        let time_of = |n_stacks: u64| {
            let stacks = 0..n_stacks;
            let mut records: Vec<_> =
                stacks.flat_map(|n| [enter(3 * n + 1, BODY), suspended(3 * n + 2, n, 1)]).collect();
            records.extend((0..n_stacks).map(|n| again(1_000_000 + n, BODY)));
            let began = processor_time();
            outlines(vec![vec![segment(1, 0, 0, &records)]]);
            processor_time() - began
        };
        let (few, many) = (time_of(10_000), time_of(40_000));
        assert!(many < 7 * few, "{few} ns, and of four times as many {many}");
    }
}
