//! `rftrace record --resources`: programs that forbid themselves system calls (seccomp), and are killed for others.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use super::record::rftrace;
use super::resources::{record_kinds, sums, values};

const KINDS: &str = "memory,file,thread";

fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        let program = CProgram::new(&["confined_resources.c"]).without_hooks().without_library();
        program.with(&["-g", "-O1", "-fno-builtin", "-lpthread"]).build()
    };
    &BUILT.get_or_init(build).path
}

/// Blocks that are still there, of those with these functions in the stack.
fn blocks(trace: &TempDir, functions: &[&str]) -> u64 {
    sums(&values(trace, &["--kind", "memory"]), functions)[2]
}

/// All that it takes is counted, in the first thread and in others, by whichever callers are near enough.
#[test]
fn none_is_killed_for_calls_of_the_library() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["filter", "all", "alone"] {
        let (trace, _) = record_kinds(KINDS, &["--backtraces", "cfi"], program(), &[way]);
        assert_eq!(blocks(&trace, &["leak", "in_first", "deep", "main"]), 5, "{way}");
        let of_others = [("in_known", 7), ("in_unknown", 9), ("in_new", 11), ("in_child", 3)];
        for (function, n_blocks) in of_others {
            let expected = if way == "alone" { 0 } else { n_blocks };
            assert_eq!(blocks(&trace, &["leak", function]), expected, "{way}: {function}");
        }
        let files = values(&trace, &["--kind", "file"]);
        assert_eq!(sums(&files, &["main"]), [4, 4, 2, 2], "{way}: {files:#}");
        let threads = values(&trace, &["--kind", "thread"]);
        let n_threads = if way == "alone" { 0 } else { 3 };
        assert_eq!(sums(&threads, &["main"])[..3], [n_threads, n_threads, 0], "{way}: {threads:#}");
        // A child that cannot ask which program it runs has its parent's.
        let memory = values(&trace, &["--kind", "memory"]);
        let processes = memory["memory"]["processes"].as_array().unwrap();
        let own = program().to_str().unwrap();
        assert!(processes.iter().all(|process| process["program"] == own), "{memory:#}");
        assert_eq!(processes.len(), if way == "alone" { 1 } else { 2 }, "{memory:#}");
    }
}

/// A program that only asks whether there are filters is not confined: stacks of all threads are whole.
#[test]
fn who_asks_is_not_confined() {
    if !require(&["gcc"]) {
        return;
    }
    let (trace, _) = record_kinds(KINDS, &["--backtraces", "cfi"], program(), &["asks"]);
    for (thread, function, n_blocks) in [("known", "in_known", 7), ("unknown", "in_unknown", 9), ("new", "in_new", 11)]
    {
        assert_eq!(blocks(&trace, &["leak", function, "deep", thread]), n_blocks, "{thread}");
    }
}

/// In the strict mode the thread may not even read the time: what it does is not recorded any more.
#[test]
fn the_strict_mode_is_survived() {
    if !require(&["gcc"]) {
        return;
    }
    let (trace, _) = record_kinds(KINDS, &["--backtraces", "cfi"], program(), &["strict"]);
    assert_eq!([blocks(&trace, &["leak", "main"]), blocks(&trace, &["in_first"])], [2, 0]);
}

/// The same where the functions that forbid it are noted themselves, and are in the midst of that.
#[test]
fn what_forbids_it_can_be_noted() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["filter", "all", "strict"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "--resources", "audit:prctl;syscall", "--no-schedule", "-o", "trace"]);
        let output = command.arg("--").arg(program()).arg(way).current_dir(folder.path()).output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"right\n"[..]), "{way}: {output:?}");
        // Two calls, but for the one that is not left in the strict mode.
        let n_calls = if way == "strict" { 0 } else { 2 };
        assert_eq!(sums(&values(&folder, &[]), &["main"])[0], n_calls, "{way}");
    }
}
