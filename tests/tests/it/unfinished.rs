//! Directories that are no trace yet: of a recording that goes on, of one that was interrupted, and of one that keeps its stream
//! (`--keep-stream`). All commands show what is there, and change nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rftrace_tests::require;
use tempfile::TempDir;

use crate::record::rftrace;
use crate::streaming::{count, program, told};

const N: u64 = 50_000;

/// Runs a command on `trace` in a folder; what it unpacks goes to `tmp` beside it.
fn run(folder: &Path, args: &[&str]) -> Output {
    let place = folder.join("tmp");
    fs::create_dir_all(&place).unwrap();
    Command::new(rftrace()).args(args).current_dir(folder).env("TMPDIR", place).output().unwrap()
}

/// Nothing that was unpacked is left.
fn assert_nothing_is_left(folder: &Path) {
    assert_eq!(fs::read_dir(folder.join("tmp")).unwrap().count(), 0);
}

/// How often a function was called, by what is shown of `trace`.
fn shown(folder: &Path, function: &str) -> (u64, String) {
    let copy = folder.join("copy");
    let _ = fs::remove_dir_all(&copy);
    let output = run(folder, &["dump", "--uftrace", "-o", "copy", "trace"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_nothing_is_left(folder);
    (count(&copy, function), told(&output))
}

/// All files below a folder, with their sizes and times.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        if meta.is_dir() {
            found.extend(files(&entry.path()));
        }
        found.insert(entry.path(), (meta.len(), meta.modified().unwrap()));
    }
    found
}

fn record(options: &[&str], n: u64, way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-o", "trace"]).args(options).arg("--").arg(&program().path);
    let output = command.arg(n.to_string()).arg(way).current_dir(&folder).output().unwrap();
    (folder, output)
}

/// Checks that the commands show each directory here like a trace.
fn assert_all_commands_show(folder: &Path) {
    for (args, wanted) in [
        (&["report", "trace"][..], "leaf"),
        (&["replay", "--no-pager", "-D", "2", "trace"], "call"),
        (&["graph", "trace"], "leaf"),
        (&["info", "trace"], "recorded by"),
        (&["dump", "--folded", "trace"], "main;call;middle;leaf"),
        (&["dump", "--chrome", "trace"], "leaf"),
    ] {
        let output = run(folder, args);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(wanted), "{args:?}: {}", told(&output));
        assert_nothing_is_left(folder);
    }
}

/// A recording that goes on can be looked at, and is as it would be otherwise; so can what is left of it.
#[test]
fn what_is_recorded_is_shown_meanwhile() {
    if !require(&["gcc"]) {
        return;
    }
    /// The records of a thread that are in no full chunk.
    const IN_CHUNK: u64 = 4096;

    for is_killed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "--no-schedule", "--buffer", "1M", "-o", "trace", "--"]).arg(&program().path);
        command.args([&N.to_string(), "input"]).current_dir(&folder).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut recorder = command.spawn().unwrap();
        let trace = folder.path().join("trace");
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut n, mut said) = (0, String::new());
        while n + IN_CHUNK < 2 * N {
            assert!(Instant::now() < deadline, "{n} calls are shown: {said}");
            thread::sleep(Duration::from_millis(50));
            // There is nothing at first.
            if run(folder.path(), &["report", "trace"]).status.success() {
                (n, said) = shown(folder.path(), "leaf");
            }
        }
        assert!(n <= 2 * N && said.contains(" is recording trace: only"), "{n}: {said}");
        let before = files(&trace);
        assert_all_commands_show(folder.path());
        for (args, wanted) in [
            (&["send", "trace", "localhost:1"][..], "is recording trace: wait"),
            (&["symbols", "trace", "--binary", "/bin/true"], "is recording trace: wait"),
            (&["recover", "trace"], "records to this directory"),
        ] {
            let output = run(folder.path(), args);
            assert!(!output.status.success() && told(&output).contains(wanted), "{args:?}: {}", told(&output));
        }
        // The recorder goes on to say what belongs to its spool.
        let names = |files: &BTreeMap<PathBuf, _>| files.keys().cloned().collect::<Vec<_>>();
        let is_abouts = |path: &PathBuf| path.extension().is_some();
        let changed = names(&files(&trace)).into_iter().filter(|path| !is_abouts(path)).collect::<Vec<_>>();
        assert_eq!(changed, names(&before).into_iter().filter(|path| !is_abouts(path)).collect::<Vec<_>>());
        let mut input = recorder.stdin.take().unwrap();
        if !is_killed {
            input.write_all(b"x").unwrap();
            let output = recorder.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(7), "{}", told(&output));
            assert_eq!(count(&trace, "leaf"), 4 * N, "{}", told(&output));
            continue;
        }
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        let work = trace.join(".recording");
        drop(input);
        let is_living = || {
            let process = fs::read_dir(&work).unwrap().flatten().find_map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                name.strip_prefix("process-")?.split('-').next().map(str::to_owned)
            });
            process.is_some_and(|pid| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok())
        };
        while is_living() {
            assert!(Instant::now() < deadline, "the program goes on");
            thread::sleep(Duration::from_millis(10));
        }
        let before = files(&trace);
        let (n, said) = shown(folder.path(), "leaf");
        assert!(n + IN_CHUNK >= 2 * N && n <= 4 * N, "{n}: {said}");
        assert!(said.contains("interrupted") && said.contains("rftrace recover trace"), "{said}");
        assert_all_commands_show(folder.path());
        assert_eq!(files(&trace), before);
        let output = run(folder.path(), &["recover", "trace"]);
        assert!(output.status.success(), "{}", told(&output));
        assert_eq!(count(&trace, "leaf"), n);
    }
}

/// A stream is an eighth of the trace, and shows all that the trace does, also when the program's file has gone.
#[test]
fn a_stream_is_kept() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--keep-stream", "--buffer", "1M"], N, "threads");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    assert!(told(&output).contains("as a stream; try\n  rftrace report trace\n"), "{}", told(&output));
    let trace = folder.path().join("trace");
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&trace), ["stream"]);
    let before = files(&trace);
    // 5 rounds of N calls of one function and 2 N of another one, 16 bytes for each entry and exit.
    let bytes: u64 = before.values().map(|(bytes, _)| bytes).sum();
    assert!(bytes < 5 * 3 * N * 2 * 16 / 6, "{bytes} bytes");
    let (n, said) = shown(folder.path(), "leaf");
    assert_eq!(n, 10 * N, "{said}");
    assert!(!said.contains("rftrace:"), "{said}");
    assert_all_commands_show(folder.path());
    let output = run(folder.path(), &["info", "trace"]);
    let info = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(info.contains("a stream (--keep-stream)") && info.contains("exit status              7"), "{info}");
    let output = run(folder.path(), &["send", "trace", "localhost:1"]);
    assert!(told(&output).contains("`rftrace recover trace` makes a trace of it, also for uftrace"));
    assert_eq!(files(&trace), before);

    let output = run(folder.path(), &["recover", "trace"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(count(&trace, "leaf"), 10 * N, "{}", told(&output));
    assert!(!trace.join("stream").exists() && trace.join("info").exists());
}

#[test]
fn a_stream_outlives_its_program() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    fs::copy(&program().path, &own).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--keep-stream", "--no-schedule", "-o", "trace", "--"]).arg(&own).args(["10", "kill"]);
    let output = command.current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{}", told(&output));
    // Another one has its place.
    fs::copy("/bin/true", &own).unwrap();
    assert_eq!(shown(folder.path(), "leaf").0, 20);
    // A recording into the same directory moves it away as it is.
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-o", "trace", "--"]).arg(&program().path).args(["5", "return"]);
    let output = command.current_dir(&folder).output().unwrap();
    assert_eq!(count(&folder.path().join("trace"), "leaf"), 10, "{}", told(&output));
    let output = run(folder.path(), &["recover", "trace.old"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(count(&folder.path().join("trace.old"), "leaf"), 20);
}

/// Unpacked files are removed, however the command ends, and nothing is begun without room.
#[test]
fn nothing_is_left_of_what_is_shown() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--keep-stream"], 20_000, "return");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let place = folder.path().join("tmp");
    fs::create_dir_all(&place).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["replay", "--no-pager", "trace"]).current_dir(&folder).env("TMPDIR", &place);
    let mut replay = command.stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let n_left = || fs::read_dir(&place).unwrap().count();
    let is_made = || {
        fs::read_dir(&place).unwrap().flatten().any(|entry| fs::read_dir(entry.path()).is_ok_and(|it| it.count() > 0))
    };
    while !is_made() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    // It cannot end before: its output is a pipe that nobody reads.
    replay.kill().unwrap();
    replay.wait().unwrap();
    while n_left() > 0 {
        assert!(Instant::now() < deadline, "it is there still");
        thread::sleep(Duration::from_millis(1));
    }
    let mut command = Command::new(rftrace());
    let output = command.args(["report", "trace"]).current_dir(&folder).env("TMPDIR", "/nowhere").output().unwrap();
    assert!(!output.status.success());
    assert!(told(&output).contains("choose another directory with the variable TMPDIR"), "{}", told(&output));
}

/// Runs a command on `trace` that has little time and memory.
fn run_bounded(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 4000000; exec timeout -s KILL 60 \"$0\" \"$@\""]).arg(rftrace()).args(args);
    command.current_dir(folder).output().unwrap()
}

/// Files that never end, or nearly so, are named, and cost neither time nor memory.
#[test]
fn files_without_end_are_named() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = record(&["--keep-stream"], 100, "return");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let mut spools = fs::read_dir(folder.path().join("trace/stream")).unwrap().flatten().map(|entry| entry.path());
    let about = spools.find(|path| path.extension().is_some_and(|kind| kind == "about")).unwrap();
    fs::remove_file(&about).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &about).unwrap();
    for args in [&["report", "trace"][..], &["info", "trace"], &["recover", "trace"]] {
        let output = run_bounded(folder.path(), args);
        assert!(output.status.code().is_some_and(|code| code != 137), "{args:?}: {:?}", output.status);
        assert!(told(&output).contains("not a regular file"), "{args:?}: {}", told(&output));
    }
    let (folder, output) = record(&[], 100, "return");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let mut traced = fs::read_dir(folder.path().join("trace")).unwrap().flatten().map(|entry| entry.path());
    let data =
        traced.find(|path| path.extension().is_some_and(|kind| kind == "dat") && !path.ends_with("perf-cpu0.dat"));
    let data = data.unwrap();
    fs::File::options().write(true).open(&data).unwrap().set_len(1 << 40).unwrap();
    for args in [&["report", "trace"][..], &["replay", "--no-pager", "trace"], &["dump", "--folded", "trace"]] {
        let output = run_bounded(folder.path(), args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", told(&output));
        let name = data.file_name().unwrap().to_str().unwrap();
        assert!(told(&output).contains("are a hole") && told(&output).contains(name), "{args:?}: {}", told(&output));
    }
}
