//! Signals that strike the tracer itself. More control flow is in the conformance suite.

use std::collections::BTreeMap;

use rftrace_read::Trace;
use rftrace_tests::traces::trees;
use rftrace_tests::{CProgram, require};
use rftrace_views::Call;

/// How often each function was called by each other; by `-` at the outermost level.
pub(crate) fn edges(trace: &Trace) -> BTreeMap<(String, String), u64> {
    let mut edges = BTreeMap::new();
    for tree in trees(trace) {
        let mut open: Vec<&Call> = Vec::new();
        for (depth, call) in tree.calls() {
            open.truncate(depth);
            let caller = open.last().map_or("-", |caller| &caller.name);
            *edges.entry((caller.to_owned(), call.name.clone())).or_default() += 1;
            open.push(call);
        }
    }
    edges
}

pub(crate) fn edge(edges: &BTreeMap<(String, String), u64>, caller: &str, callee: &str) -> u64 {
    edges.get(&(caller.to_owned(), callee.to_owned())).copied().unwrap_or(0)
}

/// A ring of the smallest chunks: every 28 events a slow path fetches the next one, which the handler also strikes.
#[test]
fn a_traced_signal_handler_may_strike_amid_slow_paths() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-mfentry"]] {
        for stack in [None, Some("alternate")] {
            let mut command = vec!["2000", "900", "ring"];
            command.extend(stack);
            let run = CProgram::new(&["signals.c"]).with(arguments).build().run(&command);
            assert!(run.stdout.trim().parse::<u64>().unwrap() > 50, "too few signals to show anything");
            let edges = edges(&run.trace("trace"));
            assert!(edge(&edges, "fib", "fib") > 300, "{arguments:?} {stack:?}: {edges:?}");
            for (caller, callee) in edges.keys() {
                let callers: &[&str] = match callee.as_str() {
                    "fib" => &["-", "fib"],
                    "tail1" => &["-"],
                    "tail2" => &["tail1"],
                    "leaf" => &["tail2", "two_leaves"],
                    "two_leaves" => &["handler"],
                    "handler" => &["-", "fib", "tail1", "tail2", "leaf"],
                    other => panic!("{arguments:?} {stack:?}: what is {other}?"),
                };
                assert!(callers.contains(&caller.as_str()), "{arguments:?} {stack:?}: {caller} called {callee}");
            }
        }
    }
}

/// The tracer reads no frame of which it only remembers that it was there.
#[test]
fn a_stack_that_is_gone_is_not_read() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O2", "-mfentry"]] {
        let program = CProgram::new(&["unmapped.c"]).with(arguments).build();
        for (how, n_leaves) in [("near", 1), ("named", 1), ("left", 2)] {
            let run = program.run(&[how]);
            assert_eq!(run.stdout, format!("{n_leaves}\n"), "{arguments:?} {how}");
            let edges = edges(&run.trace("trace"));
            let n_called = |callee| edges.iter().filter(|((_, name), _)| name == callee).map(|(_, n)| n).sum::<u64>();
            // The caller of the second leaf is a guess: the frame pointer names a frame that was given up.
            assert_eq!([n_called("run"), n_called("leaf")], [1, n_leaves], "{edges:?}");
        }
    }
}

/// A slow path that a handler has left for good does not keep others from their work.
#[test]
fn a_handler_may_jump_far_out_of_a_slow_path() {
    if !require(&["gcc"]) {
        return;
    }
    // With frame pointers: else the search for the caller takes ten thousands of instructions.
    for arguments in [&["-O1"][..], &["-O2", "-mfentry", "-fno-omit-frame-pointer"]] {
        let run = CProgram::new(&["escapes.c"]).with(arguments).build().run(&[]);
        let n_rounds: u64 = run.stdout.trim().parse().unwrap();
        assert!(n_rounds > 20, "{arguments:?}: {n_rounds} strikes are too few to show anything");
        let mut edges = edges(&run.trace("trace"));
        // It was struck before its entry was recorded, or after that.
        edges.remove(&("middle".to_owned(), "inner".to_owned()));
        let expected = [
            (("-", "outer"), n_rounds),
            (("jump", "jump"), 6 * n_rounds),
            (("outer", "jump"), 3 * n_rounds),
            (("outer", "leaf"), 3 * n_rounds),
            (("outer", "middle"), n_rounds),
        ];
        let expected = expected.map(|((caller, callee), n)| ((caller.to_owned(), callee.to_owned()), n));
        assert_eq!(edges, expected.into(), "{arguments:?}");
    }
}
