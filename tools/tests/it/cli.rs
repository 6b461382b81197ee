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
fn a_closed_pipe_is_success() {
    let records: Vec<_> = (0..50_000).map(|time| entry(time, time.min(3), A)).collect();
    let dir = trace(&records);
    for args in [&["replay"][..], &["dump", "--chrome"]] {
        let mut command = rftrace(args);
        let mut child = command.arg(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 10]).unwrap();
        drop(stdout);
        let (code, _, stderr) = parts(&child.wait_with_output().unwrap());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}");
    }
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
