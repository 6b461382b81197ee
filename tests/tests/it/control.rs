//! `rftrace ctl`: a program that runs is told what to record, and its trace is what that says.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::traces;
use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use crate::record::rftrace;

pub(crate) fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["controlled.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// A program that is recorded, and does a round when it is told to.
pub(crate) struct Controlled {
    pub(crate) folder: TempDir,
    pub(crate) recorder: Child,
    /// If the recorder has not started it.
    program: Option<Child>,
    input: Option<ChildStdin>,
    lines: BufReader<std::process::ChildStdout>,
    pub(crate) pid: u32,
}

impl Controlled {
    pub(crate) fn new(options: &[&str], arguments: &[&str]) -> Self {
        Self::of(program(), options, arguments)
    }

    /// Of another program, which does rounds as that one does.
    pub(crate) fn of(program: &Program, options: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "--no-schedule", "-o", "trace"]).args(options).arg("--").arg(&program.path);
        command.args(arguments).current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.path().join("told")).unwrap());
        let mut recorder = command.spawn().unwrap();
        let (input, lines) = (recorder.stdin.take(), BufReader::new(recorder.stdout.take().unwrap()));
        let mut controlled = Self { folder, recorder, program: None, input, lines, pid: 0 };
        controlled.pid = controlled.wait_for_process();
        controlled
    }

    /// One that runs, and is attached to. `runtime` is where users' sockets are.
    pub(crate) fn attached(options: &[&str], arguments: &[&str], runtime: Option<&Path>) -> Self {
        Self::attached_to(program(), options, arguments, runtime)
    }

    pub(crate) fn attached_to(program: &Program, options: &[&str], arguments: &[&str], runtime: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(&program.path);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let (input, lines) = (program.stdin.take(), BufReader::new(program.stdout.take().unwrap()));
        let pid = program.id();
        let mut command = Command::new(rftrace());
        command.args(["record", "-o", "trace", "-p", &pid.to_string()]).args(options).current_dir(folder.path());
        match runtime {
            Some(runtime) => command.env("XDG_RUNTIME_DIR", runtime),
            None => command.env("XDG_RUNTIME_DIR", folder.path()),
        };
        command.stdin(Stdio::null()).stderr(fs::File::create(folder.path().join("told")).unwrap());
        let recorder = command.spawn().unwrap();
        let mut controlled = Self { folder, recorder, program: Some(program), input, lines, pid };
        controlled.wait_until_ready();
        let since = Instant::now();
        while !controlled.told().contains("recording process") {
            let has_ended = controlled.recorder.try_wait().unwrap();
            assert!(has_ended.is_none() && since.elapsed() < Duration::from_secs(120), "{}", controlled.told());
            thread::sleep(Duration::from_millis(5));
        }
        controlled
    }

    /// Waits until the program does rounds. Returns what it has said before.
    pub(crate) fn wait_until_ready(&mut self) -> String {
        let mut before = String::new();
        loop {
            let line = self.line();
            if line == "ready" {
                return before;
            }
            before += &line;
        }
    }

    pub(crate) fn ready(options: &[&str], arguments: &[&str]) -> Self {
        let mut controlled = Self::new(options, arguments);
        controlled.wait_until_ready();
        controlled
    }

    fn wait_for_process(&self) -> u32 {
        let since = Instant::now();
        let recorder = self.recorder.id();
        while since.elapsed() < Duration::from_secs(60) {
            let children = fs::read_to_string(format!("/proc/{recorder}/task/{recorder}/children")).unwrap();
            if let Some(pid) = children.split_whitespace().next() {
                return pid.parse().unwrap();
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("the program does not start: {}", self.told())
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program has ended: {}", self.told());
        line.trim_end().to_owned()
    }

    pub(crate) fn round(&mut self, letter: char) {
        write!(self.input.as_mut().unwrap(), "{letter}").unwrap();
        assert_eq!(self.line(), "done");
    }

    pub(crate) fn told(&self) -> String {
        fs::read_to_string(self.folder.path().join("told")).unwrap()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(rftrace());
        command.args(["ctl", &self.pid.to_string()]).args(words).env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    pub(crate) fn try_ctl(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        let output = self.try_ctl(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn refused(&self, words: &[&str]) -> String {
        let output = self.try_ctl(words);
        assert!(!output.status.success() && output.stdout.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Ends the program. Returns what it has said last.
    pub(crate) fn end(&mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        let ended = self.program.iter_mut().chain([&mut self.recorder]).map(|child| child.wait().unwrap().code());
        let ended: Vec<_> = ended.collect();
        assert!(ended.iter().all(|code| *code == Some(0)), "{ended:?}: {}", self.told());
        rest
    }

    pub(crate) fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    /// Ends the program. Returns what it called in each round that was recorded, in any task.
    pub(crate) fn rounds(&mut self) -> BTreeMap<String, Vec<String>> {
        self.end();
        let trace = traces::open(&self.trace());
        let mut rounds = BTreeMap::<String, Vec<String>>::new();
        let mut open: Vec<(usize, String)> = Vec::new();
        let all = traces::trees(&trace);
        let trees = all.iter().map(|tree| traces::outline_of_tree(tree, ""));
        let text = trees.into_iter().find(|text| text.contains("round_")).unwrap_or_default();
        for line in text.lines() {
            let depth = line.len() - line.trim_start().len();
            let name = line.trim().to_owned();
            open.retain(|(other, _)| *other < depth);
            match open.first() {
                Some((_, round)) => rounds.get_mut(round).unwrap().push(name),
                None if name.starts_with("round_") => {
                    open.push((depth, name.clone()));
                    rounds.insert(name, Vec::new());
                }
                None => rounds.entry("without".to_owned()).or_default().push(name),
            }
        }
        rounds
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        for child in self.program.iter_mut().chain([&mut self.recorder]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) const ALL: [&str; 6] = ["all", "leaf", "deep", "deeper", "deepest", "slow"];

/// Each name is set, read back, and seen in the trace.
#[test]
fn names_of_ftrace() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    let set = |it: &Controlled, name: &str, values: &[&str], read: &str| {
        let words: Vec<&str> = ["set", name].into_iter().chain(values.iter().copied()).collect();
        it.ctl(&words);
        assert_eq!(it.ctl(&["get", name]), read, "{words:?}");
    };
    it.round('a');
    set(&it, "set_ftrace_notrace", &["leaf"], "leaf\n");
    set(&it, "set_ftrace_notrace", &[">>", "deeper"], "leaf\ndeeper\n");
    it.round('b');
    set(&it, "set_ftrace_notrace", &["!leaf"], "deeper\n");
    set(&it, "set_ftrace_notrace", &[], "");
    set(&it, "set_graph_notrace", &["deep"], "deep\n");
    it.round('c');
    set(&it, "set_graph_notrace", &[], "#### no functions disabled ####\n");
    // `main` was called before.
    set(&it, "max_graph_depth", &["2"], "2\n");
    it.round('d');
    set(&it, "max_graph_depth", &["0"], "0\n");
    set(&it, "tracing_thresh", &["2000"], "2000\n");
    it.round('e');
    set(&it, "tracing_thresh", &["0"], "0\n");
    set(&it, "set_ftrace_filter", &["round_*", "deep*"], "round_*\ndeep*\n");
    it.round('f');
    set(&it, "set_ftrace_filter", &[""], "#### all functions enabled ####\n");
    set(&it, "set_graph_function", &["round_g"], "round_g\n");
    it.round('g');
    set(&it, "set_graph_function", &[], "#### all functions enabled ####\n");
    set(&it, "tracing_on", &["0"], "0\n");
    it.round('h');
    set(&it, "tracing_on", &["1"], "1\n");
    set(&it, "current_tracer", &["nop"], "nop\n");
    set(&it, "current_tracer", &["function_graph"], "function_graph\n");
    for (name, expected) in [
        ("available_tracers", "function_graph nop"),
        ("available_filter_functions", "deepest [program]"),
        ("enabled_functions", "deepest [program]"),
        ("buffer_size_kb", "65536"),
        ("buffer_total_size_kb", "65536"),
        ("per_cpu/cpu0/stats", "dropped events: 0"),
        ("dyn_ftrace_total_info", "0 call sites patched"),
        ("set_ftrace_pid", "no pid"),
        ("snapshot", "# Write 1"),
    ] {
        let read = it.ctl(&["get", name]);
        assert!(read.contains(expected), "{name}: {read}");
    }
    let rounds = it.rounds();
    let expected = |calls: &[&str]| calls.iter().map(|&call| call.to_owned()).collect::<Vec<_>>();
    assert_eq!(rounds["round_a"], expected(&ALL));
    assert_eq!(rounds["round_b"], expected(&["all", "deep", "deepest", "slow"]));
    assert_eq!(rounds["round_c"], expected(&["all", "leaf", "slow"]));
    assert_eq!(rounds["round_d"], expected(&["all"]));
    assert_eq!(rounds["round_e"], expected(&["all", "slow"]));
    assert_eq!(rounds["round_f"], expected(&["deep", "deeper", "deepest"]));
    assert_eq!(rounds["round_g"], expected(&ALL));
    assert!(!rounds.contains_key("round_h"));
}

/// Wrong input changes nothing, and its message says the reason.
#[test]
fn what_is_wrong_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    it.ctl(&["filter", "exclude=leaf; depth=5"]);
    for (words, expected) in [
        (&["filter", "include=no_such"][..], "matches nothing"),
        (&["filter", "dept=3"], "did you mean depth?"),
        (&["depth", "many"], "a number of levels"),
        (&["min", "soon"], "min=soon"),
        (&["set", "tracing_on", "2"], "0 or 1"),
        (&["set", "tracing_thresh", "-1"], "microseconds"),
        (&["set", "available_tracers", "nop"], "it can only be read"),
        (&["set", "set_ftrace_pid", "0"], "`0` is no thread id"),
        (&["set", "set_ftrace_pid", "4194305"], "no such thread: 4194305"),
        (&["set", "set_ftrace_notrace", "leaf:traceoff"], "set_ftrace_notrace takes no commands"),
        (&["set", "set_ftrace_filter", "leaf:traceoff:3"], "takes no count"),
        (&["set", "set_ftrace_filter", "leaf:snapshot"], "--ring"),
        (&["set", "set_ftrace_filter", "!leaf:traceon"], "has no leaf:traceon"),
        (&["set", "set_ftrace_filter", "leaf:stacktrace"], "commands are traceon"),
        (&["get", "trace_marker"], "it can only be set"),
        (&["set", "trace_marker", " "], "a mark needs a text"),
        (&["set", "snapshot", "7"], "1 to make a dump"),
        (&["trigger", "add", "call:leaf"], "--ring"),
        (&["trigger", "add", "crash"], "no such event; events are"),
        (&["trigger", "del", "call:leaf"], "no such trigger: call:leaf"),
        (&["set", "set_ftrace_notrace", "!other"], "has no other"),
        (&["set", "buffer_size_kb", "1"], "--buffer"),
        (&["get", "no_such"], "no such name: `no_such`; names are available_filter_functions"),
    ] {
        let problem = it.refused(words);
        assert!(problem.contains(expected), "{words:?}: {problem}");
    }
    assert_eq!(it.ctl(&["filter"]), "exclude=leaf; depth=5\n");
    let status = it.ctl(&["status"]);
    assert!(
        status.contains("recording    on\n") && status.contains("filter       exclude=leaf; depth=5\n"),
        "{status}"
    );
    it.end();
    let ended = it.refused(&["status"]);
    assert!(ended.contains("there is no process"), "{ended}");
}

/// A filter is in force as a whole, whoever sets another one meanwhile; and the program runs on.
#[test]
fn storms_from_two_clients() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["busy"]);
    let filters = ["exclude=leaf; exclude=deep", "below=round_*; depth=2; exclude=spin"];
    thread::scope(|scope| {
        for filter in filters {
            let it = &it;
            scope.spawn(move || {
                for round in 0..20 {
                    it.ctl(&["filter", filter]);
                    let read = it.ctl(&["filter"]);
                    assert!(filters.iter().any(|filter| read.trim_end() == *filter), "{read}");
                    it.ctl(&[["off", "on"][round % 2]]);
                    it.ctl(&["status"]);
                }
            });
        }
    });
    it.ctl(&["on"]);
    it.ctl(&["filter", "exclude=spin"]);
    it.round('a');
    it.ctl(&["filter", "exclude=spin; exclude=leaf"]);
    it.round('b');
    let rounds = it.rounds();
    assert_eq!(rounds["round_a"], ALL);
    assert_eq!(rounds["round_b"], ["all", "deep", "deeper", "deepest", "slow"]);
}

/// It says so, and what was asked is never done.
#[test]
fn a_program_that_blocks_the_signal() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["blocked"]);
    let problem = it.refused(&["off"]);
    assert!(problem.contains("block signal 41") && problem.contains("nothing was changed"), "{problem}");
    // Two more, for which no further signals are sent.
    it.refused(&["depth", "1"]);
    assert!(it.ctl(&["status"]).contains("recording    on\n"));
    it.round('a');
    assert_eq!(it.rounds()["round_a"], ALL);
}

#[test]
fn a_program_with_a_handler_for_the_signal() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["handler"]);
    let problem = it.refused(&["off"]);
    assert!(problem.contains("handles the control signal itself"), "{problem}");
    assert_eq!(it.end(), "0 signals\n");
    // Another signal is ours then.
    let mut it = Controlled::ready(&["--signal-control", "RTMIN+9"], &["handler"]);
    it.ctl(&["filter", "exclude=leaf"]);
    it.round('a');
    assert_eq!(it.rounds()["round_a"], ["all", "deep", "deeper", "deepest", "slow"]);
}

/// No thread and no file more, and the program may go where only a process with one thread may.
#[test]
fn nothing_more_in_the_program() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::new(&[], &["unshare"]);
    let alone = Command::new(&program().path).arg("unshare").stdin(Stdio::null()).output().unwrap();
    let unshared = it.wait_until_ready();
    assert!(String::from_utf8_lossy(&alone.stdout).starts_with(&unshared), "{unshared}");
    it.ctl(&["filter", "exclude=leaf"]);
    it.ctl(&["off"]);
    it.ctl(&["on"]);
    let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", it.pid)).unwrap().count();
    // Its files are what a program without the library has.
    let mut alone = Command::new(&program().path);
    let mut alone =
        alone.arg("plain").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(alone.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    let n_files = fs::read_dir(format!("/proc/{}/fd", alone.id())).unwrap().count();
    drop(alone.stdin.take());
    alone.wait().unwrap();
    assert_eq!((count("task"), count("fd")), (1, n_files));
    it.round('a');
    assert_eq!(it.rounds()["round_a"], ["all", "deep", "deeper", "deepest", "slow"]);
}

/// The signal would kill another program that takes the process over.
#[test]
fn a_storm_while_the_process_runs_other_programs() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::new(&[], &["exec", "40"]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    // It may be between two programs.
                    it.try_ctl(&["filter", "exclude=leaf"]);
                    let _ = it.pid;
                }
            });
        }
        let mut line = String::new();
        let mut lines = BufReader::new(
            fs::File::open(format!("/proc/self/fd/{}", {
                use std::os::fd::AsRawFd;
                it.lines.get_ref().as_raw_fd()
            }))
            .unwrap(),
        );
        lines.read_line(&mut line).unwrap();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(line, "ready\n", "{}", it.told());
    });
    it.ctl(&["filter", "exclude=leaf"]);
    it.round('a');
    assert_eq!(it.end(), "0 signals\n");
}

/// Several processes are one target by the recorder's number.
#[test]
fn a_recorder_is_found_where_there_is_no_runtime_folder() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    let socket = it.folder.path().join(format!("rftrace/{}.sock", it.recorder.id()));
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for pid in [it.pid, it.recorder.id()] {
        let mut command = Command::new(rftrace());
        let output =
            command.args(["ctl", &pid.to_string(), "status"]).env("XDG_RUNTIME_DIR", it.folder.path()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(text.starts_with(&format!("process {}:", it.pid)), "{text}");
    }
    it.end();
    assert!(!socket.exists());
}

/// A user who may connect is told that he may not ask.
#[test]
fn another_user_is_refused() {
    if !require(&["gcc", "setpriv"]) || !nix_is_root() {
        return;
    }
    let mut it = Controlled::ready(&[], &["plain"]);
    let open = |path: &std::path::Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let folder = it.folder.path().join("rftrace");
    let socket = folder.join(format!("{}.sock", it.recorder.id()));
    let binary = it.folder.path().join("rftrace-copy");
    fs::copy(rftrace(), &binary).unwrap();
    let ask = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&binary);
        command.args(["ctl", &it.recorder.id().to_string(), "off"]).env("XDG_RUNTIME_DIR", it.folder.path());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let closed = ask();
    assert!(closed.contains("refuses this user"), "{closed}");
    open(&folder, 0o755);
    open(&socket, 0o666);
    let refused = ask();
    assert!(refused.contains("refuses user 65534"), "{refused}");
    it.round('a');
    assert_eq!(it.rounds()["round_a"], ALL);
}

/// Only root can be another user; who is not says so.
fn nix_is_root() -> bool {
    let is_root = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0;
    if !is_root {
        rftrace_tests::tools::skip("only root can ask as another user");
    }
    is_root
}

/// A command whose text is read as it comes.
pub(crate) fn reading(command: &mut Command) -> (Child, std::sync::mpsc::Receiver<String>) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let (to, from) = std::sync::mpsc::channel();
    thread::spawn(move || lines.lines().map_while(Result::ok).all(|line| to.send(line).is_ok()));
    (child, from)
}

/// Returns the calls in a text, without times and threads.
fn calls(lines: impl IntoIterator<Item = String>) -> String {
    let call = |line: String| Some(line.split_once("| ")?.1.trim().to_owned());
    let text = lines.into_iter().filter_map(call).collect::<Vec<_>>().join(" ");
    // One that was shown before it returned has two lines.
    ["leaf", "deepest", "slow"]
        .iter()
        .fold(text, |text, name| text.replace(&format!("{name}() {{ }} /* {name} */"), &format!("{name}();")))
}

const ROUND: &str = "all() { leaf(); deep() { deeper() { deepest(); } /* deeper */ } /* deep */ slow(); } /* all */";

/// Calls come as text, once each, and are all in the trace too.
#[test]
fn calls_as_they_come() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--ring", "--buffer", "1M"]] {
        let mut it = Controlled::ready(options, &["plain"]);
        it.round('a');
        let (mut reader, text) = reading(&mut it.command(&["pipe"]));
        // It shows what is called from then on.
        assert_eq!(text.recv().unwrap(), "# DURATION     TID      FUNCTION");
        let mut lines = Vec::new();
        it.round('b');
        while !lines.last().is_some_and(|line: &String| line.ends_with("} /* round_b */")) {
            lines.push(text.recv_timeout(Duration::from_secs(60)).unwrap());
        }
        assert_eq!(calls(lines), format!("round_b() {{ {ROUND} }} /* round_b */"));
        let now = it.ctl(&["get", "trace"]);
        assert!(calls(now.lines().map(str::to_owned)).contains(&format!("round_a() {{ {ROUND}")), "{now}");
        it.round('c');
        it.end();
        let rest = calls(text.iter());
        assert_eq!(rest, format!("round_c() {{ {ROUND} }} /* round_c */ }} /* main */"));
        assert!(reader.wait().unwrap().success());
        let trace = traces::open(&it.trace());
        let counts = &traces::calls_per_task(&trace)[0];
        assert_eq!((counts["leaf"], counts["main"]), (3, 1));
    }
}

/// A dump is a trace as soon as the answer is there.
#[test]
fn a_dump_for_who_asks() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--ring"]] {
        let mut it = Controlled::ready(options, &["plain"]);
        let made = |it: &Controlled, words: &[&str], name: &str, reason: &str, n_calls: u64| {
            let place = it.trace().join(name);
            let said = it.ctl(words);
            assert_eq!(said, format!("a dump of process {} lies in {}\n", it.pid, place.display()));
            let counts = &traces::calls_per_task(&traces::open(&place))[0];
            assert_eq!((counts["leaf"], counts["main"]), (n_calls, 1), "{options:?}");
            let info = Command::new(rftrace()).arg("info").arg(&place).output().unwrap().stdout;
            let info = String::from_utf8(info).unwrap();
            assert!(info.lines().any(|line| line.contains("made for") && line.ends_with(reason)), "{info}");
        };
        it.round('a');
        made(&it, &["dump", "why not?"], "snapshot-1-ctl-why-not", "ctl: why not?", 1);
        it.round('b');
        made(&it, &["set", "snapshot", "1"], "snapshot-2-snapshot", "snapshot", 2);
        it.round('c');
        it.end();
        let ended = it.told();
        assert!(ended.contains("snapshot-1-ctl-why-not (ctl: why not?)"), "{ended}");
        assert_eq!(traces::calls_per_task(&traces::open(&it.trace()))[0]["leaf"], 3);
    }
    // Nothing is kept that it could be made of.
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["live", "--"]).arg(&program().path).arg("plain");
    command.current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::piped());
    let (mut recorder, text) = reading(&mut command);
    while !text.recv_timeout(Duration::from_secs(60)).unwrap().contains("main()") {}
    let mut command = Command::new(rftrace());
    command.args(["ctl", &recorder.id().to_string(), "dump"]).env("XDG_RUNTIME_DIR", folder.path());
    let refused = command.output().unwrap();
    drop(recorder.stdin.take());
    assert!(recorder.wait().unwrap().success());
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("`rftrace live` keeps no records"), "{refused}");
}

/// A stalled reader holds nobody up.
#[test]
fn a_reader_that_stalls() {
    if !require(&["gcc"]) {
        return;
    }
    let mut it = Controlled::ready(&["--buffer", "1M"], &["busy"]);
    let mut stalled = it.command(&["pipe"]).stdout(Stdio::piped()).spawn().unwrap();
    for letter in 'a'..='h' {
        it.round(letter);
    }
    let rounds = it.rounds();
    assert_eq!(rounds.len(), 9);
    assert!(rounds.iter().all(|(name, calls)| name == "without" || *calls == ALL), "{rounds:?}");
    stalled.kill().unwrap();
    stalled.wait().unwrap();
}

/// Nothing is kept, and the program's answer is that of `rftrace live`.
#[test]
fn live() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["live", "-N", "main", "--"]).arg(&program().path).arg("plain").current_dir(folder.path());
    let none = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(calls(String::from_utf8(none.stdout).unwrap().lines().map(str::to_owned)), "");
    let mut command = Command::new(rftrace());
    command.args(["live", "--"]).arg(&program().path).arg("plain").current_dir(folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"ah").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rounds = ["a", "h"].map(|letter| format!("round_{letter}() {{ {ROUND} }} /* round_{letter} */"));
    assert_eq!(calls(text.lines().map(str::to_owned)), format!("main() {{ {} }} /* main */", rounds.join(" ")));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
