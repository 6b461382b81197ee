//! Calls beyond what the tracer follows.

use std::collections::BTreeMap;

use rftrace::abi::RETURN_STACK_ENTRIES as DEEPEST;
use rftrace_read::Kind;
use rftrace_tests::traces::{trees, uftrace};
use rftrace_tests::{CProgram, Run, require};
use serde_json::Value;

fn run(arguments: &[&str]) -> Run {
    let run = CProgram::new(&["deep.c"]).with(arguments).build().run(&[]);
    // 1 + 2 + … + 5000, and nothing of what follows.
    assert_eq!(run.stdout, "12502500\n", "{arguments:?}");
    run
}

#[test]
fn deep_calls_are_counted() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O0"][..], &["-O2"], &["-O2", "-mfentry"]] {
        let run = run(arguments);
        // Optimised, the second part is made of tail calls only, which need no stack but have returns to record.
        let (n_ping, n_pong) = (DEEPEST.div_ceil(2), DEEPEST / 2);
        for (name, functions) in [
            ("trace", &[("dive", DEEPEST), ("after", 1)][..]),
            ("tail", &[("ping", n_ping), ("pong", n_pong), ("after", 1)]),
        ] {
            let trace = run.trace(name);
            let [tree] = &trees(&trace)[..] else { panic!("one task is expected") };
            let expected: BTreeMap<String, u64> =
                functions.iter().map(|&(name, count)| (name.to_owned(), count as u64)).collect();
            assert_eq!(tree.calls_per_function(), expected, "{arguments:?} {name}");
            let deepest = tree.calls().map(|(depth, _)| depth).max();
            assert_eq!(deepest, Some(DEEPEST - 1), "{arguments:?} {name}");
            assert_eq!(tree.roots.len(), 2, "{arguments:?} {name}");
            let lost: Vec<String> = trace
                .records(&trace.tasks()[0])
                .map(Result::unwrap)
                .filter(|record| record.kind == Kind::Event)
                .map(|record| trace.events().name(record.addr).into_owned())
                .collect();
            let n_calls = if name == "trace" { 5_000 } else { 5_001 };
            assert_eq!(lost, [format!("rftrace:lost_{}_calls", n_calls - DEEPEST)], "{arguments:?} {name}");
        }
    }
}

#[test]
fn uftrace_shows_what_was_lost() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = run(&["-O1"]);
    let replay = uftrace(&["replay"], &run.path("trace"));
    assert_eq!(replay.matches(&format!("rftrace:lost_{}_calls", 5_000 - DEEPEST)).count(), 1);
    assert_eq!(replay.matches("dive()").count(), DEEPEST, "all recorded calls are shown");
    assert!(replay.contains("after()"), "what comes behind the loss is shown");
    let chrome: Value = serde_json::from_str(&uftrace(&["dump", "--chrome"], &run.path("trace"))).unwrap();
    assert!(chrome["traceEvents"].as_array().is_some_and(|events| events.len() > 2 * DEEPEST));
}
