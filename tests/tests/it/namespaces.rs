//! Programs in spaces of process numbers of their own: recorded exactly, waited for by what the system calls them here, and no other process is taken
//! for them.

use std::process::Command;

use rftrace_tests::{CProgram, Run, require};

use crate::record::{calls, rftrace};

/// Records a line of a shell, where `$0` is the program. `None`: such spaces cannot be made here.
fn record(line: &str, options: &[&str]) -> Option<Run> {
    if !require(&["gcc", "bash", "unshare"]) {
        return None;
    }
    if !Command::new("unshare").args(["-pf", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("left out: this user may make no spaces of process numbers");
        return None;
    }
    let program = CProgram::new(&["inherited.c"]).without_library().with(&["-O1"]).build();
    let mut command = Command::new(rftrace());
    command.args(["record", "--force", "-o", "trace"]).args(options).args(["bash", "-c", line]);
    Some(Run::of_any(command.arg(&program.path)))
}

#[test]
fn a_program_is_recorded_by_what_it_is_called_here() {
    for options in [&[][..], &["--ring"], &["--stop"]] {
        for unshare in ["unshare -pf", "unshare -Upf", "unshare -pf --mount-proc"] {
            let Some(run) = record(&format!("exec {unshare} $0"), options) else { return };
            assert_eq!(run.status.code(), Some(6), "{unshare} {options:?}: {}", run.stderr);
            assert!(!run.stderr.contains("waiting for"), "{unshare} {options:?}: {}", run.stderr);
            assert_eq!(calls(&run)["work"], 10, "{unshare} {options:?}: {}", run.stderr);
        }
    }
}

#[test]
fn two_programs_may_call_themselves_the_same() {
    let Some(run) = record("unshare -pf $0 & unshare -pf $0 & wait", &[]) else { return };
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert_eq!(calls(&run)["work"], 20, "{}", run.stderr);
    assert!(run.stderr.contains(" of 2 threads in 2 processes"), "{}", run.stderr);
}
