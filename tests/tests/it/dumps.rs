//! `rftrace record --ring --dump-on`: the ring outlives the program, and what is copied of it while the program goes on is whole.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use crate::record::rftrace;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["dumped.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

fn record(options: &[&str], n: u64, way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--ring", "--no-schedule", "-o", "trace"]).args(options);
    command.arg("--").arg(&program().path).arg(n.to_string()).arg(way).current_dir(folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    (folder, output)
}

/// Runs the program by itself: what it answers is what it has to answer when it is recorded.
fn untraced(n: u64, way: &str) -> Option<i32> {
    let status = Command::new(&program().path).arg(n.to_string()).arg(way).stdin(Stdio::null()).status().unwrap();
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How often a function was called, in all tasks.
fn count(trace: &Path, function: &str) -> u64 {
    calls_per_task(&traces::open(trace)).iter().filter_map(|task| task.get(function)).sum()
}

/// The dumps, in the order in which they were made.
fn dumps(folder: &TempDir) -> Vec<PathBuf> {
    let all = (1..).map(|number| folder.path().join(format!("trace/snapshot-{number}")));
    all.take_while(|dump| dump.exists()).collect()
}

/// What dumps say that they were made for.
fn reasons(dumps: &[PathBuf]) -> Vec<String> {
    let reason = |dump: &PathBuf| {
        let info = Command::new(rftrace()).arg("info").arg(dump).output().unwrap();
        let text = String::from_utf8(info.stdout).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("made for"));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    dumps.iter().map(reason).collect()
}

/// What is left of a ring that was overwritten are its last calls, whole, and what they were called from; in each way to end.
#[test]
fn a_ring_outlives_its_program() {
    if !require(&["gcc"]) {
        return;
    }
    // Some 100 times as much as there is room for.
    const N: u64 = 100_000;
    for way in ["return", "status", "abort", "kill", "fault"] {
        let (folder, output) = record(&["--buffer", "64K"], N, way);
        assert_eq!(output.status.code(), untraced(N, way), "{way}: {}", told(&output));
        let trace = folder.path().join("trace");
        let (leaf, middle) = (count(&trace, "leaf"), count(&trace, "middle"));
        // 4,096 records fit, but for headers and the chunk that is written.
        assert!((500..=683).contains(&middle), "{way}: {middle}");
        assert!((2 * middle - 2..=2 * middle).contains(&leaf), "{way}: {leaf} in {middle}");
        // A process that is killed is asked for its open functions beforehand, now and then: it may have been too quick.
        if way != "kill" {
            assert_eq!(count(&trace, "main"), 1, "{way}: {}", told(&output));
        }
        assert!(dumps(&folder).is_empty());
        assert!(told(&output).contains("keeps the end of what happened"), "{way}: {}", told(&output));
    }
}

#[test]
fn what_is_not_overwritten_is_all_there() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["return", "kill", "child"] {
        let (folder, output) = record(&[], 1000, way);
        let trace = folder.path().join("trace");
        let n_processes = if way == "child" { 2 } else { 1 };
        assert_eq!(count(&trace, "leaf"), 2000, "{way}: {}", told(&output));
        assert_eq!(count(&trace, "main"), n_processes, "{way}: {}", told(&output));
        assert_eq!(count(&trace, "mark"), n_processes - 1, "{way}: {}", told(&output));
        assert!(!told(&output).contains("keeps the end"), "{way}: {}", told(&output));
    }
}

#[test]
fn a_dump_for_each_bad_end() {
    if !require(&["gcc"]) {
        return;
    }
    for (way, expected) in [
        ("return", None),
        ("status", Some("fatal: exit status 7")),
        ("abort", Some("fatal: killed by SIGABRT")),
        ("kill", Some("fatal: killed by SIGKILL")),
        ("fault", Some("fatal: killed by SIGSEGV")),
        ("child", Some("fatal: it ended without a word")),
    ] {
        let (folder, output) = record(&["--dump-on", "fatal"], 1000, way);
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), Vec::from_iter(expected), "{way}: {}", told(&output));
        for dump in dumps {
            let expected = if way == "child" { (0, 1) } else { (2000, 0) };
            assert_eq!((count(&dump, "leaf"), count(&dump, "mark")), expected, "{way}");
        }
        assert_eq!(count(&folder.path().join("trace"), "leaf"), 2000, "{way}");
    }
}

/// It ends at the signal, though it is copied later.
#[test]
fn a_dump_on_a_signal() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--dump-on", "signal:USR1"], 100, "signal");
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["signal:USR1"], "{}", told(&output));
    let counts = |trace: &Path| ["leaf", "mark", "main"].map(|function| count(trace, function));
    assert_eq!(counts(&dumps[0]), [200, 1, 1]);
    assert_eq!(counts(&folder.path().join("trace")), [400, 1, 1]);
    assert!(told(&output).contains("snapshot-1 (signal:USR1)"), "{}", told(&output));
}

#[test]
fn a_dump_of_a_stall_and_one_every_so_often() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--dump-on", "stall:500ms"], 100, "sleeps");
    let made = dumps(&folder);
    // On a busy machine the program may have been stopped before.
    assert!(!made.is_empty() && reasons(&made).iter().all(|reason| reason == "stall:500ms"), "{}", told(&output));
    let last = made.last().unwrap();
    assert_eq!(["leaf", "mark", "main"].map(|function| count(last, function)), [200, 1, 1]);
    // Of some seven.
    let (folder, output) = record(&["--dump-on", "every:200ms", "--dumps", "2"], 100, "sleeps");
    let made = dumps(&folder);
    assert_eq!(reasons(&made), ["every:200ms"; 2], "{}", told(&output));
    assert!(told(&output).contains("due and not made: --dumps N makes more"), "{}", told(&output));
    assert_eq!(count(&folder.path().join("trace"), "leaf"), 202);
}

/// Nobody waits for the dump: what it ends with is the call that it was made for.
#[test]
fn a_dump_of_a_call() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 100;
    let counts = |trace: &Path| ["leaf", "mark", "main"].map(|function| count(trace, function));
    for options in [&[][..], &["--patched"], &["-A", "mark@arg1/i32", "-R", "mark"], &["-F", "main"]] {
        let options: Vec<&str> = options.iter().copied().chain(["--dump-on", "call:mark#3"]).collect();
        let (folder, output) = record(&options, N, "marks");
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", told(&output));
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), ["call:mark#3"], "{options:?}: {}", told(&output));
        assert_eq!(counts(&dumps[0]), [2 * 3 * N, 3, 1], "{options:?}");
        let last = traces::trees(&traces::open(&dumps[0]))[0].calls().last().map(|(_, call)| call.name.clone());
        assert_eq!(last.as_deref(), Some("mark"));
        assert_eq!(counts(&folder.path().join("trace")), [2 * 6 * N, 5, 1], "{options:?}");
    }
    // Each call, but one a second at the most.
    let (folder, output) = record(&["--dump-on", "call:ma?k"], N, "marks");
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["call:ma?k"], "{}", told(&output));
    assert_eq!(counts(&dumps[0]), [2 * N, 1, 1]);
    assert!(told(&output).contains("4 dumps were due and not made"), "{}", told(&output));
}

/// Also where the process is gone when the recorder comes to it.
#[test]
fn a_dump_of_the_last_call() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--dump-on", "call:mark"], 100, "mark_and_kill");
    assert_eq!(output.status.code(), Some(128 + 9), "{}", told(&output));
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["call:mark"], "{}", told(&output));
    assert_eq!(["leaf", "mark"].map(|function| count(&dumps[0], function)), [200, 1]);
}

#[test]
fn a_dump_of_a_slow_call() {
    if !require(&["gcc"]) {
        return;
    }
    // The first call is the longest so far, of which nobody is told.
    for spec in ["slow:work>300ms", "slow:work>max"] {
        for others in [&[][..], &["-A", "work@arg1/i32", "-R", "main"]] {
            let options: Vec<&str> = others.iter().copied().chain(["--dump-on", spec]).collect();
            let (folder, output) = record(&options, 100, "works");
            assert_eq!(output.status.code(), Some(0), "{options:?}: {}", told(&output));
            let dumps = dumps(&folder);
            assert_eq!(reasons(&dumps), [spec], "{options:?}: {}", told(&output));
            let trees = traces::trees(&traces::open(&dumps[0]));
            let calls: Vec<_> = trees[0].calls().map(|(_, call)| call).filter(|call| call.name == "work").collect();
            assert_eq!(calls.len(), 2, "{options:?}");
            let lasted = calls[1].end_ns.unwrap() - calls[1].start_ns;
            assert!(lasted >= 600_000_000, "{options:?}: {lasted}");
            assert_eq!(count(&dumps[0], "leaf"), 200, "{options:?}");
            assert_eq!(count(&folder.path().join("trace"), "leaf"), 400, "{options:?}");
        }
    }
}

#[test]
fn a_function_that_is_not_there_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = record(&["--dump-on", "call:marc"], 1, "return");
    assert_eq!(output.status.code(), Some(0));
    assert!(told(&output).contains("no function that calls the tracer matches call:marc"), "{}", told(&output));
}

/// Two threads go round and round in a small ring while it is copied: each dump has a piece of what each did, without a gap.
#[test]
fn a_copy_of_a_ring_that_is_overwritten_has_no_torn_record() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 6;
    // What has gone when the recorder comes to the smaller one.
    for buffer in ["1M", "4M"] {
        let (folder, output) = record(&["--buffer", buffer], N, "walks");
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let dumps = dumps(&folder);
        // A signal that comes before the last one was seen is that one.
        assert!((1..=N).contains(&(dumps.len() as u64)), "{}", told(&output));
        let mut n_steps = Vec::new();
        for dump in dumps.iter().chain([&folder.path().join("trace")]) {
            for tree in traces::trees(&traces::open(dump)) {
                let names = tree.calls().map(|(_, call)| call.name.clone());
                let steps: Vec<u8> = names.filter_map(|name| name.strip_prefix("step_")?.parse().ok()).collect();
                let gap = steps.windows(2).position(|pair| pair[1] != (pair[0] + 1) % 7);
                assert_eq!(gap, None, "{}: {steps:?}", dump.display());
                n_steps.push(steps.len());
            }
        }
        assert!(n_steps.iter().sum::<usize>() > 5_000, "{n_steps:?}");
        assert!(fs::read_dir(folder.path().join("trace")).unwrap().flatten().all(|e| e.file_name() != ".recording"));
    }
}

#[test]
fn what_cannot_be_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, expected) in [
        (&["--dump-on", "crash"][..], "a dump is made on signal:NAME, fatal"),
        (&["--dump-on", "slow:f"], "slow:FUNCTION>5ms"),
        (&["--dump-on", "call:f#0"], "1 is the first"),
        (&["--dump-on", "signal:KILL"], "no program can handle this signal"),
        (&["--dump-on", "signal:HUP", "--dump-on", "signal:TERM"], "names two signals"),
        (&["--dumps", "3"], "--dump-on"),
    ] {
        let (folder, output) = record(options, 1, "return");
        assert!(!output.status.success() && told(&output).contains(expected), "{options:?}: {}", told(&output));
        assert!(!folder.path().join("trace").exists(), "{options:?}");
    }
    // There are no dumps of a stream: its snapshots have all.
    let output = Command::new(rftrace()).args(["record", "--dump-on", "fatal", "true"]).output().unwrap();
    assert!(told(&output).contains("--ring"), "{}", told(&output));
}
