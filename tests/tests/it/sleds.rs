//! XRay's sleds: programs by clang whose functions are recorded at them, without LLVM's runtime.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use rftrace_tests::traces::edges_where;
use rftrace_tests::{CProgram, Program, require};

use super::entry_branches::{COUNTS, c_program, check_calls, check_each_instruction, recorded};
use super::record::{calls, record_by, rftrace};

/// All functions have sleds.
const XRAY: [&str; 2] = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
const WITHOUT_RUNTIME: &str = "-fnoxray-link-deps";

fn clang(source: &str, arguments: &[&str]) -> Program {
    let program = CProgram::new(&[source]).without_hooks().by_clang();
    program.with(&["-O2", "-Wno-unknown-attributes", "-lpthread"]).with(&XRAY).with(arguments).build()
}

#[test]
fn each_call_is_counted() {
    if !require(&["clang"]) {
        return;
    }
    for arguments in [&[WITHOUT_RUNTIME][..], &[WITHOUT_RUNTIME, "-no-pie", "-fno-pie"], &[]] {
        // With the last one LLVM's runtime is in the program, and does nothing.
        let program = clang("entered.c", arguments);
        let run = recorded(&[], &program.path, &[]);
        assert_eq!(run.status.code(), Some(7), "{arguments:?}");
        let counts = COUNTS.map(|(name, n)| (name, if name == "modest" { 0 } else { n }));
        check_calls(&run, &counts);
        assert!(run.stderr.contains("functions have entry branches\n"), "{}", run.stderr);
    }
}

/// Exceptions, jumps out of functions and deep recursion: what has no exit ends with what follows, and calls are below their callers.
#[test]
fn exits_that_are_skipped_end() {
    if !require(&["clang++"]) {
        return;
    }
    let program = clang("sleds.cpp", &[WITHOUT_RUNTIME]);
    let run = recorded(&[], &program.path, &[]);
    assert_eq!(run.status.code(), Some(7));
    let counts = [
        ("main", 1),
        ("work", 2),
        ("catcher", 500),
        ("middle", 500),
        ("thrower", 500),
        ("leaf", 1103),
        ("jumps", 100),
        ("jumper", 600),
        ("tail", 500),
        ("tail_target", 500),
        ("deep", 401),
        ("handler", 3),
    ];
    check_calls(&run, &counts);
    let outline = edges_where(&run.trace("trace"), |name| Some(name));
    let below = |function: &str| outline.iter().filter(|((_, inner), _)| inner == function).collect::<BTreeMap<_, _>>();
    let edge = |outer: &str, inner: &str| outline.get(&(outer.into(), inner.into())).copied().unwrap_or(0);
    assert_eq!(edge("main", "catcher") + edge("work", "catcher"), 500, "{:?}", below("catcher"));
    assert_eq!((edge("thrower", "leaf"), edge("catcher", "leaf")), (500, 500), "{:?}", below("leaf"));
    assert_eq!((edge("jumps", "leaf"), edge("main", "jumps")), (100, 100), "{outline:?}");
    assert_eq!((edge("jumps", "jumper"), edge("jumper", "jumper")), (100, 500), "{:?}", below("jumper"));
    // A jump to another function has told of the end of this one.
    assert_eq!(edge("main", "tail_target") + edge("work", "tail_target"), 500, "{:?}", below("tail_target"));
    assert_eq!((edge("main", "deep"), edge("deep", "deep"), edge("main", "leaf")), (1, 400, 3), "{outline:?}");
}

#[test]
fn filters_and_patterns_choose() {
    if !require(&["clang", "clang++"]) {
        return;
    }
    let program = clang("entered.c", &[WITHOUT_RUNTIME]);
    let run = recorded(&["-F", "middle", "-N", "work"], &program.path, &[]);
    check_calls(&run, &[("main", 0), ("leaf", 200), ("middle", 100), ("tail", 0)]);
    let run = recorded(&["-D", "2", "--rules", "exclude=leaf"], &program.path, &[]);
    check_calls(&run, &[("main", 1), ("leaf", 0), ("middle", 4100), ("work", 4), ("down", 1), ("up", 0)]);
    // Short calls are taken back, at the sled where they end too.
    let run = recorded(&["-t", "10s"], &program.path, &[]);
    assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
    // Patterns are for these functions too, and for those that have no sleds.
    let run = recorded(&["-P", "mid*", "-P", "modest"], &program.path, &[]);
    check_calls(&run, &[("main", 0), ("leaf", 0), ("middle", 4100), ("modest", 3000)]);
    // The slow paths: a buffer that is full all the time.
    for source in ["entered.c", "sleds.cpp"] {
        let run = recorded(&["--ring", "--buffer", "64K"], &clang(source, &[WITHOUT_RUNTIME]).path, &[]);
        assert!(run.stderr.contains("keeps the end"), "{}", run.stderr);
    }
}

/// Registers are what they are without, at the beginning and the end of a function; in a table that is not clang's.
#[test]
fn registers_stay() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-DSLEDS"][..], &["-DSLEDS", "-no-pie", "-fno-pie"]] {
        let program = c_program("entered.c", arguments);
        check_calls(&recorded(&[], &program.path, &[]), &[("modest", 3000), ("leaf", 0)]);
        // By slow paths alone, which save what they use.
        check_calls(&recorded(&["-F", "modest"], &program.path, &[]), &[("modest", 3000), ("leaf", 0)]);
        check_calls(&recorded(&["-P", "*"], &program.path, &[]), &COUNTS);
    }
}

#[test]
fn backtraces_pass_at_each_instruction() {
    if !require(&["clang"]) {
        return;
    }
    check_each_instruction(&clang("entered_steps.c", &[WITHOUT_RUNTIME]));
}

/// One source by all kinds of hooks.
#[test]
fn all_hooks_count_the_same() {
    if !require(&["gcc", "clang"]) {
        return;
    }
    // Compilers differ in what they inline and call by jumps: without optimisation they do not.
    let plain = ["-O0", "-lpthread"];
    let gcc = |arguments: &[&str]| {
        CProgram::new(&["entered.c"]).without_hooks().without_library().with(&plain).with(arguments).build()
    };
    let xray = CProgram::new(&["entered.c"]).without_hooks().by_clang().with(&plain).with(&XRAY);
    let ways: [(&str, Program, &[&str]); 7] = [
        ("mcount", gcc(&["-pg"]), &[]),
        ("mcount, patched", gcc(&["-pg"]), &["--patched"]),
        ("fentry", gcc(&["-pg", "-mfentry"]), &[]),
        ("patchable", gcc(&["-fpatchable-function-entry=5"]), &[]),
        ("entry branches", gcc(&[]), &["-P", "*"]),
        ("XRay", xray.with(&["-Wno-unknown-attributes", WITHOUT_RUNTIME]).build(), &[]),
        (
            "clang, entry branches",
            CProgram::new(&["entered.c"]).without_hooks().by_clang().with(&plain).build(),
            &["-P", "*"],
        ),
    ];
    let counts = ways.map(|(name, program, options)| {
        let run = recorded(options, &program.path, &[]);
        let mut calls = calls(&run);
        // Functions that have no source, or assembly that only some hooks can be in.
        let names: Vec<&str> = COUNTS.iter().map(|&(name, _)| name).collect();
        calls.retain(|called, _| {
            names.contains(&called.as_str()) && !["modest", "looping", "jumped_into"].contains(&called.as_str())
        });
        (name, calls)
    });
    let (_, first) = &counts[0];
    assert_eq!(first.len(), COUNTS.len() - 2, "{first:?}");
    for (name, calls) in &counts {
        assert_eq!(calls, first, "{name}");
    }
}

/// Code changed by somebody else is left alone: LLVM's runtime, if it is told to trace.
#[test]
fn the_runtime_of_llvm_goes_first() {
    if !require(&["clang"]) {
        return;
    }
    let program = clang("entered.c", &[]);
    let folder = tempfile::tempdir().unwrap();
    let log = format!(
        "patch_premain=true xray_mode=xray-basic verbosity=0 xray_logfile_base={}/log",
        folder.path().display()
    );
    let run = record_by(Command::new(rftrace()).env("XRAY_OPTIONS", log), &["--force"], &program.path, &[]);
    assert_eq!(run.status.code(), Some(7), "{}", run.stderr);
    assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
    // The list says why, and gives way to the next trace.
    let list = fs::read_to_string(run.path("trace/entry-branches.txt")).unwrap();
    assert!(list.lines().any(|line| line.contains("\tmain\t") && line.ends_with("changed by somebody else")), "{list}");
    let mut again = Command::new(rftrace());
    again.args(["record", "-o", "trace", "--"]).arg(&program.path).current_dir(run.path(""));
    assert_eq!(again.output().unwrap().status.code(), Some(7));
    assert!(run.path("trace/info").exists() && run.path("trace.old/entry-branches.txt").exists());
}
