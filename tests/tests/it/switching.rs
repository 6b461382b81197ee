//! Recording is switched by several threads at once, and by an environment that is not to be trusted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use rftrace_tests::{Profile, Program, Run, require, rust_program, tools};

fn program() -> Program {
    rust_program("switching", Profile::Release)
}

#[test]
fn guards_of_threads_are_counted() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("switching", profile).run(&["overlap"]);
        let expected =
            "one of two guards: true\nno guard: false\nenabled: true\ndisabled: false\nstill disabled: false\n";
        assert_eq!(run.stdout, expected, "{profile:?}");
    }
    assert_eq!(program().run(&["storm"]).stdout, "after the storm: false\n");
}

#[test]
fn snapshots_of_threads_leave_recording_on() {
    if !require(&["nightly"]) {
        return;
    }
    for _ in 0..2 {
        assert_eq!(program().run(&["snapshots"]).stdout, "after snapshots: true\n");
    }
}

/// A caller with fewer rights than the program must not choose what it does.
#[test]
fn programs_with_other_rights_ignore_the_environment() {
    if !require(&["nightly"]) {
        return;
    }
    let program = program();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |path: &std::path::Path| {
        let mut command = Command::new(path);
        Run::of_any(command.env("RFTRACE_FILTER", "include=no_such_function").env("RFTRACE_PATCHED", "perhaps"))
    };
    let plain = run(&program.path);
    assert!(plain.stderr.contains("RFTRACE_PATCHED"), "{}", plain.stderr);
    let copy = folder.path().join("program");
    fs::copy(&program.path, &copy).unwrap();
    if chown(&copy, Some(65534), None).is_err() {
        tools::skip("only root can give a file away");
        return;
    }
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    let run = run(&copy);
    assert_eq!(run.stdout, "installed\n", "{}", run.stderr);
}
