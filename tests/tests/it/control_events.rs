//! `rftrace ctl`: what happens at moments. Marks, dumps on events, functions that switch recording, its end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::{require, traces};

use crate::control::{ALL, Controlled, reading};
use crate::record::rftrace;

/// The dumps that there are, by their names.
fn dumps(it: &Controlled) -> Vec<String> {
    let names = fs::read_dir(it.trace()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("snapshot-")).collect();
    names.sort();
    names
}

/// Waits for so many of them.
fn wait_for_dumps(it: &Controlled, n: usize) -> Vec<String> {
    let since = Instant::now();
    while dumps(it).len() < n {
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}: {}", dumps(it), it.told());
        thread::sleep(Duration::from_millis(5));
    }
    dumps(it)
}

fn n_leaves(trace: &Path) -> u64 {
    traces::calls_per_task(&traces::open(trace))[0]["leaf"]
}

#[test]
fn dumps_on_what_is_added() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&["--ring"], &["plain"]);
    assert_eq!(it.ctl(&["trigger", "list"]), "");
    it.ctl(&["filter", "exclude=deeper"]);
    it.ctl(&["trigger", "add", "call:leaf,burst"]);
    assert!(it.refused(&["trigger", "add", "call:leaf,burst"]).contains("already"));
    let problem = it.refused(&["trigger", "add", "call:no_such"]);
    assert!(problem.contains("call:no_such: no recordable function"), "{problem}");
    assert_eq!(it.ctl(&["trigger", "list"]), "0 call:leaf,burst\n");
    assert_eq!(it.ctl(&["filter"]), "exclude=deeper\n");
    it.round('a');
    assert_eq!(wait_for_dumps(&it, 1), ["snapshot-1-call-leaf-burst"]);
    // Another filter does not take it away.
    it.ctl(&["filter", ""]);
    it.round('b');
    wait_for_dumps(&it, 2);
    assert_eq!(n_leaves(&it.trace().join("snapshot-2-call-leaf-burst")), 2);
    it.ctl(&["trigger", "del", "call:leaf,burst"]);
    it.round('c');
    // A number is never another one's.
    it.ctl(&["trigger", "add", "slow:slow>1ms"]);
    it.ctl(&["trigger", "add", "panic"]);
    assert_eq!(it.ctl(&["trigger", "list"]), "2 slow:slow>1ms\n3 panic\n");
    it.round('d');
    assert_eq!(wait_for_dumps(&it, 3)[2], "snapshot-3-slow-slow-1ms");
    it.ctl(&["trigger", "del", "2"]);
    it.ctl(&["trigger", "add", "every:100ms"]);
    wait_for_dumps(&it, 5);
    it.ctl(&["trigger", "del", "every:100ms"]);
    let refused = it.refused(&["trigger", "add", "signal:HUP"]);
    assert!(refused.contains("--signal-snapshot"), "{refused}");
    assert!(it.rounds().len() == 5);
}

/// ftrace's commands for functions.
#[test]
fn calls_that_do_something() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&["--ring"], &["plain"]);
    it.ctl(&["set", "set_ftrace_filter", "deep:traceoff"]);
    let all = "#### all functions enabled ####\n";
    assert_eq!(it.ctl(&["get", "set_ftrace_filter"]), format!("{all}deep:traceoff:unlimited\n"));
    it.round('a');
    it.ctl(&["set", "set_ftrace_filter", "!deep:traceoff"]);
    it.ctl(&["set", "tracing_on", "1"]);
    it.ctl(&["set", "set_ftrace_filter", "deepest:snapshot:2", "leaf:dump"]);
    let read = it.ctl(&["get", "set_ftrace_filter"]);
    assert_eq!(read, format!("{all}deepest:snapshot:count=2\nleaf:snapshot:unlimited\n"));
    it.ctl(&["set", "set_ftrace_filter", "!leaf:snapshot"]);
    for (letter, n) in [('b', 1), ('c', 2), ('d', 2), ('e', 2)] {
        it.round(letter);
        wait_for_dumps(&it, n);
    }
    // One asks, and forgets what he has asked for.
    it.ctl(&["set", "snapshot", "1"]);
    assert_eq!(dumps(&it).len(), 3);
    assert_eq!(it.ctl(&["set", "snapshot", "0"]), "removed 1 dump\n");
    assert_eq!(dumps(&it), [1, 2].map(|n| format!("snapshot-{n}-call-deepest-burst-times-2")));
    let rounds = it.rounds();
    assert_eq!(rounds["round_a"], ["all", "leaf"]);
    assert_eq!(rounds["round_e"], ALL);
}

#[test]
fn the_end_of_a_recording() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    it.round('a');
    assert!(it.ctl(&["flush"]).contains(" calls and returns are on the disk, "));
    assert!(it.ctl(&["stop"]).contains("has ended"));
    it.round('b');
    for words in [&["on"][..], &["set", "tracing_on", "1"], &["set", "current_tracer", "function_graph"]] {
        assert!(it.refused(words).contains("for good"));
    }
    it.ctl(&["set", "free_buffer", "1"]);
    let rounds = it.rounds();
    assert_eq!(rounds["round_a"], ALL);
    assert!(!rounds.contains_key("round_b"));
}

/// Replays a trace, as text without times.
fn replay(program: &str, trace: &Path) -> Option<String> {
    let output = Command::new(program).args(["replay", "--no-pager", "-f", "none", "-d"]).arg(trace).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Marks from outside and from the program are where they were made, in all views and formats.
#[test]
fn marks() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    for options in [&[][..], &["--ring"], &["--keep-stream"]] {
        let mut it = Controlled::ready(options, &["marks"]);
        it.ctl(&["mark", "before all"]);
        let (mut reader, text) = reading(&mut it.command(&["pipe"]));
        assert!(text.recv().unwrap().contains("FUNCTION"));
        it.round('a');
        it.ctl(&["set", "trace_marker", "between", "two"]);
        it.round('b');
        it.ctl(&["mark", &"long ".repeat(500)]);
        it.end();
        // The text has those from then on.
        let text: Vec<String> = text.iter().collect();
        let place = |what: &str| {
            text.iter().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text:#?}"))
        };
        assert!(!text.iter().any(|line| line.contains("mark:before_all")), "{text:#?}");
        let in_order = ["round_a() {", "/* mark:in_the_round */", "leaf()", "/* mark:between_two */", "round_b() {"];
        assert!(in_order.map(place).is_sorted(), "{text:#?}");
        assert_eq!(text.iter().filter(|line| line.contains("/* mark:")).count(), 4);
        assert!(reader.wait().unwrap().success());
        let trace = it.trace();
        let order = ["mark:before_all", "round_a()", "mark:in_the_round", "leaf()", "mark:between_two", "round_b()"];
        let has_all = |text: &str, who: &str| {
            let mut rest = text;
            for what in order {
                let at = rest.find(what).unwrap_or_else(|| panic!("{who} {options:?}: {what} in {text}"));
                rest = &rest[at..];
            }
            assert_eq!(text.matches("mark:").count(), 5, "{who}: {text}");
        };
        has_all(&replay(rftrace().to_str().unwrap(), &trace).unwrap(), "rftrace");
        if options == ["--keep-stream"] {
            continue;
        }
        has_all(&replay("uftrace", &trace).unwrap(), "uftrace");
        for format in ["--chrome", "--perfetto", "--firefox", "--uftrace"] {
            let to: PathBuf = it.folder.path().join("exported");
            let mut command = Command::new(rftrace());
            let output = command.args(["dump", format, "-d"]).arg(&trace).arg("-o").arg(&to).output().unwrap();
            assert!(output.status.success(), "{format}: {output:?}");
            let file = if format == "--uftrace" { to.join("events.txt") } else { to.clone() };
            let exported = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
            let _ = fs::remove_file(&to);
            for what in ["mark:before_all", "mark:in_the_round", "mark:between_two"] {
                assert!(exported.contains(what), "{format}: {what}");
            }
        }
    }
}

/// Marks for which there is no room are counted.
#[test]
fn more_marks_than_fit() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["flood"]);
    it.end();
    let n_kept = replay(rftrace().to_str().unwrap(), &it.trace()).unwrap().matches("mark:more_than").count();
    // 64 KiB of texts of 27 letters, each with 28 bytes of numbers, and what was read until the recorder stood still.
    assert!((1191..5000).contains(&n_kept), "{n_kept}");
    let said = it.told();
    let rest = format!("{} marks and unloaded libraries are missing in the trace", 5000 - n_kept);
    assert!(said.contains(&rest), "{rest}: {said}");
}

/// ftrace's names as files: what is written is set, and shown as it holds.
#[test]
fn a_folder_of_files() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    let folder = it.folder.path().join("ftrace");
    let mut command = Command::new(rftrace());
    command.args(["ctl", &it.pid.to_string(), "--dir"]).arg(&folder).env("XDG_RUNTIME_DIR", it.folder.path());
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("has ftrace's files for process"), "{line}");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let wait = |name: &str, is_it: &dyn Fn(&str) -> bool| {
        let since = Instant::now();
        while !is_it(&read(name)) {
            assert!(since.elapsed() < Duration::from_secs(60), "{name}: {:?}", read(name));
            thread::sleep(Duration::from_millis(5));
        }
    };
    let set = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    assert_eq!(read("tracing_on"), "1\n");
    assert!(read("available_filter_functions").contains("deepest [program]\n"));
    set("set_ftrace_notrace", "leaf\ndeeper\n");
    // It has what was written already; others follow when that is in force.
    wait("enabled_functions", &|text| !text.contains("leaf"));
    assert_eq!(read("set_ftrace_notrace"), "leaf\ndeeper\n");
    set("trace_marker", "by a file\n");
    it.round('a');
    set("set_ftrace_notrace", "\n");
    wait("set_ftrace_notrace", &str::is_empty);
    // An invalid value is reported, and the file keeps the value in force.
    set("max_graph_depth", "many\n");
    wait("max_graph_depth", &|text| text == "0\n");
    line.clear();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("max_graph_depth: a depth is a number of levels"), "{line}");
    // The FIFO has calls as long as somebody reads.
    let pipe = BufReader::new(fs::File::open(folder.join("trace_pipe")).unwrap());
    let mut lines = pipe.lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("FUNCTION"));
    it.round('b');
    assert!(lines.any(|line| line.contains("round_b()")));
    drop(lines);
    it.ctl(&["off"]);
    wait("tracing_on", &|text| text == "0\n");
    it.ctl(&["on"]);
    let trace = it.trace();
    let rounds = it.rounds();
    assert_eq!(rounds["round_a"], ["all", "deep", "deepest", "slow"]);
    assert_eq!(rounds["round_b"], ALL);
    assert!(replay(rftrace().to_str().unwrap(), &trace).unwrap().contains("mark:by_a_file"));
    // The program has ended, and with it the command and the folder.
    assert!(server.wait().unwrap().success());
    assert!(!folder.exists());
}

/// How long it takes, processes of `rftrace ctl` included. The figures are in docs/performance.md; this holds where others have the processors.
#[test]
fn nobody_waits_for_long() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    let mut switched: Vec<Duration> = (0..11)
        .map(|round| {
            let since = Instant::now();
            it.ctl(&[["off", "on"][round % 2]]);
            since.elapsed()
        })
        .collect();
    switched.sort_unstable();
    assert!(switched[5] < Duration::from_secs(1), "{switched:?}");
    it.ctl(&["on"]);
    let mut reader = it.command(&["pipe"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.next().unwrap();
    let mut shown: Vec<Duration> = ('a'..='e')
        .map(|letter| {
            it.round(letter);
            let since = Instant::now();
            assert!(lines.any(|line| line.contains(&format!("round_{letter}()"))));
            since.elapsed()
        })
        .collect();
    shown.sort_unstable();
    assert!(shown[2] < Duration::from_secs(2), "{shown:?}");
    it.end();
    assert!(reader.wait().unwrap().success());
}
