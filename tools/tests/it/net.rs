//! `rftrace recv`, `rftrace send` and `rftrace record --to`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::cli::{parts, rftrace, run, utf8};
use crate::dir::{A, Files, MAIN, entry, exit};

/// `rftrace recv`, which is killed when this is dropped.
struct Recv {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The address in its first line.
    address: String,
}

impl Recv {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = rftrace(&["recv", "-o", utf8(dir)]);
        let mut child = command.args(args).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        stderr.read_line(&mut first).unwrap();
        let address = first.strip_prefix("rftrace: listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("{first}")).to_owned();
        Self { child, stderr, address }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    /// Its exit status after a signal.
    fn signal(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("/bin/kill").args([signal, &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sample() -> Files {
    Files::new(&[(7, &[entry(1, 0, MAIN), entry(2, 1, A), exit(3, 1, A), exit(5, 0, MAIN)]), (8, &[entry(3, 0, A)])])
}

/// Checks that a directory has just the files of the sample.
fn assert_sample(dir: &Path) {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let found =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    assert_eq!(sample().0, found);
}

#[test]
fn a_trace_is_sent_and_received() {
    let folder = tempfile::tempdir().unwrap();
    let dir = sample().write();
    let local = folder.path().join("mytrace");
    fs::create_dir(&local).unwrap();
    for (name, bytes) in &sample().0 {
        fs::write(local.join(name), bytes).unwrap();
    }
    let traces = folder.path().join("traces");
    let socket = folder.path().join("socket");
    for (number, listen) in [(1, ["--listen", "127.0.0.1:0"]), (2, ["--unix", utf8(&socket)])] {
        let mut recv = Recv::start(&traces, &listen);
        let (code, stdout, stderr) = run(&["send", utf8(&local), &recv.address]);
        assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
        assert!(stderr.starts_with(&format!("sent to {}: ", recv.address)), "{stderr}");
        let name = if number == 1 { "mytrace" } else { "mytrace-2" };
        let line = recv.line();
        assert!(line.contains("a complete trace") && line.ends_with(&format!("/{name}\n")), "{line}");
        assert_sample(&traces.join(name));
        let shown = |dir: &Path| run(&["replay", utf8(dir)]);
        assert_eq!(shown(&traces.join(name)), shown(dir.path()));
        assert_eq!(recv.signal("-INT"), Some(0));
    }
    assert!(!socket.exists(), "it is removed");
}

/// A file of `rftrace ctl PID pipe --rfs` names itself, whatever it is called.
#[test]
fn who_is_given_a_stream_says_what_makes_a_trace_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("of a server");
    fs::write(&file, b"\x93RFS\r\n\x1a\n\x01\0\0\0").unwrap();
    let (path, output) = (utf8(&file), folder.path().join("output"));
    let remedy = format!("`rftrace recv --stdin -o traces < '{path}'`");
    let commands: [&[&str]; 14] = [
        &["replay", path],
        &["report", path],
        &["report", "--diff", path, path],
        &["graph", path],
        &["tui", path],
        &["info", path],
        &["view", path],
        &["dump", "--chrome", path],
        &["resources", path],
        &["recover", path],
        &["symbols", "--binary", path, path],
        &["merge", path, path, "-o", utf8(&output)],
        &["send", path, "127.0.0.1:1"],
        &["import", path],
    ];
    for args in commands {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{args:?}: {stderr}");
        let is_told = stderr.starts_with("rftrace: ") && stderr.contains("is a stream") && stderr.contains(&remedy);
        assert!(is_told && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    // Its first bytes say it, not its name.
    let named = folder.path().join("x.rfs");
    fs::write(&named, b"\x93RFX\r\n\x1a\n").unwrap();
    assert!(run(&["report", utf8(&named)]).2.contains("is this a trace directory?"));
}

#[test]
fn a_signal_ends_it_while_a_peer_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let mut recv = Recv::start(folder.path(), &["--listen", "127.0.0.1:0"]);
    let mut stalling = TcpStream::connect(&recv.address).unwrap();
    // Two of eight bytes behind the name.
    stalling.write_all(b"\xfa\xce\0\x65\0\0\0\x01x\xfa\xce").unwrap();
    let (code, _, stderr) = run(&["send", utf8(sample().write().path()), &recv.address]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(recv.line().contains("a complete trace"));
    assert_eq!(recv.signal("-TERM"), Some(0));
    let line = recv.line();
    assert!(line.contains("incomplete, the receiver was stopped"), "{line}");
    assert!(!folder.path().join("x/info").exists());
}

#[test]
fn once_means_one_complete_trace() {
    let folder = tempfile::tempdir().unwrap();
    let mut recv = Recv::start(folder.path(), &["--once", "--listen", "127.0.0.1:0"]);
    drop(TcpStream::connect(&recv.address).unwrap());
    let line = recv.line();
    assert!(line.contains("no trace, the peer closed the connection"), "{line}");
    let (code, _, stderr) = run(&["send", utf8(sample().write().path()), &recv.address]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(recv.child.wait().unwrap().code(), Some(0));

    let mut recv = Recv::start(folder.path(), &["--once", "--listen", "127.0.0.1:0"]);
    assert_eq!(recv.signal("-INT"), Some(1));
    assert_eq!(recv.line(), "rftrace: no complete trace has come\n");
}

#[test]
fn what_others_reach_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (code, _, stderr) = run(&["recv", "-o", utf8(folder.path()), "--listen", address]);
        assert_eq!(code, Some(1));
        for text in [address, "no encryption", "ssh -N -L", "--unix", "--token-file"] {
            assert!(stderr.contains(text), "{text} in {stderr}");
        }
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, stderr) = run(&["recv", "-o", utf8(folder.path()), "--listen", &address]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&address) && stderr.contains("another port"), "{stderr}");
}

#[test]
fn a_receiver_that_takes_nothing_is_named() {
    // It closes what it accepts.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let (code, _, stderr) = run(&["send", utf8(sample().write().path()), &address]);
    closing.join().unwrap();
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&address) && stderr.contains("closed the connection before the end"), "{stderr}");
}

/// A program that calls the tracer, for `rftrace record`.
fn program(folder: &Path) -> Option<std::path::PathBuf> {
    let (source, program) = (folder.join("prog.c"), folder.join("prog"));
    fs::write(&source, "int leaf(int n) { return n; }\nint main(void) { return leaf(5); }\n").unwrap();
    let output = crate::import::output(Command::new("gcc").args(["-pg", "-O0", "-o"]).args([&program, &source]))?;
    assert!(output.status.success(), "{output:?}");
    Some(program)
}

#[test]
fn what_is_recorded_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    let traces = folder.path().join("traces");
    let mut recv = Recv::start(&traces, &["--listen", "127.0.0.1:0"]);
    let to = format!("uftrace://{}", recv.address);
    let record = |options: &[&str], dir: &str| {
        let mut command = rftrace(&["record", "--no-schedule", "-o", dir]);
        parts(&command.args(options).arg(&program).current_dir(&folder).output().unwrap())
    };
    let shown = |dir: &Path| run(&["replay", utf8(dir)]);

    let (code, _, stderr) = record(&["--to", &to], "kept");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains(&format!("rftrace: sent to {to}")), "{stderr}");
    assert!(recv.line().contains("a complete trace"));
    let (kept, sent) = (folder.path().join("kept"), traces.join("kept"));
    assert_eq!(shown(&kept), shown(&sent));
    assert!(shown(&sent).1.contains("leaf();"));

    let (code, _, stderr) = record(&["--to", &to, "--no-local"], "gone");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(!stderr.contains("the trace lies in"), "{stderr}");
    assert!(recv.line().contains("a complete trace"));
    assert!(!folder.path().join("gone").exists());
    assert!(shown(&traces.join("gone")).1.contains("leaf();"));

    // Nobody is there any more: the program's status is the same, and the trace stays.
    assert_eq!(recv.signal("-TERM"), Some(0));
    let (code, _, stderr) = record(&["--to", &to, "--no-local"], "unsent");
    assert_eq!(code, Some(5), "{stderr}");
    let wanted = format!("rftrace send unsent {to}");
    assert!(stderr.contains("cannot send the trace") && stderr.contains(&wanted), "{stderr}");
    assert!(shown(&folder.path().join("unsent")).1.contains("leaf();"));
    let left: Vec<_> =
        fs::read_dir(folder.path().join("unsent")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name != ".recording"), "{left:?}");
}

/// A program that calls `leaf` so often, says so, and ends when it is told to by a line. Its status is 5.
fn waiting_program(folder: &Path) -> Option<std::path::PathBuf> {
    let (source, program) = (folder.join("waiting.c"), folder.join("waiting"));
    let text = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <sys/wait.h>\n
        void leaf(void) { }
        int main(int n_args, char **args) {
            for (long n = atol(args[1]); n > 0; n--) leaf();
            if (n_args > 2) { if (fork() == 0) { leaf(); _exit(0); } wait(NULL); }
            puts(\"called\"); fflush(stdout); getchar();
            return 5;
        }\n";
    fs::write(&source, text).unwrap();
    let output = crate::import::output(Command::new("gcc").args(["-pg", "-O0", "-o"]).args([&program, &source]))?;
    assert!(output.status.success(), "{output:?}");
    Some(program)
}

/// `rftrace record` of such a program, which has done its calls.
struct Recording {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Recording {
    fn begin(folder: &Path, program: &Path, options: &[&str], args: &[&str]) -> Self {
        let mut command = rftrace(&["record", "--no-schedule"]);
        command.args(options).arg(program).args(args).current_dir(folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "called\n");
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stdout, stderr, said: String::new() }
    }

    /// Waits until its recorder has said something.
    fn wait_until_said(&mut self, text: &str) {
        while !self.said.contains(text) {
            assert!(self.stderr.read_line(&mut self.said).unwrap() > 0, "{}", self.said);
        }
    }

    /// Lets the program end, and waits for its recorder. Returns that's status, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        drop((self.stdout, self.child.stdin.take()));
        self.stderr.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap().code(), self.said)
    }
}

fn calls_of(dir: &Path, function: &str) -> u64 {
    let (code, stdout, stderr) = run(&["report", utf8(dir)]);
    assert_eq!(code, Some(0), "{stderr}");
    let line = stdout.lines().find(|line| line.ends_with(&format!(" {function}")));
    line.map_or(0, |line| line.split_whitespace().rev().nth(1).unwrap().replace(',', "").parse().unwrap())
}

#[test]
fn what_is_recorded_is_sent_while_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = waiting_program(folder.path()) else { return };
    let traces = folder.path().join("traces");
    let mut recv = Recv::start(&traces, &["--listen", "127.0.0.1:0"]);
    let recording =
        Recording::begin(folder.path(), &program, &["--to", &recv.address, "-o", "kept"], &["300000", "fork"]);
    // Full chunks are there before the program ends.
    let spool = traces.join("kept/.recording/spool-0");
    while fs::metadata(&spool).map_or(0, |meta| meta.len()) < 100_000 {
        std::thread::yield_now();
    }
    let (code, _, stderr) = run(&["recover", utf8(&traces.join("kept"))]);
    assert!(code == Some(1) && stderr.contains("records to this directory"), "{stderr}");
    let (code, stderr) = recording.end();
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains(&format!("rftrace: sent to {}", recv.address)), "{stderr}");
    let line = recv.line();
    assert!(line.contains("a complete trace, of 2 processes") && line.contains("calls: 300,00"), "{line}");
    let (kept, sent) = (folder.path().join("kept"), traces.join("kept"));
    assert_eq!(calls_of(&sent, "leaf"), 300_001);
    let shown = |dir: &Path| run(&["replay", utf8(dir)]);
    assert!(shown(&kept) == shown(&sent), "both are the same");
    assert!(!sent.join(".recording").exists());
    // A fifth of what uftrace sends, which is what is in the files of records.
    let bytes: u64 = line.split(" bytes").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    let symbols: u64 = fs::read_dir(&sent)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "sym"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(5 * (bytes - symbols) < 600_000 * 16, "{bytes} bytes, {symbols} of them symbols");

    let recording =
        Recording::begin(folder.path(), &program, &["--to", &recv.address, "--no-local", "-o", "gone"], &["10"]);
    let (code, stderr) = recording.end();
    assert_eq!(code, Some(5), "{stderr}");
    assert!(recv.line().contains("a complete trace, of 1 process,"));
    assert!(!folder.path().join("gone").exists());
    assert_eq!(calls_of(&traces.join("gone"), "leaf"), 10);
}

#[test]
fn without_a_receiver_the_trace_is_here() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = waiting_program(folder.path()) else { return };
    let socket = format!("unix:{}", folder.path().join("nobody").display());
    let mut recording =
        Recording::begin(folder.path(), &program, &["--to", &socket, "--no-local", "-o", "here"], &["10"]);
    // The sender may get no processor before the program has ended, and says less then.
    recording.wait_until_said("recording goes on");
    let (code, stderr) = recording.end();
    assert_eq!(code, Some(5), "{stderr}");
    assert_eq!(stderr.matches("cannot connect").count(), 2, "{stderr}");
    assert!(
        stderr.contains("recording goes on") && stderr.contains(&format!("rftrace send here {socket}")),
        "{stderr}"
    );
    assert_eq!(calls_of(&folder.path().join("here"), "leaf"), 10);
}

#[test]
fn a_receiver_that_stops_costs_the_program_nothing() {
    const CALLS: u64 = 400_000;

    let folder = tempfile::tempdir().unwrap();
    let Some(program) = waiting_program(folder.path()) else { return };
    let traces = folder.path().join("traces");
    let mut recv = Recv::start(&traces, &["--listen", "127.0.0.1:0"]);
    let pid = recv.child.id().to_string();
    let kill =
        |signal: &str, pid: &str| assert!(Command::new("/bin/kill").args([signal, pid]).status().unwrap().success());
    kill("-STOP", &pid);
    // It calls all of them, and ends when it is to.
    let mut recording =
        Recording::begin(folder.path(), &program, &["--to", &recv.address, "-o", "here"], &[&CALLS.to_string()]);
    drop(recording.child.stdin.take());
    let mut rest = String::new();
    recording.stdout.read_line(&mut rest).unwrap();
    // The recorder waits for the receiver alone, until it is told not to. Before, it may be at something else still.
    while recording.child.try_wait().unwrap().is_none() {
        kill("-INT", &recording.child.id().to_string());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (code, stderr) = recording.end();
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("cannot send all records"), "{stderr}");
    assert_eq!(calls_of(&folder.path().join("here"), "leaf"), CALLS);
    kill("-CONT", &pid);
    let line = recv.line();
    // The bytes that the system has kept for it meanwhile may be all.
    assert!(line.contains("calls: "), "{line}");
}

#[test]
fn a_recorder_that_is_killed_leaves_a_trace_at_the_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = waiting_program(folder.path()) else { return };
    let traces = folder.path().join("traces");
    let mut recv = Recv::start(&traces, &["--listen", "127.0.0.1:0"]);
    let mut recording = Recording::begin(folder.path(), &program, &["--to", &recv.address, "-o", "here"], &["300000"]);
    let spool = traces.join("here/.recording/spool-0");
    while fs::metadata(&spool).map_or(0, |meta| meta.len()) < 100_000 {
        std::thread::yield_now();
    }
    recording.child.kill().unwrap();
    let line = recv.line();
    assert!(line.contains("incomplete") && line.contains("calls: "), "{line}");
    let here = traces.join("here");
    assert!((1..=300_000).contains(&calls_of(&here, "leaf")), "{line}");
    let (code, stdout, stderr) = run(&["info", utf8(&here)]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("The end of 1 process is lost, as the recorder ended before"), "{stdout}");
    drop(recording);
}

#[test]
fn where_to_send_is_checked_before_the_program_runs() {
    for to in ["http://host", "host:x", "uftrace://", "uftrace://host:x"] {
        let (code, _, stderr) = run(&["record", "--to", to, "/bin/true"]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("--to"), "{stderr}");
    }
    assert_eq!(run(&["record", "--no-local", "/bin/true"]).0, Some(2));
}

/// A program with values of three kinds, a library that it is linked with, two that it closes before its end, a fork and an exec.
fn rich_program(folder: &Path) -> Option<std::path::PathBuf> {
    let sources = [
        ("near.c", "int near(int n) { return n + 1; }\n"),
        ("far.c", "int far(int n) { return n + 2; }\n"),
        // Which most often gets its place.
        ("next.c", "int next(int n) { return n + 3; }\n"),
        (
            "rich.c",
            "#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/wait.h>\n#include <unistd.h>\n
            enum colour { RED, GREEN };
            int near(int);
            int paint(enum colour colour, const char *what) { return colour == GREEN && strlen(what) > 2; }
            int main(int n_args, char **args) {
                if (n_args > 1) return near(3) + 3;
                for (int i = 0; i < 1000; i++) near(i);
                void *far = dlopen(\"./libfar.so\", RTLD_NOW);
                int (*call)(int) = (int (*)(int))dlsym(far, \"far\");
                call(1); dlclose(far);
                void *next = dlopen(\"./libnext.so\", RTLD_NOW);
                call = (int (*)(int))dlsym(next, \"next\");
                call(1); dlclose(next);
                free(malloc(4096));
                paint(GREEN, \"a wall\");
                if (fork() == 0) { paint(RED, \"a door\"); execl(args[0], args[0], \"again\", NULL); }
                int status; wait(&status);
                return WEXITSTATUS(status);
            }\n",
        ),
    ];
    for (name, text) in sources {
        fs::write(folder.join(name), text).unwrap();
    }
    let builds: [&[&str]; 4] = [
        &["-shared", "-fPIC", "-o", "libnear.so", "near.c"],
        &["-shared", "-fPIC", "-o", "libfar.so", "far.c"],
        &["-shared", "-fPIC", "-o", "libnext.so", "next.c"],
        &["-o", "rich", "rich.c", "-L.", "-lnear", "-Wl,-rpath,$ORIGIN"],
    ];
    for build in builds {
        let mut gcc = Command::new("gcc");
        let output = crate::import::output(gcc.current_dir(folder).args(["-g", "-pg", "-O0"]).args(build))?;
        assert!(output.status.success(), "{output:?}");
    }
    Some(folder.join("rich"))
}

/// Companions of the records too: context switches, memory by its callers, values and their types, source lines, how the program ended.
#[test]
fn a_received_trace_is_the_local_one() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = rich_program(folder.path()) else { return };
    let traces = folder.path().join("traces");
    let mut recv = Recv::start(&traces, &["--listen", "127.0.0.1:0"]);
    let to = recv.address.clone();
    let record = |options: &[&str], dir: &str| {
        let mut command = rftrace(&["record", "--to", &to, "-o", dir]);
        let out = command.args(options).arg(&program).current_dir(&folder).output().unwrap();
        let (code, _, stderr) = parts(&out);
        assert!(code == Some(7) && stderr.contains("rftrace: sent to "), "{code:?} {stderr}");
        stderr
    };
    let all = ["--schedule", "--auto-args", "--resources=memory", "--srcline"];
    let stderr = record(&all, "kept");
    let line = recv.line();
    assert!(line.contains("a complete trace, of 3 processes"), "{line}");
    let (kept, sent) = (folder.path().join("kept"), traces.join("kept"));
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&kept), names(&sent), "{stderr}");
    for name in names(&kept) {
        assert!(fs::read(kept.join(&name)).unwrap() == fs::read(sent.join(&name)).unwrap(), "{name}");
    }
    for command in ["replay", "report", "info", "resources"] {
        let shown = |dir: &Path| {
            let (code, stdout, stderr) = run(&[command, utf8(dir)]);
            assert_eq!(code, Some(0), "{command}: {stderr}");
            // The directory's own name is the only difference.
            stdout.replace(utf8(dir), "DIR")
        };
        assert_eq!(shown(&kept), shown(&sent), "{command}");
    }
    let shown = |command: &str| run(&[command, utf8(&sent)]).1;
    let calls = shown("replay");
    // A call and its result stand in two lines where the thread lost its processor meanwhile.
    for call in [
        "paint(GREEN, \"a wall\")",
        " = 1;",
        "paint(RED, \"a door\")",
        "near(999)",
        " = 1000;",
        "far(",
        "next(",
        "/* linux:schedule",
    ] {
        assert!(calls.contains(call), "{call} in {calls}");
    }
    let info = shown("info");
    assert!(info.lines().any(|line| line.trim_start().starts_with("exit status") && line.ends_with(" 7")), "{info}");
    assert!(sent.join("resources.dat").exists() && names(&sent).iter().any(|name| name.ends_with(".dbg")));

    // Nothing of it depends on the trace that stays here.
    record(&[&all[..], &["--no-local"]].concat(), "gone");
    assert!(recv.line().contains("a complete trace, of 3 processes"));
    assert!(!folder.path().join("gone").exists());
    assert_eq!(names(&traces.join("gone")).len(), names(&sent).len());
    assert!(run(&["replay", utf8(&traces.join("gone"))]).1.contains("paint(GREEN, \"a wall\")"));
}
