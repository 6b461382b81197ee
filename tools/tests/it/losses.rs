//! Messages about gaps in a trace, a line each, from every view.

use std::fs;

use crate::cli::{rftrace, run, utf8};
use crate::dir::{A, Files, MAIN, NAMELESS, entry, event, exit};

const VIEWS: [&[&str]; 3] = [&["report"], &["replay", "--builtin"], &["dump", "--folded"]];

fn files() -> Files {
    Files::new(&[
        (7, &[entry(1, 0, MAIN), entry(2, 1, A), exit(3, 1, A), exit(5, 0, MAIN)]),
        (8, &[entry(2, 0, A), exit(4, 0, A)]),
    ])
}

/// The lines on stderr are these, in their beginnings, for each view.
fn said(files: &Files, expected: &[&str]) {
    let dir = files.write();
    for view in VIEWS {
        let (code, _, stderr) = run(&[view, &[utf8(dir.path())]].concat());
        let lines: Vec<&str> = stderr.lines().collect();
        let fits = lines.iter().zip(expected).all(|(line, expected)| line.contains(expected));
        assert!(code == Some(0) && lines.len() == expected.len() && fits, "{view:?}: {stderr}");
    }
}

#[test]
fn a_full_buffer_and_an_overwritten_one() {
    let mut files = files();
    said(&files, &[]);
    files.0.insert("record.txt".into(), "full=1\noverwritten=0\nuntraced_threads=2\n".into());
    said(&files, &["rftrace: The buffer was full before the end", "rftrace: Lost threads, which were too many"]);
    files.0.insert("record.txt".into(), "full=0\noverwritten=3\nuntraced_threads=0\n".into());
    said(&files, &["rftrace: The beginning was lost"]);

    // As the record of a task says it.
    const OVERWRITTEN: u64 = 1_000_001;
    let mut files = Files::new(&[(7, &[event(1, 0, OVERWRITTEN), entry(2, 0, A), exit(3, 0, A)])]);
    files.0.insert("events.txt".into(), format!("EVENT: {OVERWRITTEN} rftrace:overwritten_records\n").into());
    said(&files, &["rftrace: The beginning was lost"]);
    files.0.insert("events.txt".into(), format!("EVENT: {OVERWRITTEN} rftrace:lost_1200_calls\n").into());
    said(&files, &["deep: 1,200"]);
}

#[test]
fn files_and_names_that_are_missing() {
    let mut files = files();
    files.0.remove("8.dat");
    said(&files, &["rftrace: no file 8.dat, "]);
    // Of a fork there need not be records.
    let mut task_txt = files.0.get("task.txt").expect("a file").clone();
    task_txt.extend(b"FORK timestamp=0.000000003 pid=9 ppid=7\n");
    files.0.insert("task.txt".into(), task_txt);
    said(&files, &["rftrace: no file 8.dat, "]);

    let nameless =
        Files::new(&[(7, &[entry(1, 0, MAIN), entry(2, 1, NAMELESS), exit(3, 1, NAMELESS), exit(5, 0, MAIN)])]);
    said(&nameless, &["rftrace symbols "]);
}

#[test]
#[cfg(unix)]
fn they_are_said_behind_uftraces_replay_too() {
    use std::os::unix::fs::PermissionsExt;

    let mut files = files();
    files.0.insert("record.txt".into(), "full=1\n".into());
    files.0.remove("prog.sym");
    files.0.remove("8.dat");
    let dir = files.write();
    let bin = tempfile::tempdir().expect("a folder");
    let uftrace = bin.path().join("uftrace");
    fs::write(&uftrace, "#!/bin/sh\n").expect("a writable folder");
    fs::set_permissions(&uftrace, fs::Permissions::from_mode(0o755)).expect("our own file");
    let output = rftrace(&["replay", "--uftrace", utf8(dir.path())])
        .env("PATH", bin.path())
        .output()
        .expect("the command starts");
    let (code, stdout, stderr) = crate::cli::parts(&output);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(0), "", 3), "{stderr}");
    for text in ["buffer was full", "no file 8.dat", "rftrace symbols "] {
        assert!(stderr.contains(text), "{text} in {stderr}");
    }
}

#[test]
fn suggested_commands_can_be_pasted() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("it's; a trace");
    fs::create_dir(&dir).expect("a writable folder");
    let nameless = Files::new(&[(7, &[entry(1, 0, NAMELESS), exit(3, 0, NAMELESS)])]);
    for (name, bytes) in &nameless.0 {
        fs::write(dir.join(name), bytes).expect("a writable folder");
    }
    let (_, _, stderr) = run(&["replay", "--hints", utf8(&dir)]);
    let (_, symbols) = stderr.split_once("`rftrace symbols ").expect("a remedy");
    let (symbols, _) = symbols.split_once(" --binary").expect("with its option");
    let report = stderr.lines().find_map(|line| line.split_once(" report ")).expect("a hint").1;
    for word in [symbols, report] {
        assert_eq!(shlex::split(word), Some(vec![utf8(&dir).to_owned()]), "{stderr}");
    }
}
