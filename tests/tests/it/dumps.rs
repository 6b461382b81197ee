//! `rftrace record --ring --dump-on`: the ring outlives the program, and what is copied of it while the program goes on is whole.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_read::{DID_NOT_RETURN, Kind};
use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, require, tools};
use tempfile::TempDir;

use crate::record::{self, rftrace};

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["dumped.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// The same linked statically, and once more without calls of the tracer.
fn fixed() -> [&'static Program; 2] {
    static BUILT: OnceLock<[Program; 2]> = OnceLock::new();
    let fixed = |program: CProgram| program.without_library().with(&["-O1", "-static", "-lpthread"]).build();
    let build = || [fixed(CProgram::new(&["dumped.c"])), fixed(CProgram::new(&["dumped.c"]).without_hooks())];
    BUILT.get_or_init(build).each_ref()
}

fn record_ring(options: &[&str], n: u64, way: &str) -> (TempDir, Output) {
    record_ring_of(&program().path, options, n, way)
}

fn record_ring_of(program: &Path, options: &[&str], n: u64, way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--ring", "--no-schedule", "-o", "trace"]).args(options);
    command.arg("--").arg(program).arg(n.to_string()).arg(way).current_dir(folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    (folder, output)
}

/// Runs the program by itself: what it answers is what it has to answer when it is recorded.
fn untraced(n: u64, way: &str) -> Option<i32> {
    let status = Command::new(&program().path).arg(n.to_string()).arg(way).stdin(Stdio::null()).status().unwrap();
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How often a function was called, in all tasks.
fn count(trace: &Path, function: &str) -> u64 {
    calls_per_task(&traces::open(trace)).iter().filter_map(|task| task.get(function)).sum()
}

/// The dumps, in the order in which they were made.
fn dumps(folder: &TempDir) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder.path().join("trace")) else { return Vec::new() };
    let number = |path: &PathBuf| {
        let rest = path.file_name()?.to_str()?.strip_prefix("snapshot-")?;
        rest.split('-').next()?.parse::<u64>().ok()
    };
    let mut all: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| number(path).is_some()).collect();
    all.sort_by_key(number);
    all
}

/// How the folders of dumps are called.
fn names(dumps: &[PathBuf]) -> Vec<String> {
    dumps.iter().map(|dump| dump.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// Returns the reasons given in dumps.
fn reasons(dumps: &[PathBuf]) -> Vec<String> {
    let reason = |dump: &PathBuf| {
        let info = Command::new(rftrace()).arg("info").arg(dump).output().unwrap();
        let text = String::from_utf8(info.stdout).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("made for"));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    dumps.iter().map(reason).collect()
}

/// A ring that was overwritten keeps its last calls, whole, and their callers; in each way to end.
#[test]
fn a_ring_outlives_its_program() {
    if !require(&["gcc"]) {
        return;
    }
    // Some 100 times as much as there is room for.
    const N: u64 = 100_000;
    for way in ["return", "status", "abort", "kill", "fault"] {
        let (folder, output) = record_ring(&["--buffer", "64K"], N, way);
        assert_eq!(output.status.code(), untraced(N, way), "{way}: {}", told(&output));
        let trace = folder.path().join("trace");
        let (leaf, middle) = (count(&trace, "leaf"), count(&trace, "middle"));
        // 4,096 records fit, but for headers and the chunk that is written.
        assert!((500..=683).contains(&middle), "{way}: {middle}");
        assert!((2 * middle - 2..=2 * middle).contains(&leaf), "{way}: {leaf} in {middle}");
        // A process that is killed is asked for its open functions beforehand, now and then: it may have been too quick.
        if way != "kill" {
            assert_eq!(count(&trace, "main"), 1, "{way}: {}", told(&output));
        }
        assert!(dumps(&folder).is_empty());
        assert!(told(&output).contains("has kept only the last calls"), "{way}: {}", told(&output));
    }
}

#[test]
fn what_is_not_overwritten_is_all_there() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["return", "kill", "child"] {
        let (folder, output) = record_ring(&[], 1000, way);
        let trace = folder.path().join("trace");
        let n_processes = if way == "child" { 2 } else { 1 };
        assert_eq!(count(&trace, "leaf"), 2000, "{way}: {}", told(&output));
        assert_eq!(count(&trace, "main"), n_processes, "{way}: {}", told(&output));
        assert_eq!(count(&trace, "mark"), n_processes - 1, "{way}: {}", told(&output));
        assert!(!told(&output).contains("has kept only the last calls"), "{way}: {}", told(&output));
    }
}

/// That of a program which nothing is loaded into is in the recorder's memory too.
#[test]
fn rings_of_static_programs() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 100_000;
    let own: &[&str] = &["-P", "leaf", "-P", "middle", "-P", "main"];
    let [called, branched] = fixed();
    for (program, hooks) in [(called, &[][..]), (branched, own)] {
        let record = |options: &[&str], n, way: &str| {
            let (folder, output) = record_ring_of(&program.path, &[hooks, options].concat(), n, way);
            assert_eq!(output.status.code(), untraced(n, way), "{way}: {}", told(&output));
            (folder, output)
        };
        for way in ["return", "status", "abort", "kill", "fault"] {
            let (folder, output) = record(&["--buffer", "64K"], N, way);
            let trace = folder.path().join("trace");
            let (leaf, middle) = (count(&trace, "leaf"), count(&trace, "middle"));
            assert!((500..=683).contains(&middle), "{way}: {middle}");
            assert!((2 * middle - 2..=2 * middle).contains(&leaf), "{way}: {leaf} in {middle}");
            assert!(told(&output).contains("has kept only the last calls"), "{way}: {}", told(&output));
            let (folder, output) = record(&["--dump-on", "fatal"], 1000, way);
            let dumps = dumps(&folder);
            assert_eq!(dumps.len(), usize::from(way != "return"), "{way}: {}", told(&output));
            for trace in dumps.iter().chain([&folder.path().join("trace")]) {
                assert_eq!((count(trace, "leaf"), count(trace, "main")), (2000, 1), "{way}: {}", told(&output));
            }
            assert!(!told(&output).contains("has kept only the last calls"), "{way}: {}", told(&output));
        }
        for event in ["panic", "throw"] {
            let options = [hooks, &["--dump-on", event]].concat();
            let (_folder, output) = record_ring_of(&program.path, &options, 10, "return");
            assert_eq!(output.status.code(), Some(1), "{event}: {}", told(&output));
            assert!(told(&output).contains("is linked statically"), "{event}: {}", told(&output));
        }
    }
}

#[test]
fn a_dump_for_each_bad_end() {
    if !require(&["gcc"]) {
        return;
    }
    for (way, expected) in [
        ("return", None),
        ("status", Some("fatal: exit status 7")),
        ("abort", Some("fatal: killed by SIGABRT")),
        ("kill", Some("fatal: killed by SIGKILL")),
        ("fault", Some("fatal: killed by SIGSEGV")),
        ("child", Some("fatal: it ended without notice")),
    ] {
        let (folder, output) = record_ring(&["--dump-on", "fatal"], 1000, way);
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), Vec::from_iter(expected), "{way}: {}", told(&output));
        for dump in dumps {
            let expected = if way == "child" { (0, 1) } else { (2000, 0) };
            assert_eq!((count(&dump, "leaf"), count(&dump, "mark")), expected, "{way}");
        }
        assert_eq!(count(&folder.path().join("trace"), "leaf"), 2000, "{way}");
    }
}

/// It ends at the signal, though it is copied later.
#[test]
fn a_dump_on_a_signal() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record_ring(&["--dump-on", "signal:USR1"], 100, "signal");
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["signal:USR1"], "{}", told(&output));
    let counts = |trace: &Path| ["leaf", "mark", "main"].map(|function| count(trace, function));
    assert_eq!(counts(&dumps[0]), [200, 1, 1]);
    assert_eq!(counts(&folder.path().join("trace")), [400, 1, 1]);
    assert!(told(&output).contains("snapshot-1 (signal:USR1)"), "{}", told(&output));
}

#[test]
fn a_dump_of_a_stall_and_one_every_so_often() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record_ring(&["--dump-on", "stall:500ms"], 100, "sleeps");
    let made = dumps(&folder);
    // On a busy machine the program may have been stopped before.
    assert!(!made.is_empty() && reasons(&made).iter().all(|reason| reason == "stall:500ms"), "{}", told(&output));
    let counts = |dump: &PathBuf| ["leaf", "mark", "main"].map(|function| count(dump, function));
    assert!(made.iter().any(|dump| counts(dump) == [200, 1, 1]), "{}", told(&output));
    // Of some seven.
    let (folder, output) = record_ring(&["--dump-on", "every:200ms", "--dumps", "2"], 100, "sleeps");
    let made = dumps(&folder);
    assert_eq!(reasons(&made), ["every:200ms"; 2], "{}", told(&output));
    assert!(told(&output).contains("due and not made; --dumps N makes more"), "{}", told(&output));
    assert_eq!(count(&folder.path().join("trace"), "leaf"), 202);
}

/// Nobody waits for the dump: what it ends with is the call that it was made for.
#[test]
fn a_dump_of_a_call() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 100;
    let counts = |trace: &Path| ["leaf", "mark", "main"].map(|function| count(trace, function));
    let ways = [&[][..], &["--patched"], &["-A", "mark@arg1/i32", "-R", "mark"], &["-F", "main"]];
    let [called, branched] = fixed();
    let ways = ways.map(|options| (program(), options)).into_iter().chain([
        (called, &[][..]),
        (called, &["-A", "mark@arg1/i32", "-R", "mark"]),
        (branched, &["-P", "*"]),
    ]);
    for (program, options) in ways {
        let options: Vec<&str> = options.iter().copied().chain(["--dump-on", "call:mark#3"]).collect();
        let (folder, output) = record_ring_of(&program.path, &options, N, "marks");
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", told(&output));
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), ["call:mark#3"], "{options:?}: {}", told(&output));
        assert_eq!(counts(&dumps[0]), [2 * 3 * N, 3, 1], "{options:?}");
        let last = traces::trees(&traces::open(&dumps[0]))[0].calls().last().map(|(_, call)| call.name.clone());
        assert_eq!(last.as_deref(), Some("mark"), "{options:?}");
        assert_eq!(counts(&folder.path().join("trace")), [2 * 6 * N, 5, 1], "{options:?}");
    }
    // Each call, but one a second at the most.
    let (folder, output) = record_ring(&["--dump-on", "call:ma?k"], N, "marks");
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["call:ma?k"], "{}", told(&output));
    assert_eq!(counts(&dumps[0]), [2 * N, 1, 1]);
    assert!(told(&output).contains("4 dumps were due and not made"), "{}", told(&output));
}

/// A dump says where in time it was made for what, and is called by that.
#[test]
fn the_moment_is_in_the_dump() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let (folder, output) = record_ring(&["--dump-on", "call:mark#3"], 1, "marks");
    let dumps = dumps(&folder);
    assert_eq!(names(&dumps), ["snapshot-1-call-mark-3"], "{}", told(&output));
    let mark = "    /* rftrace:dump:call:mark#3 */\n  } /* mark";
    let replay = |command: &mut Command| {
        let text = command.args(["-f", "none"]).arg("-d").arg(&dumps[0]).output().unwrap().stdout;
        String::from_utf8(text).unwrap()
    };
    for text in
        [replay(Command::new(rftrace()).arg("replay")), replay(Command::new("uftrace").args(["replay", "--no-pager"]))]
    {
        assert_eq!(text.matches("rftrace:dump").count(), 1, "{text}");
        assert!(text.contains(mark), "{text}");
    }
    // The others, in the main thread.
    let (folder, output) = record_ring(&["--dump-on", "every:200ms", "--dumps", "1"], 100, "sleeps");
    let trace = traces::open(&self::dumps(&folder)[0]);
    let records = trace.records(&trace.tasks()[0]).map(Result::unwrap);
    let n_marks = records.filter(|it| it.kind == Kind::Event && it.addr != DID_NOT_RETURN).count();
    assert_eq!(n_marks, 1, "{}", told(&output));
}

/// Triggers on a thousand calls make as many dumps as allowed, and all others are counted.
#[test]
fn a_thousand_fires() {
    if !require(&["gcc"]) {
        return;
    }
    for (spec, expected) in [("call:mark,burst", 1..=10), ("call:mark", 1..=1)] {
        let (folder, output) = record_ring(&["--dump-on", spec, "--dumps", "10"], 1, "fires");
        assert_eq!(output.status.code(), Some(0));
        let n_dumps = dumps(&folder).len();
        assert!(expected.contains(&n_dumps), "{spec}: {n_dumps}: {}", told(&output));
        let others = format!("rftrace: {} dumps were due and not made", 1000 - n_dumps);
        assert!(told(&output).contains(&others), "{spec}: {others}: {}", told(&output));
    }
}

#[test]
fn those_that_are_kept() {
    if !require(&["gcc"]) {
        return;
    }
    let marks = |options: &[&str]| {
        let options = [&["--dump-on", "call:mark,burst"], options].concat();
        let (folder, output) = record_ring(&options, 1, "marks_slowly");
        let marks: Vec<u64> = dumps(&folder).iter().map(|dump| count(dump, "mark")).collect();
        (marks, told(&output))
    };
    let (first, text) = marks(&["--dumps", "2"]);
    assert_eq!(first, [1, 2], "{text}");
    assert!(text.contains("3 dumps were due and not made; --dumps N"), "{text}");
    let (last, text) = marks(&["--dumps", "2", "--dumps-keep", "last"]);
    assert_eq!(last, [4, 5], "{text}");
    assert!(text.contains("3 dumps were replaced by others"), "{text}");
    // A chunk of 64K for the thread.
    let (few, text) = marks(&["--dumps-size", "100K"]);
    assert_eq!(few, [1, 2], "{text}");
    assert!(text.contains("3 dumps were due and not made, as the others fill --dumps-size"), "{text}");
    let (last, text) = marks(&["--dumps-size", "100K", "--dumps-keep", "last"]);
    assert_eq!(last, [4, 5], "{text}");

    let options = ["--dump-on", "slow:work>10ms,burst", "--dumps", "1", "--dumps-keep", "slowest"];
    let (folder, output) = record_ring(&options, 1, "works_slowly");
    let slowest = dumps(&folder);
    assert_eq!(slowest.len(), 1, "{}", told(&output));
    assert_eq!(count(&slowest[0], "work"), 2, "{}", told(&output));
}

/// Calls and returns around one: before it, after it, and in its thread.
#[test]
fn parts_of_a_ring() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 100;
    let leaves = |spec: &str| {
        let (folder, output) = record_ring(&["--dump-on", spec], N, "around");
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), [spec], "{}", told(&output));
        assert_eq!(["main", "mark"].map(|function| count(&dumps[0], function)), [1, 1], "{spec}");
        count(&dumps[0], "leaf")
    };
    assert_eq!(leaves("call:mark"), 2 * N + 2);
    assert_eq!(leaves("call:mark,last=300ms"), 2);
    assert_eq!(leaves("call:mark,after=300ms"), 2 * N + 4);
    assert_eq!(leaves("call:mark,after=300ms,last=600ms"), 4);
    // Longer than it runs.
    assert_eq!(leaves("call:mark,after=1h"), 4 * N + 4);

    for (spec, n_tasks) in [("call:mark", 2), ("call:mark,thread", 1)] {
        let (folder, output) = record_ring(&["--dump-on", spec], N, "in_thread");
        let tasks = calls_per_task(&traces::open(&dumps(&folder)[0]));
        assert_eq!(tasks.len(), n_tasks, "{spec}: {}", told(&output));
        assert!(tasks.iter().any(|task| task.get("mark") == Some(&1)), "{spec}");
    }
}

/// Whoever waits for a dump finds it while the program runs, also that of a child that has died.
#[test]
fn a_dump_is_there_while_the_program_runs() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-o", "trace", "--dump-on", "call:mark", "--dump-on", "fatal"]);
    command.arg("--").arg(&program().path).args(["10", "waits"]).current_dir(folder.path());
    let mut recorder = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while dumps(&folder).len() < 2 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let made = dumps(&folder);
    let counts = |trace: &PathBuf| ["leaf", "mark"].map(|function| count(trace, function));
    let found = (names(&made), made.iter().map(counts).collect::<Vec<_>>());
    let running = recorder.try_wait().unwrap().is_none();
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!((running, recorder.wait().unwrap().code()), (true, Some(0)));
    assert_eq!(found.0, ["snapshot-1-call-mark", "snapshot-2-fatal-it-ended-without-notice"]);
    assert_eq!(found.1, [[20, 1], [2, 0]]);
    // It stays as it was.
    assert_eq!(dumps(&folder), made);
    assert_eq!(count(&folder.path().join("trace"), "leaf"), 22);
}

/// Panics of Rust, and exceptions of C++, whoever catches them; nothing of the program is another one for it.
#[test]
fn a_dump_of_what_is_raised() {
    if !require(&["nightly", "g++"]) {
        return;
    }
    let rust = record::rust_program();
    let cpp = record::cpp_source().build();
    for (program, mode, spec, status, n_more) in [
        (rust, "panic", "panic", 101, 1),
        (rust, "panic_in_thread", "panic", 0, 0),
        (rust, "panics", "panic", 0, 3),
        (&*cpp.path, "", "throw", 0, 30),
        (&*cpp.path, "", "panic", 0, -1),
        (rust, "panics", "throw", 0, -1),
        (rust, "abort", "panic", 134, -1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "--ring", "--no-schedule", "-o", "trace", "--dump-on", spec, "--"]);
        let output = command.arg(program).arg(mode).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{mode}: {}", told(&output));
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), vec![spec; usize::from(n_more >= 0)], "{mode}: {}", told(&output));
        let expected = format!(" {n_more} dump{} due and not made", if n_more == 1 { " was" } else { "s were" });
        assert_eq!(told(&output).contains(&expected), n_more > 0, "{mode}: {}", told(&output));
        for dump in dumps {
            let trace = traces::open(&dump);
            let name = if mode.is_empty() { "descend" } else { "recorded::descend" };
            assert!(calls_per_task(&trace).iter().any(|task| task.contains_key(name)), "{mode}");
            // It ends with that, before anything is unwound.
            let task = trace
                .tasks()
                .iter()
                .find(|&task| trace.records(task).any(|record| record.unwrap().kind == Kind::Event));
            let records: Vec<_> = trace.records(task.unwrap()).map(Result::unwrap).collect();
            let mark = records.iter().position(|record| record.kind == Kind::Event).unwrap();
            assert!(
                records[mark..].iter().skip(1).all(|record| matches!(record.kind, Kind::Exit | Kind::Event)),
                "{mode}"
            );
        }
    }
}

/// Where the disk is full there is no dump, and that is told; it leaves the room to the records, which stay for `recover`.
#[test]
fn a_full_disk() {
    if !require(&["gcc", "unshare"]) {
        return;
    }
    let permitted = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", "mount -t tmpfs none /mnt"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !permitted {
        return tools::skip("mounts are not permitted");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c"]);
    command.arg(
        "mount -t tmpfs -o size=900k none \"$1\" && \"$0\" record --ring --no-schedule -o \"$1/trace\" --dump-on call:mark -- \"$2\" 60000 \
         marks_slowly; code=$?; ls \"$1/trace\" \"$1/trace/.recording\"; exit $code",
    );
    let output = command.arg(rftrace()).arg(folder.path()).arg(&program().path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let text = told(&output);
    let dump = text.lines().find(|line| line.contains("(call:mark): nothing was saved: "));
    assert!(dump.is_some_and(|line| line.contains("No space left")), "{text}");
    assert!(text.contains("cannot make the trace: ") && !text.contains("the trace is incomplete"), "{text}");
    let files = String::from_utf8_lossy(&output.stdout);
    assert!(files.contains("spool-") && !files.contains("snapshot") && !files.contains("tail-"), "{files}");
}

/// Both the program and the recorder may be killed while a dump is made: what is there is whole.
#[test]
fn who_is_killed_during_a_dump() {
    if !require(&["gcc"]) {
        return;
    }
    let whole = |folder: &TempDir, what: &str| {
        for trace in dumps(folder) {
            for tree in traces::trees(&traces::open(&trace)) {
                let names = tree.calls().map(|(_, call)| call.name.clone());
                let steps: Vec<u8> = names.filter_map(|name| name.strip_prefix("step_")?.parse().ok()).collect();
                assert!(steps.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 7), "{what}: {}", trace.display());
            }
        }
    };
    for millis in [210, 230, 320] {
        let options = ["--buffer", "16M", "--dump-on", "every:100ms", "--dump-on", "fatal"];
        let (folder, output) = record_ring(&options, millis, "walks_on");
        assert_eq!(output.status.code(), Some(128 + 9), "{}", told(&output));
        assert!(reasons(&dumps(&folder)).contains(&"fatal: killed by SIGKILL".to_owned()), "{}", told(&output));
        whole(&folder, "the program");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args([
        "record",
        "--ring",
        "--buffer",
        "16M",
        "--no-schedule",
        "-o",
        "trace",
        "--dump-on",
        "every:100ms",
        "--",
    ]);
    command.arg(&program().path).args(["2000", "walks_on"]).current_dir(folder.path()).stderr(Stdio::null());
    let mut recorder = command.stdin(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while dumps(&folder).is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(40));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert!(!dumps(&folder).is_empty());
    whole(&folder, "the recorder");
    // The program ends by SIGKILL, without a word. Until then it is being recorded.
    let deadline = Instant::now() + Duration::from_secs(60);
    let recovered = loop {
        let recovered = Command::new(rftrace()).arg("recover").arg(folder.path().join("trace")).output().unwrap();
        if !told(&recovered).contains("records to this directory") || Instant::now() > deadline {
            break recovered;
        }
        thread::sleep(Duration::from_millis(100));
    };
    assert!(told(&recovered).contains("a snapshot lies in"), "{}", told(&recovered));
    whole(&folder, "recovered");
}

/// Also where the process is gone when the recorder comes to it.
#[test]
fn a_dump_of_the_last_call() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record_ring(&["--dump-on", "call:mark"], 100, "mark_and_kill");
    assert_eq!(output.status.code(), Some(128 + 9), "{}", told(&output));
    let dumps = dumps(&folder);
    assert_eq!(reasons(&dumps), ["call:mark"], "{}", told(&output));
    assert_eq!(["leaf", "mark"].map(|function| count(&dumps[0], function)), [200, 1]);
}

/// The process runs another program by the time at which the dump is due.
#[test]
fn a_dump_of_the_program_before() {
    if !require(&["gcc"]) {
        return;
    }
    for spec in ["call:mark", "call:mark,after=1h"] {
        let (folder, output) = record_ring(&["--dump-on", spec], 100, "execs");
        assert_eq!(output.status.code(), Some(0), "{spec}: {}", told(&output));
        let dumps = dumps(&folder);
        assert_eq!(reasons(&dumps), [spec], "{}", told(&output));
        assert_eq!(["leaf", "mark"].map(|function| count(&dumps[0], function)), [200, 1], "{spec}");
        assert_eq!(count(&folder.path().join("trace"), "leaf"), 400, "{spec}");
    }
}

#[test]
fn a_dump_of_a_slow_call() {
    if !require(&["gcc"]) {
        return;
    }
    // The first call is the longest so far, of which nobody is told.
    for spec in ["slow:work>300ms", "slow:work>max"] {
        let ways = [(program(), &[][..]), (program(), &["-A", "work@arg1/i32", "-R", "main"]), (fixed()[0], &[])];
        for (program, others) in ways {
            let options: Vec<&str> = others.iter().copied().chain(["--dump-on", spec]).collect();
            let (folder, output) = record_ring_of(&program.path, &options, 100, "works");
            assert_eq!(output.status.code(), Some(0), "{options:?}: {}", told(&output));
            let dumps = dumps(&folder);
            assert_eq!(reasons(&dumps), [spec], "{options:?}: {}", told(&output));
            let trees = traces::trees(&traces::open(&dumps[0]));
            let calls: Vec<_> = trees[0].calls().map(|(_, call)| call).filter(|call| call.name == "work").collect();
            assert_eq!(calls.len(), 2, "{options:?}");
            let lasted = calls[1].end_ns.unwrap() - calls[1].start_ns;
            assert!(lasted >= 600_000_000, "{options:?}: {lasted}");
            assert_eq!(count(&dumps[0], "leaf"), 200, "{options:?}");
            assert_eq!(count(&folder.path().join("trace"), "leaf"), 400, "{options:?}");
        }
    }
}

#[test]
fn a_function_that_is_not_there_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = record_ring(&["--dump-on", "call:marc"], 1, "return");
    assert_eq!(output.status.code(), Some(0));
    assert!(told(&output).contains("no function that calls the tracer matches call:marc"), "{}", told(&output));
}

/// Two threads go round and round in a small ring while it is copied: each dump has a piece of what each did, without a gap.
#[test]
fn a_copy_of_a_ring_that_is_overwritten_has_no_torn_record() {
    if !require(&["gcc"]) {
        return;
    }
    const N: u64 = 6;
    // In the smaller buffer, records are gone when the recorder comes to them.
    for buffer in ["1M", "4M"] {
        let (folder, output) = record_ring(&["--buffer", buffer], N, "walks");
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let dumps = dumps(&folder);
        // A signal that comes before the last one was seen is that one.
        assert!((1..=N).contains(&(dumps.len() as u64)), "{}", told(&output));
        let mut n_steps = Vec::new();
        for dump in dumps.iter().chain([&folder.path().join("trace")]) {
            for tree in traces::trees(&traces::open(dump)) {
                let names = tree.calls().map(|(_, call)| call.name.clone());
                let steps: Vec<u8> = names.filter_map(|name| name.strip_prefix("step_")?.parse().ok()).collect();
                let gap = steps.windows(2).position(|pair| pair[1] != (pair[0] + 1) % 7);
                assert_eq!(gap, None, "{}: {steps:?}", dump.display());
                n_steps.push(steps.len());
            }
        }
        assert!(n_steps.iter().sum::<usize>() > 5_000, "{n_steps:?}");
        assert!(fs::read_dir(folder.path().join("trace")).unwrap().flatten().all(|e| e.file_name() != ".recording"));
    }
}

#[test]
fn what_cannot_be_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    for (options, expected) in [
        (&["--dump-on", "crash"][..], "no such event; events are signal:NAME, fatal"),
        (&["--dump-on", "slow:f"], "slow:FUNCTION>5ms"),
        (&["--dump-on", "call:f#0"], "1 is the first"),
        (&["--dump-on", "signal:KILL"], "no program can handle this signal"),
        (&["--dump-on", "signal:HUP", "--dump-on", "signal:TERM"], "names two signals"),
        (&["--dump-on", "stall:1s,thread"], "work only with call, slow, panic and throw"),
        (&["--dumps", "3"], "--dump-on"),
        (&["--dumps-keep", "last"], "--dump-on"),
    ] {
        let (folder, output) = record_ring(options, 1, "return");
        assert!(!output.status.success() && told(&output).contains(expected), "{options:?}: {}", told(&output));
        assert!(!folder.path().join("trace").exists(), "{options:?}");
    }
    // There are no dumps of a stream: its snapshots have all.
    let output = Command::new(rftrace()).args(["record", "--dump-on", "fatal", "--stream", "true"]).output().unwrap();
    assert!(!output.status.success() && told(&output).contains("--stream"), "{}", told(&output));
}
