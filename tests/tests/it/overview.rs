//! The first screen of `rftrace record` and `report`: what a person wants to know of a trace first, and what to do next.

use std::path::Path;
use std::process::{Command, Stdio};

use rftrace_tests::{CProgram, Run, require};

use crate::record::{record, rftrace};

fn program() -> CProgram {
    CProgram::new(&["looked_at.c"]).without_library().with(&["-O1", "-fno-optimize-sibling-calls", "-pthread"])
}

/// The options that an overview suggests for a smaller trace, as words for a shell.
fn suggested(text: &str) -> &str {
    let (_, size) = text.split_once("\n  Size: ").unwrap_or_else(|| panic!("no suggestion in {text}"));
    let line = size.lines().nth(1).unwrap_or_default();
    line.split("   leaves").next().unwrap_or_default().trim()
}

fn report(run: &Run, options: &[&str]) -> String {
    let output = Command::new(rftrace()).arg("report").args(options).arg(run.path("trace")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Records the program with this argument in a terminal. Returns the output of both.
fn in_a_terminal(folder: &Path, options: &str, argument: &str) -> String {
    // The same one for each trace.
    let (rftrace, program) = (rftrace(), program().cached("looked_at"));
    let line =
        format!("{} record --no-schedule -o trace {options} -- {} {argument}", rftrace.display(), program.display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let output = script.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

#[test]
fn the_answer_comes_first_and_makes_the_next_trace_smaller() {
    if !require(&["gcc", "script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let said = in_a_terminal(folder.path(), "", "loops 12000");
    for text in [
        "rftrace: the trace lies in trace (",
        "Hot path\n     100.0 %           1  main",
        "Most self time\n",
        // The path may end before it: where others take the processor that is somebody's time, as switches are not recorded.
        "      60,000  outer\n",
        "  Size: 59.9 % of 300,002 calls are of leaf\n    -N leaf   leaves them out when recording",
        "\n  Next: rftrace tui trace\n",
    ] {
        assert!(said.contains(text), "{text:?} in {said}");
    }
    // A shell takes what is suggested.
    let options = suggested(&said);
    let said = in_a_terminal(folder.path(), options, "loops 12000");
    assert!(said.contains("rftrace: 120,002 calls of 1 thread") && !said.contains("are of leaf"), "{options}: {said}");
    assert!(said.contains("\n  Next: rftrace diff trace.old trace\n"), "{said}");

    let run = record(&["--no-schedule"], &program().build().path, &["loops", "12000"]);
    assert!(run.stderr.contains("  rftrace report trace\n") && !run.stderr.contains("Hot path"), "{}", run.stderr);
    let shown = report(&run, &["--overview"]);
    let table = shown.find("  Total time   Self time       Calls  Function\n").expect("the table");
    for text in ["Hot path\n", "  Size: ", "  Next: rftrace tui "] {
        assert!(shown.find(text).is_some_and(|place| place < table), "{text:?} in {shown}");
    }
    for options in [&["-s", "self"][..], &[]] {
        assert!(
            !report(&run, options).contains("Hot path"),
            "a table that is asked for, or read by a program, is alone"
        );
    }
}

#[test]
fn nothing_is_said_where_nothing_is_asked() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&["-q"], &program().build().path, &["fib", "5"]);
    assert_eq!(run.stderr, "");
    // No function has many calls, and the program has ended well.
    let shown = report(&run, &["--overview"]);
    assert!(!shown.contains("Size: ") && !shown.contains("exit status"), "{shown}");
}

#[test]
fn a_status_other_than_0_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[], &program().build().path, &["fib"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(report(&run, &["--overview"]).contains("\n  The program: exit status 2\n"));
}
