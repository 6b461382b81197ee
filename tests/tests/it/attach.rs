//! `rftrace record -p`: programs that run are recorded for a while, and go on as if nothing had happened.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, fixtures, require, tools};

use crate::record::rftrace;

pub(crate) use rftrace_tests::running::{BUSY, Running, told, wait_for};

pub(crate) fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["attached.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// Others that want the processors.
struct Busy(Vec<Child>);

impl Busy {
    fn begin(number: usize) -> Self {
        let begin = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..number).map(begin).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How often a function was called, in all tasks.
pub(crate) fn count(trace: &Path, function: &str) -> u64 {
    calls_per_task(&traces::open(trace)).iter().filter_map(|task| task.get(function)).sum()
}

/// Calls that begin and end within the time are there as a whole.
#[track_caller]
pub(crate) fn check_calls(trace: &Path, most_threads: u64) {
    let (leaves, middles) = (count(trace, "leaf"), count(trace, "middle"));
    let difference = leaves.abs_diff(2 * middles);
    assert!(middles > 0 && difference <= 2 * most_threads, "{leaves} and {middles}");
}

/// All threads are in `malloc` nearly all the time, whose lock `dlopen` takes.
#[test]
fn a_busy_program_again_and_again() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    let code = running.code();
    for _ in 0..15 {
        running.record_some(&["--for", "50ms"]);
        check_calls(&running.trace(), 4);
    }
    let tids = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let tids: Vec<u32> = tids.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    for task in traces::open(&running.trace()).tasks() {
        assert!(tids.contains(&task.tid()), "{} of {tids:?}", task.tid());
    }
    // The mappings that the tracer's library needs have come.
    let now = running.code();
    assert!(code.iter().all(|(line, bytes)| now.get(line) == Some(bytes)), "code was changed");
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

/// Threads without a processor: they wait for a lock, or for each other's turn.
#[test]
fn context_switches_are_recorded() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    let has_switches = |options: &[&str]| {
        let said = running.record_some(&[&["--for", "200ms"], options].concat());
        if said.contains("cannot record context switches") {
            tools::skip(&said);
            return None;
        }
        let report = tools::text(Command::new(rftrace()).arg("report").arg(running.trace()));
        assert_eq!(report.contains("CPU "), report.contains("linux:schedule"), "{report}");
        Some(report.contains("linux:schedule"))
    };
    assert_eq!(has_switches(&["--no-schedule"]), Some(false));
    assert!(has_switches(&[]) != Some(false));
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
}

/// Threads that are told to stop may take long to, while others get the processors: nothing is done to their stacks before.
#[test]
fn threads_that_hardly_ever_run() {
    if !require(&["gcc"]) {
        return;
    }
    let busy = Busy::begin(4);
    let running = Running::begin_by(Command::new("nice").args(["-n", "12"]).arg(&program().path).arg("malloc"));
    for _ in 0..10 {
        running.record_some(&["--for", "200ms"]);
    }
    drop(busy);
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

/// A program that was not built for it: what it calls of libraries is recorded, and as often as somebody attaches.
#[test]
fn library_calls_of_any_program() {
    if !require(&["gcc"]) {
        return;
    }
    for linkage in [&["-Wl,-z,lazy"][..], &["-Wl,-z,now"], &["-fno-plt", "-Wl,-z,now"]] {
        let program = CProgram::new(&["answering.c"]).without_hooks().without_library();
        let program = program.with(&["-O1", "-fno-builtin"]).with(linkage).build();
        let mut running = Running::begin_by(Command::new(&program.path).env("ANSWER", "four"));
        let mut n_asked = 0;
        let mut ask = |running: &mut Running| {
            n_asked += 1;
            running.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
            let mut line = String::new();
            running.output.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{}\n", n_asked * 4000));
        };
        let code = running.code();
        for times in 1..=3 {
            let mut recorder = running.begin_recording(&["--libcalls"]);
            (0..times).for_each(|_| ask(&mut running));
            tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
            assert!(recorder.wait().unwrap().success());
            for function in ["getenv", "strlen", "malloc", "free"] {
                assert_eq!(count(&running.trace(), function), times * 1000, "{function} {linkage:?}");
            }
            assert_eq!(count(&running.trace(), "dprintf"), times);
            ask(&mut running);
        }
        let refused = running.record(&["--for", "10ms"]);
        assert!(told(&refused).contains("does not call mcount"), "{}", told(&refused));
        // Code that nobody changes: no function of it has a branch.
        assert!(code.iter().all(|(line, bytes)| running.code().get(line) == Some(bytes)), "{linkage:?}");
        let (status, said) = running.end();
        assert_eq!((status.code(), said.as_str()), (Some(5), ""));
    }
}

/// Threads that wait in system calls are not told that they were interrupted, and those are not over earlier.
#[test]
fn waiting_threads_wait_on() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "waits");
    for _ in 0..4 {
        running.record_some(&["--for", "30ms"]);
        check_calls(&running.trace(), 1);
    }
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same, interrupted 0"), "{said}");
}

/// A process whose main thread has ended has its memory, files and program by its other threads alone.
#[test]
fn a_main_thread_that_has_ended() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "headless");
    let status = || fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    wait_for(|| status().contains("State:\tZ"), "the end of the main thread");
    for options in [&[][..], &["--ring"], &["-P", "*"]] {
        running.record_some(&[&["--for", "100ms"], options].concat());
        assert!(count(&running.trace(), "leaf") > 0 && count(&running.trace(), "middle") > 0, "{options:?}");
    }
    let resources = running.record(&["--for", "100ms", "--resources", "memory"]);
    assert!(resources.status.success(), "{}", told(&resources));
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

#[test]
fn signals_and_children() {
    if !require(&["gcc"]) {
        return;
    }
    for (way, wanted) in [("signals", "handled 1"), ("fork", "children 1")] {
        let running = Running::begin(&program().path, way);
        for _ in 0..3 {
            running.record_some(&["--for", "50ms"]);
            assert!(count(&running.trace(), "leaf") > 0, "{way}");
        }
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{way}: {said}");
        assert!(said.contains("slot same") && said.contains(wanted), "{way}: {said}");
    }
}

/// Slots of the procedure linkage table, and the other hook.
#[test]
fn fentry_without_pie() {
    if !require(&["gcc"]) {
        return;
    }
    let options = ["-O1", "-mfentry", "-no-pie", "-fno-pie", "-DNO_SLOT", "-lpthread"];
    let program = CProgram::new(&["attached.c"]).without_library().with(&options).build();
    let running = Running::begin(&program.path, "malloc");
    for _ in 0..2 {
        running.record_some(&["--for", "50ms", "-F", "middle"]);
        check_calls(&running.trace(), 4);
        assert_eq!(count(&running.trace(), "round_of_work"), 0);
    }
    assert_eq!(running.end().0.code(), Some(7));
}

/// Panics pass while it is recorded, and when it is not any more.
#[test]
fn a_rust_program() {
    if !require(&["nightly"]) {
        return;
    }
    let mut rustc = fixtures::rustc(Some("nightly"), "attached.rs");
    let program = fixtures::cache::compile(rustc.args(["-Zinstrument-mcount", "-O"]), "attached");
    let running = Running::begin(&program, "");
    for _ in 0..3 {
        running.record_some(&["--for", "50ms"]);
        let (leaves, middles) =
            (count(&running.trace(), "attached::leaf"), count(&running.trace(), "attached::middle"));
        assert!(middles > 0 && leaves.abs_diff(2 * middles) <= 8, "{leaves} and {middles}");
        assert!(count(&running.trace(), "attached::fails") > 0);
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right true"));
}

/// How a program ends that was attached to so many times, and what it says.
#[track_caller]
fn recorded_often(program: &Program, times: usize) -> (ExitStatus, String) {
    let running = Running::begin(&program.path, "");
    for _ in 0..times {
        running.record_some(&["--for", "20ms"]);
    }
    running.end()
}

/// An unwinder reads a return address, and reads it again when it asks for the one that the tracer has replaced: none is given back between.
#[test]
fn exceptions_at_any_time() {
    if !require(&["g++"]) {
        return;
    }
    let program = CProgram::new(&["attached_throws.cpp"]).without_library().with(&["-O2"]).build();
    let (status, said) = recorded_often(&program, 25);
    assert_eq!((status.code(), said.trim()), (Some(7), "right"), "{status}");
}

/// The processor time that a thread uses for the recorder raises a signal, which ends no system call of the program.
#[test]
fn clocks_of_processor_time() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["attached_polls.c"]).without_library().with(&["-O1"]).build();
    let (status, said) = recorded_often(&program, 15);
    assert_eq!((status.code(), said.trim()), (Some(7), "interrupted 0"), "{status}");
}

/// The program goes on without its recorder, and is left and attached to as ever.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    for is_left in [true, false] {
        let mut recorder = running.begin_recording(&[]);
        thread::sleep(Duration::from_millis(100));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        if is_left {
            running.record_some(&["--leave"]);
        }
        running.record_some(&["--for", "50ms"]);
        check_calls(&running.trace(), 4);
    }
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

/// It may be killed at each moment, also while a thread is borrowed.
#[test]
fn a_recorder_that_is_killed_at_any_time() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "malloc");
    for millis in (10..400).step_by(40) {
        let mut recorder = running.recorder(&["--for", "20ms"]).spawn().unwrap();
        thread::sleep(Duration::from_millis(millis));
        let _ = recorder.kill();
        recorder.wait().unwrap();
        let _ = fs::remove_dir_all(running.trace());
    }
    running.record_some(&["--for", "50ms"]);
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

/// All records are in the trace, whoever ends.
#[test]
fn ends() {
    if !require(&["gcc"]) {
        return;
    }
    for (way, signal) in [("malloc", 9), ("malloc", 0), ("exec", 0)] {
        let mut running = Running::begin(&program().path, way);
        let mut recorder = running.begin_recording(&[]);
        running.wait_for_records();
        if signal == 9 {
            running.child.kill().unwrap();
        } else {
            drop(running.child.stdin.take());
        }
        assert!(recorder.wait().unwrap().success(), "{way}");
        if way == "malloc" && signal == 0 {
            check_calls(&running.trace(), 4);
        }
        assert!(count(&running.trace(), "middle") > 0, "{way}");
        assert_eq!(running.child.wait().unwrap().signal(), (signal != 0).then_some(signal), "{way}");
    }
    // And the recorder, by what Ctrl-C sends.
    let running = Running::begin(&program().path, "malloc");
    let mut recorder = running.begin_recording(&[]);
    running.wait_for_records();
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
    check_calls(&running.trace(), 4);
    assert!(running.end().1.contains("slot same"));
}

/// A refusal, and that nothing was changed.
#[track_caller]
pub(crate) fn refused(pid: u32, prepare: impl FnOnce(&mut Command), wanted: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--for", "10ms", "-p", &pid.to_string()]).current_dir(&folder).stdin(Stdio::null());
    prepare(&mut command);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{wanted}: {}", told(&output));
    assert!(told(&output).contains(wanted), "{wanted}: {}", told(&output));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{wanted}");
}

#[test]
fn refusals() {
    if !require(&["gcc"]) {
        return;
    }
    refused(u32::MAX >> 1, |_| (), "there is no process");
    let plain =
        CProgram::new(&["attached.c"]).without_library().without_hooks().with(&["-DNO_SLOT", "-lpthread"]).build();
    let running = Running::begin(&plain.path, "malloc");
    refused(running.pid(), |_| (), "does not call mcount");
    let libraries = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    assert!(!libraries.contains("rftrace"), "{libraries}");
    running.end();

    let fixed = CProgram::new(&["attached.c"]).without_library().without_hooks();
    let fixed = fixed.with(&["-static", "-DNO_SLOT", "-lpthread"]).build();
    let running = Running::begin(&fixed.path, "malloc");
    refused(running.pid(), |_| (), "has no function mcount or __fentry__");
    running.end();

    let mut running = Running::begin(&program().path, "malloc");
    let pid = running.pid();
    let thread = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let thread = thread.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap());
    refused(thread.max().unwrap(), |_| (), &format!("is a thread of process {pid}"));
    tools::run(Command::new("kill").args(["-STOP", &pid.to_string()]));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    refused(pid, |_| (), "is stopped");
    tools::run(Command::new("kill").args(["-CONT", &pid.to_string()]));
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        let command = fixtures::command_line();
        let is_open = command.ancestors().all(|folder| fs::metadata(folder).is_ok_and(|meta| meta.mode() & 1 != 0));
        if is_open {
            refused(pid, |command| _ = command.uid(65534), "belongs to root");
        } else {
            tools::skip("the command cannot be run by another user");
        }
    } else {
        tools::skip("only root is another user's");
    }
    running.child.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    refused(pid, |_| (), "zombie");
    running.child.wait().unwrap();

    // Those that are recorded from their beginning: the end of their recorder would be theirs.
    let hooked = CProgram::new(&["attached.c"]).without_library();
    let hooked = hooked.with(&["-O1", "-static", "-DNO_SLOT", "-lpthread"]).build();
    for program in [&program().path, &hooked.path] {
        let folder = tempfile::tempdir().unwrap();
        let mut recorded = Command::new(rftrace());
        recorded.args(["record", "-o", "trace", "--"]).arg(program).arg("malloc").current_dir(&folder);
        let mut recorded = recorded.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(recorded.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        refused(pid, |_| (), "rftrace record started it");
        refused(pid, |command| _ = command.arg("--take-over"), "rftrace record started it");
        drop(recorded.stdin.take());
        assert_eq!(recorded.wait().unwrap().code(), Some(7));
    }
}
