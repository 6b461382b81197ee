//! Stubs of functions that call no hook are switched in place: by all kinds of them the same is recorded, at once, and what is not recorded costs
//! two jumps.

use std::fs;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rftrace_control::protocol::{Request, read_answer};
use rftrace_tests::{CProgram, Program, require, traces};

use super::control::{ALL, Controlled};
use super::entry_branches::c_program;
use super::record::record;

/// All functions have sleds.
const XRAY: [&str; 4] =
    ["-fxray-instrument", "-fxray-instruction-threshold=1", "-fnoxray-link-deps", "-Wno-unknown-attributes"];

/// A program of `source`, optimised a little, with such arguments.
fn gcc(source: &str, arguments: &[&str]) -> Program {
    CProgram::new(&[source]).without_hooks().without_library().with(&["-O1", "-lpthread"]).with(arguments).build()
}

fn xray(source: &str) -> Program {
    let program = CProgram::new(&[source]).without_hooks().without_library().by_clang();
    program.with(&["-O1", "-lpthread"]).with(&XRAY).build()
}

/// How many instructions of the functions are run, all in all, and whether a backtrace led from each to the caller.
#[track_caller]
fn n_steps(stderr: &str) -> usize {
    assert!(stderr.contains(" 0 without the caller"), "{stderr}");
    let line = stderr.lines().find(|line| line.contains(" steps, ")).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

/// Instructions are counted: the jump to the stub, the look at the switch and the jump that is not taken, and the jump back.
#[test]
fn off_a_call_costs_two_jumps() {
    /// `calling`, `choosing`, `saving`, and `inner` four times.
    const CALLS: usize = 7;
    /// One in the library.
    const LIBRARY_CALLS: usize = 1;

    if !require(&["gcc"]) {
        return;
    }
    let now = ["-fno-builtin", "-Wl,-z,now"];
    let names = ["-P", "inner", "-P", "calling", "-P", "choosing", "-P", "saving"];
    let except = ["--rules", "exclude=inner; exclude=calling; exclude=choosing; exclude=saving"];
    let room = [&now[..], &["-fpatchable-function-entry=5"]].concat();
    // Five NOPs more are a part of the program, but for those that the branch takes the place of.
    let mut ways: Vec<(Program, Vec<&str>, std::ops::RangeInclusive<usize>)> = vec![
        (c_program("entered_steps.c", &now), names.to_vec(), 3 * CALLS..=4 * CALLS),
        (c_program("entered_steps.c", &room), names.to_vec(), 3 * CALLS..=4 * CALLS),
        (c_program("entered_steps.c", &now), vec!["--libcalls"], 3 * LIBRARY_CALLS..=3 * LIBRARY_CALLS),
    ];
    if require(&["clang"]) {
        // A jump in place of a jump where a function begins or jumps to another one, as one of them does, and one more where it returns.
        let program = CProgram::new(&["entered_steps.c"]).without_hooks().without_library().by_clang();
        ways.push((program.with(&["-O2"]).with(&now).with(&XRAY).build(), names.to_vec(), CALLS - 1..=CALLS - 1));
    }
    for (program, options, expected) in ways {
        let plain = n_steps(&String::from_utf8_lossy(&Command::new(&program.path).output().unwrap().stderr));
        let except = if options == ["--libcalls"] { &["--rules", "exclude=memset"] } else { &except };
        for filter in [&["--disabled"][..], except] {
            let run = record(&[&options[..], filter].concat(), &program.path, &[]);
            assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
            let more = n_steps(&run.stderr) - plain;
            assert!(expected.contains(&more), "{more} for {expected:?}: {options:?} {filter:?}");
        }
    }
}

/// One program is switched and filtered while it runs and while another thread calls something all the time.
#[test]
fn switches_and_filters_hold_at_once() {
    if !require(&["gcc"]) {
        return;
    }
    let plain = gcc("controlled.c", &[]);
    let room = gcc("controlled.c", &["-fpatchable-function-entry=5"]);
    let sleds = require(&["clang"]).then(|| xray("controlled.c"));
    let busy = |program: &Program, options: &[&str]| {
        let mut it = Controlled::of(program, options, &["busy"]);
        it.wait_until_ready();
        it
    };
    let mut all = vec![
        ("branches", busy(&plain, &["-P", "*"])),
        ("branches, attached", Controlled::attached_to(&plain, &["-P", "*"], &["busy"], None)),
        ("room", busy(&room, &[])),
    ];
    if let Some(sleds) = &sleds {
        all.push(("sleds", busy(sleds, &[])));
        all.push(("sleds, attached", Controlled::attached_to(sleds, &["-P", "*"], &["busy"], None)));
    }
    for (kind, mut it) in all {
        it.round('a');
        it.ctl(&["off"]);
        it.round('b');
        it.ctl(&["on"]);
        it.ctl(&["filter", "exclude=leaf; exclude=deep"]);
        it.round('c');
        it.ctl(&["filter", "include=round_*; include=deepest"]);
        it.round('d');
        it.ctl(&["off"]);
        it.ctl(&["filter", ""]);
        it.round('e');
        it.ctl(&["on"]);
        it.round('f');
        it.ctl(&["set", "set_ftrace_notrace", "slow"]);
        it.round('g');
        it.ctl(&["set", "current_tracer", "nop"]);
        it.round('h');
        it.ctl(&["set", "current_tracer", "function_graph"]);
        it.round('i');
        let mut rounds = it.rounds();
        // Which only calls of hooks leave out.
        rounds.values_mut().for_each(|calls| calls.retain(|name| name != "mark" && !name.contains(':')));
        let expected: [(&str, &[&str]); 6] = [
            ("round_a", &ALL),
            ("round_c", &["all", "deeper", "deepest", "slow"]),
            ("round_d", &["deepest"]),
            ("round_f", &ALL),
            ("round_g", &["all", "leaf", "deep", "deeper", "deepest"]),
            ("round_i", &["all", "leaf", "deep", "deeper", "deepest"]),
        ];
        for (round, calls) in expected {
            assert_eq!(rounds.get(round).map(Vec::as_slice).unwrap_or_default(), calls, "{kind}: {round} {rounds:?}");
        }
        for round in ["round_b", "round_e", "round_h"] {
            assert!(!rounds.contains_key(round), "{kind}: {rounds:?}");
        }
    }
}

/// A filter for one function of ten thousand is in force within 50 ms, on a machine that has nothing else to do. The first one, for which
/// functions are looked up, may not need more time of processors than that; of the others some are in time also where others have the
/// processors.
#[test]
fn one_function_of_ten_thousand_is_chosen_soon() {
    const FILTERS: usize = 100;
    const IN_TIME: Duration = Duration::from_millis(50);
    /// Unoptimised code needs 14 times as long in the program.
    const FIRST_IN_TIME: Duration = if cfg!(debug_assertions) { Duration::from_millis(300) } else { IN_TIME };

    if !require(&["gcc"]) {
        return;
    }
    let (plain, hooked) = (gcc("many.c", &[]), gcc("many.c", &["-pg"]));
    let kinds: [(&str, &Program, &[&str], bool); 5] = [
        ("calls", &hooked, &[], false),
        ("patched", &hooked, &["--patched"], false),
        ("branches", &plain, &["-P", "*"], false),
        ("calls, attached", &hooked, &[], true),
        ("branches, attached", &plain, &["-P", "*"], true),
    ];
    for (kind, program, options, is_attached) in kinds {
        let mut it = match is_attached {
            true => Controlled::attached_to(program, options, &[], None),
            false => Controlled::of(program, options, &[]),
        };
        if !is_attached {
            it.wait_until_ready();
        }
        let mut times = Vec::new();
        let mut first = Duration::MAX;
        for number in 0..FILTERS {
            let name = format!("f{:04}", 97 * number);
            let before = time_run(&it);
            times.push(choose(&it, &name));
            if number == 0 {
                first = time_run(&it).saturating_sub(before);
            }
            if number % 20 == 0 {
                it.round('a');
            }
            if number >= 20 && times[1..].iter().any(|time| *time < IN_TIME) {
                break;
            }
        }
        let best = times[1..].iter().min().unwrap();
        println!("{kind}: the first one {:?}, of which {first:?} of processors; then {best:?} at best", times[0]);
        assert!((Duration::from_micros(1)..FIRST_IN_TIME).contains(&first), "{kind}: the first one has run {first:?}");
        assert!(*best < IN_TIME, "{kind}: {times:?}");
        it.end();
        let mut called: Vec<(String, u64)> =
            traces::calls_per_task(&traces::open(&it.trace())).into_iter().flatten().collect();
        called.retain(|(name, _)| name.starts_with('f'));
        let chosen = (0..times.len()).step_by(20).map(|number| (format!("f{:04}", 97 * number), 1));
        assert_eq!(called, chosen.collect::<Vec<_>>(), "{kind}");
    }
}

/// How long the recorder takes to have one function alone recorded, without the time that a process of `rftrace ctl` needs to start.
fn choose(it: &Controlled, name: &str) -> Duration {
    let socket = it.folder.path().join(format!("rftrace/{}.sock", it.recorder.id()));
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    let since = Instant::now();
    let words = ["filter".to_owned(), format!("include={name}")];
    Request { pid: it.pid, words: words.into() }.write(stream.get_mut()).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().map(|answer| answer.is_ok()), Some(true));
    since.elapsed()
}

/// How long all threads of the recorder and of the program have run that are there.
fn time_run(it: &Controlled) -> Duration {
    let threads =
        [it.recorder.id(), it.pid].into_iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).unwrap());
    // It may have ended meanwhile.
    let times = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("schedstat")).ok());
    times.map(|text| Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())).sum()
}
