use std::collections::BTreeMap;
use std::ops::Range;

use rftrace_read::{Kind, Record, Trace};
use serde_json::json;

use super::Zoom;
use super::blocks::{Block, Decoder, Kind as Packed, Merger};
use super::store::{Cursor, Lane, read_directory};
use crate::numbers::take_number;
use crate::pack::{Page, off_cpu};

/// Two threads with calls of all lengths, recursion, waiting, and exits and entries that are missing. Of few functions, if that is asked for,
/// so that there are few ways; then the outermost call lasts until the end.
fn trace(dir: &tempfile::TempDir, has_few: bool) -> Trace {
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
    for word in [0_u64, 0, 1024] {
        info.extend(word.to_le_bytes());
    }
    write("info", &info);
    let session = "SESS timestamp=0.000000001 pid=7 sid=0123456789abcdef exename=\"/p\"\n";
    let task = |tid: u32| format!("TASK timestamp=0.000000001 tid={tid} pid=7\n");
    write("task.txt", (session.to_owned() + &task(7) + &task(8)).as_bytes());
    write("sid-0123456789abcdef.map", b"00400000-00500000 r-xp 00000000 08:01 1 /p\n");
    let symbols: Vec<_> = (0..300).map(|n| format!("{:016x} T f{n}\n", n * 16)).collect();
    write("p.sym", (symbols.concat() + "00000000000012c0 ? __sym_end\n").as_bytes());
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for tid in [7, 8] {
        let (mut open, mut time_ns, mut bytes) = (Vec::new(), 1000, Vec::new());
        for number in 0..90_000_u64 {
            // Bursts, and now and then nothing for long.
            time_ns += random(if number % 3000 == 0 { 10_000_000 } else { 1 << (1 + number / 1000 % 9) });
            let mut record = |kind, depth: usize, addr| {
                let record = Record { time_ns, kind, has_payload: false, payload_at: 0, depth: depth as u16, addr };
                bytes.extend(record.encode());
            };
            if number % 50 == 7 {
                record(Kind::Event, 0, [200_002, 200_007][number as usize / 50 % 2]);
            } else if number % 50 == 8 {
                record(Kind::Event, 0, 200_001);
            } else if open.len() < 5 && (open.len() <= usize::from(has_few) || random(100) < 52) {
                // f299 is rare, and f5 is not.
                let n_functions = if has_few { 3 } else { 6 + number / 400 };
                let function = if number % 9001 == 9000 { 299 } else { random(n_functions) };
                record(Kind::Entry, open.len(), 0x40_0000 + 16 * function);
                open.push(0x40_0000 + 16 * function);
            } else {
                let addr = open.pop().unwrap_or(0);
                if number % 971 != 5 {
                    record(Kind::Exit, open.len(), addr);
                }
            }
        }
        write(&format!("{tid}.dat"), &bytes);
    }
    Trace::open(dir.path()).unwrap()
}

/// A call, as the page has it that has all calls.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    start: u64,
    end: u64,
    name: String,
    /// Its caller, among those of the depth above.
    caller: usize,
    own: u64,
}

/// Of each task and depth the calls.
fn calls(page: &Page) -> Vec<Vec<Vec<Call>>> {
    let mut events = page.events();
    let head: serde_json::Value = serde_json::from_slice(&page.start()[12..]).unwrap();
    let mut tasks = Vec::new();
    for task in head["tasks"].as_array().unwrap() {
        let (mut own, rest) = events.split_at(task["bytes"].as_u64().unwrap() as usize);
        events = &rest[task["values"].as_u64().unwrap() as usize..];
        let (mut lanes, mut n_open, mut now): (Vec<Vec<Call>>, usize, u64) = (Vec::new(), 0, 0);
        while let Some(id) = take_number(&mut own) {
            now += take_number(&mut own).unwrap();
            if id == 0 {
                n_open -= 1;
                let call = lanes[n_open].last_mut().unwrap();
                call.end = now;
                let total = now - call.start;
                // The time of its callees was subtracted before.
                call.own = call.own.wrapping_add(total);
                if n_open > 0 {
                    let caller = lanes[n_open - 1].last_mut().unwrap();
                    caller.own = caller.own.wrapping_sub(total);
                }
                continue;
            }
            lanes.resize_with(lanes.len().max(n_open + 1), Vec::new);
            let name = head["functions"][id as usize - 1].as_str().unwrap().to_owned();
            let caller = n_open.checked_sub(1).map_or(0, |above| lanes[above].len() - 1);
            lanes[n_open].push(Call { start: now, end: 0, name, caller, own: 0 });
            n_open += 1;
        }
        tasks.push(lanes);
    }
    tasks
}

struct Made {
    zoom: Zoom,
    calls: Vec<Vec<Vec<Call>>>,
    _dir: tempfile::TempDir,
}

fn made() -> Made {
    made_of(false)
}

fn made_of(has_few: bool) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(&dir, has_few);
    let (page, zoom) = (Page::read(&trace, "", u64::MAX).unwrap(), Zoom::make(&trace, "").unwrap());
    assert_eq!(page.summary(), zoom.summary());
    assert_eq!(page.n_calls(), zoom.n_calls());
    assert_eq!([zoom.head.waiting, zoom.head.preempted], off_cpu(&zoom.head.functions));
    assert!(zoom.head.preempted.is_some());
    assert!(zoom.n_calls() > 80_000);
    Made { zoom, calls: calls(&page), _dir: dir }
}

impl Made {
    fn name(&self, function: u32) -> &str {
        &self.zoom.head.functions[function as usize]
    }

    fn number(&self, name: &str) -> usize {
        self.zoom.head.functions.iter().position(|other| other == name).unwrap()
    }

    fn lanes(&self) -> impl Iterator<Item = (&Lane, &[Call])> {
        let lanes = self.zoom.directory.tasks.iter().flat_map(|task| &task.lanes);
        lanes.zip(self.calls.iter().flatten().map(Vec::as_slice))
    }

    fn ask(&self, name: &str, question: &serde_json::Value) -> Vec<u8> {
        self.zoom.answer(name, question.to_string().as_bytes()).unwrap().unwrap()
    }

    /// The rows of a picture of one task.
    fn rows(&self, name: &str, task: usize, (times, px): (Range<u64>, u64), find: &[usize]) -> Vec<Vec<(u64, Block)>> {
        let n_rows = self.calls[task].len();
        let rows = json!([[task, 0, n_rows]]);
        let question = json!({ "from": times.start, "to": times.end, "px": px, "rows": rows, "find": find });
        let answer = self.ask(name, &question);
        let mut rest = &answer[..];
        let rows = (0..n_rows).map(|_| {
            let count = take_number(&mut rest).unwrap();
            if count == 0 {
                return Vec::new();
            }
            let (start, mut call) = (take_number(&mut rest).unwrap(), take_number(&mut rest).unwrap());
            let mut decoder = Decoder::new(Packed::Blocks, rest, start, 0);
            let blocks = (0..count).map(|_| {
                let block = decoder.next().unwrap();
                call += block.n;
                (call - block.n, block)
            });
            let blocks = blocks.collect();
            rest = decoder.rest();
            blocks
        });
        let rows = rows.collect();
        assert!(rest.is_empty());
        rows
    }

    /// The sums, computed from the calls themselves.
    fn naive_sums(&self, times: Range<u64>) -> (Sums<Vec<&str>>, Sums<&str>) {
        let (mut ways, mut rows) = (BTreeMap::new(), BTreeMap::new());
        for lanes in &self.calls {
            let mut above: Vec<Option<Vec<&str>>> = Vec::new();
            for lane in lanes {
                let mut here = Vec::new();
                for call in lane {
                    let is_in = call.start < times.end && (call.end > times.start || call.start >= times.start);
                    let way = above.get(call.caller).cloned().unwrap_or_else(|| Some(Vec::new()));
                    let way = way.filter(|_| is_in).map(|mut way| {
                        way.push(&call.name);
                        way
                    });
                    if let Some(way) = &way {
                        let time = call.end.min(times.end) - call.start.max(times.start);
                        let is_outermost = way.iter().filter(|name| **name == call.name).count() == 1;
                        for (key, total) in [(way.len() - 1, 0), (way.len(), time)] {
                            let Some(name) = key.checked_sub(1).map(|last| way[last]) else { continue };
                            let [calls, own] = if key == way.len() { [1, time] } else { [0, time.wrapping_neg()] };
                            let sum: &mut [u64; 3] = ways.entry(way[..key].to_vec()).or_default();
                            *sum = [sum[0] + calls, sum[1] + total, sum[2].wrapping_add(own)];
                            let row: &mut [u64; 3] = rows.entry(name).or_default();
                            let total = if is_outermost { total } else { 0 };
                            *row = [row[0] + calls, row[1] + total, row[2].wrapping_add(own)];
                        }
                    }
                    here.push(way);
                }
                above = here;
            }
        }
        (ways, rows)
    }
}

/// Calls, total time and own time.
type Sums<K> = BTreeMap<K, [u64; 3]>;

#[test]
fn each_level_has_the_time_and_the_calls_of_the_records() {
    let made = made();
    let mut n_levels = 0;
    for (lane, calls) in made.lanes() {
        assert_eq!(lane.n_calls, calls.len() as u64);
        for level in &lane.levels {
            let mut cursor = Cursor::at_chunk(&made.zoom.file, level, 0);
            let blocks: Vec<_> = std::iter::from_fn(|| cursor.next().unwrap()).collect();
            let (mut merger, mut expected) = (Merger::new(level.width), Vec::new());
            for call in calls {
                let busy = call.end - call.start;
                let function = made.number(&call.name) as u32;
                let call = Block {
                    start: call.start,
                    end: call.end,
                    n: 1,
                    busy,
                    function,
                    part: call.own,
                    ..Block::default()
                };
                expected.extend(if level.width == 0 { Some(call) } else { merger.add(call) });
            }
            expected.extend(merger.finish());
            let mut n_before = 0;
            assert_eq!(blocks.len(), expected.len(), "{}", level.width);
            for ((number, block), expected) in blocks.iter().zip(&expected) {
                assert_eq!(*number, n_before);
                n_before += block.n;
                let facts = |block: &Block| (block.start, block.end, block.n, block.busy);
                assert_eq!(facts(block), facts(expected), "{}", level.width);
                if block.n == 1 {
                    assert_eq!((block.function, block.part), (expected.function, expected.part));
                } else {
                    assert!(block.part <= block.busy);
                }
            }
            assert_eq!(n_before, lane.n_calls);
            let busy: u64 = calls.iter().map(|call| call.end - call.start).sum();
            assert_eq!(blocks.iter().map(|(_, block)| block.busy).sum::<u64>(), busy);
            n_levels += 1;
        }
        let callers = |level| {
            let mut cursor = Cursor::at_chunk(&made.zoom.file, level, 0);
            std::iter::from_fn(move || cursor.next().unwrap()).map(|(_, call)| call.caller as usize).collect::<Vec<_>>()
        };
        assert_eq!(callers(lane.calls()), calls.iter().map(|call| call.caller).collect::<Vec<_>>());
    }
    assert!(n_levels > 20, "{n_levels}");
}

#[test]
fn pictures_show_wide_calls_and_count_the_narrow_ones() {
    let made = made();
    let end = made.zoom.directory.end;
    let (rare, often) = (made.number("f299"), made.number("f5"));
    for (from, to) in [(0, end + 1), (end / 3, end / 2), (end / 2, end / 2 + 50_000), (end - 200, end + 1)] {
        for px in [1, 3, 70, 1000, 65_536, 1_000_000] {
            if (to - from) / px > 1 << 18 {
                continue;
            }
            for (task, lanes) in made.calls.iter().enumerate() {
                let rows = made.rows("picture", task, (from..to, px), &[]);
                for (row, calls) in rows.iter().zip(lanes) {
                    // All calls of the range are in blocks, in order; at the edges there may be others.
                    for (&(call, block), next) in row.iter().zip(row.iter().skip(1).map(Some).chain([None])) {
                        let within = &calls[call as usize..(call + block.n) as usize];
                        assert_eq!((block.start, block.end), (within[0].start, within[within.len() - 1].end));
                        assert_eq!(block.busy, within.iter().map(|call| call.end - call.start).sum::<u64>());
                        assert!(block.n == 1 || within.iter().all(|call| call.end - call.start < px));
                        assert!(block.n == 1 || block.end - block.start < 3 * px, "{px} {block:?}");
                        assert!(block.n > 1 || block.part == within[0].own);
                        assert!(within.iter().any(|call| call.name == made.name(block.function)));
                        assert!(next.is_none_or(|(next, _)| *next == call + block.n));
                    }
                    let is_in = |call: &&Call| call.start < to && call.end >= from;
                    let n_in = calls.iter().filter(is_in).count() as u64;
                    assert!(row.iter().map(|(_, block)| block.n).sum::<u64>() >= n_in);
                    let n_blocks = row.iter().filter(|(_, block)| block.n > 1).count() as u64;
                    assert!(n_blocks <= (to - from) / px + 2);
                }
                for function in [rare, often] {
                    let rows = made.rows("hits", task, (from..to, px), &[function]);
                    for (row, calls) in rows.iter().zip(lanes) {
                        let is_hit = |call: &&Call| {
                            call.start < to && call.end >= from && call.name == made.name(function as u32)
                        };
                        assert_eq!(
                            row.iter().map(|(_, block)| block.n).sum::<u64>(),
                            calls.iter().filter(is_hit).count() as u64
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn sums_of_a_range_are_those_of_its_calls() {
    let made = made();
    let end = made.zoom.directory.end;
    check_sums(
        &made,
        &[(0, end), (0, end - 1), (1, end), (end / 3, end / 2), (end / 2, end / 2 + 777), (end / 7, end / 7)],
    );
}

/// Of the most of them the sums are kept.
#[test]
fn sums_of_a_long_range_are_those_of_its_calls() {
    let made = made_of(true);
    let end = made.zoom.directory.end;
    let marks: Vec<u64> = made.zoom.directory.tasks.iter().flat_map(|task| &task.marks).map(|mark| mark.time).collect();
    assert!(marks.len() >= 4, "{marks:?}");
    let (&first, &last) = (marks.iter().min().unwrap(), marks.iter().max().unwrap());
    let mut ranges = vec![(1, end), (0, end - 1), (first - 1, last + 1), (first, last), (first / 2, (last + end) / 2)];
    ranges.extend(marks.iter().flat_map(|&mark| [(mark, end), (0, mark), (0, mark + 1), (mark - 1, end)]));
    check_sums(&made, &ranges);
}

fn check_sums(made: &Made, ranges: &[(u64, u64)]) {
    let end = made.zoom.directory.end;
    for &(from, to) in ranges {
        let (ways, rows) = made.naive_sums(from..if to >= end { u64::MAX } else { to });
        for apart in [false, true] {
            let answer = made.ask("sums", &json!({ "from": from, "to": to, "apart": apart }));
            let mut rest = &answer[..];
            let mut next = || take_number(&mut rest).unwrap();
            let (missing, n_nodes, total) = (next(), next() as usize, next());
            assert_eq!(missing, 0);
            let mut found: BTreeMap<Vec<&str>, [u64; 3]> = BTreeMap::new();
            let mut names: Vec<Vec<&str>> = vec![Vec::new()];
            let mut top = 0;
            for _ in 1..n_nodes {
                let (above, function, sum) = (next() as usize, next() as u32, [next(), next(), next()]);
                let mut way = names[above].clone();
                if (function as usize) < made.zoom.head.functions.len() {
                    way.push(made.name(function));
                    let known = found.entry(way.clone()).or_default();
                    *known = [known[0] + sum[0], known[1] + sum[1], known[2] + sum[2]];
                } else {
                    assert!(apart && above == 0);
                    top += sum[1];
                }
                names.push(way);
            }
            assert_eq!(found, ways, "{from} {to}");
            let outermost: u64 = ways.iter().filter(|(way, _)| way.len() == 1).map(|(_, sum)| sum[1]).sum();
            assert_eq!((total, if apart { top } else { total }), (outermost, outermost));
            let n_rows = next();
            let found: BTreeMap<_, _> =
                (0..n_rows).map(|_| (made.name(next() as u32), [next(), next(), next()])).collect();
            assert_eq!(found, rows);
            assert!(rest.is_empty());
        }
    }
}

#[test]
fn hits_are_found_one_by_one_in_order() {
    let made = made();
    for name in ["f299", "f5", "linux:schedule", "linux:schedule (pre-empted)"] {
        let mut expected = Vec::new();
        for (task, lanes) in made.calls.iter().enumerate() {
            for (depth, calls) in lanes.iter().enumerate() {
                let hits = calls.iter().enumerate().filter(|(_, call)| call.name == name);
                expected.extend(
                    hits.map(|(number, call)| {
                        [call.start, task as u64, depth as u64, number as u64, call.end, call.own]
                    }),
                );
            }
        }
        expected.sort_unstable();
        expected.truncate(150);
        let next = |here: &serde_json::Value, back: bool| {
            let answer = made.ask("next", &json!({ "find": [made.number(name)], "here": here, "back": back }));
            let mut rest = &answer[..];
            let mut numbers = std::iter::from_fn(|| take_number(&mut rest));
            (numbers.next() == Some(1)).then(|| {
                let found: Vec<_> = numbers.collect();
                assert_eq!(found[5] as usize, made.number(name));
                [found[3], found[0], found[1], found[2], found[4], found[6]]
            })
        };
        let mut here = json!(null);
        for expected in &expected {
            assert_eq!(next(&here, false), Some(*expected), "{name}");
            here = json!(expected[..4]);
        }
        for expected in expected.iter().rev().skip(1) {
            assert_eq!(next(&here, true), Some(*expected), "{name}");
            here = json!(expected[..4]);
        }
        assert_eq!(next(&here, true), None);
        assert!(next(&json!(null), true) >= expected.last().copied());
        assert!(expected.len() > 3, "{name}");
    }
}

#[test]
fn questions_about_what_is_not_there_are_refused() {
    let made = made();
    let picture = |rows: serde_json::Value, px: u64| json!({ "from": 0, "to": u64::MAX, "px": px, "rows": rows });
    for (name, question) in [
        ("picture", picture(json!([[2, 0, 1]]), 1 << 50)),
        ("picture", picture(json!([[0, 0, 99]]), 1 << 50)),
        ("picture", picture(json!([[0, 2, 1]]), 1 << 50)),
        ("picture", picture(json!([[0, 0, 1]]), 0)),
        ("picture", json!({})),
        ("sums", json!("x")),
    ] {
        assert!(made.zoom.answer(name, question.to_string().as_bytes()).unwrap().is_err(), "{question}");
    }
    assert!(made.zoom.answer("other", b"{}").is_none());
    assert!(made.ask("picture", &picture(json!([]), 1 << 50)).is_empty());
    let none = made.ask("next", &json!({ "find": [u32::MAX], "here": null, "back": false }));
    assert_eq!(none, [0]);
}

/// Whatever is changed in the file, it is found, or answers are errors: nothing goes on for ever or panics.
#[test]
fn a_damaged_file_is_found_out() {
    use std::os::unix::fs::FileExt;

    let made = made_of(true);
    let file = &made.zoom.file;
    let length = file.metadata().unwrap().len();
    assert!(read_directory(file).is_some());
    let end = made.zoom.directory.end;
    let mut n_damaged = 0;
    for part in 0..40 {
        let place = 32 + (length - 33) * part / 39;
        let mut before = [0];
        file.read_exact_at(&mut before, place).unwrap();
        file.write_all_at(&[before[0] ^ 0x41], place).unwrap();
        let whole = json!({ "from": 1, "to": end, "apart": false }).to_string();
        let is_found = read_directory(file).is_none() || made.zoom.answer("sums", whole.as_bytes()).unwrap().is_err();
        n_damaged += u32::from(is_found);
        file.write_all_at(&before, place).unwrap();
    }
    // Only pictures need the contents of blocks.
    assert!(n_damaged > 30, "{n_damaged}");
}
