//! Streams of programs that have the tracer in them: more calls than fit into their buffer, and each of them is in the trace.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use crate::record::rftrace;
use crate::streaming::count;

/// 2.4 million records, of which the buffer holds 65,536.
const N: u64 = 400_000;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["own_stream.c"]).with(&["-O1", "-lpthread"]).build())
}

fn run(n: u64, way: &str, variable: Option<&str>) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(&program().path);
    command.args([&n.to_string(), way]).current_dir(&folder).env_remove("RFTRACE_STREAM");
    let output = command.envs(variable.map(|value| ("RFTRACE_STREAM", value))).output().unwrap();
    (folder, output)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// True if uftrace would read it, and nothing else is there.
fn is_whole(trace: &Path) -> bool {
    trace.join("info").is_file() && !trace.join(".recording").exists()
}

#[test]
fn all_calls_are_in_the_trace() {
    if !require(&["gcc"]) {
        return;
    }
    for (way, variable, rounds) in [
        ("save", None, 1),
        ("threads", None, 5),
        ("fork", None, 2),
        ("variable", Some("trace,1M"), 1),
        ("variable", Some("trace"), 1),
    ] {
        let (folder, output) = run(N, way, variable);
        assert_eq!(output.status.code(), Some(7), "{way}: {output:?}");
        let trace = folder.path().join("trace");
        assert!(is_whole(&trace), "{way}");
        assert_eq!(count(&trace, "leaf"), 2 * rounds * N, "{way}: {output:?}");
        assert_eq!(count(&trace, "middle"), rounds * N, "{way}: {output:?}");
        // Nothing of the thread that writes, or of the library.
        let tasks = fs::read_to_string(trace.join("task.txt")).unwrap();
        assert_eq!(tasks.matches("TASK ").count(), if way == "threads" { 5 } else { 1 }, "{tasks}");
        if way == "fork" {
            assert_eq!(said(&output), "child 5\n");
            assert!(!folder.path().join("child").exists());
        }
    }
}

#[test]
fn a_stream_is_saved_once_and_others_follow() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = run(N, "again", None);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(said(&output).starts_with("dump: the first save has ended the stream; give the tracer"), "{output:?}");
    assert_eq!(said(&output).lines().count(), 1, "{output:?}");
    let counted = ["trace", "plain", "second"].map(|name| count(&folder.path().join(name), "leaf"));
    assert_eq!(counted, [2 * N, 20, 4 * N]);
}

/// The records on disk when the program ended without a save are shown, and recovered.
#[test]
fn what_is_not_saved_is_recovered() {
    if !require(&["gcc"]) {
        return;
    }
    /// The records of a thread that are in no full chunk.
    const IN_CHUNK: u64 = 4096;

    for way in ["exit", "kill"] {
        let (folder, output) = run(N, way, None);
        assert!(output.status.code() == Some(7) || output.status.signal() == Some(9), "{output:?}");
        let report = Command::new(rftrace()).args(["report", "trace"]).current_dir(&folder).output().unwrap();
        assert!(String::from_utf8_lossy(&report.stdout).contains("leaf"), "{report:?}");
        let recover = Command::new(rftrace()).args(["recover", "trace"]).current_dir(&folder).output().unwrap();
        assert!(recover.status.success(), "{recover:?}");
        // Or else calls that were open there would seem to be those of the crash.
        let told = String::from_utf8_lossy(&recover.stderr).into_owned();
        assert!(told.contains("the last calls of 1 process are missing"), "{told}");
        let replay =
            Command::new(rftrace()).args(["replay", "--last", "1", "trace"]).current_dir(&folder).output().unwrap();
        assert!(
            String::from_utf8_lossy(&replay.stderr)
                .contains("The end of 1 process is lost, as the recorder ended before"),
            "{replay:?}"
        );
        let found = count(&folder.path().join("trace"), "leaf");
        assert!(found <= 2 * N && found + IN_CHUNK >= 2 * N, "{way}: {found}");
    }
}

/// The end is missing then, and only the program can change that.
#[test]
fn a_full_buffer_is_told_with_the_programs_remedies() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = run(N, "full-buffer", None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(7) && said.contains("is incomplete: the buffer was full"), "{output:?}");
    let report = Command::new(rftrace()).args(["report", "trace"]).current_dir(&folder).output().unwrap();
    let told = String::from_utf8_lossy(&report.stderr);
    assert!(told.contains("Config::capacity_events") && !told.contains("--buffer"), "{told}");
}

/// The program goes on, and the trace has what was written.
#[test]
fn a_disk_that_is_full_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = run(N, "full", None);
    // The trace does not fit either.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(said(&output).contains("trace/") && said(&output).contains("File too large"), "{output:?}");
    let recover = Command::new(rftrace()).args(["recover", "trace"]).current_dir(&folder).output().unwrap();
    assert!(recover.status.success(), "{recover:?}");
    let found = count(&folder.path().join("trace"), "leaf");
    assert!(found > 0 && found < 2 * N, "{found}");
}

/// No chunk fits: it has calls all the same, and the reason is the disk.
#[test]
fn a_disk_that_is_full_at_once_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = run(1000, "full-at-once", None);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(said(&output).contains("dump: the trace lacks calls and returns: cannot write "), "{output:?}");
    assert!(said(&output).contains("File too large"), "{output:?}");
}

#[test]
fn what_cannot_be_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = run(10, "variable", Some("trace,lots"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("RFTRACE_STREAM is \"trace,lots\""), "{output:?}");
    let (_folder, output) = run(10, "variable", Some("/proc/nowhere"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot write"), "{output:?}");
}
