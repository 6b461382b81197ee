//! Many Rust threads, each with its exact calls. Those in C are in the conformance suite.

use std::collections::BTreeMap;

use rftrace_tests::traces::calls_per_task;
use rftrace_tests::{CProgram, Profile, Program, require, rust_program};

/// Runs a fixture `threads <number> <at once> <calls of each> <events>` and compares every thread's calls.
fn check(program: &Program, prefix: &str, [n_threads, at_once, n_calls, n_events]: [u64; 4]) {
    let arguments = [n_threads, at_once, n_calls, n_events].map(|number| number.to_string());
    let run = program.run(&arguments.each_ref().map(String::as_str));
    let trace = run.trace("trace");
    let expected = BTreeMap::from([("worker", 1), ("outer", n_calls), ("inner", n_calls)]);
    let mut n_workers = 0;
    for calls in calls_per_task(&trace) {
        // In Rust there are functions of std, and closures of main.
        let own = calls.iter().filter_map(|(name, &count)| Some((name.strip_prefix(prefix)?, count)));
        let own: BTreeMap<&str, u64> = own.filter(|(name, _)| !name.starts_with("main::")).collect();
        if own.contains_key("worker") {
            assert_eq!(own, expected);
            n_workers += 1;
        } else {
            assert!(own.is_empty() && !prefix.is_empty(), "a thread with other functions: {calls:?}");
        }
    }
    assert_eq!(n_workers, n_threads, "threads in the trace");
}

#[test]
fn eight_rust_threads() {
    if !require(&["nightly"]) {
        return;
    }
    // Unoptimised, each call comes with some of core's.
    check(&rust_program("threads", Profile::Debug), "threads::", [8, 8, 10_000, 2_000_000]);
    check(&rust_program("threads", Profile::Release), "threads::", [8, 8, 10_000, 400_000]);
}

#[test]
fn two_thousand_rust_threads() {
    if !require(&["nightly"]) {
        return;
    }
    let program = rust_program("threads", Profile::Release);
    check(&program, "threads::", [2_000, 1, 2, 200_000]);
    check(&program, "threads::", [2_000, 16, 2, 200_000]);
}

/// In single steps: the slow path takes some hundred.
#[test]
fn a_thread_that_is_not_traced_pays_little() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-mfentry"]] {
        let program = CProgram::new(&["untraced.c"]).with(arguments).build();
        let output = program.run(&[]).stdout;
        let steps: Vec<u32> = output.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!(steps.len(), 2);
        assert!(steps.iter().all(|steps| (10..40).contains(steps)), "{arguments:?}: plain and filtered {steps:?}");
    }
}
