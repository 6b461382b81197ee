//! Functions that were open when the program ended did not return, and nothing shows them as if they had; how it ended is told.
//!
//! Not here: recordings that are interrupted themselves (`interrupted`).

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Program, Run, require};

use super::record::{record, rftrace};

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["ends.c"]).without_library().with(&["-O1", "-g"]).build())
}

/// Ways to end, what they are called, and the status for the shell.
const ENDS: [(&str, &str, i32); 6] = [
    ("kill", "killed by SIGKILL", 137),
    ("exit", "exit status 3", 3),
    ("_exit", "exit status 4", 4),
    ("fault", "killed by SIGSEGV", 139),
    ("abort", "killed by SIGABRT", 134),
    ("pause", "killed by SIGTERM", 143),
];

fn recorded(way: &str) -> Run {
    if way != "pause" {
        return record(&["--no-schedule"], &program().path, &[way]);
    }
    // Once it pauses, it is ended from outside.
    let mut command = Command::new("bash");
    let script = r#"exec 3< <("$0" record --no-schedule -o trace -- "$1" pause); recorder=$!
        read -r line <&3; kill -TERM "$(cat /proc/$recorder/task/*/children)"; wait "$recorder""#;
    Run::of_any(command.args(["-c", script]).arg(rftrace()).arg(&program().path))
}

fn shown(trace: &Path, arguments: &[&str]) -> String {
    let output = Command::new(rftrace()).args(arguments).arg(trace).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_way_to_end_leaves_its_functions_open() {
    for (way, ending, code) in ENDS {
        let run = recorded(way);
        assert_eq!(run.status.code(), Some(code), "{way}: {}", run.stderr);
        let line = format!("rftrace: {ending} in innermost (");
        let told = run.stderr.lines().find(|told| told.starts_with(&line));
        assert!(told.is_some_and(|told| told.ends_with("ends.c:12); 3 calls did not return")), "{way}: {}", run.stderr);
        let replay = shown(&run.path("trace"), &["replay", "-f", "none"]);
        let expected = format!(
            "main() {{
  middle() {{
    innermost();
  }} /* middle */
  middle() {{
    innermost() {{
    }} /* innermost: did not return */
  }} /* middle: did not return */
}} /* main: did not return */

# Did not return ({ending}), outermost first:
"
        );
        let (calls, open) = replay.split_at_checked(expected.len()).unwrap_or((&replay, ""));
        assert_eq!(calls, expected, "{way}");
        let names: Vec<_> = open.lines().map(|line| line.split_once("] ").unwrap().1).collect();
        assert_eq!(names, ["main()", "  middle()", "    innermost()"], "{way}");
    }
}

/// Processes that a shell starts one after the other: each has its end, in all views and all directories.
#[test]
fn each_process_has_its_end() {
    // Once the recorder knows the process that pauses, nothing but the system tells of its end.
    let script = r#"for way in exit _exit fault abort; do "$0" $way; done
        exec 3< <(exec "$0" pause); pid=$!; read -r line <&3
        until grep -qs "^Pid:[[:space:]]*$pid\$" /proc/$PPID/fdinfo/*; do :; done
        kill -KILL $pid; exit 0"#;
    let ends = &ENDS[..5];
    for options in [&["--force", "--no-schedule"][..], &["--force", "--no-schedule", "--keep-stream"]] {
        let run = record(options, Path::new("bash"), &["-c", script, program().path.to_str().unwrap()]);
        assert!(run.status.success(), "{}", run.stderr);
        let trace = run.path("trace");
        let replay = shown(&trace, &["replay", "-f", "none"]);
        let titles = |replay: &str| {
            let titles = replay.lines().filter_map(|line| line.strip_prefix("# Did not return in process "));
            let mut titles: Vec<_> = titles.map(|title| title.split_once(' ').unwrap().1.to_owned()).collect();
            titles.sort_unstable();
            titles
        };
        let mut expected: Vec<_> = ends.iter().map(|(_, end, _)| format!("({end}), outermost first:")).collect();
        expected.sort_unstable();
        assert_eq!(titles(&replay), expected, "{options:?}: {replay}");
        let info = shown(&trace, &["info"]);
        let (_, of_each) = info.split_once("\nEnds of processes\n").unwrap_or_else(|| panic!("{info}"));
        for (_, end, _) in ends {
            let has_it = of_each.lines().take(ends.len()).filter(|line| line.ends_with(end)).count();
            assert_eq!(has_it, 1, "{end}: {info}");
        }
        if options.contains(&"--keep-stream") {
            shown(&trace, &["recover"]);
            assert_eq!(titles(&shown(&trace, &["replay", "-f", "none"])), expected);
            continue;
        }
        let killed = run.stderr.lines().filter(|line| line.starts_with("rftrace: process "));
        let mut killed: Vec<_> = killed.map(|line| line.split_once(": killed").unwrap().1).collect();
        killed.sort_unstable();
        let signals = ["SIGABRT", "SIGKILL", "SIGSEGV"];
        assert_eq!(killed.len(), signals.len(), "{}", run.stderr);
        for (line, signal) in killed.into_iter().zip(signals) {
            assert!(line.starts_with(&format!(" by {signal} in innermost (")), "{line}");
            assert!(line.ends_with("ends.c:12); 3 calls did not return"), "{line}");
        }
        let copy = run.path("copy");
        shown(&trace, &["dump", "--uftrace", "-o", copy.to_str().unwrap()]);
        assert_eq!(titles(&shown(&copy, &["replay", "-f", "none"])), expected);
    }
}

/// A trace of a limited size ends within one of two processes; the other one was whole before.
#[test]
fn a_limit_cuts_off_its_process_alone() {
    let script = r#""$0" fault; "$0" many"#;
    let options = ["--force", "--no-schedule", "--max-size", "2M"];
    let run = record(&options, Path::new("bash"), &["-c", script, program().path.to_str().unwrap()]);
    assert!(run.stderr.contains("ends.c:12); 3 calls did not return\n"), "{}", run.stderr);
    let replay = shown(&run.path("trace"), &["replay", "-f", "none"]);
    let titles: Vec<_> = replay.lines().filter(|line| line.ends_with(", outermost first:")).collect();
    let is_there = |start: &str, end: &str| titles.iter().any(|line| line.starts_with(start) && line.ends_with(end));
    assert!(is_there("# Did not return in process ", " (killed by SIGSEGV), outermost first:"), "{titles:?}");
    assert!(is_there("# Had not returned at the last record in process ", ", outermost first:"), "{titles:?}");
    assert_eq!(titles.len(), 2, "{titles:?}");
}

#[test]
fn who_ends_as_programs_do_hears_nothing() {
    for (way, n_open) in [("", 0), ("main", 1)] {
        let run = record(&["--no-schedule"], &program().path, &[way]);
        assert!(run.status.success() && !run.stderr.contains("did not return"), "{way}: {}", run.stderr);
        let trace = run.path("trace");
        let replay = shown(&trace, &["replay", "-f", "none"]);
        assert_eq!(replay.matches("main: did not return").count(), n_open, "{way}: {replay}");
        assert_eq!(shown(&trace, &["report"]).matches("did not return").count(), n_open);
    }
}

#[test]
fn all_that_shows_a_trace_tells_of_open_functions() {
    let run = recorded("exit");
    let trace = run.path("trace");
    let table = shown(&trace, &["report"]);
    let note = "\n  3 calls did not return, and count until the end: ";
    let names = table.split_once(note).unwrap_or_else(|| panic!("{table}")).1;
    let mut names: Vec<_> = names.trim_end().split(", ").collect();
    names.sort_unstable();
    assert_eq!(names, ["innermost", "main", "middle"]);
    let csv = shown(&trace, &["report", "--format", "csv", "-f", "call", "-s", "call"]);
    assert_eq!(csv, "function,call,did-not-return\n\"innermost\",2,1\n\"middle\",2,1\n\"main\",1,1\n");
    let json = shown(&trace, &["report", "--format", "json"]);
    assert_eq!(json.matches("\"did-not-return\": 1").count(), 3, "{json}");
    let graph = shown(&trace, &["graph"]);
    for node in ["(1) main; 1 did not return", "(2) middle; 1 did not return", "(2) innermost; 1 did not return"] {
        assert!(graph.contains(node), "{graph}");
    }
    assert!(shown(&trace, &["info"]).contains("exit status              3\n"));
    for (format, mark) in [("--chrome", "rftrace:did_not_return"), ("--firefox", "rftrace:did_not_return")] {
        assert!(shown(&trace, &["dump", format]).contains(mark), "{format}");
    }
    let folded = shown(&trace, &["dump", "--folded"]);
    assert!(folded.contains("main;middle;innermost;(did not return) "), "{folded}");
    let svg = shown(&trace, &["dump", "--flamegraph"]);
    assert!(svg.contains("(did not return)"), "{svg}");
    let perfetto = Command::new(rftrace()).args(["dump", "--perfetto"]).arg(&trace).output().unwrap().stdout;
    assert!(perfetto.windows(22).any(|window| window == b"rftrace:did_not_return"));

    // Other directories that are made of it have it too.
    let copy = run.path("copy");
    shown(&trace, &["dump", "--uftrace", "-o", copy.to_str().unwrap()]);
    assert_eq!(shown(&copy, &["replay", "-f", "none"]), shown(&trace, &["replay", "-f", "none"]));
    // A part of it, too: what is shown alone is open alone.
    let part = shown(&trace, &["replay", "-f", "none", "-F", "innermost"]);
    assert!(part.starts_with("innermost();\ninnermost() {\n} /* innermost: did not return */\n"), "{part}");
    let part = shown(&trace, &["replay", "-f", "none", "-D", "1"]);
    assert!(part.starts_with("main() {\n} /* main: did not return */\n"), "{part}");
}

#[test]
fn uftrace_reads_the_same_directory() {
    if !require(&["uftrace"]) {
        return;
    }
    let run = recorded("fault");
    let trace = run.path("trace");
    let replay = uftrace(&["replay", "-f", "none"], &trace);
    assert_eq!(replay.matches("/* rftrace:did_not_return */").count(), 3, "{replay}");
    for (name, calls) in [("main", 1), ("middle", 2), ("innermost", 2)] {
        let report = uftrace(&["report", "-s", "call"], &trace);
        assert!(report.lines().any(|line| line.ends_with(&format!("{calls}  {name}"))), "{report}");
        assert!(replay.contains(&format!("}} /* {name} */")), "{replay}");
    }
}

#[test]
fn a_stream_that_is_kept_and_recovered_has_it() {
    let run = record(&["--no-schedule", "--keep-stream"], &program().path, &["fault"]);
    assert!(run.stderr.contains("rftrace: killed by SIGSEGV\n"), "{}", run.stderr);
    let trace = run.path("trace");
    shown(&trace, &["recover"]);
    let replay = shown(&trace, &["replay", "-f", "none"]);
    assert!(replay.contains("# Did not return (killed by SIGSEGV), outermost first:"), "{replay}");
    assert_eq!(replay.matches(": did not return").count(), 3, "{replay}");
}
