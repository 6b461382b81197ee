//! Several recordings in one process; recording switched off and on in the middle of things; snapshots.

use std::collections::BTreeMap;
use std::fs;

use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{CProgram, Profile, assert_same_lines, outline, outline_of, require, rust_program};
use rftrace_views::CallTree;

/// The calls of the functions `work0` to `work4`, of which each calls the one before.
fn work(number: usize) -> String {
    (0..=number).rev().enumerate().map(|(depth, number)| format!("{:1$}work{number}\n", "", 2 * depth)).collect()
}

#[test]
fn a_c_trace_holds_only_its_own_cycle() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O0"][..], &["-O2", "-mfentry"]] {
        let program = CProgram::new(&["cycles.c"]).with(arguments).build();
        for n_cycles in [2, 5] {
            let run = program.run(&[&n_cycles.to_string()]);
            for cycle in 0..n_cycles {
                let trace = run.trace(&format!("trace{cycle}"));
                let outlines: Vec<String> = trees(&trace).iter().map(|tree| outline_of_tree(tree, "")).collect();
                assert_eq!(outlines, [work(cycle), work(cycle)], "{arguments:?}, cycle {cycle} of {n_cycles}");
            }
            // A function that is open across saves is in all of them.
            let across = |number: usize| outline(&run.trace(&format!("trace{}", n_cycles + number)));
            assert_eq!(across(0), "across\n  work0\n");
            assert_eq!(across(1), "across\n  work1\n    work0\n");
            assert_eq!(across(2), format!("across\n{}", work(2)));
        }
    }
}

#[test]
fn a_rust_trace_holds_only_its_own_cycle() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("cycles", profile).run(&[]);
        for cycle in 0..5 {
            let text = outline_of(&run.trace(&format!("trace{cycle}")), "cycles::");
            assert_eq!(text, work(cycle), "{profile:?}");
        }
        // A guard ends recording only if it began it: the second `guarded` is called while recording is off.
        let expected = "guarded\n  work1\n    work0\nwork0\nwork1\n  work0\n";
        let guards = run.trace("guards");
        assert_eq!(outline_of(&guards, "cycles::"), expected, "{profile:?}");
        // The records alone were saved before, and kept for the trace. They include the tracer's own, which it leaves out.
        let counts: Vec<u64> = run.stdout.split_whitespace().map(|count| count.parse().unwrap()).collect();
        let [records, saved] = counts[..] else { panic!("{}", run.stdout) };
        assert_eq!(fs::metadata(run.path("records")).unwrap().len(), 16 * records, "{profile:?}");
        assert!(saved >= 2 * expected.lines().count() as u64 && records >= saved, "{profile:?}: {records}, {saved}");
    }
}

#[test]
fn recording_switched_at_random_shows_what_it_must() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O0"][..], &["-O2", "-mfentry"]] {
        let program = CProgram::new(&["toggle.c"]).with(arguments).build();
        for seed in 1..=20 {
            let run = program.run(&[&seed.to_string(), "1000000", "0"]);
            assert!(run.stdout.lines().count() > 300, "{arguments:?}, seed {seed}: the program does little");
            let what = format!("{arguments:?}, seed {seed}");
            assert_same_lines(&outline(&run.trace("trace")), &run.stdout, &what);
        }
    }
}

/// Switching takes the slow paths, and so does a small ring.
#[test]
fn recording_switched_at_random_in_a_ring_shows_the_end() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["toggle.c"]).with(&["-O1"]).build();
    for seed in 1..=20 {
        let run = program.run(&[&seed.to_string(), "400", "1"]);
        let text = outline(&run.trace("trace"));
        let aligned: Vec<(&str, &str)> = text.lines().rev().zip(run.stdout.lines().rev()).collect();
        let n_equal = aligned.iter().take_while(|(is, must)| is.trim() == must.trim()).count();
        assert!(n_equal > 100, "seed {seed}: {n_equal} lines");
        // Before that come functions that were open at the ring's beginning, at most one for each level.
        let open: Vec<&str> = text.lines().take(text.lines().count() - n_equal).collect();
        assert!(open.len() <= 13, "seed {seed}: {open:?}");
        assert!(open.iter().enumerate().all(|(level, line)| depth(line) == level), "seed {seed}: {open:?}");
        // One that was open and returned while recording was off has no record at all and is not shown.
        let n_hidden: Vec<_> = aligned[..n_equal].iter().rev().map(|(is, must)| depth(must) - depth(is)).collect();
        assert!(n_hidden.is_sorted_by(|a, b| a >= b), "seed {seed}: {n_hidden:?}");
        assert_eq!(n_hidden.last(), Some(&0), "seed {seed}");
    }
}

fn depth(line: &str) -> usize {
    (line.len() - line.trim_start().len()) / 2
}

#[test]
fn snapshots_grow_while_threads_run() {
    if !require(&["nightly"]) {
        return;
    }
    let run = rust_program("snapshot", Profile::Release).run(&[]);
    let mut before: BTreeMap<u32, u64> = BTreeMap::new();
    for name in ["snapshot1", "snapshot2", "snapshot3", "snapshot4", "snapshot5", "last"] {
        let trace = run.trace(name);
        let mut now = BTreeMap::new();
        for tree in trees(&trace) {
            let n_outer = check_snapshot(&tree, name);
            if n_outer > 0 {
                now.insert(tree.tid, n_outer);
            }
        }
        assert_eq!(now.len(), 4, "{name}: threads with calls of outer");
        for (tid, n_before) in before {
            assert!(now[&tid] >= n_before, "{name}: task {tid} has {} calls, {n_before} before", now[&tid]);
        }
        before = now;
    }
    // Recording pauses for snapshots, so calls may be missing; those before the first may not.
    assert!(before.values().all(|&count| count >= 2_000));
}

/// Every `outer` calls `inner` once, unless a pause came in between. Returns how many there are.
fn check_snapshot(tree: &CallTree, name: &str) -> u64 {
    let (mut n_outer, mut n_incomplete) = (0, 0);
    for (_, call) in tree.calls() {
        match call.name.as_str() {
            "snapshot::outer" => {
                n_outer += 1;
                n_incomplete += u64::from(call.children.len() != 1);
                assert!(call.children.iter().all(|child| child.name == "snapshot::inner"), "{name}: {call}");
                assert!(call.children.len() <= 1, "{name}: {call}");
            }
            "snapshot::inner" => assert_eq!(call.children.len(), 0, "{name}: {call}"),
            _ => {}
        }
    }
    assert!(n_incomplete <= 6, "{name}: {n_incomplete} of {n_outer} calls are incomplete");
    n_outer
}
