//! Programs that map files all the time: what the recorder writes goes by what it records.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rftrace_tests::{CProgram, require};

use crate::attach::count;
use crate::record::rftrace;

/// Bytes that a process has written.
fn written(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap()
}

/// Two thousand files are mapped all the time, and each look finds another one beside them.
#[test]
fn files_without_code_are_not_kept() {
    const TIMES: u64 = 300;
    /// One list of them takes 200 KB.
    const MOST: u64 = 1 << 20;

    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["mapper.c"]).without_library().with(&["-O1"]).build();
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = Command::new(rftrace());
    recorder.args(["record", "-q", "-o", "trace"]).arg(&program.path).args(["2000", &TIMES.to_string()]);
    recorder.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut recorder = recorder.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(recorder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    let n_bytes = written(recorder.id());
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    assert!(n_bytes < MOST, "{n_bytes} bytes");
    assert_eq!(count(&folder.path().join("trace"), "leaf"), TIMES);
}
