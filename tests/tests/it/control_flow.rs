//! Signals that strike the tracer itself. More control flow is in the conformance suite.

use std::collections::BTreeMap;

use rftrace_tests::traces::trees;
use rftrace_tests::{CProgram, require};
use rftrace_tools::{Call, Trace};

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
