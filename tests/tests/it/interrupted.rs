//! `rftrace record` gets signals, or is killed: nothing is lost, and it is said what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_frontend::bank::About;
use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use crate::record::rftrace;

pub(crate) fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["recording.c"]).without_library().with(&["-O1"]).build())
}

/// A folder in which programs are recorded, to `trace`.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(rftrace());
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    pub(crate) fn recording(&self, options: &[&str], mode: &str) -> Command {
        let mut command = self.command(&["record", "-b", "1M", "-o", "trace"]);
        command.args(options).arg("--").arg(&program().path).arg(mode);
        command
    }

    /// Begins to record.
    pub(crate) fn begin(&self, options: &[&str], mode: &str) -> Child {
        self.recording(options, mode).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Lets the program go on.
    pub(crate) fn go(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    /// Waits for a complete save in `.recording` whose name begins so.
    fn wait_for_part(&self, beginning: &str) {
        let work = self.path("trace/.recording");
        wait_until(beginning, || {
            let mut entries = fs::read_dir(&work).into_iter().flatten().flatten();
            entries.any(|entry| {
                entry.file_name().to_string_lossy().starts_with(beginning)
                    && fs::read_to_string(entry.path().join("part.txt"))
                        .is_ok_and(|text| text.ends_with("complete=1\n"))
            })
        });
    }

    /// The recorded processes that live.
    fn processes(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("trace/.recording")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let pids = names.filter_map(|name| Some(name.strip_prefix("process-")?.split('-').next()?.to_owned()));
        // Nobody may fetch what has become of orphans.
        let lives =
            |pid: &String| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        pids.filter(lives).collect()
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}: nothing happens");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn leaves(trace: &Path) -> u64 {
    calls_per_task(&traces::open(trace)).iter().filter_map(|calls| calls.get("leaf")).sum()
}

#[test]
fn signals_for_the_library_reach_it() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let recorder = folder.begin(&[], "waits");
    wait_until("the program", || folder.path("ready").exists());
    send("-USR1", recorder.id());
    // It comes to its place while the program runs.
    wait_until("the snapshot", || folder.path("trace/snapshot-1/info").exists());
    send("-USR2", recorder.id());
    send("-USR2", recorder.id());
    folder.go();
    let ended = recorder.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    assert_eq!(leaves(&folder.path("trace/snapshot-1")), 2);
    assert!(leaves(&folder.path("trace")) >= 2);
}

#[test]
fn signals_that_would_kill_are_not_passed_on() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let recorder = folder.begin(&["--signal-snapshot", "none", "--signal-toggle", "none"], "waits");
    wait_until("the program", || folder.path("ready").exists());
    send("-USR1", recorder.id());
    // It waits for a handler, as the program may just have begun.
    thread::sleep(Duration::from_millis(1500));
    folder.go();
    let ended = recorder.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("is not passed on"), "{}", stderr(&ended));
    assert_eq!(leaves(&folder.path("trace")), 5);
}

/// A recording of programs that save themselves whose `rftrace record` was killed: a child has saved, and its parent does so later.
fn killed() -> Folder {
    let folder = Folder::new();
    let mut recorder = folder.begin(&["--stop"], "child");
    folder.wait_for_part("part-");
    send("-KILL", recorder.id());
    recorder.wait().unwrap();
    folder
}

#[test]
fn what_a_killed_recorder_leaves_can_be_recovered() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = killed();
    let looks_show = |told: &str| {
        for arguments in [&["report", "trace"][..], &["replay", "trace"], &["info", "trace"]] {
            let looked = folder.command(arguments).output().unwrap();
            assert_eq!(looked.status.code(), Some(0), "{}", stderr(&looked));
            assert!(stderr(&looked).contains(told), "{told}: {}", stderr(&looked));
        }
    };
    // The program goes on, and is going to save there.
    let [pid] = &folder.processes()[..] else { panic!("{:?}", folder.processes()) };
    looks_show(&format!("process {pid} is recording trace"));
    for mut command in [folder.command(&["recover", "trace"]), folder.recording(&[], "")] {
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(&format!("process {pid}")), "{}", stderr(&refused));
    }
    folder.go();
    wait_until("the end", || folder.processes().is_empty());
    looks_show("`rftrace recover trace`");
    let recovered = folder.command(&["recover", "trace"]).output().unwrap();
    assert_eq!(recovered.status.code(), Some(0), "{}", stderr(&recovered));
    assert!(stderr(&recovered).contains("in 2 processes"), "{}", stderr(&recovered));
    assert_eq!(leaves(&folder.path("trace")), 10);
    assert!(!folder.path("trace/.recording").exists());
    let again = folder.command(&["recover", "trace"]).output().unwrap();
    assert!(stderr(&again).contains("has no interrupted recording"), "{}", stderr(&again));
}

/// Bytes before the records of a spool.
const SPOOL_HEAD_BYTES: u64 = 16;

/// The ring of a child that has ended is with the recorder's; its parent, whose recorder is gone, saves its own.
#[test]
fn a_program_without_its_recorder_saves_its_ring() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let mut recorder = folder.begin(&["--ring"], "child");
    // A spool begins with a head, which comes to the disk before the records.
    let is_spool = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("spool-")
            && !name.contains('.')
            && About::read(&entry.path()).is_ok_and(|about| about.spool_bytes() > SPOOL_HEAD_BYTES)
    };
    wait_until("the child's ring", || {
        fs::read_dir(folder.path("trace/.recording")).into_iter().flatten().flatten().any(|entry| is_spool(&entry))
    });
    send("-KILL", recorder.id());
    recorder.wait().unwrap();
    folder.go();
    wait_until("the end", || folder.processes().is_empty());
    let recovered = folder.command(&["recover", "trace"]).output().unwrap();
    assert!(stderr(&recovered).contains("in 2 processes"), "{}", stderr(&recovered));
    assert_eq!(leaves(&folder.path("trace")), 10);
}

#[test]
fn a_new_recording_keeps_what_a_killed_one_has_left() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = killed();
    folder.go();
    wait_until("the end", || folder.processes().is_empty());
    // As if the recorder had been killed while it put the trace together.
    fs::create_dir(folder.path("trace/.recording/joined")).unwrap();
    fs::write(folder.path("trace/.recording/joined/task.txt"), "half").unwrap();
    for (old, now) in [(10, 2), (2, 2)] {
        let recorded = folder.recording(&[], "").output().unwrap();
        assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
        assert_eq!(stderr(&recorded).contains("an earlier recording was interrupted"), old == 10);
        assert_eq!(leaves(&folder.path("trace.old")), old);
        assert_eq!(leaves(&folder.path("trace")), now);
    }
}

#[test]
fn usage_is_that_of_the_program() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    // As under `cargo run`, this process had children before.
    let script = "dd if=/dev/zero of=/dev/null bs=400M count=1 2>/dev/null; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(rftrace()).args(["record", "-b", "1M", "-o", "trace", "--"]);
    let recorded = shell.arg(&program().path).current_dir(&folder.0).output().unwrap();
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let info = fs::read(folder.path("trace/info")).unwrap();
    let info = String::from_utf8_lossy(&info).into_owned();
    let memory = info.lines().find_map(|line| line.strip_prefix("usageinfo:maxrss=")?.parse::<u64>().ok());
    assert!((1..200_000).contains(&memory.unwrap()), "{info}");
}

/// The recorder is killed at any change of its folder, once the program has ended: what it recorded is in the trace once, at the latest after
/// `recover`.
#[test]
fn killed_while_a_trace_is_made() {
    const CALLS: &str = "unlink,unlinkat,rename,renameat,renameat2,rmdir";

    if !require(&["gcc", "strace"]) {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("go"), "").unwrap();
    let recorded = |inject: &str| {
        let _ = fs::remove_dir_all(folder.path("trace"));
        let recording = folder.recording(&["-q"], "child");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "calls", "-e", &format!("trace={CALLS}"), "-e", inject]);
        strace.arg(recording.get_program()).args(recording.get_args()).current_dir(&folder.0);
        strace.stdin(Stdio::null()).output().unwrap()
    };
    recorded("signal=none");
    let whole = leaves(&folder.path("trace"));
    assert!(whole > 0);
    // Those behind the first removal of a spool come when all programs have ended.
    let calls = fs::read_to_string(folder.path("calls")).unwrap();
    let removes_spool =
        |(at, _): &(usize, &str)| calls[*at..].lines().next().is_some_and(|line| line.contains("/spool-"));
    let ended = calls.match_indices("unlink(").find(removes_spool).expect("spools are removed").0;
    let mut counts = std::collections::BTreeMap::new();
    let mut places = Vec::new();
    for (at, name) in calls.match_indices('(').filter_map(|(at, _)| Some((at, calls[..at].rsplit(' ').next()?))) {
        let count = counts.entry(name).or_insert(0);
        *count += 1;
        if at >= ended && CALLS.split(',').any(|call| call == name) {
            places.push((name.to_owned(), *count));
        }
    }
    assert!(places.len() > 10, "{calls}");
    for (name, number) in places.iter().step_by(3) {
        recorded(&format!("inject={name}:signal=KILL:when={number}"));
        let recovered = folder.command(&["recover", "trace"]).output().unwrap();
        assert_eq!(leaves(&folder.path("trace")), whole, "{name} {number}: {}", stderr(&recovered));
    }
}
