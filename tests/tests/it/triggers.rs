//! `rftrace record -T`: what is done when functions are called, in uftrace's words and with its meaning.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rftrace_read::{Kind, Trace};
use rftrace_tests::{CProgram, Program, require, tools, traces};
use tempfile::TempDir;

use crate::record::rftrace;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["triggered.c"]).without_library().with(&["-O1"]).build())
}

/// The same linked statically, and once more with functions that do not call the tracer.
fn fixed() -> [&'static Program; 2] {
    static BUILT: OnceLock<[Program; 2]> = OnceLock::new();
    let fixed = |program: CProgram| program.without_library().with(&["-O1", "-static"]).build();
    let build = || [fixed(CProgram::new(&["triggered.c"])), fixed(CProgram::new(&["triggered.c"]).without_hooks())];
    BUILT.get_or_init(build).each_ref()
}

fn record(options: &[&str], arguments: &[&str]) -> (TempDir, Output) {
    record_of(program(), options, arguments)
}

fn record_of(program: &Program, options: &[&str], arguments: &[&str]) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-o", "trace"]).args(options).arg("--").arg(&program.path);
    let output = command.args(arguments).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    (folder, output)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The calls of a trace of one task: what was entered, indented by its depth.
fn calls(trace: &Trace) -> String {
    let task = &trace.tasks()[0];
    let entries = trace.records(task).map(Result::unwrap).filter(|record| record.kind == Kind::Entry);
    let line = |record: rftrace_read::Record| {
        let name = trace.function_name(task, record.time_ns, record.addr);
        format!("{}{name}\n", "  ".repeat(record.depth.into()))
    };
    entries.map(line).collect()
}

/// Returns the outline of rftrace's trace with these options; it is well-formed.
fn ours(options: &[&str]) -> String {
    of(program(), options)
}

fn of(program: &Program, options: &[&str]) -> String {
    let (folder, output) = record_of(program, options, &[]);
    assert_eq!(output.status.code(), Some(0), "{options:?}: {}", told(&output));
    calls(&traces::open(&folder.path().join("trace")))
}

#[test]
fn recording_is_as_with_uftrace() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    for options in [
        &["-T", "off@trace_off"][..],
        &["-T", "off@trace_off", "-T", "on@trace_on"],
        &["-T", "off@traceoff", "-T", "on@traceon"],
        &["-T", "on@trace_on"],
        &["-T", "last@finish"],
        &["-T", "work@depth=1"],
        &["-T", "work@depth=2"],
        &["-D", "4", "-T", "work@depth=2"],
        &["-T", "work@filter"],
        &["-T", "work@filter,depth=2"],
        &["-F", "work", "-T", "inner@depth=1"],
        &["-T", "work@notrace"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut uftrace = Command::new("uftrace");
        uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "-d"]).arg(folder.path().join("theirs"));
        tools::run(uftrace.args(options).arg(&program().path));
        let theirs = calls(&Trace::open(&folder.path().join("theirs")).unwrap());
        assert_eq!(ours(options), theirs, "{options:?}");
        for others in [&["--patched"][..], &["--ring"], &["--stop"], &["-A", "off@arg1", "-R", "work@retval"]] {
            assert_eq!(ours(&[options, others].concat()), theirs, "{options:?} {others:?}");
        }
    }
}

/// uftrace records no returns meanwhile, so that what comes after lies in what was open.
#[test]
fn what_is_open_ends_where_nothing_is_recorded() {
    if !require(&["gcc"]) {
        return;
    }
    let options = ["-T", "inner@trace_off", "-T", "on@trace_on"];
    assert_eq!(ours(&options), "main\n  work\n  on\n    leaf\n  work\n");
}

#[test]
fn it_begins_switched_off() {
    if !require(&["gcc"]) {
        return;
    }
    let expected = "on\n  leaf\nwork\n  inner\n    leaf\n  leaf\noff\n  leaf\nwork\n  inner\n    leaf\n  leaf\n";
    let end = "last\n";
    let options = ["--disabled", "-T", "on@trace_on", "-T", "last@finish"];
    assert_eq!(ours(&options), format!("{expected}{end}"));
    // The last of its calls finds nothing recorded, and ends it all the same.
    let options = ["-T", "off@trace_off", "-T", "last@finish", "-T", "inner@trace_on", "-N", "work"];
    let expected = "main\n";
    assert_eq!(ours(&options), expected);
    // A function that is not called.
    let (folder, output) = record(&["--disabled", "-T", "main@depth=1"], &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!folder.path().join("trace").exists(), "{}", told(&output));
}

/// Of programs that nothing can be loaded into what is recorded is the same.
#[test]
fn programs_that_are_linked_statically() {
    if !require(&["gcc"]) {
        return;
    }
    let own = ["main", "work", "inner", "leaf", "on", "off", "last"].map(|name| ["-P", name]).concat();
    let [called, branched] = fixed();
    for options in [
        &["-T", "off@trace_off"][..],
        &["-T", "off@trace_off", "-T", "on@trace_on"],
        &["-T", "on@trace_on"],
        &["-T", "last@finish"],
        &["-T", "work@depth=1"],
        &["-D", "4", "-T", "work@depth=2"],
        &["-T", "work@filter,depth=2"],
        &["-F", "work", "-T", "inner@depth=1"],
        &["-T", "work@notrace"],
        &["-T", "inner@trace_off", "-T", "on@trace_on"],
        &["--disabled", "-T", "on@trace_on", "-T", "last@finish"],
        &["-T", "off@trace_off", "-T", "last@finish", "-T", "inner@trace_on", "-N", "work"],
        &["-T", "off@trace_off,arg1", "-T", "on@trace_on"],
    ] {
        let expected = ours(options);
        for others in [&[][..], &["--ring"]] {
            assert_eq!(of(called, &[options, others].concat()), expected, "{options:?} {others:?}");
        }
        assert_eq!(of(branched, &[options, &own].concat()), expected, "{options:?}, by branches");
    }
}

#[test]
fn a_signal_ends_it() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, signal) in [(&["--signal", "USR1@finish"][..], "10"), (&["--signal", "WINCH@finish", "--ring"], "28")]
    {
        let (folder, output) = record(options, &[signal]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let calls = calls(&traces::open(&folder.path().join("trace")));
        let work = "  work\n    inner\n      leaf\n    leaf\n";
        assert_eq!(calls, format!("main\n{work}  off\n    leaf\n{work}  on\n    leaf\n{work}"), "{options:?}");
    }
}

#[test]
fn what_cannot_be_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, expected) in [
        (&["-T", "off@stop"][..], "there is no such action, but trace_on"),
        (&["-T", "off@time=1ms"], "-t 1ms"),
        (&["-D", "2", "-T", "off@depth=3"], "-D 2 permits"),
        (&["-T", "/(/@trace_off"], "trigger=/(/@trace_off"),
        (&["--signal", "USR1"], "write SIGNAL@finish"),
        (&["--ring", "--dump-on", "signal:USR1", "--signal", "USR1@finish"], "name the same signal"),
    ] {
        let (folder, output) = record(options, &[]);
        assert!(!output.status.success() && told(&output).contains(expected), "{options:?}: {}", told(&output));
        assert!(!Path::exists(&folder.path().join("trace")), "{options:?}");
    }
    // uftrace says nothing.
    let (_folder, output) = record(&["-T", "of@trace_off", "-T", "on@trace_on"], &[]);
    assert_eq!(output.status.code(), Some(0));
    let expected = "no function that calls the tracer matches of@trace_off\n";
    assert!(told(&output).contains(expected), "{}", told(&output));
}
