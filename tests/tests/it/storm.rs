//! Timers strike several threads every few microseconds while they call, throw, jump and switch stacks.

use std::collections::BTreeMap;
use std::env;

use rftrace_tests::traces::calls_per_task;
use rftrace_tests::{CProgram, require};

use crate::control_flow::edges;

/// How long each of the eight runs lasts at most, if that is set.
const SECONDS: &str = "RFTRACE_STORM_SECONDS";

const BUILDS: [&[&str]; 2] = [&["-O1"], &["-O2", "-mfentry"]];

fn seconds() -> String {
    env::var(SECONDS).unwrap_or_else(|_| "1".to_owned())
}

#[test]
fn no_call_is_lost_or_misplaced() {
    if !require(&["g++"]) {
        return;
    }
    // Enough for what three threads make until the time is over.
    let n_events = if seconds() == "1" { "4000000" } else { "40000000" };
    for arguments in BUILDS {
        let program = CProgram::new(&["storm.cpp"]).with(arguments).build();
        for (microseconds, mode) in [("50", &["stop"][..]), ("20", &["stop", "alternate"])] {
            let what = format!("{arguments:?} {microseconds} {mode:?}");
            let seconds = seconds();
            let run = program.run(&[&[seconds.as_str(), microseconds, n_events], mode].concat());
            let (rounds, strikes) = numbers(&run.stdout);
            println!("{what}: {rounds} rounds, {strikes} strikes");
            assert!(strikes > 50, "{what}: {strikes} signals are too few to show anything");
            let trace = run.trace("trace");
            let mut calls: BTreeMap<String, u64> = BTreeMap::new();
            for (name, n) in calls_per_task(&trace).into_iter().flatten() {
                *calls.entry(name).or_default() += n;
            }
            // A handler that strikes when a coroutine has been left makes `resume` count twice.
            let resumed = calls.remove("resume").unwrap_or_default();
            assert!((2 * rounds..=2 * rounds + strikes).contains(&resumed), "{what}: {resumed} times resumed");
            let expected = [
                ("one_round", rounds),
                ("recurse", 9 * rounds),
                ("leaf", 6 * rounds),
                ("tail", rounds),
                ("catcher", rounds),
                ("middle", rounds),
                ("thrower", rounds),
                ("jumps", rounds),
                ("jump", 3 * rounds),
                ("body", rounds),
                ("handler", strikes),
                ("handler_leaf", 2 * strikes),
                ("handler_tail", strikes),
            ];
            assert_eq!(calls, expected.map(|(name, n)| (name.to_owned(), n)).into(), "{what}");
            check_callers(&edges(&trace), false, &what);
        }
    }
}

/// Chunks are used again all the time; what is left must make sense.
///
/// On a busy machine handler may follow handler for many milliseconds without the interrupted function's going on: a chunk
/// has to hold more than they make, so the ring is not a small one. `tests/model/tests/ring.rs` has those.
#[test]
fn a_ring_stays_whole() {
    if !require(&["g++"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["storm.cpp"]).with(arguments).build();
        for (microseconds, mode) in [("50", &["ring"][..]), ("20", &["ring", "alternate"])] {
            let what = format!("{arguments:?} {microseconds} {mode:?}");
            let seconds = seconds();
            let run = program.run(&[&[seconds.as_str(), microseconds, "200000"], mode].concat());
            let (rounds, strikes) = numbers(&run.stdout);
            println!("{what}: {rounds} rounds, {strikes} strikes");
            // On a busy machine there are few rounds: mostly the handlers run.
            assert!(rounds > 0 && strikes > 50, "{what}: too little to show anything");
            let edges = edges(&run.trace("trace"));
            assert!(edges.values().sum::<u64>() > 500, "{what}: {edges:?}");
            check_callers(&edges, true, &what);
        }
    }
}

fn numbers(stdout: &str) -> (u64, u64) {
    let (rounds, strikes) = stdout.trim().split_once(' ').expect("two numbers");
    (rounds.parse().unwrap(), strikes.parse().unwrap())
}

/// Each function was called by those that call it. The handler may appear anywhere. In a ring nobody may know any more what
/// was open at its beginning.
fn check_callers(edges: &BTreeMap<(String, String), u64>, in_ring: bool, what: &str) {
    for (caller, callee) in edges.keys() {
        let callers: &[&str] = match callee.as_str() {
            "handler" => continue,
            "handler_leaf" => &["handler", "handler_tail"],
            "handler_tail" => &["handler"],
            "one_round" => &["-"],
            "recurse" => &["one_round", "recurse"],
            "leaf" => &["recurse", "tail", "catcher", "jumps", "body"],
            "tail" | "catcher" | "jumps" | "resume" => &["one_round"],
            "middle" => &["catcher"],
            "thrower" => &["middle"],
            "jump" => &["jumps", "jump"],
            // That of a coroutine that was resumed is a task's.
            "body" => &["resume", "-"],
            other => panic!("{what}: what is {other}?"),
        };
        let is_unknown = in_ring && caller == "-";
        assert!(is_unknown || callers.contains(&caller.as_str()), "{what}: {caller} called {callee} in {edges:?}");
    }
}
