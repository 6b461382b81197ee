//! `rftrace record -p` of programs that wait in the system with a time-out: what the wait returns, `errno` and the time are as without, however often it is
//! attached to.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::{CProgram, Program, require};

use crate::attach::{Running, told, wait_for};

const SECONDS: u64 = 8;
/// How much later a wait may end on a machine that does much else.
const LATE: Duration = Duration::from_secs(20);

/// How it waits, what that returns, and `errno`.
const WAYS: [(&str, &str); 6] = [
    ("nanosleep", "0 ENOTUNIQ"),
    ("poll", "0 ENOTUNIQ"),
    ("select", "0 ENOTUNIQ"),
    ("epoll_wait", "0 ENOTUNIQ"),
    ("cond", "110 ENOTUNIQ"),
    ("syscall", "-1 ETIMEDOUT"),
];

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["attached_waits.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// True if the first thread waits in the system.
fn is_waiting(running: &Running) -> bool {
    let pid = running.pid();
    let told = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap();
    told.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}

fn check_wait(way: &str, expected: &str, options: &[&str]) {
    let running = Running::begin_by(Command::new(&program().path).args([way, &SECONDS.to_string()]));
    let begun = Instant::now();
    wait_for(|| is_waiting(&running), "it waits");
    for _ in 0..2 {
        running.record_some(&[&["--for", "100ms"], options].concat());
    }
    let (status, said) = running.end();
    let attached = begun.elapsed();
    let (result, took) = said.trim().rsplit_once(' ').unwrap_or_default();
    let took = Duration::from_millis(took.parse().unwrap_or(0));
    assert_eq!((status.code(), result), (Some(0), expected), "{way}: {said}");
    let asked = Duration::from_secs(SECONDS);
    assert!(asked <= took && took <= asked + attached + LATE, "{way}: {took:?}");
}

fn check_waits(options: &[&str]) {
    if !require(&["gcc"]) {
        return;
    }
    // They are built before the time counts.
    program();
    thread::scope(|scope| {
        for (way, expected) in WAYS {
            scope.spawn(move || check_wait(way, expected, options));
        }
    });
}

#[test]
fn waits_go_on() {
    check_waits(&[]);
}

#[test]
fn waits_go_on_with_branches() {
    check_waits(&["-P", "*@libc*", "-P", "leaf"]);
}

/// The wait of a program that was stopped before has another number (`restart_syscall`).
#[test]
fn a_sleeping_program_is_left_at_once() {
    let mut sleeping = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = sleeping.id();
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut recorder = Command::new(crate::record::rftrace());
        recorder.args(["record", "-o", "trace", "-p", &pid.to_string(), "-P", "*@libc*", "--for", "100ms"]);
        let told = told(&recorder.current_dir(&folder).output().unwrap());
        assert!(!told.contains("no thread of"), "{told}");
    }
    let ended = sleeping.try_wait().unwrap();
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    assert_eq!(ended, None);
}
