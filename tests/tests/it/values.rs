//! `rftrace record -A -R`: what a replay shows of calls is what the program says that it does, in `rftrace replay` and in uftrace's.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::traces::{assert_same_lines, uftrace};
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
