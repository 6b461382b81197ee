//! `rftrace record` on aarch64 Linux, in qemu-user: programs end as they would, and have the calls that they have on x86-64. Their traces
//! are read here, on x86-64, by rftrace and uftrace.
//!
//! Not here: programs that trace themselves (`aarch64`).

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_tests::fixtures::aarch64;
use rftrace_tests::{CProgram, Run, require};

use crate::record::{
    self, MODES, build_rust, c_source, calls, check_run, check_rust, counted, cpp_source, replay, rftrace,
};
use crate::streaming;

/// Records a program there. QEMU 7.2 now and then ends with an assertion of its own when threads end: such runs are repeated, counted and printed.
pub(crate) fn record(options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    const TRIES: usize = 5;
    static FAILED_ASSERTIONS: AtomicUsize = AtomicUsize::new(0);

    for _ in 0..TRIES {
        let mut rftrace = aarch64::machine(&aarch64::command_line().join("rftrace"));
        let run = record::record_by(&mut rftrace, options, program, arguments);
        let Some(assertion) = run.stderr.lines().find(|line| line.contains("ERROR:../../")) else { return run };
        let count = FAILED_ASSERTIONS.fetch_add(1, Relaxed) + 1;
        eprintln!("note: run {count} that QEMU ended: {assertion}");
    }
    panic!("QEMU ended each of {TRIES} runs");
}

pub(crate) fn can_record() -> bool {
    aarch64::require_machine() && require(&["gcc", "uftrace"])
}

#[test]
fn programs_in_c() {
    if !can_record() {
        return;
    }
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    let native = c_source().build();
    // qemu makes a fork of a vfork, and does not always survive its main thread.
    let is_tried = |mode| !["vfork", "main_thread_ends"].contains(&mode);
    for &(mode, expected) in MODES.iter().filter(|(mode, _)| is_tried(*mode)) {
        let run = record(&[], &program.path, &[mode]);
        check_run(&run, mode, expected);
        let on_x86_64 = record::record(&[], &native.path, &[mode]);
        assert_eq!(run.stdout, on_x86_64.stdout, "{mode}");
        // The loop that waits for a signal takes as long as it takes.
        if mode != "toggle" {
            assert_eq!(calls(&run), calls(&on_x86_64), "{mode}");
        }
    }
}

/// Code that signs its return addresses and has landing pads, and code that does not.
#[test]
fn programs_in_cpp() {
    if !can_record() || !require(&["g++"]) {
        return;
    }
    let native = record::record(&[], &cpp_source().build().path, &[]);
    for arguments in [["-mbranch-protection=standard"], ["-mbranch-protection=none"]] {
        let program = cpp_source().with(&arguments).with_compilers(aarch64::PREFIX).build();
        let run = record(&[], &program.path, &[]);
        assert_eq!((run.status.code(), &run.stdout), (Some(0), &native.stdout), "{}", run.stderr);
        assert_eq!(counted(&run.path("trace")), counted(&native.path("trace")), "{arguments:?}");
    }
}

#[test]
fn programs_in_rust() {
    if !can_record() {
        return;
    }
    let linker = format!("-Clinker={}gcc", aarch64::PREFIX);
    let program = build_rust(&["--target", aarch64::TARGET, &linker]);
    check_rust(|mode| record(&[], &program, &[mode]));
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
fn what_is_recorded_can_be_chosen() {
    if !can_record() {
        return;
    }
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    let native = c_source().build();
    let options: [&[&str]; 4] = [&["-F", "leaf", "--ring"], &["-N", "leaf", "--stop"], &["-D", "2"], &["--disabled"]];
    for options in options {
        let (run, on_x86_64) =
            (record(options, &program.path, &["fork"]), record::record(options, &native.path, &["fork"]));
        assert_eq!(run.status.code(), on_x86_64.status.code(), "{options:?}: {}", run.stderr);
        if options[0] == "--disabled" {
            assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
        } else {
            assert_eq!(calls(&run), calls(&on_x86_64), "{options:?}: {}", run.stderr);
        }
    }
    let run = record(&[], &program.path, &["snapshot"]);
    assert!(replay(&run).contains("leaf();"), "{}", run.stderr);
    assert_eq!(record::calls_of(&run.path("trace/snapshot-1")).get("leaf"), Some(&2), "{}", run.stderr);
}

/// Calls of the hook that are NOPs while recording is off: the same is recorded, also where it is switched on by a signal only.
#[test]
fn patched_call_sites() {
    if !can_record() {
        return;
    }
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    for mode in ["plain", "fork_threads", "exec", "toggle"] {
        let expected = MODES.iter().find(|(name, _)| *name == mode).expect("a mode").1;
        let run = record(&["--patched"], &program.path, &[mode]);
        check_run(&run, mode, expected);
        if mode != "toggle" {
            assert_eq!(calls(&run), calls(&record(&[], &program.path, &[mode])), "{mode}");
        }
    }
    let run = record(&["--patched", "-F", "leaf"], &program.path, &["fork"]);
    assert_eq!(calls(&run).keys().collect::<Vec<_>>(), ["leaf"], "{}", run.stderr);
}

/// Functions with room for a branch, recorded without a word as those that call the hook are.
#[test]
fn patched_entries() {
    const ROOM: [&str; 2] = ["-fpatchable-function-entry=2", "-mbranch-protection=standard"];

    if !can_record() || !require(&["g++"]) {
        return;
    }
    let program = c_source().without_hooks().with(&ROOM).with_compilers(aarch64::PREFIX).build();
    let native = c_source().without_hooks().with(&["-fpatchable-function-entry=5"]).build();
    for mode in ["plain", "fork_threads", "exec", "exec_in_a_child", "toggle"] {
        let Some((mode, expected)) = MODES.iter().find(|(name, _)| *name == mode) else { continue };
        let run = record(&[], &program.path, &[mode]);
        check_run(&run, mode, *expected);
        if *mode != "toggle" {
            assert_eq!(calls(&run), calls(&record::record(&[], &native.path, &[mode])), "{mode}");
        }
    }
    let run = record(&["-F", "leaf"], &program.path, &["fork"]);
    assert_eq!(calls(&run).keys().collect::<Vec<_>>(), ["leaf"], "{}", run.stderr);
    let throwing = cpp_source().without_hooks().with(&ROOM).with_compilers(aarch64::PREFIX).build();
    let native =
        record::record(&[], &cpp_source().without_hooks().with(&["-fpatchable-function-entry=5"]).build().path, &[]);
    let run = record(&[], &throwing.path, &[]);
    assert_eq!((run.status.code(), &run.stdout), (Some(0), &native.stdout), "{}", run.stderr);
    assert_eq!(counted(&run.path("trace")), counted(&native.path("trace")));
    let linker = format!("-Clinker={}gcc", aarch64::PREFIX);
    let flags = ["--target", aarch64::TARGET, &linker, "-Zinstrument-mcount=no", "-Zpatchable-function-entry=2"];
    let program = build_rust(&flags);
    check_rust(|mode| record(&[], &program, &[mode]));
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
        assert!(run.stderr.contains("is for x86-64, and this rftrace is for aarch64"), "{options:?}: {}", run.stderr);
    }
    let without = CProgram::new(&["recorded.c"]).without_hooks().with_compilers(aarch64::PREFIX);
    let run = record(&[], &without.with(&["-O1", "-Wno-infinite-recursion"]).build().path, &["plain"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        run.stderr.contains("calls of `_mcount`") && run.stderr.contains("functions: -P '*'; only what it calls"),
        "{}",
        run.stderr
    );
    // Each rftrace records programs for its own processor.
    let native = record(&[], &c_source().build().path, &["plain"]);
    assert!(
        native.stderr.contains("is a program for x86-64, and this rftrace records those for aarch64"),
        "{}",
        native.stderr
    );
    let foreign = record::record(&[], &program.path, &["plain"]);
    assert!(foreign.stderr.contains("a rftrace that is built for aarch64 records it"), "{}", foreign.stderr);
    let mut cargo = Command::new(rftrace().with_file_name("cargo-rftrace"));
    let refused = Run::of_any(cargo.args(["rftrace", "run", "--target", aarch64::TARGET]));
    assert!(refused.stderr.contains("are recorded by a rftrace that is built for aarch64"), "{}", refused.stderr);
}
