//! `rftrace record -p`: programs that no library can be loaded into, as they are linked statically or have musl as their C library.

use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, fixtures, require, tools};
use tempfile::TempDir;

use crate::attach::{Running, check_calls, count, refused, told};
use crate::record::{build_rust_for_musl, calls_of};

/// The program, linked statically with the GNU C library.
fn fixed(folder: &TempDir, options: &[&str]) -> PathBuf {
    let path = folder.path().join(options.concat());
    CProgram::new(&["outside.c"]).without_library().with(options).with(&["-lpthread"]).build_as(&path);
    path
}

/// The same with musl, which has no `mcount`.
fn with_musl(folder: &TempDir, name: &str, options: &[&str]) -> PathBuf {
    let (path, source) = (folder.path().join(name), fixtures::folder("c").join("outside.c"));
    fixtures::build_as(Command::new("musl-gcc").args(["-O1", "-pg"]).arg(&source).args(options), &path);
    path
}

/// All of them.
pub(crate) fn programs(folder: &TempDir) -> Vec<PathBuf> {
    let options = [&["-O1", "-static"][..], &["-O1", "-static-pie"], &["-O2", "-mfentry", "-static"]];
    let mut all: Vec<PathBuf> = options.into_iter().map(|options| fixed(folder, options)).collect();
    if require(&["musl-gcc"]) {
        all.push(with_musl(folder, "fixed", &["-static", "-DOWN_MCOUNT"]));
        all.push(with_musl(folder, "dynamic", &["-DOWN_MCOUNT"]));
    }
    all
}

pub(crate) fn interrupt(recorder: u32) {
    tools::run(Command::new("kill").args(["-INT", &recorder.to_string()]));
}

#[track_caller]
pub(crate) fn ends_well(running: Running, program: &Path) {
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right"), "{}", program.display());
}

/// The thread that is borrowed stays where it is, so that is nowhere a jump is to be written.
#[test]
fn a_thread_that_is_mostly_at_the_beginning_of_mcount() {
    if !require(&["musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = with_musl(&folder, "slow", &["-static", "-DSLOW_MCOUNT", "-DROUNDS=65536"]);
    let running = Running::begin(&program, "alone");
    let code = running.code();
    running.record_some(&["--for", "50ms"]);
    check_calls(&running.trace(), 1);
    assert_eq!(running.code(), code);
    ends_well(running, &program);
}

/// Threads begin and end, also where functions are open: by `pthread_exit`, and cancelled.
#[test]
fn threads_that_come_and_go() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in programs(&folder) {
        let running = Running::begin(&program, "churn");
        let code = running.code();
        for _ in 0..3 {
            // A thread that was cancelled at once has not called anything, and where others have the processors few have begun meanwhile.
            let has_several = |_| {
                running.record_some(&["--for", "100ms"]);
                check_calls(&running.trace(), 4);
                traces::open(&running.trace()).tasks().len() > 3
            };
            assert!((0..20).any(has_several), "{}", program.display());
            let trace = traces::open(&running.trace());
            for calls in calls_per_task(&trace) {
                assert!(calls.get("middle").is_none_or(|&n| n <= 21), "{calls:?} of {}", program.display());
            }
        }
        assert_eq!(running.code(), code, "{}", program.display());
        ends_well(running, &program);
    }
}

/// The ways of the program that is linked dynamically elsewhere: in `malloc`, interrupted by signals, with children, and waiting.
#[test]
fn signals_children_and_waits() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["attached.c"]).without_library().with(&["-O1", "-static", "-DNO_SLOT", "-lpthread"]);
    let program = program.build();
    for (way, wanted) in
        [("malloc", "interrupted 0"), ("signals", "handled 1"), ("fork", "children 1"), ("waits", "interrupted 0")]
    {
        let running = Running::begin(&program.path, way);
        for _ in 0..3 {
            running.record_some(&["--for", "100ms"]);
            check_calls(&running.trace(), 4);
        }
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{way}: {said}");
        assert!(said.contains(wanted), "{way}: {said}");
    }
}

/// The program's unwinder knows what returns were hooked: while it is recorded, and afterwards.
#[test]
fn exceptions() {
    if !require(&["g++"]) {
        return;
    }
    let program = CProgram::new(&["attached_throws.cpp"]).without_library().with(&["-O1", "-static"]).build();
    let running = Running::begin(&program.path, "");
    for _ in 0..5 {
        running.record_some(&["--for", "50ms"]);
        let (deep, guards) = (count(&running.trace(), "deep"), count(&running.trace(), "Guard::~Guard"));
        assert!(deep > 0 && deep.abs_diff(guards) <= 40, "{deep} and {guards}");
    }
    ends_well(running, &program.path);
}

/// The unwinder of Rust's programs for musl finds what was hooked: while it is recorded, after a recorder that was killed, and when the tracer is left alone.
#[test]
fn panics_with_musl() {
    let counts = |running: &Running| {
        let calls = calls_of(&running.trace());
        ["leaf", "middle", "fails"].map(|function| calls.get(&format!("attached::{function}")).copied().unwrap_or(0))
    };
    for program in build_rust_for_musl("attached") {
        let running = Running::begin(&program, "");
        let code = running.code();
        for is_asked in [true, false] {
            for _ in 0..2 {
                running.record_some(&["--for", "10ms"]);
                let [leaves, middles, fails] = counts(&running);
                assert!(middles > 0 && leaves.abs_diff(2 * middles) <= 6, "{leaves} and {middles}");
                assert!(fails.abs_diff(middles) <= 6, "{fails} and {middles}");
                assert_eq!(running.code(), code, "{}", program.display());
            }
            let mut recorder = running.begin_recording(&["--on-full", "drop", "--max-size", "16M"]);
            thread::sleep(Duration::from_millis(100));
            recorder.kill().unwrap();
            recorder.wait().unwrap();
            assert_ne!(running.code(), code, "{}", program.display());
            if is_asked {
                let output = running.record(&["--leave"]);
                assert!(output.status.success(), "{}", told(&output));
                assert_eq!(running.code(), code, "{}", program.display());
            }
            fs::remove_dir_all(running.trace()).unwrap();
        }
        running.record_some(&["--for", "10ms"]);
        assert_eq!(running.code(), code, "{}", program.display());
        let (status, said) = running.end();
        assert_eq!((status.code(), said.trim()), (Some(7), "right true"), "{}", program.display());
    }
}

/// A recorder that is killed leaves jumps, which lead to a tracer that nobody listens to. They are taken away by who is asked to, and by the next.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in programs(&folder) {
        let running = Running::begin(&program, "alone");
        let code = running.code();
        for is_asked in [true, false] {
            let mut recorder = running.begin_recording(&["--on-full", "drop", "--max-size", "16M"]);
            thread::sleep(Duration::from_millis(300));
            recorder.kill().unwrap();
            recorder.wait().unwrap();
            let changed = running.code();
            assert_eq!(changed.keys().collect::<Vec<_>>(), code.keys().collect::<Vec<_>>());
            let n_changed = changed.values().flatten().zip(code.values().flatten()).filter(|(a, b)| a != b).count();
            // `mcount`, and `__fentry__` if it has that.
            assert!((1..=10).contains(&n_changed), "{n_changed} bytes of {}", program.display());
            if is_asked {
                let output = running.record(&["--leave"]);
                assert!(output.status.success(), "{}", told(&output));
                assert_eq!(running.code(), code, "{}", program.display());
            }
            fs::remove_dir_all(running.trace()).unwrap();
        }
        running.record_some(&["--for", "50ms"]);
        check_calls(&running.trace(), 1);
        assert_eq!(running.code(), code, "{}", program.display());
        ends_well(running, &program);
    }
}

/// It ends while it is recorded, as it would have ended.
#[test]
fn a_program_that_ends() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = fixed(&folder, &["-O1", "-static"]);
    let mut running = Running::begin(&program, "alone");
    let mut recorder = running.begin_recording(&["--on-full", "drop", "--max-size", "16M"]);
    drop(running.child.stdin.take());
    assert!(recorder.wait().unwrap().success());
    check_calls(&running.trace(), 1);
    ends_well(running, &program);
}

/// It runs another program while it is recorded, which is said, and is not recorded.
#[test]
fn a_program_that_becomes_another() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in programs(&folder) {
        let mut running = Running::begin(&program, "becomes");
        let mut recorder = running.begin_recording(&["--on-full", "drop", "--max-size", "16M"]);
        writeln!(running.child.stdin.as_ref().unwrap()).unwrap();
        assert!(recorder.wait().unwrap().success());
        check_calls(&running.trace(), 1);
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), running.pid().to_string());
        // The new program can be recorded too.
        running.record_some(&["--for", "50ms"]);
        check_calls(&running.trace(), 1);
        ends_well(running, &program);
    }
}

/// Neither files nor `/proc` are needed in its root directory, and its process numbers may be its own.
#[test]
fn in_a_container() {
    let made = Command::new("unshare").args(["-m", "-p", "-f", "true"]).status();
    if !require(&["gcc"]) || !made.is_ok_and(|status| status.success()) {
        tools::skip("only root can make containers (unshare)");
        return;
    }
    let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::copy(fixed(&folder, &["-O1", "-static"]), root.path().join("program")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-p", "-f", "chroot"]).arg(root.path()).args(["/program", "churn"]);
    let running = Running::begin_by(&mut command);
    for _ in 0..2 {
        running.record_some(&["--for", "100ms"]);
        check_calls(&running.trace(), 4);
        let tids: Vec<u32> = traces::open(&running.trace()).tasks().iter().map(|task| task.tid()).collect();
        // The first process there is 1, and has threads with small numbers, each another one.
        assert!(tids.contains(&1) && tids.len() > 3, "{tids:?}");
    }
    running.record_some(&["--for", "100ms", "-N", "middle"]);
    assert_eq!((count(&running.trace(), "middle"), count(&running.trace(), "leaf")), (0, 0));
    assert!(count(&running.trace(), "ends") > 0);
    ends_well(running, Path::new("/program"));
}

#[test]
fn refusals() {
    if !require(&["gcc", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = fixed(&folder, &["-O1", "-static"]);
    let running = Running::begin(&program, "alone");
    let code = running.code();
    for options in [&["--libcalls"][..], &["--resources", "memory"], &["--patched"]] {
        refused(running.pid(), |command| _ = command.args(options), "is linked statically");
    }
    let output = running.record(&["--leave"]);
    assert!(told(&output).contains("has no tracer: --leave"), "{}", told(&output));
    assert_eq!(running.code(), code);
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    assert!(!maps.contains("rftrace"), "{maps}");
    ends_well(running, &program);

    let stripped = folder.path().join("stripped");
    tools::run(Command::new("strip").arg("-o").arg(&stripped).arg(&program));
    let running = Running::begin(&stripped, "alone");
    refused(running.pid(), |_| (), "without -s and strip");
    ends_well(running, &stripped);

    if require(&["musl-gcc"]) {
        let short = with_musl(&folder, "short", &["-static", "-DSHORT_MCOUNT"]);
        let running = Running::begin(&short, "alone");
        refused(running.pid(), |_| (), "is too short");
        ends_well(running, &short);
    }
}
