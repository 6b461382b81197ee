//! `rftrace ctl` ends no wait of the program that it asks.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, Program, require};

use crate::record::rftrace;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["waiting.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// Records a program whose threads wait so, and asks it again and again.
fn waits_go_on(ways: &[&str], n_requests: usize) {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-o", "trace", "--"]).arg(&program().path).arg("end").args(ways);
    command.current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&told).unwrap());
    let mut recorder = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(recorder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{}", fs::read_to_string(&told).unwrap());
    let requests = [&["filter", "include=work"][..], &["off"], &["on"]];
    for request in requests.into_iter().cycle().take(n_requests) {
        let mut command = Command::new(rftrace());
        command.arg("ctl").arg(recorder.id().to_string()).args(request).env("XDG_RUNTIME_DIR", folder.path());
        let output = command.output().unwrap();
        if !output.status.success() {
            let _ = recorder.kill();
            let _ = recorder.wait();
            panic!("{ways:?}, {request:?}: {output:?}, {}", fs::read_to_string(&told).unwrap());
        }
        // So that the time of a wait comes to its end, too.
        thread::sleep(Duration::from_millis(1));
    }
    fs::write(folder.path().join("end"), "").unwrap();
    assert_eq!(recorder.wait().unwrap().code(), Some(0), "{ways:?}: {}", fs::read_to_string(&told).unwrap());
}

#[test]
fn of_one_thread() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["poll", "select", "nanosleep", "epoll", "recv", "sem"] {
        waits_go_on(&[way], 50);
    }
}

#[test]
fn of_several_threads() {
    if !require(&["gcc"]) {
        return;
    }
    waits_go_on(&["nanosleep", "poll", "epoll", "select", "recv", "sem"], 200);
}

#[test]
fn beside_a_thread_that_computes() {
    if !require(&["gcc"]) {
        return;
    }
    waits_go_on(&["poll", "busy", "epoll"], 200);
}
