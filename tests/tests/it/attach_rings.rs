//! `rftrace record -p --ring`: of a program that runs the end of what happens is kept, and dumps are made of it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, require, tools};

use crate::attach::{Running, check_calls, count, program, refused, told, wait_for};
use crate::record::rftrace;

/// A small ring: the program fills it in a fraction of a second.
const RING: [&str; 3] = ["--ring", "--buffer", "64K"];

fn dumps(trace: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(trace).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut dumps: Vec<PathBuf> =
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("snapshot-")).collect();
    dumps.sort();
    dumps
}

/// Waits until there are dumps made for something.
#[track_caller]
fn wait_for_dumps(trace: &Path, reason: &str, n: usize) {
    let found = || dumps(trace).iter().filter(|dump| dump.to_string_lossy().contains(reason)).count();
    wait_for(|| found() >= n, reason);
}

fn interrupt(mut recorder: Child) {
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
}

#[track_caller]
fn ends_well(running: Running) {
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
}

/// Of a program that is linked dynamically, and of one that is linked statically: the ring is the end of what was recorded, and so is each dump. Once more
/// by a recorder that comes later; and the trace of a stream after that has all.
#[test]
fn the_end_is_kept() {
    if !require(&["gcc"]) {
        return;
    }
    let fixed = CProgram::new(&["attached.c"]).without_library().with(&["-O1", "-static", "-lpthread"]).build();
    for program in [&program().path, &fixed.path] {
        let running = Running::begin(program, "waits");
        let code = running.code();
        for _ in 0..2 {
            let on = ["--dump-on", "every:300ms", "--dump-on", "call:middle#50"];
            let recorder = running.begin_recording(&[&RING[..], &on].concat());
            wait_for_dumps(&running.trace(), "every-300ms", 3);
            // Each recorder has its calls counted from the first one.
            wait_for_dumps(&running.trace(), "call-middle-50", 1);
            interrupt(recorder);
            // The library has come.
            let now = running.code();
            let is_same = code.iter().all(|(line, bytes)| now.get(line) == Some(bytes));
            assert!(is_same, "code of {} was changed", program.display());
            let trace = running.trace();
            for part in dumps(&trace).into_iter().chain([trace]) {
                check_calls(&part, 2);
                let middles = count(&part, "middle");
                // 4,096 records fit, and each comes with two calls of `leaf` and one of `has_ended`.
                assert!(middles <= 512, "{middles} in {}", part.display());
            }
            fs::remove_dir_all(running.trace()).unwrap();
        }
        running.record_some(&["--for", "100ms"]);
        check_calls(&running.trace(), 2);
        ends_well(running);
    }
}

/// Calls are looked for in each of several processes, also those that are named while it is recorded.
#[test]
fn calls_of_each_process_are_looked_for() {
    if !require(&["gcc"]) {
        return;
    }
    let [one, other] = ["waits", "waits"].map(|way| Running::begin(&program().path, way));
    let number = other.pid().to_string();
    let sockets = tempfile::tempdir().unwrap();
    let ctl = |words: &[&str]| {
        let mut command = Command::new(rftrace());
        command.args(["ctl", &one.pid().to_string()]).args(words).env("XDG_RUNTIME_DIR", sockets.path());
        command.output().unwrap()
    };
    let options = [&RING[..], &["-p", &number, "--dump-on", "call:middle#300"]].concat();
    let recorder = one.begin_recording_by(&options, |command| _ = command.env("XDG_RUNTIME_DIR", sockets.path()));
    wait_for_dumps(&one.trace(), "call-middle-300", 2);
    for dump in dumps(&one.trace()) {
        // The call is the last thing in it.
        let middles = count(&dump, "middle");
        assert!((1..=300).contains(&middles), "{middles} in {}", dump.display());
    }
    for spec in ["panic", "fatal", "signal:USR1"] {
        let refused = ctl(&["trigger", "add", spec]);
        assert!(!refused.status.success() && told(&refused).contains("attached program"), "{spec}: {}", told(&refused));
    }
    let added = ctl(&["trigger", "add", "slow:has_ended>0ns,times=1"]);
    assert!(added.status.success(), "{}", told(&added));
    wait_for_dumps(&one.trace(), "slow-has_ended", 1);
    let listed = String::from_utf8(ctl(&["trigger", "list"]).stdout).unwrap();
    assert_eq!(listed, "0 call:middle#300\n1 slow:has_ended>0ns,times=1\n");
    let asked = ctl(&["dump", "why not"]);
    assert!(asked.status.success(), "{}", told(&asked));
    wait_for_dumps(&one.trace(), "why-not", 1);
    interrupt(recorder);
    ends_well(one);
    ends_well(other);
}

/// It is killed while it is recorded: its last calls are in the trace. The recorder is killed: the program goes on, and is recorded again.
#[test]
fn ends_that_nobody_expects() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = Running::begin(&program().path, "waits");
    let mut recorder = running.begin_recording(&RING);
    thread::sleep(Duration::from_millis(300));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    fs::remove_dir_all(running.trace()).unwrap();
    let mut recorder = running.begin_recording(&[&RING[..], &["--dump-on", "every:200ms"]].concat());
    wait_for_dumps(&running.trace(), "every-200ms", 2);
    running.child.kill().unwrap();
    assert_eq!(running.child.wait().unwrap().signal(), Some(9));
    assert!(recorder.wait().unwrap().success());
    check_calls(&running.trace(), 2);
}

#[test]
fn what_nobody_is_told_is_refused() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "waits");
    for on in ["signal:USR1", "fatal", "panic", "throw"] {
        let prepare = |command: &mut Command| _ = command.args(RING).args(["--dump-on", on]);
        refused(running.pid(), prepare, "attached program");
    }
    ends_well(running);
}
