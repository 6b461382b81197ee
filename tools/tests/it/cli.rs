//! The `rftrace` command.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::dir::{A, Dir, MAIN, entry, exit, trace};

/// The command, without any other program in its `PATH`.
pub(crate) fn rftrace(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    command.args(args).env("PATH", "/nonexistent").env_remove("NO_COLOR");
    command
}

pub(crate) fn run(args: &[&str]) -> (Option<i32>, String, String) {
    parts(&rftrace(args).output().expect("the command starts"))
}

/// Exit code, stdout and stderr.
pub(crate) fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn sample() -> Dir {
    trace(&[entry(1, 0, MAIN), entry(2, 1, A), exit(3, 1, A), exit(5, 0, MAIN)])
}

pub(crate) fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

const REPLAY: &str = "# DURATION     TID     FUNCTION
            [     7] | main() {
   0.001 us [     7] |   a();
   0.004 us [     7] | } /* main */
";

#[test]
fn the_directory_may_be_left_out() {
    let dir = sample();
    let output = rftrace(&["replay"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(parts(&output), (Some(0), REPLAY.into(), String::new()));

    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("uftrace.data");
    std::fs::create_dir(&data).unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), data.join(file.file_name())).unwrap();
    }
    let output = rftrace(&["replay"]).current_dir(parent.path()).output().unwrap();
    assert_eq!(parts(&output), (Some(0), REPLAY.into(), String::new()));
}

#[test]
fn exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["replay", "report"] {
        let (code, stdout, stderr) = run(&[command, utf8(dir.path())]);
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.starts_with("rftrace: ") && stderr.contains("is this a trace directory?"), "{stderr}");

        let (code, stdout, stderr) = run(&[command, "--nonsense"]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert!(stderr.contains("Usage"), "{stderr}");

        let (code, stdout, _) = run(&[command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(stdout.contains(&format!("\n  rftrace {command} ")), "an example in {stdout}");
    }
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["report", "--sort", "name"]).0, Some(2));
}

#[test]
fn a_closed_pipe_is_success() {
    let records: Vec<_> = (0..50_000).map(|time| entry(time, time.min(3), A)).collect();
    let dir = trace(&records);
    let mut child =
        rftrace(&["replay", utf8(dir.path())]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 10];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut start).unwrap();
    drop(stdout);
    let (code, _, stderr) = parts(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
#[cfg(unix)]
fn uftrace_is_used_if_it_is_asked_for() {
    use std::os::unix::fs::PermissionsExt;

    let dir = sample();
    let bin = tempfile::tempdir().unwrap();
    let uftrace = bin.path().join("uftrace");
    let install = |script: &str| {
        // Not written in place: a program that is open for writing cannot be started.
        let new = bin.path().join("new");
        std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&new, &uftrace).unwrap();
    };
    let run = |args: &[&str]| parts(&rftrace(args).env("PATH", bin.path()).output().unwrap());

    install("echo \"$@\"");
    let expected = format!("replay --no-pager -d {}\n", dir.path().display());
    assert_eq!(run(&["replay", "--uftrace", utf8(dir.path())]), (Some(0), expected, String::new()));
    // An installed uftrace changes nothing else.
    for args in [&["replay", utf8(dir.path())][..], &["replay", "--builtin", utf8(dir.path())]] {
        assert_eq!(run(args), (Some(0), REPLAY.into(), String::new()));
    }
    for option in [&["-F", "main"][..], &["--demangle", "full"], &["--from", "1"]] {
        assert_eq!(run(&[&["replay", "--uftrace", utf8(dir.path())], option].concat()).0, Some(2), "{option:?}");
    }

    install("exit 3");
    let (code, _, stderr) = run(&["replay", "--uftrace", utf8(dir.path())]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("exit status: 3; try without --uftrace"), "{stderr}");

    install("kill -PIPE $$");
    assert_eq!(run(&["replay", "--uftrace", utf8(dir.path())]), (Some(0), String::new(), String::new()));

    // A file that is no program is none.
    std::fs::set_permissions(&uftrace, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, stderr) = run(&["replay", "--uftrace", utf8(dir.path())]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("uftrace is not in PATH"), "{stderr}");
}

#[test]
fn other_spellings() {
    for (command, option, tip) in [
        ("replay", "--max-stack=3", "`-D`, `--depth`"),
        ("graph", "--max-depth", "`-D`, `--depth`"),
        ("report", "--hide=a", "`-N`, `--notrace`"),
        ("replay", "-C", "`rftrace graph DIR FUNC`"),
        ("replay", "--sort=total", "`rftrace report` has `--sort`"),
        ("report", "--column-view", "`rftrace replay` has `--column-view`"),
        ("graph", "--flame-graph", "`rftrace dump` has `--flame-graph`"),
        ("tui", "--srcline", "has `--srcline`"),
        ("view", "--srcline", "has `--srcline`"),
        ("replay", "-S", "`rftrace script FILE.py DIR`"),
        ("info", "--match=regex", "`rftrace replay` has `--match`"),
        ("script", "--no-args", "`uftrace script --no-args` has it"),
        ("graph", "--libname", "`rftrace replay -f +module`"),
        ("replay", "--argument=f", "`rftrace record` has `--argument`"),
        ("replay", "-b", "`rftrace record` has `-b`"),
        ("replay", "--outputfields=tid", "a similar argument exists: '--output-fields'"),
        ("replay", "--dept", "a similar argument exists: '--depth'"),
        ("report", "--data-dir", "a similar argument exists: '--data'"),
    ] {
        let (code, _, message) = run(&[command, option]);
        assert_eq!(code, Some(2), "{command} {option}");
        assert!(message.contains(tip), "{command} {option}: {message}");
        assert!(!message.contains("as a value"), "{command} {option}: {message}");
    }
}

/// uftrace's options of `record` that have another name here, or none.
#[test]
#[cfg(target_os = "linux")]
fn other_spellings_of_recordings() {
    for (option, tip) in [
        ("--max-stack=3", "`-D`, `--depth`"),
        ("--host=desk", "`--to HOST:PORT`"),
        ("-l", "`--libcalls` records"),
        ("-e", "--ends exits` leaves"),
        ("-S", "`rftrace script FILE.py DIR`"),
        ("--column-view", "`rftrace replay` has `--column-view`"),
        ("--flame-graph", "`rftrace dump` has `--flame-graph`"),
        ("--keep-pid", "`-p PID` records a running process"),
    ] {
        let (code, _, message) = run(&["record", option, "true"]);
        assert_eq!(code, Some(2), "{option}");
        assert!(message.contains(tip) && !message.contains("as a value"), "{option}: {message}");
    }
}

#[test]
fn spellings_of_uftrace() {
    let dir = trace(&[entry(1, 0, MAIN), entry(2, 1, A), exit(3, 1, A), exit(5, 0, MAIN)]);
    let dir = utf8(dir.path());
    for (command, option) in [
        ("replay", "--output-fields=tid"),
        ("report", "--output-fields=self"),
        ("graph", "--output-fields=self"),
        ("dump", "--flame-graph"),
    ] {
        for more in [
            "--time-filter=1ns",
            "--filter=main",
            "--notrace=b",
            "--depth=2",
            "--tid=7",
            "--time-range=0.000000001~",
            "--demangle=no",
        ] {
            let (code, text, message) =
                run(&[command, "--no-pager", "--color=no", &format!("--data={dir}"), option, more]);
            assert_eq!(code, Some(0), "{command} {more}: {message}");
            assert!(text.contains("main"), "{command} {more}: {text}");
        }
    }
}
