//! `rftrace record -A -R`: what a replay shows of calls is what the program says that it does, in `rftrace replay` and in uftrace's.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::traces::{self, assert_same_lines, uftrace};
use rftrace_tests::{CProgram, Program, Run, require};

use crate::record::{record, replay, rftrace};

/// Which values are recorded. uftrace understands it too.
pub(crate) const VALUES: [&str; 4] = [
    "-A",
    "add@arg1/i32,arg2/i32;text@arg1/s;mul@fparg1/64,fparg2/32;half@fparg1/32;name@arg1/i32;\
     many@arg1,arg2,arg3,arg4,arg5,arg6,arg7/i32,arg8;low@arg1/i8,arg2/u16;letter@arg1/c;large@arg1/u64;tail@arg1/i32;\
     nested@arg1/i32;echo@arg1/i64,arg2/s",
    "-R",
    "add@retval/i32;text@retval;mul@retval/f64;half@retval/f32;name@retval/s;many@retval/i64;low@retval/u8;\
     letter@retval/c;large@retval/x32;tail@retval/i32;nested@retval/i32;echo@retval/i64",
];

fn built(options: &[&str]) -> Program {
    CProgram::new(&["values.c"]).without_library().with(options).build()
}

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| built(&["-O1"]))
}

/// The calls in a replay, as the program prints them: without what a line begins and ends with, and without functions that have no
/// values.
pub(crate) fn calls(replay: &str) -> String {
    let call = |line: &str| {
        let call = line.trim_start().split(" /* ").next()?.trim_end().trim_end_matches(';').to_owned();
        let has_values = call.contains(") = ") || call.starts_with("} = ") || call.ends_with(" {");
        has_values.then_some(call + "\n")
    };
    replay.lines().filter_map(call).collect()
}

/// Returns the program's output in the form of [`calls`].
pub(crate) fn printed(run: &Run) -> String {
    run.stdout.lines().map(|line| line.trim_end_matches(';').to_owned() + "\n").collect()
}

/// Records with `options` and compares. A call in which a thread has waited for a processor would be shown with braces.
#[track_caller]
pub(crate) fn check(program: &Path, options: &[&str], way: &str) -> Run {
    let run = record(&[options, &["--no-schedule"], &VALUES].concat(), program, &[way]);
    assert_eq!(run.status.code(), Some(0), "{way}: {}", run.stderr);
    let shown = replay(&run);
    assert_same_lines(&calls(&shown), &printed(&run), way);
    let trace = traces::open(&run.path("trace"));
    assert!(trace.warnings().is_empty(), "{}", trace.warnings());
    if require(&["uftrace"]) {
        // Its columns are another view's.
        let theirs = uftrace(&["replay", "-f", "none"], &run.path("trace"));
        assert_same_lines(&calls(&theirs), &printed(&run), "uftrace replay");
    }
    run
}

#[test]
fn values_are_those_that_the_program_prints() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&["-O0"][..], &["-O2"], &["-O2", "-mfentry"]] {
        check(&built(options).path, &[], "values");
    }
}

#[test]
fn values_in_all_modes() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [
        &["--patched"][..],
        &["--ring"],
        // Chunks of a kilobyte: calls do not fit into what is left of one.
        &["--buffer", "64K", "--ring"],
        &["--stream"],
        &["--stream", "--buffer", "64K", "--patched"],
        &["-F", "nested", "-F", "*"],
        &["-t", "1ns"],
    ] {
        check(&program().path, options, "values");
    }
}

/// A function that did not call the tracer; its registers are as at its first instruction.
#[test]
fn values_with_entry_branches() {
    if !require(&["gcc"]) {
        return;
    }
    let program =
        CProgram::new(&["values.c"]).without_library().without_hooks().with(&["-O1", "-falign-functions=16"]).build();
    let run = record(&[&["-P", "text", "--no-schedule"], &VALUES[..]].concat(), &program.path, &["values"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let texts = |lines: &str| -> String {
        lines.lines().filter(|line| line.starts_with("text(")).map(|line| format!("{line}\n")).collect()
    };
    assert_same_lines(&texts(&calls(&replay(&run))), &texts(&printed(&run)), "-P");
}

/// Patterns as for filters, results by `-R` without a spec, rules in text.
#[test]
fn ways_to_say_which() {
    if !require(&["gcc"]) {
        return;
    }
    let options =
        ["--no-schedule", "-A", "/^(tail|nested)$/@arg1/i32", "-R", "ta*", "--rules", "values=add@arg2/x8,retval/u8"];
    let shown = calls(&replay(&record(&options, &program().path, &["plain"])));
    let expected = "tail(41) {\nadd(0x1) = 42\n} = 42\nnested(5) {\nadd(0x5) = 10\n";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn the_same_as_by_uftrace() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = record(&[&["--no-schedule"], &VALUES[..]].concat(), &program().path, &["plain"]);
    let theirs = run.path("theirs");
    let mut uftrace_record = Command::new("uftrace");
    // Context switches would open a call's line.
    uftrace_record.args(["record", "--no-libcall", "--no-event", "-d"]).arg(&theirs);
    let output = uftrace_record.args(VALUES).arg(&program().path).arg("plain").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs = uftrace(&["replay", "-f", "none"], &theirs);
    assert_same_lines(&calls(&replay(&run)), &calls(&theirs), "recorded by uftrace");
}

#[test]
fn signals_while_values_are_recorded() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--stream", "--buffer", "64K"]] {
        check_struck(&program().path, options);
    }
}

/// All calls are what they are, though signals strike.
#[track_caller]
pub(crate) fn check_struck(program: &Path, options: &[&str]) {
    let run = record(&[options, &VALUES].concat(), program, &["struck"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let of_echo = |text: &str| -> String {
        // A signal may have struck within.
        let echo =
            |line: &str| line.starts_with("echo(").then(|| line.split(") ").next().map(|call| call.to_owned() + "\n"));
        text.lines().filter_map(|line| echo(line).flatten()).collect()
    };
    let shown = replay(&run);
    assert_same_lines(&of_echo(&calls(&shown)), &of_echo(&printed(&run)), "struck");
    assert!(shown.contains("add(14, 0) = 14"), "no signal has struck");
}

#[test]
fn filters_of_system_calls_are_respected() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[&["--stream", "--no-schedule"], &VALUES[..]].concat(), &program().path, &["filtered"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert_same_lines(&calls(&replay(&run)), &printed(&run), "filtered");
}

/// The system reads the memory of a process, which has its number still.
#[test]
fn values_after_the_end_of_the_first_thread() {
    if require(&["gcc"]) {
        let run = record(&[&["--no-schedule"], &VALUES[..]].concat(), &program().path, &["alone"]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert_same_lines(&calls(&replay(&run)), &printed(&run), "alone");
    }
}

/// The records of a process that goes on with another program are put together.
#[test]
fn values_before_and_after_exec() {
    if !require(&["gcc"]) {
        return;
    }
    check(&program().path, &[], "exec");
}

#[test]
fn other_commands_have_values_too() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&VALUES, &program().path, &["values"]);
    let trace = run.path("trace");
    let rftrace = |arguments: &[&str]| {
        let output = Command::new(rftrace()).args(arguments).arg("-d").arg(&trace).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(rftrace(&["report"]).contains("nested"));
    assert!(rftrace(&["graph"]).contains("nested"));
    assert!(uftrace_is_content(&trace));
    // The contents of formats are tested in `tools/tests/it/values.rs`.
    let chrome = rftrace(&["dump", "--chrome"]);
    serde_json::from_str::<serde_json::Value>(&chrome).unwrap();
    assert!(rftrace(&["report", "--by-value", "nested@arg1"]).contains("  nested(5)\n"));
    // A copy shows the same.
    let part = run.path("part");
    rftrace(&["dump", "--uftrace", "-o", part.to_str().unwrap()]);
    let output = Command::new(self::rftrace()).args(["replay", "-f", "none", "-d"]).arg(&part).output().unwrap();
    assert_same_lines(&calls(&String::from_utf8(output.stdout).unwrap()), &printed(&run), "dump --uftrace");
    if require(&["uftrace"]) {
        assert_same_lines(&calls(&uftrace(&["replay", "-f", "none"], &part)), &printed(&run), "uftrace replay");
    }
}

/// True if uftrace's report reads it without a complaint.
fn uftrace_is_content(trace: &Path) -> bool {
    !require(&["uftrace"]) || uftrace(&["report"], trace).contains("nested")
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, expected) in [
        (["-A", "add@arg1/z"], "arg1/z"),
        (["-A", "add@arg1%rdi"], "cannot be chosen"),
        (["-R", "add@arg1"], "arguments are for -A"),
        (["-A", "add@arg0"], "a value is arg1"),
    ] {
        let run = record(&options, &program().path, &["plain"]);
        assert_ne!(run.status.code(), Some(0), "{options:?}");
        assert!(run.stderr.contains(expected), "{options:?}: {}", run.stderr);
    }
}
