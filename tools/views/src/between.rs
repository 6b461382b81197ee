//! Walks through the records of a task between the blocks with sums.
//!
//! Not here: the sums (`blocks`), and the summed results (`collect`, `ways`).

use std::iter;
use std::ops::Range;

use rftrace_read::{Functions, Records, Result, Task};

use crate::blocking::enter_all;
use crate::blocks::{Block, Blocks, Edge, TaskBlocks};
use crate::collector::{CallSums, Collector, TaskCalls};
use crate::keys::Keys;
use crate::stack::{CallStack, Frame};
use crate::stats::TaskStats;
use crate::walk::{Walked, walk_with_records};

/// Sums up the calls of a task in the chosen times, by blocks where there are any.
///
/// # Errors
///
/// The task's `.dat` file cannot be read, or there are too many rows.
pub(crate) fn sum_up<'t>(
    collector: &mut impl Collector<'t>,
    task: &'t Task,
    blocks: Option<&Blocks>,
) -> Result<Walked> {
    let trace = collector.trace();
    let mut calls = TaskCalls::new(trace, task);
    let blocks = blocks.and_then(|blocks| Some((blocks, blocks.of(task)?)));
    match (trace.chosen_times(), blocks) {
        (Some(times), Some(blocks)) => sum_up_between(collector, &mut calls, &times, blocks),
        _ => walk_with_records(trace, task, None, |step, _, record| collector.apply(&mut calls, step, record)),
    }
}

/// The same for a choice of times alone, by blocks. The results are those of
/// [`walk_with_records`](crate::walk_with_records).
fn sum_up_between<'t>(
    collector: &mut impl Collector<'t>,
    calls: &mut TaskCalls<'t>,
    times: &Range<u64>,
    (blocks, own): (&Blocks, &TaskBlocks),
) -> Result<Walked> {
    let (trace, task) = (collector.trace(), calls.task);
    let mut reader = Reader { stats: TaskStats::new(task), records: trace.records(task), stack: CallStack::new() };
    // Blocks from the first edge on are in the time, up to the last one.
    let n_before = own.edges.partition_point(|edge| edge.mark.last_ns < times.start);
    let last = own.edges.partition_point(|edge| edge.mark.last_ns < times.end).saturating_sub(1);
    let (begin, mut next) =
        if times.start <= own.first_ns { (0, 0) } else { (n_before.saturating_sub(1), n_before.max(1)) };
    reader.go_to(&own.edges[begin], &own.open_at(begin));
    let mut steps = Vec::new();
    loop {
        let is_at = |edge: &Edge| reader.records.mark() == Some(edge.mark);
        if next < last && own.edges.get(next).is_some_and(is_at) {
            let sums = reader.apart(own, next, &calls.functions).and_then(|apart| {
                Some((blocks.between(own, (next, last), collector.has_times(), trace.cost())?, apart))
            });
            // Where something reaches over the edge that cannot be told apart records are read up to the next one.
            next += 1;
            if let Some((sums, apart)) = sums {
                next = last;
                let (edge, stats) = (&own.edges[last], &mut reader.stats);
                if stats.records == 0 {
                    stats.first_ns = own.first_ns;
                }
                stats.records += sums.n_records;
                stats.calls += sums.n_calls;
                stats.last_ns = edge.mark.last_ns;
                let whole = own.open_at(last);
                let mut rows = Rows::new(&blocks.directory.keys, own);
                let open = add(collector, calls, &mut rows, sums, apart, &whole);
                reader.go_to(edge, &whole);
                reader.stack = CallStack::restored(open, edge.off_cpu_since, edge.mark.last_ns);
            }
        }
        let Some(record) = reader.records.next().transpose()? else { break };
        reader.stats.add(trace, &record);
        reader.stack.apply(&record, |a, b| calls.functions.are_same(record.time_ns, a, b), &mut steps);
        for step in &steps {
            collector.apply(calls, step, Some(&record))?;
        }
    }
    let end_ns = reader.stack.last_ns();
    reader.stack.finish(end_ns, &mut steps);
    for step in &steps {
        collector.apply(calls, step, None)?;
    }
    reader.stats.warnings.merge(reader.records.warnings());
    Ok(Walked { stats: reader.stats, misfits: reader.stack.warnings().clone(), end_ns })
}

/// The reader of the records.
struct Reader<'t> {
    records: Records<'t>,
    stack: CallStack,
    stats: TaskStats,
}

impl Reader<'_> {
    /// Reads on from an edge, with these functions open.
    fn go_to(&mut self, edge: &Edge, open: &[Frame]) {
        let entries = open.iter().filter_map(|frame| Some((frame.addr?, frame.start_ns)));
        self.records.go_to(edge.mark, entries);
    }

    /// Returns the differences of open functions at an edge, the reader's place, from a reading of all records from the
    /// beginning: for as many of them from the outermost one on as have any. `None` where other things differ, too.
    fn apart(&self, own: &TaskBlocks, edge: usize, functions: &Functions<'_>) -> Option<Vec<Apart>> {
        let (whole, here) = (own.open_at(edge), self.stack.frames());
        if own.edges[edge].off_cpu_since != self.stack.off_cpu_since() || whole.len() != here.len() {
            return None;
        }
        let mut all = Vec::new();
        for (whole, here) in whole.iter().zip(here) {
            let addr = here.addr.filter(|_| here.addr == whole.addr)?;
            // It may be called otherwise since a library was loaded.
            if here.start_ns != whole.start_ns
                && functions.name(here.start_ns, addr) != functions.name(whole.start_ns, addr)
            {
                return None;
            }
            all.push(Apart {
                start_ns: here.start_ns.checked_sub(whole.start_ns)?,
                children_ns: whole.children_ns.checked_sub(here.children_ns)?,
                n_called: whole.n_called.checked_sub(here.n_called)?,
                n_within: whole.n_within.checked_sub(here.n_within)?,
            });
        }
        let n_alike = all.iter().rev().take_while(|apart| **apart == Apart::default()).count();
        all.truncate(all.len() - n_alike);
        Some(all)
    }
}

/// The later beginning of an open function in the chosen times than in the whole trace, and the smaller time of its
/// calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Apart {
    start_ns: u64,
    children_ns: u64,
    n_called: u64,
    n_within: u64,
}

impl Apart {
    /// A function as it is in the chosen times.
    fn of(&self, whole: Frame) -> Frame {
        let mut frame = whole;
        frame.start_ns = whole.start_ns.saturating_add(self.start_ns);
        frame.children_ns = whole.children_ns.saturating_sub(self.children_ns);
        frame.n_called = whole.n_called.saturating_sub(self.n_called);
        frame.n_within = whole.n_within.saturating_sub(self.n_within);
        frame
    }
}

/// The rows of keys in a task's blocks, as far as they were met.
struct Rows<'b> {
    keys: &'b Keys,
    own: &'b TaskBlocks,
    /// By the numbers of keys in all tasks' blocks.
    known: Vec<Option<usize>>,
}

impl<'b> Rows<'b> {
    fn new(keys: &'b Keys, own: &'b TaskBlocks) -> Self {
        Self { keys, own, known: vec![None; keys.len()] }
    }

    /// The row of a key, by its number in the task's blocks. It is there then, as are those of the ways around it.
    fn row<'t>(&mut self, collector: &mut impl Collector<'t>, key: u32) -> usize {
        let own = self.own.keys[key as usize];
        let mut missing = Vec::new();
        let mut next = Some(own);
        let mut around = None;
        while let Some(key) = next {
            around = self.known[key as usize];
            if around.is_some() {
                break;
            }
            missing.push(key);
            next = self.keys.all()[key as usize].around;
        }
        for key in missing.into_iter().rev() {
            let last = self.keys.last(&self.keys.all()[key as usize]);
            around = Some(collector.row_of(around, last));
            self.known[key as usize] = around;
        }
        around.unwrap_or_default()
    }
}

/// Adds the sums of blocks up to an edge, with these functions open. Returns them as they are in the chosen times.
fn add<'t>(
    collector: &mut impl Collector<'t>,
    calls: &mut TaskCalls<'_>,
    rows: &mut Rows<'_>,
    sums: Block,
    mut apart: Vec<Apart>,
    whole: &[Frame],
) -> Vec<Frame> {
    let cost = collector.trace().cost();
    collector.add_uncounted(sums.nameless_calls, sums.off_cpu);
    let mut times = sums.times.into_iter();
    for row in sums.rows {
        let idx = rows.row(collector, row.key);
        collector.add_sums(idx, row.sums, times.next().map(Box::new));
    }
    for call in sums.outer {
        let mut frame = call.frame;
        if call.depth < apart.len() {
            apart.truncate(call.depth + 1);
            let own = apart.pop().unwrap_or_default();
            frame = own.of(frame);
            if let Some(around) = apart.last_mut() {
                // So much shorter is what it called.
                around.children_ns += own.start_ns;
                around.n_within += own.n_within;
            }
        }
        let ended = call.ended(&frame);
        let idx = rows.row(collector, call.key);
        collector.add(idx, CallSums::of(cost, &ended), call.is_outermost);
    }
    collector.truncate(calls, sums.n_lasting);
    enter_all(collector, calls, whole.get(sums.n_lasting..).unwrap_or_default());
    let apart = apart.iter().map(Some).chain(iter::repeat(None));
    whole.iter().zip(apart).map(|(frame, apart)| apart.map_or(*frame, |apart| apart.of(*frame))).collect()
}

#[cfg(test)]
mod tests {
    use rftrace_read::{Choice, Kind, Pattern, Record, Trace};

    use super::*;
    use crate::blocking::Limits;
    use crate::collect::Table;
    use crate::graph::{Graph, GraphField};
    use crate::paths::Paths;
    use crate::rows::ReportOptions;
    use crate::sums::read_with;
    use crate::ways::Ways;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    const N_RECORDS: u64 = 6000;

    /// Two tasks whose records fit, with recursion, two addresses of one function, functions with a name only after the
    /// load of a library, functions without one, a task with a function open all the time and one without. Also context
    /// switches, some amid calls, in a file of their own and among the records, every other one pre-empted. And a task
    /// with a flaw.
    fn trace(seed: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [1_u64 << 8, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        write("info", &info);
        let mut lines = "SESS timestamp=0.000000001 pid=7 sid=0123456789abcdef exename=\"/p\"\n".to_owned();
        for tid in 7..10 {
            lines += &format!("TASK timestamp=0.000000001 tid={tid} pid=7\n");
        }
        lines += "DLOP timestamp=0.000090000 tid=7 sid=0123456789abcdef base=600000 libname=\"/l\"\n";
        write("task.txt", lines.as_bytes());
        write("clock.txt", b"hook_inside_ps=2000\nhook_outside_ps=1000\n");
        write(
            "sid-0123456789abcdef.map",
            b"00400000-00500000 r-xp 00000000 08:01 1 /p\n00600000-00700000 r-xp 00000000 08:01 1 /l\n",
        );
        let symbols = |letter: char| {
            let symbols: Vec<_> = (0..8).map(|n| format!("{:016x} T {letter}{n}\n", n * 16)).collect();
            symbols.concat() + "0000000000000080 ? __sym_end\n"
        };
        write("p.sym", symbols('f').as_bytes());
        write("l.sym", symbols('l').as_bytes());
        let mut random = Random(seed | 1);
        let mut switches = Vec::new();
        for tid in 7..10_u64 {
            let (mut open, mut time_ns, mut bytes): (Vec<u64>, _, _) = (Vec::new(), 1000 + 100 * tid, Vec::new());
            let mut flaws = 2;
            for number in 0..N_RECORDS {
                time_ns += random.below(60);
                let mut record = |kind, depth: usize, addr| {
                    let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth: depth as u16, addr };
                    bytes.extend(record.encode());
                };
                let is_out = number % 40 == 7;
                if (is_out || number % 40 == 9 + random.below(20)) && tid != 9 {
                    // perf's, which may be amid other records; or those of records, one behind the other.
                    let preempted = u16::from(number % 80 == 7) << 14;
                    let flags: u16 = if is_out { 1 << 13 | preempted } else { 0 };
                    switches.extend(14_u32.to_le_bytes());
                    switches.extend([flags, 24].map(u16::to_le_bytes).concat());
                    switches.extend([tid << 32 | 7, time_ns + random.below(30)].map(u64::to_le_bytes).concat());
                }
                // The second task has one function open from the beginning to the end, and more of them for a long while.
                let least = if tid == 8 { 1 + (number / 1500) as usize } else { 0 };
                if number % 50 == 8 {
                    record(Kind::Event, 0, if number % 100 == 8 { 200_007 } else { 200_002 });
                } else if number % 50 == 9 {
                    record(Kind::Event, 0, 200_001);
                } else if open.len() < 12 && (open.len() <= least || random.below(100) < 51) {
                    let base = if random.below(6) == 0 { 0x60_0000 } else { 0x40_0000 };
                    let addr = base + 16 * random.below(9);
                    record(Kind::Entry, open.len(), addr);
                    open.push(addr);
                } else if tid == 9 && number > N_RECORDS / 2 && flaws > 0 {
                    flaws -= 1;
                    record(Kind::Lost, 0, 3);
                } else if let Some(addr) = open.pop() {
                    // Only what has a name is more than one address.
                    let has_name = (0x40_0000..0x40_0080).contains(&addr);
                    record(Kind::Exit, open.len(), addr + if has_name { random.below(2) } else { 0 });
                }
            }
            write(&format!("{tid}.dat"), &bytes);
        }
        write("perf-cpu0.dat", &switches);
        dir
    }

    fn choose(trace: &mut Trace, times: Range<u64>) {
        let mut choice = Choice::default();
        choice.times = times;
        trace.choose(choice);
    }

    /// Sums of blocks after writing and reading, and the same with another name of a function.
    fn blocks<'t, C: Collector<'t>>(trace: &'t Trace, has_times: bool, max_bytes: u64) -> [Blocks; 2] {
        let mut blocks = Blocks::default();
        blocks.directory.has_times = has_times;
        let limits = Limits { max_blocks: 80, min_block_bytes: 512, max_bytes, ..Limits::default() };
        blocks.make::<C>(trace, &trace.tasks().iter().collect::<Vec<_>>(), limits).unwrap();
        let n_blocks: Vec<_> = trace.tasks().iter().map(|task| blocks.of(task).map(|own| own.blocks.len())).collect();
        assert!(n_blocks[0] > Some(4) && n_blocks[1] > Some(4) && n_blocks[2].is_none(), "{n_blocks:?}");
        assert_eq!(n_blocks[0] < Some(60), max_bytes < 1 << 20, "{n_blocks:?}");
        let file = tempfile::tempfile().unwrap();
        blocks.write(&file, 7).unwrap();
        let read = || Blocks::read(file.try_clone().unwrap(), 7).unwrap();
        let mut other = read();
        other.directory.keys.rename(0, " of blocks");
        [read(), other]
    }

    #[test]
    fn parts_are_those_of_all_records() {
        let (mut n_reports, mut n_graphs, mut n_ways) = (0, 0, 0);
        let functions =
            [None, Some("f0"), Some("[fl][12]"), Some("<*"), Some("linux:schedule"), Some("linux:schedule (*")];
        let functions = functions.map(|function| function.map(|text| Pattern::new(text).unwrap()));
        for (seed, is_corrected, max_bytes) in [(3, false, 1 << 30), (99, true, 1 << 30), (1_234_567, true, 130_000)] {
            let dir = trace(seed);
            let open = || {
                let mut trace = Trace::open(dir.path()).unwrap();
                trace.correct_times(is_corrected);
                assert_eq!(trace.cost().is_some(), is_corrected);
                trace
            };
            let (whole, mut trace) = (open(), open());
            let off_cpu = read_with(&whole, &ReportOptions::default(), None).unwrap().off_cpu;
            assert!(off_cpu.is_some_and(|times| times.waiting_ns > 0 && times.preempted_ns > 0));
            let [of_reports, other_of_reports] = blocks::<Table<'_>>(&whole, true, max_bytes);
            let [of_graphs, other_of_graphs] = blocks::<Ways<'_>>(&whole, false, max_bytes);
            let mut random = Random(seed + 5);
            for round in 0..60 {
                let end_ns = 60 * N_RECORDS / 2 + 4000;
                let (a, b) = (random.below(end_ns), 1 + random.below(end_ns));
                let times = match round {
                    0 => 0..end_ns,
                    1 => 0..u64::MAX,
                    2..10 => 0..b,
                    10..20 => a..u64::MAX,
                    _ => a.min(b)..a.max(b) + 1,
                };
                choose(&mut trace, times.clone());
                for spread in [false, true] {
                    let options = ReportOptions { spread, ..ReportOptions::default() };
                    let bytes = |blocks: Option<&Blocks>| {
                        let sums = read_with(&trace, &options, blocks).unwrap();
                        postcard::to_stdvec(&sums).unwrap()
                    };
                    let expected = bytes(None);
                    assert!(bytes(Some(&of_reports)) == expected, "{seed} {times:?} {spread}");
                    n_reports += usize::from(bytes(Some(&other_of_reports)) != expected);
                }
                let paths = |blocks| Paths::read(&trace, blocks).unwrap();
                let expected = paths(None);
                assert!(paths(Some(&of_graphs)) == expected, "{seed} {times:?}");
                n_graphs += usize::from(paths(Some(&other_of_graphs)) != expected);
                for function in &functions {
                    let text = |paths| {
                        let graph = Graph::of(&trace, function.as_ref(), paths).unwrap();
                        let mut out = Vec::new();
                        graph.write(&[GraphField::Total, GraphField::Own], &mut out).unwrap();
                        (String::from_utf8(out).unwrap(), graph.summary().clone(), graph.n_ways())
                    };
                    let found = text(Some(paths(Some(&of_graphs))));
                    assert_eq!(found, text(None), "{seed} {times:?} {function:?}");
                    n_ways += found.2;
                }
            }
        }
        // In most parts sums of blocks were made use of.
        assert!(n_reports > 200 && n_graphs > 100 && n_ways > 1000, "{n_reports} {n_graphs} {n_ways}");
    }
}
