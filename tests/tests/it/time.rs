//! Durations.

use std::path::Path;

use rftrace_tests::traces::{trees, uftrace};
use rftrace_tests::{CProgram, Profile, Run, require, rust_program};

const NAP_NS: std::ops::Range<u64> = 50_000_000..60_000_000;

fn check(run: &Run, function: &str) {
    let trace = run.trace("trace");
    let trees = trees(&trace);
    let nap = trees[0].calls().find(|(_, call)| call.name == function).expect("the function is in the trace").1;
    let duration_ns = nap.duration_ns().expect("it has both ends");
    assert!(NAP_NS.contains(&duration_ns), "50 ms take {duration_ns} ns");
    if require(&["uftrace"]) {
        let milliseconds = reported_ms(&run.path("trace"), function);
        assert!((50.0..60.0).contains(&milliseconds), "uftrace says that 50 ms take {milliseconds} ms");
    }
}

/// A function's total time as `uftrace report` prints it.
fn reported_ms(dir: &Path, function: &str) -> f64 {
    let report = uftrace(&["report"], dir);
    let line = report.lines().find(|line| line.ends_with(&format!(" {function}")));
    let line = line.unwrap_or_else(|| panic!("{function} is not in the report:\n{report}"));
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[1], "ms", "{line}");
    fields[0].parse().expect("a number of milliseconds")
}

#[test]
fn a_c_program_sleeps_for_50_ms() {
    if require(&["gcc"]) {
        check(&CProgram::new(&["nap.c"]).build().run(&[]), "nap");
    }
}

#[test]
fn a_rust_program_sleeps_for_50_ms() {
    if require(&["nightly"]) {
        for profile in Profile::ALL {
            check(&rust_program("nap", profile).run(&[]), "nap::nap");
        }
    }
}
