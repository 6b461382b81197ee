//! `rftrace record --stream`: what is recorded outlives the program, however that ends, and no buffer fills up.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_read::Kind;
use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use crate::record::rftrace;

/// The program, to be built.
pub(crate) fn source() -> CProgram {
    CProgram::new(&["streamed.c"]).without_library().with(&["-O1", "-Wno-infinite-recursion", "-lpthread"])
}

pub(crate) fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| source().build())
}

/// Begins to record into `trace` in `folder`.
pub(crate) fn begin(folder: &Path, options: &[&str], n: u64, way: &str) -> Child {
    let mut command = Command::new(rftrace());
    command.args(["record", "--stream", "--no-schedule", "-o", "trace"]).args(options);
    command.arg("--").arg(&program().path).arg(n.to_string()).arg(way).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn record(options: &[&str], n: u64, way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let output = begin(folder.path(), options, n, way).wait_with_output().unwrap();
    (folder, output)
}

/// How often a function was called, in all tasks.
pub(crate) fn count(trace: &Path, function: &str) -> u64 {
    calls_per_task(&traces::open(trace)).iter().filter_map(|task| task.get(function)).sum()
}

pub(crate) fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program by itself: what it answers is what it has to answer when it is recorded.
pub(crate) fn untraced(n: u64, way: &str) -> Option<i32> {
    let status = Command::new(&program().path).arg(n.to_string()).arg(way).stdin(Stdio::null()).status().unwrap();
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

#[test]
fn a_large_trace_says_what_makes_it_smaller() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = record(&[], 3_000_000, "return");
    let line = told(&output).lines().find(|line| line.contains("; to record less: -F, -N, -D, -t")).map(str::to_owned);
    assert!(line.is_some_and(|line| line.starts_with("rftrace: the trace has 27")), "{}", told(&output));
    let (_folder, output) = record(&[], 1000, "return");
    assert!(!told(&output).contains("to record less"), "{}", told(&output));
}

/// The table of live.md, part 2: each way to end, and how many rounds of calls there are before it.
#[test]
fn all_is_there_however_it_ends() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 20_000;
    let ways = [
        ("return", 1),
        ("_exit", 1),
        ("abort", 1),
        ("kill", 1),
        ("raw_exit", 1),
        ("fork", 2),
        // The child is not recorded, and does no harm to the recording of its parent.
        ("raw_fork", 2),
        ("chroot", 2),
        ("user", 2),
        // Until then.
        ("seccomp", 1),
        ("exec", 2),
        ("no_exec", 2),
        ("overflow", 2),
        ("threads", 5),
    ];
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        eprintln!("skipped: chroot and another user: only root can do this");
    }
    for (way, rounds) in ways.into_iter().filter(|(way, _)| is_root || !["chroot", "user"].contains(way)) {
        let (folder, output) = record(&[], N, way);
        assert_eq!(output.status.code(), untraced(N, way), "{way}: {}", told(&output));
        let trace = folder.path().join("trace");
        assert_eq!(count(&trace, "leaf"), 2 * rounds * N, "{way}: {}", told(&output));
        assert_eq!(count(&trace, "middle"), rounds * N, "{way}: {}", told(&output));
        assert!(!trace.join(".recording").exists(), "{way}");
        assert!(!told(&output).contains("returns were not recorded"), "{way}: {}", told(&output));
    }
}

/// The parent's functions that are open at the fork are open in the child too.
#[test]
fn a_child_goes_on_in_its_parents_functions() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&[], 10, "fork");
    let trace = folder.path().join("trace");
    assert_eq!(count(&trace, "main"), 2, "{}", told(&output));
    // Threads have the system's ids, not the tracer's.
    let tasks = fs::read_to_string(trace.join("task.txt")).unwrap();
    assert!(tasks.contains("TASK ") && !tasks.contains(" tid=1 "), "{tasks}");
}

#[test]
fn banks_go_from_process_to_process() {
    if !require(&["gcc"]) {
        return;
    }
    // More than there are banks of this size.
    let (folder, output) = record(&["--buffer", "1G"], 1, "forks");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(count(&folder.path().join("trace"), "middle"), 301, "{}", told(&output));
}

/// A trace of what was there until a moment: all calls until then, and the program goes on.
#[test]
fn a_snapshot_has_what_was_until_then() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 100_000;
    // Of chunks that were taken, and of those that are not full yet.
    for n in [10, N] {
        let (folder, output) = record(&[], n, "snapshot");
        assert_eq!(output.status.code(), Some(7), "{}", told(&output));
        let trace = folder.path().join("trace");
        for (trace, rounds) in [(trace.join("snapshot-1"), 1), (trace.join("snapshot-2"), 2), (trace, 3)] {
            assert_eq!(count(&trace, "leaf"), 2 * rounds * n, "{}", told(&output));
            assert_eq!(count(&trace, "middle"), rounds * n, "{}", told(&output));
            // It was open then.
            assert_eq!(count(&trace, "main"), 1, "{}", told(&output));
        }
    }
}

/// The bank is much smaller than what goes through it.
#[test]
fn a_small_bank_is_enough() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 200_000;
    let (folder, output) = record(&["--buffer", "256K"], N, "threads");
    assert_eq!(count(&folder.path().join("trace"), "leaf"), 2 * 5 * N, "{}", told(&output));
}

/// A group of processes whose memory is limited; it is removed in the end.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    /// One with a limit, if this process may make it and the system has such: of version 1 or 2.
    fn with_limit(bytes: u64) -> Option<Self> {
        let name = format!("rftrace-{}", std::process::id());
        let groups = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        groups.into_iter().find_map(|(controller, limit)| {
            let group = Self(Path::new("/sys/fs/cgroup").join(controller).join(&name));
            fs::create_dir(&group.0).ok()?;
            // A group that is dropped here is removed.
            let is_there = group.0.join(limit).exists() && group.0.join("cgroup.procs").exists();
            (is_there && fs::write(group.0.join(limit), bytes.to_string()).is_ok()).then_some(group)
        })
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A program that the system kills for lack of memory has all its calls in the trace.
#[test]
fn all_is_there_after_the_oom_killer() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 20_000;
    let Some(group) = MemoryGroup::with_limit(200 << 20) else {
        return eprintln!("skipped: the OOM killer: no group with limited memory can be made here");
    };
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let mut command = Command::new(rftrace());
    command.args(["record", "--force", "--no-schedule", "-o", "trace", "--", "sh", "-c", &script, "sh"]);
    command.arg(&program().path).args([&N.to_string(), "memory"]).current_dir(&folder);
    let output = command.output().unwrap();
    if output.status.code() == Some(9) {
        return eprintln!("skipped: the OOM killer: the limit of a group is not kept here");
    }
    assert_eq!(output.status.code(), Some(137), "{}", told(&output));
    let trace = folder.path().join("trace");
    assert_eq!(count(&trace, "leaf"), 2 * N, "{}", told(&output));
    assert_eq!(count(&trace, "middle"), N, "{}", told(&output));
}

/// How many calls and returns it is told were not recorded.
fn dropped(lines: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.split_once(" calls and returns ")?.0.rsplit(' ').next()?.parse().ok())
}

/// The program goes on beside a recorder that is stopped. Each call is in the trace or counted.
#[test]
fn a_recorder_that_is_stopped_stops_nothing() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 400_000;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "--buffer", "64K", "-o", "trace", "--"]).arg(&program().path);
    command.args([&N.to_string(), "input"]).current_dir(&folder);
    let mut recorder = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let work = folder.path().join("trace/.recording");
    let spool = || {
        let names = fs::read_dir(&work).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut spools = names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("spool-"));
        spools.find(|path| path.extension().is_none())
    };
    while spool().is_none() {
        assert!(Instant::now() < deadline, "nothing is collected");
        thread::sleep(Duration::from_millis(1));
    }
    let pid: u32 = spool().unwrap().file_name().unwrap().to_string_lossy().split('-').nth(1).unwrap().parse().unwrap();
    let recorder_id = recorder.id().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &recorder_id]).status().unwrap().success());
    };
    signal("-STOP");
    recorder.stdin.take().unwrap().write_all(b"x").unwrap();
    let is_over = || fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    while !is_over() {
        assert!(Instant::now() < deadline, "the program waits for a recorder that is stopped");
        thread::sleep(Duration::from_millis(10));
    }
    signal("-CONT");
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let lines = told(&output);
    assert!(lines.contains("not recorded: the recorder did not empty its buffer for a second"), "{lines}");
    let trace = folder.path().join("trace");
    let n_missing = 6 * N - count(&trace, "leaf") - count(&trace, "middle");
    let n_dropped = dropped(&lines).unwrap_or_else(|| panic!("{lines}"));
    assert!(n_missing > 0 && n_missing <= n_dropped && n_dropped <= 2 * 6 * N, "{n_missing} of {n_dropped}: {lines}");
}

/// Dropped records are counted, and the rest is a trace.
#[test]
fn what_is_dropped_is_counted() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 400_000;
    let (folder, output) = record(&["--buffer", "64K", "--on-full", "drop"], N, "threads");
    assert_eq!(output.status.code(), Some(7));
    let lines = told(&output);
    assert!(lines.contains("not recorded: its buffer was full; make it larger with --buffer"), "{lines}");
    let trace = folder.path().join("trace");
    let n_found = count(&trace, "leaf") + count(&trace, "middle");
    let n_dropped = dropped(&lines).unwrap_or_else(|| panic!("{lines}"));
    let n_missing = 3 * 5 * N - n_found;
    assert!(
        n_missing > 0 && n_missing <= n_dropped && n_dropped <= 2 * 3 * 5 * N,
        "{n_missing} of {n_dropped}: {lines}"
    );
    // Later readers of the trace are told too.
    let gaps = fs::read_to_string(trace.join("record.txt")).unwrap();
    assert!(gaps.contains(&format!("\ndropped={n_dropped}\n")), "{gaps}");
    let report = Command::new(rftrace()).arg("report").arg(&trace).output().unwrap();
    let shown = String::from_utf8_lossy(&report.stdout).into_owned() + &told(&report);
    assert!(shown.contains("Calls and returns lost, as there was no room for them: "), "{shown}");
}

/// As much as may be written is, and the program goes on.
#[test]
fn a_limit_is_kept() {
    if !require(&["gcc"]) {
        return;
    }
    // Larger than the bank, and smaller.
    for buffer in ["1M", "16M"] {
        const N: u64 = 400_000;
        let (folder, output) = record(&["--buffer", buffer, "--max-size=4M"], N, "return");
        assert_eq!(output.status.code(), Some(7));
        let lines = told(&output);
        assert_eq!(lines.matches("--max-size").count(), 1, "{lines}");
        assert!(
            lines.contains(
                " calls and returns of 1 process were not recorded: the trace has reached its --max-size, 4M; use a larger one"
            ),
            "{lines}"
        );
        let trace = folder.path().join("trace");
        let n_found = count(&trace, "leaf");
        assert!((1..200_000).contains(&n_found), "{n_found}");
        // Records in the bank when the limit was reached count too: a call and its return.
        let n_missing = 3 * N - n_found - count(&trace, "middle");
        let n_dropped = dropped(&lines).unwrap_or_else(|| panic!("{lines}"));
        assert!((n_missing..2 * n_missing).contains(&n_dropped), "{buffer}: {n_missing} of {n_dropped}");
        // It is the end that is missing.
        let info = Command::new(rftrace()).arg("info").arg(&trace).output().unwrap();
        let shown = String::from_utf8_lossy(&info.stdout).into_owned() + &told(&info);
        assert!(!shown.contains("The beginning is lost"), "{shown}");
        assert!(shown.contains("The end of 1 process is lost, as the trace reached --max-size"), "{shown}");
        // Open calls end with the records, not with the program.
        let read = traces::open(&trace);
        let task = &read.tasks()[0];
        let open = read.did_not_return(task).unwrap();
        let last = read.records(task).map(Result::unwrap).filter(|record| record.kind == Kind::Entry).last().unwrap();
        assert!(
            !open.is_empty() && open.iter().all(|exit| exit.time_ns < last.time_ns + 1_000_000),
            "{open:?} {last:?}"
        );
    }
}

/// On a terminal a line tells how far it is, unless the program writes there, and goes at the end.
#[test]
fn a_terminal_shows_how_far_it_is() {
    if !require(&["gcc", "script", "timeout"]) {
        return;
    }
    const LINE: &str = " calls and returns, ";
    let folder = tempfile::tempdir().unwrap();
    let shell = format!("{} 100 return; sleep 2.5", program().path.display());
    let told = |output: &str| {
        let record = rftrace();
        let command =
            format!("{} record --stream --force --no-schedule -o trace -- sh -c '{shell}' {output}", record.display());
        let mut script = Command::new("timeout");
        script.args(["60", "script", "--quiet", "--command", &command, "/dev/null"]);
        let output = script.current_dir(&folder).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let lines = told("> output");
    let (before, after) = lines.split_once("\r\x1b[Krftrace: ").unwrap_or_else(|| panic!("{lines}"));
    assert!(before.contains(LINE) && !after.contains(LINE), "{lines}");
    let lines = told("");
    assert!(!lines.contains(LINE) && !lines.contains('\x1b'), "{lines}");
}

/// The program goes on without its recorder, and what that had taken becomes a trace.
#[test]
fn a_recorder_that_is_killed_is_not_missed() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = begin(folder.path(), &["--buffer", "1M"], 8_000_000, "return");
    let work = folder.path().join("trace/.recording");
    let spools = || {
        let entries = fs::read_dir(&work).into_iter().flatten().flatten();
        let spools = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("spool-"));
        let chunks = spools.filter(|entry| entry.path().extension().is_none());
        chunks.map(|entry| entry.metadata().unwrap().len()).sum::<u64>()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while spools() < 64 << 10 {
        assert!(Instant::now() < deadline, "nothing is collected");
        thread::sleep(Duration::from_millis(1));
    }
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let lives = || {
        fs::read_dir(&work).unwrap().flatten().any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix("process-").and_then(|rest| rest.split('-').next());
            pid.is_some_and(|pid| {
                fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
            })
        })
    };
    while lives() {
        assert!(Instant::now() < deadline, "the program waits for a recorder that is not there");
        thread::sleep(Duration::from_millis(10));
    }
    let spool_bytes = spools();
    let output = Command::new(rftrace()).args(["recover", "trace"]).current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let trace = folder.path().join("trace");
    let n_calls = count(&trace, "leaf") + count(&trace, "middle");
    assert!(n_calls > 0, "{}", told(&output));
    // Packed, an entry and an exit take less than a third of what they have in memory.
    assert!(spool_bytes < n_calls * 10 + 4096, "{spool_bytes} bytes for {n_calls} calls");
}
