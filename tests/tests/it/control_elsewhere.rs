//! `rftrace ctl` where no bank was there from the beginning: programs that are attached to, and those that keep what is recorded themselves.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rftrace_tests::{CProgram, require, traces};

use crate::attach;
use crate::control::{ALL, Controlled};
use crate::record::rftrace;

const NO_LEAF: [&str; 5] = ["all", "deep", "deeper", "deepest", "slow"];

/// A name is set, and read back.
fn set(it: &Controlled, name: &str, values: &[&str], read: &str) {
    it.ctl(&[&["set", name], values].concat());
    assert_eq!(it.ctl(&["get", name]), read, "{name} {values:?}");
}

/// Filters, the switch, threads, patching and marks, in rounds a to g.
fn rounds_of_all_kinds(it: &mut Controlled) {
    let status = it.ctl(&["status"]);
    assert!(status.contains("recording    on\n") && status.contains("filter       none\n"), "{status}");
    it.round('a');
    set(it, "set_ftrace_notrace", &["leaf"], "leaf\n");
    it.round('b');
    assert!(it.refused(&["filter", "include=no_such"]).contains("matches nothing"));
    it.ctl(&["filter", "depth=2"]);
    assert_eq!(it.ctl(&["filter"]), "depth=2\n");
    it.ctl(&["filter", ""]);
    assert!(it.ctl(&["functions", "deep*"]).contains("+ deepest [program]"));
    set(it, "tracing_on", &["0"], "0\n");
    assert!(it.ctl(&["status"]).contains("recording    off\n"));
    it.round('c');
    set(it, "tracing_on", &["1"], "1\n");
    let main = it.pid.to_string();
    set(it, "set_ftrace_notrace_pid", &[&main], &format!("{main}\n"));
    it.round('d');
    set(it, "set_ftrace_notrace_pid", &[], "no pid\n");
    let patched = it.ctl(&["patch"]);
    assert!(patched.contains(" call sites patched") && !patched.starts_with("0 "), "{patched}");
    it.round('e');
    it.ctl(&["unpatch"]);
    it.ctl(&["mark", "before f"]);
    it.round('f');
}

fn check_rounds(it: &Controlled, rounds: &std::collections::BTreeMap<String, Vec<String>>) {
    for (letter, expected) in [("a", &ALL[..]), ("b", &NO_LEAF), ("e", &ALL), ("f", &ALL)] {
        assert_eq!(rounds[&format!("round_{letter}")], expected, "round_{letter}");
    }
    assert!(["round_c", "round_d"].iter().all(|round| !rounds.contains_key(*round)), "{rounds:?}");
    let mut command = Command::new(rftrace());
    let output = command.args(["replay", "--no-pager", "-f", "none", "-d"]).arg(it.trace()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (mark, round) = (text.find("mark:before_f").unwrap(), text.find("round_f()").unwrap());
    assert!(text.find("round_e()").unwrap() < mark && mark < round, "{text}");
}

/// How many leaves a dump has.
fn n_leaves(dump: &Path) -> u64 {
    traces::calls_per_task(&traces::open(dump)).iter().filter_map(|calls| calls.get("leaf")).sum()
}

/// It has no handler for the signal: a thread is borrowed for each request, in which nothing of the program sees that.
#[test]
fn a_program_that_is_attached_to() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--buffer", "1M", "-F", "round_*"]] {
        let mut it = Controlled::attached(options, &["handler"], None);
        if options.is_empty() {
            rounds_of_all_kinds(&mut it);
        } else {
            assert_eq!(it.ctl(&["get", "set_graph_function"]), "round_*\n");
            it.ctl(&["filter", ""]);
            it.round('a');
        }
        let place = it.trace().join("snapshot-1-ctl-why-not");
        let said = it.ctl(&["dump", "why not"]);
        assert_eq!(said, format!("a dump of process {} lies in {}\n", it.pid, place.display()));
        assert_eq!(n_leaves(&place), if options.is_empty() { 3 } else { 1 });
        assert!(it.ctl(&["flush"]).contains(" calls and returns are on the disk, "));
        assert!(it.ctl(&["get", "trace"]).contains("round_a()"));
        assert!(it.refused(&["trigger", "add", "call:leaf"]).contains("dump triggers need a ring"));
        assert!(it.ctl(&["buffer"]).contains(if options.is_empty() { "65536 KiB" } else { "1024 KiB" }));
        // The recorder leaves it, and has nothing else to do then.
        assert!(it.ctl(&["stop"]).contains("goes on without the tracer"));
        assert_eq!(it.recorder.wait().unwrap().code(), Some(0), "{}", it.told());
        assert!(it.refused(&["status"]).contains("has no recorder"));
        it.round('h');
        if options.is_empty() {
            let rounds = it.rounds();
            check_rounds(&it, &rounds);
            assert!(!rounds.contains_key("round_h"));
        } else {
            // No signal was sent to it.
            assert_eq!(it.end(), "0 signals\n");
        }
    }
}

/// Filters, times and the list of functions of a program that nothing is loaded into, which the recorder puts there: a round for each, and one with all again.
fn rounds_of_filters(it: &mut Controlled) {
    it.round('a');
    set(it, "set_ftrace_notrace", &["leaf"], "leaf\n");
    it.round('b');
    assert!(it.refused(&["filter", "include=no_such"]).contains("matches nothing"));
    assert!(
        it.ctl(&["functions"]).contains("- leaf [program]") && it.ctl(&["functions"]).contains("+ deepest [program]")
    );
    it.ctl(&["filter", "min=1ms"]);
    assert_eq!(it.ctl(&["filter"]), "min=1ms\n");
    it.round('c');
    it.ctl(&["filter", "values=deep@arg1; trigger=deeper@depth=1"]);
    it.round('d');
    it.ctl(&["filter", ""]);
    assert!(it.ctl(&["functions", "lea*"]).contains("+ leaf [program]"));
    it.round('e');
    it.ctl(&["filter", "exclude=leaf"]);
    it.round('f');
    for words in [&["patch"][..], &["set", "set_ftrace_notrace_pid", "1"]] {
        assert!(it.refused(words).contains("linked dynamically"), "{words:?}");
    }
}

#[test]
fn filters_of_a_program_that_nothing_is_loaded_into() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["controlled.c"]).without_library().with(&["-O1", "-static", "-lpthread"]).build();
    let started = |options: &[&str]| {
        let mut it = Controlled::of(&program, options, &["busy"]);
        it.wait_until_ready();
        it
    };
    let attached = |options: &[&str]| Controlled::attached_to(&program, options, &["busy"], None);
    let (first, without): (&[&str], &[&str]) = (&["-N", "deep"], &["all", "slow"]);
    for (mut it, a, b) in [
        (started(&[]), &ALL[..], &NO_LEAF[..]),
        (attached(&[]), &ALL, &NO_LEAF),
        (started(first), &["all", "leaf", "slow"], without),
        (attached(first), &["all", "leaf", "slow"], without),
    ] {
        rounds_of_filters(&mut it);
        let rounds = it.rounds();
        let d = &["all", "leaf", "deep", "deeper", "slow"];
        for (letter, expected) in [("a", a), ("b", b), ("c", without), ("d", d), ("e", &ALL), ("f", &NO_LEAF)] {
            assert_eq!(rounds[&format!("round_{letter}")], expected, "round_{letter}");
        }
    }
    let mut it = attached(&["--ring"]);
    it.ctl(&["trigger", "add", "call:deepest#2"]);
    it.round('a');
    it.round('b');
    let place = it.trace().join("snapshot-1-call-deepest-2");
    attach::wait_for(|| place.join("info").exists(), "no dump of a call");
    let calls = traces::calls_per_task(&traces::open(&place));
    assert_eq!(calls.iter().filter_map(|calls| calls.get("deepest")).sum::<u64>(), 2);
    it.end();
}

/// Calls come as text, and requests of two clients do not meet, while other threads call.
#[test]
fn calls_of_a_program_that_is_attached_to() {
    if !require(&["gcc"]) {
        return;
    }
    // There is no folder for sockets of users: the recorder is found all the same.
    let nowhere = Path::new("/no/such/folder");
    let mut it = Controlled::attached(&[], &["busy"], Some(nowhere));
    let command = |words: &[&str]| {
        let mut command = Command::new(rftrace());
        command.args(["ctl", &it.pid.to_string()]).args(words).env("XDG_RUNTIME_DIR", nowhere);
        command
    };
    let ctl = |words: &[&str]| {
        let output = command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    std::thread::scope(|scope| {
        for client in 0..2 {
            scope.spawn(move || {
                for turn in 0..5 {
                    ctl(&["filter", ["exclude=leaf; exclude=spin", "exclude=spin"][client]]);
                    ctl(&[["off", "on"][turn % 2]]);
                    assert!(ctl(&["filter"]).contains("exclude=spin"));
                }
            });
        }
    });
    ctl(&["on"]);
    ctl(&["filter", "exclude=spin; exclude=leaf"]);
    let mut reader = command(&["pipe"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reader.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("FUNCTION"));
    it.round('a');
    let until = lines.map(Result::unwrap).take_while(|line| !line.ends_with("} /* round_a */"));
    let text = until.collect::<Vec<_>>().join("\n");
    assert!(text.contains("deepest()") && !text.contains("leaf()"), "{text}");
    assert_eq!(it.rounds()["round_a"], NO_LEAF);
    reader.kill().unwrap();
    reader.wait().unwrap();
}

/// Each of several has a bank of its own, and is left when it is told to; the others go on.
#[test]
fn several_programs_that_are_attached_to() {
    if !require(&["gcc"]) {
        return;
    }
    let other = attach::Running::begin(&attach::program().path, "waits");
    let mut it = Controlled::attached(&["-p", &other.pid().to_string()], &["plain"], None);
    it.ctl(&["filter", "exclude=leaf"]);
    let all = |it: &Controlled, words: &[&str]| {
        let mut command = Command::new(rftrace());
        command.args(["ctl", &it.recorder.id().to_string()]).args(words).env("XDG_RUNTIME_DIR", it.folder.path());
        command.output().unwrap()
    };
    let said = String::from_utf8(all(&it, &["status"]).stdout).unwrap();
    assert!(said.contains("filter       exclude=leaf\n") && said.contains("filter       none\n"), "{said}");
    assert!(String::from_utf8(all(&it, &["filter"]).stderr).unwrap().contains("have different values"));
    assert!(
        String::from_utf8(all(&it, &["pipe"]).stderr)
            .unwrap()
            .contains("several processes are recorded: name one of them")
    );
    let mut command = Command::new(rftrace());
    let left =
        command.args(["ctl", &other.pid().to_string(), "stop"]).env("XDG_RUNTIME_DIR", it.folder.path()).output();
    assert!(left.unwrap().status.success(), "{}", it.told());
    it.round('a');
    assert!(all(&it, &["off"]).status.success());
    it.round('b');
    let rounds = it.rounds();
    assert_eq!(rounds["round_a"], NO_LEAF);
    assert!(!rounds.contains_key("round_b"));
    let (status, said) = other.end();
    assert_eq!(status.code(), Some(7));
    assert!(said.contains("slot same, interrupted 0"), "{said}");
}

/// The program keeps what is recorded until its end, and does all itself.
#[test]
fn a_program_with_a_buffer_of_its_own() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&["--stop", "--buffer", "16M"], &["plain"]);
    rounds_of_all_kinds(&mut it);
    let status = it.ctl(&["status"]);
    assert!(status.contains("buffer       16384 KiB") && status.contains("the program saves them"), "{status}");
    assert_eq!(it.ctl(&["get", "buffer_size_kb"]), "16384\n");
    for (words, name, reason) in [
        (&["dump", "why not"][..], "snapshot-1-ctl-why-not", "ctl: why not"),
        (&["set", "snapshot", "1"], "snapshot-2-snapshot", "snapshot"),
    ] {
        let place = it.trace().join(name);
        assert_eq!(it.ctl(words), format!("a dump of process {} lies in {}\n", it.pid, place.display()));
        assert_eq!(n_leaves(&place), 3);
        let info = Command::new(rftrace()).arg("info").arg(&place).output().unwrap().stdout;
        let info = String::from_utf8(info).unwrap();
        assert!(info.lines().any(|line| line.contains("made for") && line.ends_with(reason)), "{info}");
    }
    assert_eq!(it.ctl(&["set", "snapshot", "0"]), "removed 1 dump\n");
    assert!(!it.trace().join("snapshot-2-snapshot").exists());
    for words in [&["flush"][..], &["pipe"], &["get", "trace"]] {
        assert!(it.refused(words).contains("with --stop the program keeps its records"));
    }
    assert!(it.refused(&["trigger", "add", "call:leaf"]).contains("dump triggers need a ring"));
    assert!(it.ctl(&["stop"]).contains("has ended"));
    assert!(it.refused(&["on"]).contains("for good"));
    assert!(it.refused(&["mark", "now"]).contains("recording is off"));
    it.round('h');
    let rounds = it.rounds();
    check_rounds(&it, &rounds);
    assert!(!rounds.contains_key("round_h"));
}

/// Children and other programs of the process are asked too, and a buffer that is full says so.
#[test]
fn processes_with_buffers_of_their_own() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::new(&["--stop", "--buffer", "64K"], &["exec", "5"]);
    it.wait_until_ready();
    it.ctl(&["filter", "exclude=leaf"]);
    it.round('a');
    assert_eq!(it.rounds()["round_a"], NO_LEAF);
    let it = Controlled::ready(&["--stop", "--buffer", "64K"], &["busy"]);
    let since = std::time::Instant::now();
    while !it.ctl(&["status"]).contains("the buffer is full, so recording has stopped") {
        assert!(since.elapsed() < std::time::Duration::from_secs(60), "{}", it.ctl(&["status"]));
    }
    // A program with limited memory keeps all of that for itself.
    let folder = tempfile::tempdir().unwrap();
    let line = "ulimit -v 2000000; exec \"$0\" record --stop -o trace -- \"$1\" plain";
    let mut command = Command::new("sh");
    command.args(["-c", line]).arg(rftrace()).arg(&crate::control::program().path).current_dir(folder.path());
    command.env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut recorder = command.spawn().unwrap();
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(recorder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["ctl", &recorder.id().to_string(), "status"]).env("XDG_RUNTIME_DIR", folder.path());
    let told = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(told.contains("has no process to control"), "{told}");
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    assert!(fs::exists(folder.path().join("trace/info")).unwrap());
}
