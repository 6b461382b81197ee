//! `rftrace ctl` and programs that record themselves: what is recorded is what they are told, and nothing of those who listen is in the trace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_control::protocol::{Request, read_answer};
use rftrace_tests::{Profile, require, rust_program, traces};
use tempfile::TempDir;

use crate::record::rftrace;

/// A program that listens.
struct Own {
    folder: TempDir,
    program: Child,
    lines: BufReader<ChildStdout>,
    /// The child that it has forked.
    child: Option<u32>,
}

impl Own {
    fn begin(way: &str, variable: Option<&str>) -> Self {
        Self::begin_by(way, |command, folder| {
            command.env("XDG_RUNTIME_DIR", folder).envs(variable.map(|value| ("RFTRACE_CONTROL", value)));
        })
    }

    /// One that finds no folder of its user for its socket.
    fn begin_without_folder(way: &str) -> Self {
        Self::begin_by(way, |command, _| _ = command.env_remove("XDG_RUNTIME_DIR"))
    }

    fn begin_by(way: &str, prepare: impl FnOnce(&mut Command, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(&rust_program("controlled", Profile::Release).path);
        command.arg(way).current_dir(&folder).env_remove("RFTRACE_CONTROL");
        prepare(&mut command, folder.path());
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap());
        Self { folder, program, lines, child: None }
    }

    /// One that has begun.
    fn ready(way: &str) -> Self {
        let mut own = Self::begin(way, None);
        assert_eq!(own.line(), "ready", "{way}");
        own
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns its answer to a line.
    fn tell(&mut self, line: &str) -> String {
        writeln!(self.program.stdin.as_ref().unwrap(), "{line}").unwrap();
        self.line()
    }

    fn ctl(&self, words: &[&str]) -> Output {
        ctl(self.folder.path(), self.program.id(), words)
    }

    /// Returns the output of `rftrace ctl`, which succeeds.
    fn done(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the reason why `rftrace ctl` fails.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("rftrace")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Ends it, by the end of its input.
    fn end(&mut self) {
        drop(self.program.stdin.take());
        assert!(self.program.wait().unwrap().success());
        assert_eq!(self.sockets(), <[PathBuf; 0]>::default());
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        if let Some(child) = self.child {
            let _ = Command::new("kill").args(["-9", &child.to_string()]).status();
        }
    }
}

fn ctl(runtime: &Path, pid: u32, words: &[&str]) -> Output {
    Command::new(rftrace())
        .args(["ctl", &pid.to_string()])
        .args(words)
        .env("XDG_RUNTIME_DIR", runtime)
        .output()
        .unwrap()
}

fn replay(trace: &Path) -> String {
    let replay = Command::new(rftrace()).args(["replay", "--no-pager", "-d"]).arg(trace).output().unwrap();
    String::from_utf8(replay.stdout).unwrap()
}

fn calls(text: &str) -> [usize; 2] {
    ["controlled::outer()", "controlled::inner()"].map(|name| text.matches(name).count())
}

#[test]
fn the_trace_has_what_was_told() {
    if !require(&["nightly"]) {
        return;
    }
    for way in ["stop", "ring", "stream"] {
        let mut own = Own::ready(way);
        let status = own.done(&["status"]);
        assert!(status.contains("recording    off") && status.contains("filter       none"), "{way}: {status}");
        own.tell("round");
        own.done(&["on"]);
        own.tell("round");
        own.done(&["filter", "include=controlled::inner; exclude=*::nothing_so"]);
        assert_eq!(own.done(&["filter"]), "include=controlled::inner; exclude=*::nothing_so\n", "{way}");
        let functions = own.done(&["functions", "controlled::*ner"]);
        assert_eq!(functions, "+ controlled::inner [controlled]\n", "{way}");
        assert!(own.done(&["functions", "controlled::outer"]).starts_with("- "), "{way}");
        own.tell("round");
        own.done(&["mark", "half of it"]);
        own.done(&["off"]);
        own.tell("round");
        assert!(own.refused(&["mark", "x"]).contains("recording is off"));
        own.done(&["filter", ""]);
        own.done(&["on"]);
        let told = own.done(&["dump", "why not"]);
        let dump = own.folder.path().join("trace/snapshot-1-ctl-why-not");
        assert!(told.contains(dump.to_str().unwrap()), "{way}: {told}");
        assert_eq!(calls(&replay(&dump)), [10, 20], "{way}");
        let status = own.done(&["status"]);
        let kind = match way {
            "stop" => "buffer",
            "ring" => "ring",
            _ => "bank",
        };
        assert!(status.contains("recording    on") && status.contains(&format!("\n  {kind} ")), "{way}: {status}");
        for words in [&["pipe"][..], &["pipe", "--rfs"], &["get", "trace"]] {
            assert!(own.refused(words).contains("cannot show calls live"), "{way}");
        }
        assert!(own.refused(&["trigger", "add", "call:x"]).contains("Tracer::dump"), "{way}");
        let reason = if way == "stream" { "full chunks of its stream" } else { "the records stay in" };
        assert!(own.refused(&["flush"]).contains(reason), "{way}");
        assert!(own.done(&["stop"]).contains("it saves its trace itself"), "{way}");
        assert!(own.refused(&["on"]).contains("for good"), "{way}");
        own.tell("round");
        assert_eq!(own.tell("save"), "saved", "{way}");
        // A stream has ended, and what listened with it.
        assert_eq!(own.sockets().is_empty(), way == "stream", "{way}");
        let trace = own.folder.path().join("trace");
        let text = replay(&trace);
        assert_eq!(calls(&text), [10, 20], "{way}: {text}");
        assert!(text.contains("mark:half_of_it") && !text.contains("rftrace_"), "{way}: {text}");
        let tasks = fs::read_to_string(trace.join("task.txt")).unwrap();
        assert_eq!(tasks.matches("TASK ").count(), 1, "{way}: {tasks}");
        own.end();
    }
}

#[test]
fn two_clients_change_it_at_the_same_time() {
    if !require(&["nightly"]) {
        return;
    }
    let mut own = Own::ready("ring");
    own.done(&["on"]);
    let (folder, pid) = (own.folder.path().to_owned(), own.program.id());
    let clients = ["3", "5"].map(|depth| {
        let folder = folder.clone();
        thread::spawn(move || {
            for _ in 0..10 {
                assert!(ctl(&folder, pid, &["depth", depth]).status.success());
                let found = ctl(&folder, pid, &["depth"]);
                assert!([b"3\n", b"5\n"].contains(&found.stdout.as_slice().try_into().unwrap()), "{found:?}");
            }
        })
    });
    while clients.iter().any(|client| !client.is_finished()) {
        assert_eq!(own.tell("round"), "65");
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    own.end();
}

/// Threads by their numbers, and call sites that become jumps and calls again.
#[test]
fn threads_and_call_sites_are_chosen() {
    if !require(&["nightly"]) {
        return;
    }
    let mut own = Own::ready("stop");
    let [main, worker] = [own.program.id().to_string(), own.tell("worker")];
    let both = |own: &mut Own| ["round", "work"].map(|line| assert_eq!(own.tell(line), "65"));
    own.done(&["on"]);
    own.done(&["set", "set_ftrace_pid", &worker]);
    assert_eq!(own.done(&["get", "set_ftrace_pid"]), format!("{worker}\n"));
    both(&mut own);
    assert!(own.refused(&["set", "set_ftrace_pid", "1"]).contains("no such thread: 1"));
    own.done(&["set", "set_ftrace_pid", ""]);
    own.done(&["set", "set_ftrace_notrace_pid", &worker]);
    both(&mut own);
    both(&mut own);
    own.done(&["set", "set_ftrace_notrace_pid", ""]);
    assert_eq!(own.done(&["get", "set_ftrace_notrace_pid"]), "no pid\n");
    own.done(&["off"]);
    let dump = own.folder.path().join("trace/snapshot-1-ctl");
    own.done(&["dump"]);
    let of_tasks = traces::calls_per_task(&traces::open(&dump));
    let trace = traces::open(&dump);
    let of_task = |number: &str| {
        let place = trace.tasks().iter().position(|task| task.tid().to_string() == number).unwrap();
        of_tasks[place].get("controlled::outer").copied()
    };
    assert_eq!([&main, &worker].map(|number| of_task(number)), [Some(20), Some(10)]);

    // As they are called or jumped to, calls are the same.
    let sites = own.done(&["patch"]);
    assert!(!sites.starts_with("0 ") && sites.contains("patched"), "{sites}");
    assert_eq!(own.done(&["get", "dyn_ftrace_total_info"]).trim(), sites.trim());
    both(&mut own);
    own.done(&["on"]);
    both(&mut own);
    own.done(&["unpatch"]);
    both(&mut own);
    own.done(&["set", "current_tracer", "nop"]);
    both(&mut own);
    assert_eq!(own.tell("save"), "saved");
    assert_eq!(calls(&replay(&own.folder.path().join("trace"))), [30 + 40; 2]);
    own.end();
}

/// ftrace's files, of a program that has no recorder, and no folder of its user for sockets.
#[test]
fn it_has_files() {
    if !require(&["nightly"]) {
        return;
    }
    let mut own = Own::begin_without_folder("ring");
    assert_eq!(own.line(), "ready");
    let files = own.folder.path().join("ftrace");
    let mut command = Command::new(rftrace());
    command.args(["ctl", &own.program.id().to_string(), "--dir"]).arg(&files).env_remove("XDG_RUNTIME_DIR");
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.contains("has ftrace's files"), "{line}");
    let until = |name: &str, wanted: &str| {
        let since = Instant::now();
        loop {
            let found = fs::read_to_string(files.join(name)).unwrap();
            if found == wanted {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(60), "{name}: {found}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    fs::write(files.join("set_ftrace_filter"), "controlled::inner\n").unwrap();
    until("enabled_functions", "controlled::inner [controlled]\n");
    fs::write(files.join("tracing_on"), "1").unwrap();
    until("current_tracer", "function_graph\n");
    own.tell("round");
    for _ in 0..2 {
        // A reader is not kept waiting for calls that never come.
        let text = fs::read_to_string(files.join("trace_pipe")).unwrap();
        assert!(text.starts_with("# a program that records itself cannot show calls live"), "{text}");
    }
    fs::write(files.join("tracing_on"), "0").unwrap();
    until("current_tracer", "nop\n");

    // A file that was opened before another one took its place is still heard.
    until("tracing_on", "0\n");
    let mut opened = File::options().write(true).open(files.join("tracing_on")).unwrap();
    let mut of_filter = File::options().append(true).open(files.join("set_ftrace_filter")).unwrap();
    let ctl = |words: &[&str]| {
        let pid = own.program.id().to_string();
        let status = Command::new(rftrace()).args(["ctl", &pid]).args(words).env_remove("XDG_RUNTIME_DIR").status();
        assert!(status.unwrap().success());
    };
    ctl(&["filter", "include=controlled::outer"]);
    ctl(&["on"]);
    until("tracing_on", "1\n");
    // It changes what others have.
    fs::write(files.join("max_graph_depth"), "5").unwrap();
    until("set_ftrace_filter", "controlled::outer\n");
    opened.write_all(b"0").unwrap();
    drop(opened);
    until("tracing_on", "0\n");
    of_filter.write_all(b"controlled::*ner\n").unwrap();
    drop(of_filter);
    until("set_ftrace_filter", "controlled::inner\ncontrolled::*ner\n");
    assert_eq!(own.tell("save"), "saved");
    let text = replay(&own.folder.path().join("trace"));
    assert_eq!(calls(&text), [0, 10], "{text}");
    own.end();
    assert!(server.wait().unwrap().success());
    assert!(!files.exists());
}

#[test]
fn a_buffer_without_control_ends_it() {
    if !require(&["nightly"]) {
        return;
    }
    let mut own = Own::ready("stop");
    assert_eq!(own.sockets().len(), 1);
    assert_eq!(own.tell("uncontrolled"), "uncontrolled");
    assert_eq!(own.sockets(), <[PathBuf; 0]>::default());
    assert_eq!(own.ctl(&["status"]).status.code(), Some(1));
    own.end();
    // The variable decides.
    let mut own = Own::begin("stop", Some("0"));
    assert_eq!(own.line(), "ready");
    assert_eq!(own.sockets(), <[PathBuf; 0]>::default());
    own.end();
    assert!(Own::begin("stop", Some("maybe")).line().contains("RFTRACE_CONTROL"));
}

/// It is no way to its parent, and keeps no socket open at which clients would wait.
#[test]
fn the_child_of_a_fork_does_not_listen() {
    if !require(&["nightly"]) {
        return;
    }
    let mut own = Own::ready("stop");
    // A connected client sees its end all the same.
    let mut connected = UnixStream::connect(&own.sockets()[0]).unwrap();
    let request = Request { pid: own.program.id(), words: vec!["filter".to_owned()] };
    request.write(&mut connected).unwrap();
    let mut connected = BufReader::new(connected);
    assert_eq!(read_answer(&mut connected).unwrap(), Some(Ok(b"\n".to_vec())));
    let child: u32 = own.tell("fork").parse().unwrap();
    own.child = Some(child);
    let sockets = || {
        let open = fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten();
        open.filter(|it| fs::read_link(it.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))).count()
    };
    // It may not have begun when its parent says its number.
    let since = Instant::now();
    while sockets() > 0 {
        assert!(since.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ctl(own.folder.path(), child, &["status"]).status.code(), Some(1));
    assert!(own.done(&["status"]).contains("recording    off"));
    own.program.kill().unwrap();
    own.program.wait().unwrap();
    connected.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(connected.read(&mut [0]).unwrap(), 0);
    let since = Instant::now();
    assert_eq!(own.ctl(&["status"]).status.code(), Some(1));
    assert!(since.elapsed() < Duration::from_secs(60));
}
