//! `rftrace record -p PID,PID`: several programs in one trace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, require, tools};

use crate::attach::{Running, program, told};
use crate::record::rftrace;

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
    // Calls that begin and end within the time are there as a whole.
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

/// A process has one recorder, which nobody takes it from unless he says so. That one has all it recorded then.
#[test]
fn one_recorder_has_a_process() {
    if !require(&["gcc"]) {
        return;
    }
    let linked_statically = CProgram::new(&["attached.c"]).without_library();
    let linked_statically = linked_statically.with(&["-O1", "-static", "-DNO_SLOT", "-lpthread"]).build();
    for program in [&program().path, &linked_statically.path] {
        let running = Running::begin(program, "waits");
        let mut first = running.begin_recording(&[]);
        running.wait_for_records();
        let (pid, owner) = (running.pid().to_string(), format!("another rftrace (PID {}) already records", first.id()));
        for other in
            [&["record", "-o", "other", "-p", &pid][..], &["record", "-p", &pid, "--leave"], &["top", &pid, "--once"]]
        {
            let output = Command::new(rftrace()).args(other).current_dir(&running.folder).output().unwrap();
            assert!(!output.status.success() && told(&output).contains(&owner), "{other:?}: {}", told(&output));
        }
        assert!(first.try_wait().unwrap().is_none(), "it goes on");
        let mut second = Command::new(rftrace());
        second
            .args(["record", "-o", "other", "-p", &pid, "--for", "200ms", "--take-over"])
            .current_dir(&running.folder);
        let second = second.output().unwrap();
        assert!(second.status.success(), "{}", told(&second));
        assert!(first.wait().unwrap().success());
        let second = running.folder.path().join("other");
        for trace in [&running.trace(), &second] {
            let (leaves, middles) = calls(trace)[&running.pid()];
            assert!(middles > 0 && leaves.abs_diff(2 * middles) <= 8, "{leaves} and {middles}");
        }
        // A recorder that was killed has nothing any more.
        let mut killed = running.begin_recording(&[]);
        killed.kill().unwrap();
        killed.wait().unwrap();
        running.record_some(&["--for", "100ms"]);
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{said}");
    }
}
