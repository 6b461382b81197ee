//! Messages of `rftrace record` on options, on programs that it cannot record or save, and on too much data.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rftrace_read::Trace;
use rftrace_tests::{CProgram, Run, require};

use crate::interrupted::program;
use crate::record::{record, rftrace};

/// The user `nobody`.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let is_root = chown(dir.path(), Some(NOBODY), None).is_ok();
    if !is_root {
        eprintln!("skipped: only root can do this");
    }
    is_root
}

#[test]
fn unknown_options_are_errors() {
    for options in [&["--no-such-option", "ls"][..], &["-b", "1M", "-X", "ls"]] {
        let mut command = Command::new(rftrace());
        let run = Run::of_any(command.arg("record").args(options));
        assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("unexpected argument") && !run.stderr.contains("PATH"), "{}", run.stderr);
    }
    // A program's own options, and a program of such a name, are none of ours.
    let mut command = Command::new(rftrace());
    let run = Run::of_any(command.args(["record", "--", "--no-such-program"]));
    assert!(run.stderr.contains("there is no program --no-such-program in PATH"), "{}", run.stderr);
    if require(&["gcc"]) {
        let mut command = Command::new(rftrace());
        let run = Run::of_any(command.args(["record", "-b", "1M"]).arg(&program().path).args([
            "--no-such-option",
            "--",
            "x",
        ]));
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    }
}

#[test]
fn the_library_says_what_it_is() {
    let run = Run::of_any(&mut Command::new(rftrace().with_file_name("rftrace-preload")));
    assert_eq!(run.status.code(), Some(1), "{}: {}", run.status, run.stderr);
    assert!(run.stderr.contains("`rftrace record PROGRAM`"), "{}", run.stderr);
}

#[test]
fn programs_that_give_up_rights_are_told_of() {
    if !require(&["gcc"]) || !is_root() {
        return;
    }
    for (mode, words) in [
        ("chroot", "the process has changed its root directory (chroot)"),
        ("setuid", "the process now runs as user 65534"),
    ] {
        let run = record(&["--stop"], &program().path, &[mode]);
        assert!(run.stderr.contains(words) && run.stderr.contains("trace/.recording"), "{mode}: {}", run.stderr);
        assert!(!run.stderr.contains("no function with a call of the tracer"), "{mode}: {}", run.stderr);
    }
}

#[test]
fn programs_with_other_rights_are_refused() {
    if !require(&["gcc"]) || !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        fs::copy(from, &to).unwrap();
        to
    };
    let changes_user = copy(&program().path, "setuid");
    chown(&changes_user, Some(NOBODY), None).unwrap();
    fs::set_permissions(&changes_user, fs::Permissions::from_mode(0o4755)).unwrap();
    let run = record(&[], &changes_user, &[]);
    assert!(run.stderr.contains("runs as user 65534 (setuid)"), "{}", run.stderr);
    if require(&["setcap"]) {
        let capable = copy(&program().path, "capable");
        fs::set_permissions(&capable, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("setcap").arg("cap_net_raw+ep").arg(&capable).status().unwrap().success());
        copy(&rftrace().with_file_name("rftrace-preload"), "rftrace-preload");
        let mut command = Command::new(copy(&rftrace(), "rftrace"));
        let output = command.args(["record", "--"]).arg(&capable).uid(NOBODY).current_dir(&folder).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("has capabilities (setcap)"), "{stderr}");
    }
}

#[test]
fn what_is_written_has_a_limit() {
    if !require(&["gcc"]) {
        return;
    }
    let all = record(&["--stop", "--buffer", "128K"], &program().path, &["children"]);
    assert!(all.stderr.contains("in 9 processes") && all.stderr.contains("iB)"), "{}", all.stderr);
    // Each child has 64 KB.
    let some = record(&["--stop", "--buffer", "128K", "--max-size", "128K"], &program().path, &["children"]);
    assert_eq!(some.status.code(), Some(0), "{}", some.stderr);
    assert!(some.stderr.contains("reached its --max-size, 128K"), "{}", some.stderr);
    let n_saved = some.trace("trace").tasks().len();
    assert!((2..5).contains(&n_saved), "{n_saved}: {}", some.stderr);
    let gaps = some.trace("trace").gaps().unwrap();
    assert_eq!(gaps.too_much as usize + n_saved, 9);
}

/// rftrace's messages may reach nobody. The program ends as by itself, and its trace is whole.
#[test]
fn nobody_reads_what_is_said() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["imports.c"]).without_library().with(&["-O1"]).build();
    let folder = tempfile::tempdir().unwrap();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let closed = || {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for (name, stderr) in [("full", full()), ("closed", closed())] {
        let mut command = Command::new(rftrace());
        command.current_dir(folder.path()).args(["record", "-o", name]).arg(&program.path).stderr(stderr);
        assert_eq!(command.status().unwrap().code(), Some(0), "{name}");
        let trace = folder.path().join(name);
        assert!(!trace.join(".recording").exists(), "{name}");
        assert_eq!(Trace::open(&trace).unwrap().tasks().len(), 1, "{name}");
    }
}
