//! A traced signal handler strikes at every single instruction of the tracer.
//!
//! `fixtures/c/strikes.cpp` does that and checks results and backtraces. Here the traces are checked: each run of a
//! scenario must be there with exactly its calls, and each strike once with exactly its own.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use object::read::archive::ArchiveFile;
use object::{File, Object, ObjectSymbol, SymbolKind};
use rftrace_read::{DID_NOT_RETURN, Kind};
use rftrace_tests::fixtures::c_library;
use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{CProgram, Program, Run, assert_same_lines, require, tools};
use rftrace_views::CallTree;

/// Set to run all combinations, which takes some minutes.
const ALL: &str = "RFTRACE_ALL_STRIKES";

/// Call sites as they were compiled, and patched: `RFTRACE_PATCHED` is set to this.
const SITES: [&str; 2] = ["0", "1"];

const MCOUNT: &[&str] = &["-O2"];
const FENTRY: &[&str] = &["-O2", "-mfentry"];

/// The scenarios, and their calls.
const SCENARIOS: [(&str, &str); 8] = [
    ("calls", "calls\n  two\n    leaf\n    leaf\n  leaf\n"),
    ("tails", "tails\n  tail1\n    tail2\n      tail3\n        leaf\n  leaf\n"),
    ("jumps", "jumps\n  jump\n    jump\n      jump\n        jump\n  leaf\n  two\n    leaf\n    leaf\n"),
    (
        "switches",
        // The coroutine's calls are in a task of its own.
        "switches\n  resume\n  leaf\n  resume\nbody\n  work\n    yield\n    leaf\n",
    ),
    ("exceptions", "exceptions\n  catcher\n    tail_middle\n      middle\n        thrower\n  leaf\n"),
    ("cleanups", "cleanups\n  cleaned\n    thrower\n    Loud::~Loud\n  leaf\n"),
    ("toggles", "toggles\n  off_inside\n  two\n    leaf\n    leaf\n  leaf\n  leaf\n"),
    ("leaves", "leaves\n  leaver\n"),
];

/// The kinds of handlers, and their calls.
const KINDS: [(&str, &str); 3] = [
    ("calls", "strike_calls\n  strike_leaf\n  strike_tail\n    strike_leaf\n"),
    ("throws", "strike_throws\n  strike_middle\n    strike_thrower\n  strike_leaf\n"),
    ("jumps", "strike_jumps\n  strike_jump\n    strike_jump\n  strike_leaf\n"),
];

/// Outline of the last kind amid a slow path, which leaves the return stack to the slow path that it has struck.
const NOT_NOTICED: &str = "strike_jumps\n  strike_jump\n    strike_jump\n      strike_leaf\n";

fn build(arguments: &[&str]) -> Program {
    // Names are looked up by address: functions must be in one piece, and visible.
    let program = CProgram::new(&["strikes.cpp"]).with(arguments);
    let program = program.with(&["-fno-reorder-blocks-and-partition", "-rdynamic"]);
    // Most of the time goes into saves, and of that into names: no more of the standard library than is used.
    program.with(&["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections"]).build()
}

/// The tracer's functions in `program`: a line for each, with address, size and name.
pub(crate) fn tracer_symbols(program: &Path) -> String {
    let archive = fs::read(&c_library().backend).unwrap();
    let archive = ArchiveFile::parse(&*archive).unwrap();
    let mut names = Vec::new();
    for member in archive.members() {
        let data = fs::read(&c_library().backend).unwrap();
        let (start, size) = member.unwrap().file_range();
        let Ok(object) = File::parse(&data[start as usize..(start + size) as usize]) else { continue };
        let symbols = object.symbols().filter(|symbol| symbol.is_definition());
        names.extend(symbols.filter_map(|symbol| symbol.name().map(str::to_owned).ok()));
    }
    let program = fs::read(program).unwrap();
    let program = File::parse(&*program).unwrap();
    let of_tracer = program.symbols().filter(|symbol| {
        let code = symbol.kind() == SymbolKind::Text || symbol.name() == Ok("rftrace_landing_pad");
        code && symbol.name().is_ok_and(|name| names.iter().any(|known| known == name))
    });
    of_tracer.map(|symbol| format!("{:x} {:x} {}\n", symbol.address(), symbol.size(), symbol.name().unwrap())).collect()
}

/// One call: its depth and its name.
type Line = (usize, String);

fn lines(outline: &str) -> Vec<Line> {
    let depth = |line: &str| (line.len() - line.trim_start().len()) / 2;
    outline.lines().map(|line| (depth(line), line.trim().to_owned())).collect()
}

fn text(lines: &[Line]) -> String {
    let above = lines.iter().map(|&(depth, _)| depth).min().unwrap_or(0);
    lines.iter().map(|(depth, name)| format!("{}{name}\n", "  ".repeat(depth - above))).collect()
}

/// The fixture's report about one run of a scenario.
struct Told<'a> {
    kind: &'a str,
    step: usize,
    n_hooks: usize,
    line: &'a str,
}

/// The runs of the scenario in the traces `trace0`, `trace1`, …, each with what it calls, and how many calls were lost.
fn recorded(run: &Run, in_threads: bool) -> (Vec<Vec<Line>>, u64) {
    let mut runs: Vec<Vec<Line>> = Vec::new();
    let mut n_lost = 0;
    for number in 0.. {
        if !run.path(&format!("trace{number}")).exists() {
            break;
        }
        let trace = run.trace(&format!("trace{number}"));
        let mut trees = trees(&trace);
        trees.sort_by_key(|tree| tree.roots.first().map(|root| root.start_ns));
        let n_before = runs.len();
        let calls = trees.iter().flat_map(CallTree::calls);
        let begun: Vec<u64> = calls.filter(|(_, call)| call.name == "begin").map(|(_, call)| call.start_ns).collect();
        for tree in &trees {
            if !in_threads && !tree.calls().any(|(_, call)| call.name == "begin") {
                // A coroutine's: each of its outermost calls belongs to the run in which it was made.
                let mut run = None;
                for (depth, call) in tree.calls() {
                    if depth == 0 {
                        let n_begun = begun.partition_point(|&begun| begun <= call.start_ns);
                        run = n_begun.checked_sub(1).map(|last| n_before + last);
                    }
                    if let Some(run) = run {
                        runs[run].push((depth, call.name.clone()));
                    }
                }
                continue;
            }
            let mut lines = lines(&outline_of_tree(tree, ""));
            lines.retain(|(_, name)| name != "fill");
            let n_outer = lines.iter().filter(|(_, name)| name == "outer").count();
            lines.retain(|(_, name)| name != "outer");
            lines.iter_mut().for_each(|(depth, _)| *depth -= n_outer);
            let is_main = lines.iter().any(|(_, name)| ["begin", "leave_frames"].contains(&&**name));
            if in_threads && !is_main && !lines.is_empty() {
                runs.push(lines);
            } else if !in_threads {
                let parts = lines.split(|(_, name)| name == "begin").skip(1);
                runs.extend(parts.map(<[Line]>::to_vec));
            }
        }
        for task in trace.tasks() {
            let events = trace.records(task).map(Result::unwrap);
            let events = events.filter(|record| record.kind == Kind::Event && record.addr != DID_NOT_RETURN);
            for event in events {
                let name = trace.events().name(event.addr).into_owned();
                let n = name.trim_start_matches("rftrace:lost_").split('_').next().unwrap();
                n_lost += n.parse::<u64>().unwrap_or_else(|_| panic!("event {name}"));
            }
        }
    }
    (runs, n_lost)
}

/// Runs a scenario and checks everything. Returns the number of strikes.
fn check(program: &Program, sites: &str, scenario: &str, mode: &[&str]) -> usize {
    let symbols = tempfile::NamedTempFile::new().unwrap();
    fs::write(symbols.path(), tracer_symbols(&program.path)).unwrap();
    let mut arguments = vec![symbols.path().to_str().unwrap(), scenario];
    arguments.extend(mode);
    let run = Run::of(Command::new(&program.path).args(&arguments).env("RFTRACE_PATCHED", sites));
    let what = format!("{scenario} {mode:?}, patched {sites}");
    assert_eq!(run.stderr, "", "{what}");
    assert_eq!(run.stdout.contains(" stub+"), sites == "1", "{what}: strikes in stubs");

    let told: Vec<Told<'_>> = run
        .stdout
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let kind = words.next().unwrap();
            let mut number = || words.next().unwrap().parse().unwrap();
            Told { kind, step: number(), n_hooks: number(), line }
        })
        .collect();
    let base = scenario.rsplit('-').next().unwrap();
    let (_, expected) = SCENARIOS.iter().find(|(name, _)| *name == base).unwrap();
    let (runs, n_lost) = recorded(&run, scenario.starts_with("thread-"));
    assert_eq!(runs.len(), told.len(), "{what}: runs");

    // Where recording goes off, a strike is recorded as a whole or not at all.
    let goes_off = ["toggles", "leaves"].contains(&base);
    // All levels but the last two or so are taken: what is deeper is counted.
    let is_full = scenario.starts_with("outer");
    // Where each hook records one event, strikes are at a definite place.
    let one_event_a_hook = ["calls", "tails"].contains(&base) && !is_full;
    let mut n_missing = 0;
    let mut n_strikes = 0;
    let mut last = (0, 0);
    for (number, (told, mut lines)) in told.iter().zip(runs).enumerate() {
        let what = format!("{what}, run {number}: {}", told.line);
        let whole = text(&lines);
        if let Some(start) = lines.iter().position(|(_, name)| name.starts_with("strike_")) {
            let depth = lines[start].0;
            let length = lines[start + 1..].iter().take_while(|line| line.0 > depth).count();
            let strike: Vec<Line> = lines.drain(start..=start + length).collect();
            let (_, calls) = KINDS.iter().find(|(kind, _)| *kind == told.kind).expect("no strike was told");
            let shown =
                |depth: usize| calls.lines().filter(move |line| line.len() - line.trim_start().len() < 2 * depth);
            if is_full {
                let got = text(&strike);
                assert!((1..=3).any(|depth| shown(depth).eq(got.lines())), "{what}: the strike is\n{got}");
            } else if told.kind != "jumps" || text(&strike) != NOT_NOTICED {
                assert_same_lines(&text(&strike), calls, &format!("{what}: the strike"));
            }
            n_missing += calls.lines().count() - strike.len();
            // Events before the strike: entries, less those that are open, twice. Amid the slow path that brings a coroutine's
            // frames back, a handler's calls may appear below them. Of two landing pads an instruction of the second may be
            // struck in the first.
            let place = 2 * start - depth;
            let goes_on = told.step >= last.0;
            assert!(
                !goes_on || place >= last.1 || ["switches", "leaves"].contains(&base),
                "{what}: the strike is at event {place} of\n{whole}"
            );
            last = (told.step, place);
            let places = told.n_hooks.saturating_sub(1)..=told.n_hooks;
            assert!(!one_event_a_hook || places.contains(&place), "{what}: the strike is at event {place} of\n{whole}");
        } else if told.kind != "-" {
            assert!(goes_off || is_full, "{what}: the strike is not recorded in\n{whole}");
            n_missing += 4;
        }
        let mut rest = text(&lines);
        if base == "switches" {
            // A handler that strikes when the coroutine has been left and `resume` is about to record its return sees that
            // it is not open any more; then its return counts as another resumption.
            rest = rest.replacen("  resume\n  resume\n  leaf\n", "  resume\n  leaf\n", 1);
        }
        if is_full {
            // The innermost calls are lost.
            let shown: String =
                expected.lines().filter(|line| !line.starts_with("    ")).map(|l| format!("{l}\n")).collect();
            assert_same_lines(&rest, &shown, &format!("{what}, of\n{whole}"));
            n_missing += expected.lines().count() - shown.lines().count();
        } else {
            assert_same_lines(&rest, expected, &format!("{what}, of\n{whole}"));
        }
        n_strikes += usize::from(told.kind != "-");
    }
    assert!(!is_full || n_missing as u64 == n_lost, "{what}: {n_missing} calls are missing, {n_lost} counted as lost");
    assert!(n_strikes > 300, "{what}: only {n_strikes} strikes");
    println!("{what}: {n_strikes} strikes");
    n_strikes
}

/// The quick choice: strikes on the same stack with mcount; on another one, with chunks that are used again, with
/// __fentry__. Each instruction is struck by one of the three kinds of handlers. Scenarios are tried in two of the four ways that
/// these and plain and patched sites make, in turn: one and the next, which is of the same kind, in all four.
fn check_in_turn(scenarios: &[&str]) {
    check_where(scenarios, |number, way| number % 2 == way);
}

/// The same in all four ways.
fn check_both(scenarios: &[&str]) {
    check_where(scenarios, |_, _| true);
}

/// Tries the scenarios, by their numbers, with mcount and plain sites (0) or patched ones (1), and with __fentry__ and patched sites (0)
/// or plain ones (1).
fn check_where(scenarios: &[&str], is_wanted: impl Fn(usize, usize) -> bool) {
    if !require(&["g++"]) {
        return;
    }
    for (kind, (arguments, mode)) in [(MCOUNT, &["stop"][..]), (FENTRY, &["ring", "alternate"])].into_iter().enumerate()
    {
        let program = build(arguments);
        let mode = [mode, &["mixed"]].concat();
        for (patched, sites) in SITES.into_iter().enumerate() {
            let wanted = scenarios.iter().enumerate().filter(|(number, _)| is_wanted(*number, patched ^ kind));
            let n_strikes: usize = wanted.map(|(_, scenario)| check(&program, sites, scenario, &mode)).sum();
            println!("{arguments:?}, patched {sites}: {n_strikes} strikes");
        }
    }
}

#[test]
fn amid_calls_and_tail_calls() {
    check_in_turn(&["calls", "left4-calls", "tails", "left9-tails", "left5-calls"]);
}

#[test]
fn amid_jumps() {
    check_in_turn(&["jumps", "left8-jumps"]);
}

#[test]
fn amid_switches() {
    check_both(&["switches"]);
}

#[test]
fn amid_exceptions() {
    check_in_turn(&["exceptions", "left7-exceptions"]);
    check_both(&["cleanups"]);
}

#[test]
fn while_recording_goes_off_and_on() {
    check_both(&["toggles"]);
}

#[test]
fn while_the_return_stack_is_full() {
    check_both(&["outer1021-calls"]);
}

#[test]
fn while_threads_begin_and_end() {
    check_in_turn(&["thread-left2-calls", "thread-calls", "thread-leaves"]);
}

/// Every scenario, with the end of a chunk at every place of it.
#[test]
fn in_all_combinations() {
    if env::var_os(ALL).is_none() {
        return tools::skip(&format!("it takes minutes; {ALL} is not set"));
    }
    let mut n_strikes = 0;
    for arguments in [MCOUNT, FENTRY, &["-O0"]] {
        let program = build(arguments);
        for sites in SITES {
            for mode in [&["stop"][..], &["stop", "alternate"], &["ring"], &["ring", "alternate"]] {
                n_strikes += check_all(&program, sites, mode);
            }
        }
    }
    println!("{n_strikes} strikes");
}

/// The scenarios for one of the combinations.
fn check_all(program: &Program, sites: &str, mode: &[&str]) -> usize {
    let mut scenarios = Vec::new();
    for (scenario, _) in SCENARIOS {
        if scenario == "leaves" {
            continue;
        }
        scenarios.push(scenario.to_owned());
        // It makes a number of records that is not always the same.
        if scenario != "toggles" {
            scenarios.extend((2..14).map(|left| format!("left{left}-{scenario}")));
        }
    }
    for scenario in ["outer1021-calls", "thread-calls", "thread-left2-calls", "thread-leaves", "thread-left2-leaves"] {
        scenarios.push(scenario.to_owned());
    }
    scenarios.iter().map(|scenario| check(program, sites, scenario, mode)).sum()
}
