//! `rftrace ctl`: threads of a program are recorded or not, one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::{require, traces};

use crate::control::Controlled;

/// The rounds that each task has, by their letters.
fn rounds(it: &Controlled) -> BTreeMap<u32, String> {
    let trace = traces::open(&it.trace());
    let tids = trace.tasks().iter().map(|task| task.tid());
    let letters = traces::calls_per_task(&trace).into_iter().map(|calls| {
        let letters: BTreeSet<&str> = calls.keys().filter_map(|name| name.strip_prefix("round_")).collect();
        // No round is cut.
        let n_rounds: u64 = calls.iter().filter(|(name, _)| name.starts_with("round_")).map(|(_, n)| n).sum();
        assert_eq!(calls.get("deepest").copied().unwrap_or(0), n_rounds, "{calls:?}");
        letters.into_iter().collect::<String>()
    });
    tids.zip(letters).collect()
}

/// A program with three threads, and their numbers.
fn with_threads(options: &[&str]) -> (Controlled, [u32; 3]) {
    let mut it = Controlled::new(options, &["threads"]);
    let before = it.wait_until_ready();
    let mut others = before.split("thread ").skip(1).map(|number| number.trim().parse().unwrap());
    let threads = [it.pid, others.next().unwrap(), others.next().unwrap()];
    (it, threads)
}

#[test]
fn threads_are_chosen() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--ring"], &["--patched"]] {
        let (mut it, [main, first, second]) = with_threads(options);
        let set = |it: &Controlled, words: &[&str], read: &str| {
            it.ctl(&[&["set"], words].concat());
            assert_eq!(it.ctl(&["get", words[0]]), read, "{words:?}");
        };
        let ids = [main, first, second].map(|id| id.to_string());
        let [m, f, s] = [&*ids[0], &ids[1], &ids[2]];
        it.round('a');
        set(&it, &["set_ftrace_pid", f], &format!("{f}\n"));
        it.round('b');
        set(&it, &["set_ftrace_pid", ">>", m], &format!("{f}\n{m}\n"));
        it.round('c');
        set(&it, &["set_ftrace_notrace_pid", m, s], &format!("{m}\n{s}\n"));
        it.round('d');
        // Excluding threads alone hides none that come later.
        set(&it, &["set_ftrace_pid", ""], "no pid\n");
        it.round('g');
        set(&it, &["set_ftrace_notrace_pid"], "no pid\n");
        it.round('e');
        // A child has another number, and so has its thread.
        set(&it, &["set_ftrace_pid", m, s], &format!("{m}\n{s}\n"));
        it.round('h');
        set(&it, &["set_ftrace_pid", &format!("!{s}")], &format!("{m}\n"));
        it.round('f');
        it.end();
        let mut rounds = rounds(&it);
        assert_eq!(rounds.remove(&main).as_deref(), Some("acefh"), "{options:?}");
        assert_eq!(rounds.remove(&first).as_deref(), Some("abcdeg"), "{options:?}");
        assert_eq!(rounds.remove(&second).as_deref(), Some("aeh"), "{options:?}");
        // The thread that came later; the child has nothing but what was open.
        assert_eq!(rounds.values().filter(|letters| !letters.is_empty()).collect::<Vec<_>>(), ["g"], "{options:?}");
    }
}

/// Threads that are not chosen take no room, and what all of them do meanwhile stays right.
#[test]
fn threads_are_chosen_again_and_again() {
    if !require(&["gcc"]) {
        return;
    }
    let (mut it, [_, first, second]) = with_threads(&["--buffer", "1M"]);
    for turn in 0..60 {
        let only = if turn % 2 == 0 { first } else { second };
        it.ctl(&["set", "set_ftrace_pid", &only.to_string()]);
        if turn % 20 == 0 {
            it.round(['a', 'b', 'c'][turn / 20]);
        }
    }
    let status = it.ctl(&["status"]);
    assert!(status.contains("not recorded 0 calls"), "{status}");
    it.ctl(&["set", "set_ftrace_pid", ""]);
    it.round('d');
    it.end();
    let rounds = rounds(&it);
    assert_eq!((&*rounds[&first], &*rounds[&second]), ("abcd", "d"));
}

/// As files: `>` and `>>`.
#[test]
fn threads_are_chosen_by_a_file() {
    if !require(&["gcc"]) {
        return;
    }
    let (mut it, [main, first, second]) = with_threads(&[]);
    let dir = it.folder.path().join("ftrace");
    let mut files = it.command(&["--dir"]).arg(&dir).spawn().unwrap();
    let path = dir.join("set_ftrace_pid");
    // The file has what was written before it holds.
    let has = |it: &Controlled, expected: &str| {
        let since = Instant::now();
        while fs::read_to_string(&path).ok().as_deref() != Some(expected)
            || it.ctl(&["get", "set_ftrace_pid"]) != expected
        {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?} is not {expected:?}", fs::read_to_string(&path));
            thread::sleep(Duration::from_millis(5));
        }
    };
    let sh = |line: &str| assert!(Command::new("sh").args(["-c", line]).current_dir(&dir).status().unwrap().success());
    // Made when the files are looked at.
    let since = Instant::now();
    while !dir.join("trace_marker").exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "no files");
        thread::sleep(Duration::from_millis(5));
    }
    has(&it, "no pid\n");
    sh(&format!("echo {first} >set_ftrace_pid"));
    has(&it, &format!("{first}\n"));
    sh(&format!("echo {second} >>set_ftrace_pid"));
    has(&it, &format!("{first}\n{second}\n"));
    it.round('a');
    sh("echo >set_ftrace_pid");
    has(&it, "no pid\n");
    it.round('b');
    it.end();
    files.wait().unwrap();
    let rounds = rounds(&it);
    assert_eq!(rounds[&main], "b");
    assert_eq!((&*rounds[&first], &*rounds[&second]), ("ab", "ab"));
}
