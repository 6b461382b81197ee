//! `rftrace record -p`: what `benches/attach.py` looks for in an hour, for some seconds; and what is in a process afterwards.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, fixtures, require};

use crate::attach::{Running, program};
use crate::record::rftrace;

/// Threads in `malloc`, many functions that get branches under threads that call nothing else, and a server whose answers are checked: no
/// hang, no byte of code that stays changed, no wrong answer.
#[test]
fn nothing_hangs_or_stays_changed() {
    if !require(&["gcc", "python3"]) {
        return;
    }
    let mut bench = Command::new(fixtures::repository().join("benches/attach.py"));
    bench.arg(rftrace()).args(["--attaches", "2", "--minutes", "0.02", "--functions", "200", "--server", "1"]);
    let output = bench.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}{said}");
    for row in
        ["threads in `malloc`, slots", "threads in `malloc`, branches", "cycles for", "while attached to, branches"]
    {
        assert!(said.lines().any(|line| line.contains(row)), "{said}");
    }
}

/// Mappings of a process: their number, and bytes of addresses.
fn mapped(running: &Running) -> (usize, u64) {
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    let bytes = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
    };
    (maps.lines().count(), maps.lines().map(bytes).sum())
}

/// Open files, and memory of threads that were borrowed.
fn left(running: &Running) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().flatten();
    let files = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_string_lossy().into_owned()));
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    let memory = maps.lines().filter(|line| line.ends_with("/dev/zero (deleted)")).map(str::to_owned);
    files.filter(|file| file.contains("memfd:rftrace")).chain(memory).collect()
}

/// All later recorders use the memory and files of the first one.
#[test]
fn nothing_grows() {
    if !require(&["gcc"]) {
        return;
    }
    let options = ["-static", "-O1", "-pg"];
    let stand_alone = CProgram::new(&["attached.c"]).without_library().without_hooks().with(&options);
    let stand_alone = stand_alone.with(&["-DNO_SLOT", "-lpthread"]).build();
    let ways: [(_, &[&str]); 3] =
        [(&program().path, &[]), (&program().path, &["--resources", "memory"]), (&stand_alone.path, &[])];
    for (path, options) in ways {
        let running = Running::begin(path, "");
        let record = || drop(running.record_some(&[&["--for", "30ms"], options].concat()));
        (0..2).for_each(|_| record());
        let before = mapped(&running);
        (0..5).for_each(|_| record());
        let after = mapped(&running);
        // The program's own memory may change a little.
        assert!(after.0 <= before.0 + 2 && after.1 < before.1 + (8 << 20), "{options:?}: {before:?}, {after:?}");
        // A smaller bank takes the place of a larger one, and that again.
        for buffer in ["16M", "64M", "16M", "64M"] {
            running.record_some(&[&["--for", "30ms", "--buffer", buffer], options].concat());
        }
        if options.is_empty() && path == &program().path {
            let after = mapped(&running);
            let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
            assert!(after.1 < before.1 + (8 << 20), "{before:?}, {after:?}:\n{maps}");
        }
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{said}");
    }
}

/// A recorder that is killed leaves its memory mapped; the next one detaches it, and takes its place.
#[test]
fn nothing_grows_after_killed_recorders() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    let kill_amid = || {
        let mut recorder = running.begin_recording(&[]);
        running.wait_for_records();
        recorder.kill().unwrap();
        recorder.wait().unwrap();
    };
    kill_amid();
    let before = mapped(&running);
    (0..3).for_each(|_| kill_amid());
    let after = mapped(&running);
    assert!(after.1 < before.1 + (8 << 20), "{before:?}, {after:?}");
    drop(running.record_some(&["--for", "30ms"]));
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
}

/// Recorders that are killed at any moment, while they attach and later: the next one removes what they have left.
#[test]
fn what_a_killed_recorder_left_is_removed() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    let mut n_left = 0;
    for turn in 0..60 {
        let mut recorder = running.recorder(&["-q"]);
        let mut recorder = recorder.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // It attaches within some of that.
        thread::sleep(Duration::from_millis(5 * turn));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        n_left += left(&running).len();
    }
    running.record_some(&["--for", "30ms"]);
    assert_eq!(left(&running), [""; 0], "{n_left} things were left in all");
    let before = mapped(&running);
    running.record_some(&["--for", "30ms"]);
    assert!(mapped(&running).1 < before.1 + (8 << 20));
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}
