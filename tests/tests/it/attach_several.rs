//! `rftrace record -p PID,PID`: several programs in one trace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{require, tools};

use crate::attach::{Running, program, told};

/// How often two functions were called in each process.
fn calls(trace: &Path) -> BTreeMap<u32, (u64, u64)> {
    let trace = traces::open(trace);
    let mut found = BTreeMap::<u32, (u64, u64)>::new();
    for (task, calls) in trace.tasks().iter().zip(calls_per_task(&trace)) {
        let (leaves, middles) = found.entry(task.pid()).or_default();
        *leaves += calls.get("leaf").copied().unwrap_or(0);
        *middles += calls.get("middle").copied().unwrap_or(0);
    }
    found
}

#[track_caller]
fn check(trace: &Path, running: [&Running; 2]) {
    let found = calls(trace);
    let pids: Vec<u32> = found.keys().copied().collect();
    let mut wanted = running.map(Running::pid).to_vec();
    wanted.sort_unstable();
    assert_eq!(pids, wanted);
    // What has begun and ended within the time is there as a whole.
    assert!(found.values().all(|&(leaves, middles)| middles > 0 && leaves.abs_diff(2 * middles) <= 8), "{found:?}");
}

#[track_caller]
fn end(running: Running) {
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

#[test]
fn two_programs_are_in_one_trace() {
    if !require(&["gcc"]) {
        return;
    }
    let [one, other] = ["waits", "waits"].map(|way| Running::begin(&program().path, way));
    let number = other.pid().to_string();
    for _ in 0..2 {
        one.record_some(&["-p", &number, "--for", "200ms"]);
        check(&one.trace(), [&one, &other]);
    }
    // The same named twice is one.
    one.record_some(&["-p", &format!("{number},{}", one.pid()), "--for", "200ms"]);
    check(&one.trace(), [&one, &other]);
    end(one);
    end(other);
}

#[test]
fn each_may_end_before_the_others() {
    if !require(&["gcc"]) {
        return;
    }
    let [one, mut other] = ["waits", "waits"].map(|way| Running::begin(&program().path, way));
    let mut recorder = one.begin_recording(&["-p", &other.pid().to_string()]);
    thread::sleep(Duration::from_millis(300));
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    thread::sleep(Duration::from_millis(100));
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
    let found = calls(&one.trace());
    assert!(found.len() == 2 && found.values().all(|&(leaves, _)| leaves > 0), "{found:?}");
    end(one);
}

#[test]
fn where_one_cannot_be_recorded_none_is() {
    if !require(&["gcc"]) {
        return;
    }
    let one = Running::begin(&program().path, "waits");
    let code = one.code();
    let mut untraced = Command::new("sleep").arg("1000").spawn().unwrap();
    let refused = one.record(&["-p", &untraced.id().to_string(), "--for", "100ms"]);
    untraced.kill().unwrap();
    untraced.wait().unwrap();
    assert!(!refused.status.success());
    assert!(told(&refused).contains("does not call mcount"), "{}", told(&refused));
    assert!(!one.trace().exists());
    let now = one.code();
    assert!(code.iter().all(|(line, bytes)| now.get(line) == Some(bytes)), "code was changed");
    end(one);
}
