//! Every command of uftrace takes the traces, without a warning.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use rftrace_export::{Chrome, ExportOptions, export};
use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Run, require};
use serde_json::Value;

/// A trace with nine threads of which eight make 50 calls.
fn threads() -> Run {
    CProgram::new(&["threads.c"]).with(&["-O1"]).build().run(&["8", "8", "50", "10000"])
}

#[test]
fn text_commands() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = threads();
    let dir = run.path("trace");

    let replay = uftrace(&["replay"], &dir);
    // Where another task's line comes between entry and exit, a call takes two lines.
    assert_eq!(replay.matches("inner();").count() + replay.matches("inner() {").count(), 400);
    assert_eq!(replay.matches("| worker() {").count(), 8);

    let report = uftrace(&["report"], &dir);
    let calls = |function: &str| {
        let line = report.lines().find(|line| line.split_whitespace().last() == Some(function)).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[fields.len() - 2].parse::<u64>().unwrap()
    };
    assert_eq!([calls("worker"), calls("outer"), calls("inner")], [8, 400, 400], "{report}");

    let graph = uftrace(&["graph"], &dir);
    assert!(graph.contains("worker") && graph.contains("outer") && graph.contains("inner"), "{graph}");
    let graph = uftrace(&["graph", "outer"], &dir);
    assert!(graph.contains("(400)"), "{graph}");

    let info = uftrace(&["info"], &dir);
    for word in ["exe image", "build id", "cmdline", "number of tasks", "task list"] {
        assert!(info.contains(word), "{word} is missing:\n{info}");
    }
    assert!(info.lines().any(|line| line.contains("number of tasks") && line.ends_with(": 8")), "{info}");
}

#[test]
fn dumps() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = threads();
    let dir = run.path("trace");

    let chrome: Value = serde_json::from_str(&uftrace(&["dump", "--chrome"], &dir)).unwrap();
    let events = chrome["traceEvents"].as_array().expect("a list of events");
    let of_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    // A worker, 50 times two calls, in eight threads.
    assert_eq!((of_phase("B"), of_phase("E")), (808, 808));
    let mut own = Chrome::new(Vec::new());
    export(&run.trace("trace"), &ExportOptions::default(), &mut own).unwrap();
    let own: Value = serde_json::from_slice(&own.into_inner()).unwrap();
    assert_eq!(functions(&own), functions(&chrome));

    let flames = uftrace(&["dump", "--flame-graph"], &dir);
    let stacks: Vec<&str> = flames.lines().filter_map(|line| line.rsplit_once(' ')).map(|(stack, _)| stack).collect();
    assert_eq!(stacks, ["worker", "worker;outer", "worker;outer;inner"], "{flames}");

    assert_eq!(uftrace(&["dump"], &dir).matches("[entry] inner(").count(), 400);
    assert!(uftrace(&["dump", "--graphviz"], &dir).contains("inner"));
}

/// Entries with their functions, and exits, of each task in the order of a file.
fn functions(chrome: &Value) -> BTreeMap<u64, Vec<(u64, Option<&str>)>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in chrome["traceEvents"].as_array().expect("a list of events") {
        let name = match event["ph"].as_str() {
            Some("B") => event["name"].as_str(),
            Some("E") => None,
            _ => continue,
        };
        let time_ns = (event["ts"].as_f64().expect("a time") * 1000.0).round() as u64;
        found.entry(event["tid"].as_u64().expect("a task")).or_default().push((time_ns, name));
    }
    found
}

#[test]
fn tui() {
    if !require(&["gcc", "uftrace", "script"]) {
        return;
    }
    let run = threads();
    let mut script = Command::new("script");
    let errors = run.path("errors");
    let command = format!("uftrace tui -d {} 2> {}", run.path("trace").display(), errors.display());
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    // Quit, as soon as it reads keys.
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"q").unwrap();
    let output = child.wait_with_output().unwrap();
    let screen = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {screen}", output.status);
    assert!(screen.contains("worker"), "{screen}");
    assert_eq!(std::fs::read_to_string(errors).unwrap(), "");
}
