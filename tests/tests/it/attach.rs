//! `rftrace record -p`: programs that run are recorded for a while, and go on as if nothing had happened.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, fixtures, require, tools};
use tempfile::TempDir;

use crate::record::rftrace;

pub(crate) fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["attached.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// Messages about an attached program that gets no processor.
pub(crate) const BUSY: [&str; 3] =
    ["was at a place where it can be borrowed", "nothing was recorded", "has had no processor"];

/// How often it is tried again then.
const TRIES: usize = 20;

/// A program that runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// Its number: that of the child, or of what the child has started.
    pid: u32,
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) folder: TempDir,
}

impl Running {
    pub(crate) fn begin(program: &Path, way: &str) -> Self {
        Self::begin_by(Command::new(program).arg(way))
    }

    pub(crate) fn begin_by(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = match line.trim() {
            // In a space of process numbers of its own, which the child has made.
            "1" => fs::read_to_string(children).unwrap().trim().parse().unwrap(),
            own => own.parse().unwrap(),
        };
        assert!(pid == child.id() || line.trim() == "1");
        Self { child, pid, output, folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    pub(crate) fn recorder(&self, options: &[&str]) -> Command {
        let mut command = Command::new(rftrace());
        command.args(["record", "-o", "trace", "-p", &self.pid().to_string()]).args(options);
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn record(&self, options: &[&str]) -> Output {
        self.recorder(options).output().unwrap()
    }

    /// Records something of it. Where others have the processors, it may not have run meanwhile, or no thread may be found where it can be
    /// borrowed: that is said, and may be tried again.
    #[track_caller]
    pub(crate) fn record_some(&self, options: &[&str]) {
        let mut told = String::new();
        for _ in 0..TRIES {
            let output = self.record(options);
            if output.status.success() {
                return;
            }
            told = self::told(&output);
            assert!(BUSY.iter().any(|said| told.contains(said)), "{told}");
        }
        panic!("{TRIES} times: {told}");
    }

    /// Waits until a recorder has written some of the records.
    #[track_caller]
    pub(crate) fn wait_for_records(&self) {
        let has_records = |file: fs::DirEntry| {
            let is_spool = file.file_name().to_string_lossy().starts_with("spool-");
            is_spool && file.path().extension().is_none() && file.metadata().is_ok_and(|about| about.len() > 0)
        };
        let folder = self.trace().join(".recording");
        wait_for(|| fs::read_dir(&folder).is_ok_and(|files| files.flatten().any(has_records)), "records");
    }

    /// Begins to record, and waits until that has begun. As by [`record_some`](Self::record_some) it may be tried again.
    pub(crate) fn begin_recording(&self, options: &[&str]) -> Child {
        self.begin_recording_by(options, |_| ())
    }

    /// By a recorder that is prepared.
    pub(crate) fn begin_recording_by(&self, options: &[&str], prepare: impl Fn(&mut Command)) -> Child {
        let mut told = String::new();
        for _ in 0..TRIES {
            let mut recorder = self.recorder(options);
            prepare(&mut recorder);
            let mut recorder = recorder.spawn().unwrap();
            let mut reader = BufReader::new(recorder.stderr.take().unwrap());
            told.clear();
            while reader.read_line(&mut told).unwrap() > 0 {
                if told.contains("recording process") {
                    // The thread reads further messages of the recorder.
                    thread::spawn(move || reader.read_to_end(&mut Vec::new()));
                    return recorder;
                }
            }
            recorder.wait().unwrap();
            assert!(BUSY.iter().any(|said| told.contains(said)), "{told}");
        }
        panic!("{TRIES} times: {told}");
    }

    /// Has it come to its end. Returns that and what it said.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// The bytes of its code, and of its libraries', by their lines in its maps.
    pub(crate) fn code(&self) -> BTreeMap<String, Vec<u8>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let memory = fs::File::open(format!("/proc/{}/mem", self.pid())).unwrap();
        let texts =
            maps.lines().filter(|line| line.contains(" r-xp ") && line.contains(" /") && !line.contains("memfd"));
        let read = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            (line.to_owned(), bytes)
        };
        texts.map(read).collect()
    }
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

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_for(is_so: impl Fn() -> bool, what: &str) {
    /// It does not take so long, whatever else the machine does.
    const LONG: Duration = Duration::from_secs(60);

    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
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
        refused(pid, |_| (), "was started by rftrace record");
        refused(pid, |command| _ = command.arg("--take-over"), "was started by rftrace record");
        drop(recorded.stdin.take());
        assert_eq!(recorded.wait().unwrap().code(), Some(7));
    }
}
