//! `rftrace record` on aarch64 Linux, in qemu-user: programs end as they would, and have the calls that they have on x86-64. Their traces
//! are read here, on x86-64, by rftrace and uftrace.
//!
//! Not here: programs that trace themselves (`aarch64`).

use std::process::Command;

use rftrace_tests::fixtures::aarch64;
use rftrace_tests::{CProgram, Run, require};

use crate::record::{self, c_source, calls, replay, rftrace};
use crate::streaming;

pub(crate) use rftrace_tests::recorder::aarch64_recorder as record;

pub(crate) fn can_record() -> bool {
    aarch64::require_machine() && require(&["gcc", "uftrace"])
}

/// Nothing is lost however a program ends. The buffer is large, as an emulated recorder may not get to it for a second.
#[test]
fn all_is_there_however_it_ends() {
    const N: u64 = 20_000;

    if !can_record() {
        return;
    }
    let program = streaming::source().with_compilers(aarch64::PREFIX).build();
    for (way, rounds) in [("kill", 1), ("raw_exit", 1), ("fork", 2), ("seccomp", 1), ("no_exec", 2), ("threads", 5)] {
        let run = record(&["--buffer", "64M"], &program.path, &[&N.to_string(), way]);
        assert_eq!(run.status.code(), streaming::untraced(N, way), "{way}: {}", run.stderr);
        let calls = calls(&run);
        assert_eq!([calls["leaf"], calls["middle"]], [2 * rounds * N, rounds * N], "{way}: {}", run.stderr);
    }
}

#[test]
fn a_snapshot_is_a_trace() {
    if !can_record() {
        return;
    }
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    let run = record(&[], &program.path, &["snapshot"]);
    assert!(replay(&run).contains("leaf();"), "{}", run.stderr);
    assert_eq!(record::calls_of(&run.path("trace/snapshot-1")).get("leaf"), Some(&2), "{}", run.stderr);
}

#[test]
fn what_is_not_there_is_said() {
    if !can_record() {
        return;
    }
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    let options: [&[&str]; 2] = [&["--resources", "memory"], &["--trigger", "leaf"]];
    for options in options {
        let run = record(options, &program.path, &["plain"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{options:?}: {}", run.stderr);
        assert!(
            run.stderr.contains("works only on x86-64, and this rftrace is for aarch64"),
            "{options:?}: {}",
            run.stderr
        );
    }
    let without = CProgram::new(&["recorded.c"]).without_hooks().with_compilers(aarch64::PREFIX);
    let run = record(&[], &without.with(&["-O1", "-Wno-infinite-recursion"]).build().path, &["plain"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        run.stderr.contains("calls of `_mcount`") && run.stderr.contains("functions: -P '*'; only its calls"),
        "{}",
        run.stderr
    );
    // Each rftrace records programs for its own processor.
    let native = record(&[], &c_source().build().path, &["plain"]);
    assert!(
        native.stderr.contains("is a program for x86-64, and this rftrace records programs for aarch64"),
        "{}",
        native.stderr
    );
    let foreign = record::record(&[], &program.path, &["plain"]);
    assert!(foreign.stderr.contains("use an rftrace built for aarch64"), "{}", foreign.stderr);
    let mut cargo = Command::new(rftrace().with_file_name("cargo-rftrace"));
    let refused = Run::of_any(cargo.args(["rftrace", "run", "--target", aarch64::TARGET]));
    assert!(refused.stderr.contains("they need an rftrace for aarch64"), "{}", refused.stderr);
}
