//! `rftrace record` of programs that limit themselves, or are limited: they end as they would, what can be saved is saved, and what
//! is not is told of.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::fixtures::{self, build_as};
use rftrace_tests::{CProgram, Program, Run, require, tools};

use crate::record::{calls, record, rftrace};

fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    &BUILT.get_or_init(|| CProgram::new(&["limited.c"]).without_library().with(&["-O1", "-lpthread"]).build()).path
}

/// Records the program, which must end and print as it does by itself (but for gprof, whose own file breaks some limits).
#[track_caller]
fn as_by_itself(how: &str) -> Run {
    as_by_itself_with(&[], how)
}

#[track_caller]
fn as_by_itself_with(options: &[&str], how: &str) -> Run {
    let run = record(options, program(), &[how]);
    assert_eq!(run.status.code(), Some(3), "{how}: {}", run.stderr);
    let printed = if how.starts_with("strict") { "alive\n" } else { "" };
    assert_eq!(run.stdout, printed, "{how}: {}", run.stderr);
    assert!(!run.stderr.contains("memory allocation"), "{how}: {}", run.stderr);
    run
}

#[test]
fn what_no_file_can_be_opened_for_is_told_of() {
    if !require(&["gcc"]) {
        return;
    }
    let run = as_by_itself_with(&["--stop"], "files");
    assert!(run.stderr.contains("raise the limit of open files (ulimit -n)"), "{}", run.stderr);
    assert!(!run.path("trace/info").exists());
    let run = as_by_itself_with(&["--stop"], "no_file_size");
    assert!(run.stderr.contains("raise the limit of file sizes (ulimit -f)"), "{}", run.stderr);
}

/// The recorder has no such limits.
#[test]
fn nothing_is_lost_for_want_of_files() {
    if !require(&["gcc"]) {
        return;
    }
    for (how, leaves) in [("files", 2), ("no_file_size", 2), ("file_size", 100_002)] {
        let run = as_by_itself(how);
        assert_eq!(calls(&run)["leaf"], leaves, "{how}: {}", run.stderr);
    }
}

/// Limits that a process may raise are no reason to lose anything.
#[test]
fn limits_that_can_be_raised() {
    if !require(&["gcc"]) {
        return;
    }
    let run = as_by_itself("files_soft");
    assert_eq!(calls(&run)["leaf"], 2, "{}", run.stderr);
    let run = as_by_itself("file_size_soft");
    assert_eq!(calls(&run)["leaf"], 100_002, "{}", run.stderr);
}

#[test]
fn files_that_may_not_grow_hold_the_beginning() {
    if !require(&["gcc"]) {
        return;
    }
    let run = as_by_itself_with(&["--stop"], "file_size");
    assert!(run.stderr.contains("the trace is incomplete") && run.stderr.contains("(ulimit -f)"), "{}", run.stderr);
    let leaves = calls(&run)["leaf"];
    assert!((1000..2048).contains(&leaves), "{leaves}: {}", run.stderr);
}

#[test]
fn programs_without_memory() {
    if !require(&["gcc"]) {
        return;
    }
    for how in ["memory", "data"] {
        let run = as_by_itself(how);
        // With `main`, `work` and `limit`.
        assert!(run.stderr.contains("5 calls of 1 thread in 1 process"), "{how}: {}", run.stderr);
        let mut symbols = Command::new(rftrace());
        tools::run(symbols.arg("symbols").arg("--binary").arg(program()).arg(run.path("trace")));
        assert_eq!(calls(&run)["leaf"], 2, "{how}: {}", run.stderr);
    }
}

#[test]
fn small_stacks() {
    if !require(&["gcc"]) {
        return;
    }
    let run = as_by_itself("small_stack");
    assert_eq!(calls(&run)["leaf"], 7, "{}", run.stderr);
}

/// A filter that lets no file be opened kills for nothing that the program does not do: when it ends, and when it becomes another one.
#[test]
fn filters_that_kill() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fixed = folder.path().join("fixed");
    build_as(Command::new("gcc").arg("-static").arg(fixtures::folder("c").join("other.c")), &fixed);
    let sandbox = CProgram::new(&["sandbox.c"]).without_library().with(&["-O1"]).build();
    for (arguments, status) in [(&[][..], 6), (&[fixed.to_str().unwrap()], 5)] {
        for way in [&[][..], &["--ring"]] {
            let run = record(way, &sandbox.path, arguments);
            assert_eq!(run.status.code(), Some(status), "{way:?}: {}", run.stderr);
            assert_eq!(calls(&run)["main"], 1, "{way:?}: {}", run.stderr);
        }
    }
}

/// Strict seccomp kills for all but four system calls, and for a look at the time stamp counter.
#[test]
fn strict_seccomp() {
    if !require(&["gcc"]) {
        return;
    }
    for how in ["strict", "strict_by_number"] {
        let run = as_by_itself(how);
        assert_eq!(calls(&run)["leaf"], 2, "{how}: {}", run.stderr);
    }
}

#[test]
fn forks_beside_snapshots() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[], program(), &["forks"]);
    assert_eq!((run.stdout.as_str(), run.status.code()), ("none hung\n", Some(3)), "{}", run.stderr);
    assert_eq!(calls(&run)["leaf"], 2 + 3 * 5, "{}", run.stderr);
}

/// The program ends as it would, and the beginning of what it did is there: at once where it saves it itself, or else, as what was taken
/// out of it fills the disk, elsewhere, or when there is room.
#[test]
fn a_full_disk() {
    if !require(&["gcc", "mount", "umount"]) {
        return;
    }
    for options in [&["--stop", "--buffer", "64M"][..], &[]] {
        a_full_disk_with(options);
    }
}

fn a_full_disk_with(options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    // Half of what is taken out of the program.
    let size = if options.is_empty() { "size=384k" } else { "size=2m" };
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", size, "none"]).arg(folder.path()).output().unwrap();
    if !mount.status.success() {
        return tools::skip("no file system can be mounted");
    }
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    let of_success = record(&[options, &["--output", trace]].concat(), program(), &["much", "0"]);
    let _ = fs::remove_dir_all(trace);
    let run = record(&[options, &["--output", trace]].concat(), program(), &["much"]);
    if options.is_empty() {
        let [lost, left] = run.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", run.stderr) };
        assert!(lost.contains(" calls and returns were not recorded: rftrace cannot write "), "{lost}");
        let remedy = format!("`rftrace recover {trace} -o OTHER`");
        assert!(left.starts_with("rftrace: cannot make the trace: cannot write ") && left.contains(&remedy), "{left}");
        assert!(left.contains(&format!("the records stay in {trace}/.recording")), "{left}");
        let again = Command::new(rftrace()).args(["recover", trace]).output().unwrap();
        assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains(&remedy), "{again:?}");
        let elsewhere = folder.path().with_extension("other");
        let said = Command::new(rftrace()).args(["recover", trace, "-o"]).arg(&elsewhere).output().unwrap();
        let said_there = String::from_utf8_lossy(&said.stderr);
        assert!(
            said.status.success() && said_there.contains(" were not recorded: ") && !said_there.contains("damaged"),
            "{said:?}"
        );
        let recovered = rftrace_tests::open(&elsewhere);
        let calls = rftrace_tests::traces::calls_per_task(&recovered);
        let is_empty = |number: u32| {
            fs::metadata(elsewhere.join(format!("perf-cpu{number}.dat"))).is_ok_and(|file| file.len() == 0)
        };
        assert!(!recovered.has_schedule().unwrap() || !(0..2).all(is_empty), "no switches were kept");
        fs::remove_dir_all(&elsewhere).unwrap();
        assert!(calls[0]["leaf"] > 10_000 && folder.path().join("trace/.recording").exists(), "{calls:?}");
        let remount = ["-o", "remount,size=64m"];
        assert!(Command::new("mount").args(remount).arg(folder.path()).status().unwrap().success());
        tools::run(Command::new(rftrace()).args(["recover", trace]));
    }
    let n_calls = fs::read_dir(trace).map(|_| {
        let trace = rftrace_tests::open(Path::new(trace));
        rftrace_tests::traces::calls_per_task(&trace).iter().flat_map(|calls| calls.values()).sum::<u64>()
    });
    let status = Command::new("umount").arg(folder.path()).status().unwrap();
    assert!(status.success());
    assert_eq!(run.status.code(), Some(3), "{}", run.stderr);
    // The recorder's failure has a status of its own where the program has none.
    assert_eq!(of_success.status.code(), Some(1), "{}", of_success.stderr);
    assert!(run.stderr.contains("No space left") && run.stderr.contains("free some space"), "{}", run.stderr);
    let n_calls = n_calls.unwrap();
    assert!(n_calls > 10_000, "{n_calls}: {}", run.stderr);
}

#[test]
fn more_threads_than_chunks() {
    if !require(&["gcc"]) {
        return;
    }
    let many = CProgram::new(&["many_threads.c"]).without_library().with(&["-O1", "-lpthread"]).build();
    // There are 64 chunks, of which each thread keeps one.
    let run = record(&["--buffer", "1M"], &many.path, &["100"]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(6), "100 threads\n"), "{}", run.stderr);
    let reason = "it has more threads than its buffer has chunks; make the buffer larger with --buffer";
    assert!(run.stderr.contains(reason), "{}", run.stderr);
    let run = record(&["--buffer", "8M"], &many.path, &["100"]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(6), "100 threads\n"), "{}", run.stderr);
    assert!(!run.stderr.contains("not recorded"), "{}", run.stderr);
    assert_eq!(calls(&run)["leaf"], 100_100, "{}", run.stderr);
}

#[test]
fn hundreds_of_living_children() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["living_children.c"]).without_library().with(&["-O1"]).build();
    let run = record(&["--no-schedule"], &program.path, &["300"]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(0), "300 children\n"), "{}", run.stderr);
    assert!(!run.stderr.contains("not recorded"), "{}", run.stderr);
    assert_eq!(calls(&run)["leaf"], 300, "{}", run.stderr);
}
