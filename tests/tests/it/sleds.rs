//! XRay's sleds: programs by clang whose functions are recorded at them, without LLVM's runtime.

use std::fs;
use std::process::Command;

use rftrace_tests::{CProgram, Program, require};

use super::entry_branches::{COUNTS, c_program, check_calls, check_each_instruction, recorded};
use super::record::{record_by, rftrace};

/// All functions have sleds.
const XRAY: [&str; 2] = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
const WITHOUT_RUNTIME: &str = "-fnoxray-link-deps";

fn clang(source: &str, arguments: &[&str]) -> Program {
    let program = CProgram::new(&[source]).without_hooks().by_clang();
    program.with(&["-O2", "-Wno-unknown-attributes", "-lpthread"]).with(&XRAY).with(arguments).build()
}

#[test]
fn patterns_choose() {
    if !require(&["clang", "clang++"]) {
        return;
    }
    let program = clang("entered.c", &[WITHOUT_RUNTIME]);
    // Patterns are for these functions too, and for those that have no sleds.
    let run = recorded(&["-P", "mid*", "-P", "modest"], &program.path, &[]);
    check_calls(&run, &[("main", 0), ("leaf", 0), ("middle", 4100), ("modest", 3000)]);
    // The slow paths: a buffer that is full all the time.
    let run = recorded(&["--ring", "--buffer", "64K"], &clang("sleds.cpp", &[WITHOUT_RUNTIME]).path, &[]);
    assert!(run.stderr.contains("has kept only the last calls"), "{}", run.stderr);
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

/// Code that differs from its file is left alone: the runtime of LLVM changes it when it traces.
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
    assert!(
        list.lines().any(|line| line.contains("\tmain\t") && line.ends_with("its code differs from its file")),
        "{list}"
    );
    let mut again = Command::new(rftrace());
    again.args(["record", "-o", "trace", "--"]).arg(&program.path).current_dir(run.path(""));
    assert_eq!(again.output().unwrap().status.code(), Some(7));
    assert!(run.path("trace/info").exists() && run.path("trace.old/entry-branches.txt").exists());
}
