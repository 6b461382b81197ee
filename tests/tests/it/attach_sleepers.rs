//! `rftrace record -p -P` of programs of which a thread cannot be stopped: it sleeps in the system until the child of a `vfork`, which runs in its memory, has
//! begun its program or ended.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, Program, require};

use crate::attach::{Running, count, told};
use crate::attach_branches::{OWN, check_code, recorded, stop};

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = CProgram::new(&["attached_sleeper.c"]).without_hooks().without_library();
        program.with(&["-O1", "-lpthread"]).build()
    })
}

fn begin(way: &str) -> Running {
    Running::begin_by(Command::new(&program().path).arg(way))
}

/// True if a thread of it sleeps where no signal wakes it.
fn is_asleep(running: &Running) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let state = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap_or_default();
    threads.flatten().any(|thread| state(thread).contains("State:\tD"))
}

/// True if a child of one has done its first work, and waits for a byte.
fn is_child_waiting(running: &Running) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    let all: String = threads.flatten().map(children).collect();
    let call = |child: &str| fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
    all.split_ascii_whitespace().any(|child| call(child).starts_with("0 "))
}

/// Has one sleep, for longer than who wants to stop it waits.
#[track_caller]
fn put_to_sleep(running: &mut Running) {
    assert_eq!(running.ask("s"), OWN);
    while !(is_asleep(running) && is_child_waiting(running)) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn ends_well(running: Running, n_handled: u32) {
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), &*format!("right, handled {n_handled}")));
}

#[track_caller]
fn check_counts(running: &Running, counts: &[(&str, u64)]) {
    for &(function, number) in counts {
        assert_eq!(count(&running.trace(), function), number, "{function}");
    }
}

/// The others are recorded while it sleeps; the child, and it, go on through functions that have got their branches meanwhile, or have lost them.
#[test]
fn a_thread_that_sleeps_for_long() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["exit", "exec"] {
        let mut running = begin(way);
        put_to_sleep(&mut running);
        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("?"), OWN);
        assert!(is_asleep(&running));
        stop(recorder);
        check_counts(&running, &[("leaf", 1000), ("work", 1), ("wait_for_child", 0), ("of_child", 0)]);
        check_code(&running);
        assert!(is_asleep(&running));

        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("w"), OWN);
        stop(recorder);
        check_counts(&running, &[("leaf", 200 + 500 + 1000), ("work", 3), ("wait_for_child", 0), ("of_child", 0)]);
        check_code(&running);

        // Its return path is given back while it sleeps.
        let recorder = running.begin_recording(&["-P", "*"]);
        put_to_sleep(&mut running);
        stop(recorder);
        check_counts(&running, &[("leaf", 100 + 1000), ("work", 2), ("wait_for_child", 1), ("of_child", 1)]);
        check_code(&running);
        assert!(is_asleep(&running));
        assert_eq!(running.ask("w"), OWN);
        ends_well(running, 0);
    }
}

/// Branches that a recorder has left are taken away while it sleeps.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin("exec");
    put_to_sleep(&mut running);
    let mut recorder = running.begin_recording(&["-P", "*"]);
    assert_eq!(running.ask("?"), OWN);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_eq!(running.ask("?"), OWN);
    let changed = running.code();
    running.record_some(&["--leave"]);
    assert_ne!(running.code(), changed, "there were no branches");
    check_code(&running);
    assert!(is_asleep(&running));
    assert_eq!(running.ask("w"), OWN);
    // It goes on with its branches where it is killed, too.
    put_to_sleep(&mut running);
    let mut recorder = running.begin_recording(&["-P", "*", "--on-full", "drop"]);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_eq!(running.ask("w"), OWN);
    running.record_some(&["--leave"]);
    check_code(&running);
    ends_well(running, 0);
}

/// Where no library can be loaded, too, branches are taken away while it sleeps.
#[test]
fn a_static_program_is_left() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["attached_sleeper.c"]).without_hooks().without_library();
    let program = program.with(&["-O1", "-static", "-lpthread"]).build();
    let mut running = Running::begin_by(Command::new(&program.path).arg("exit"));
    let recorder = running.begin_recording(&["-P", "*"]);
    put_to_sleep(&mut running);
    stop(recorder);
    check_counts(&running, &[("leaf", 100 + 1000), ("work", 2), ("wait_for_child", 1)]);
    check_code(&running);
    assert!(is_asleep(&running));
    assert_eq!(running.ask("w"), OWN);
    ends_well(running, 0);
}

/// A function that it goes on in the first instructions of stays as it is.
#[test]
fn it_has_interrupted_a_function() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin("interrupted");
    put_to_sleep(&mut running);
    let recorder = running.begin_recording(&["-P", "*"]);
    assert_eq!(running.ask("w"), OWN);
    stop(recorder);
    let list = fs::read_to_string(running.trace().join("entry-branches.txt")).unwrap();
    let reason = "a thread sleeps in the kernel and returns into its first instructions";
    assert!(list.lines().any(|line| line.contains("\tfill\t") && line.ends_with(reason)), "{list}");
    check_counts(&running, &[("leaf", 200 + 500 + 1000), ("fill", 0)]);
    check_code(&running);
    ends_well(running, 1);
}

/// Children that stand in the first instructions of a function are moved out of them, and some begin their programs meanwhile.
#[test]
fn children_that_come_and_go() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin("often");
    let mut n_moved = 0;
    for _ in 0..8 {
        let output = recorded(&running, &["-P", "*", "--for", "30ms", "--max-size", "1M", "--on-full", "drop"]);
        n_moved += usize::from(told(&output).contains(" out of changed code"));
        check_code(&running);
        assert_eq!(running.ask("?"), OWN);
    }
    assert!(n_moved > 0);
    ends_well(running, 0);
}
