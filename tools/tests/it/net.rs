//! `rftrace recv`, `rftrace send` and `rftrace record --to`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::cli::{parts, rftrace, run, utf8};
use crate::dir::{A, Files, MAIN, entry, exit};

/// `rftrace recv`, which is killed when this is dropped.
struct Recv {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// What its first line says.
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
    assert!(line.contains("incomplete, the receiver was told to end"), "{line}");
    assert!(!folder.path().join("x/info").exists());
}

#[test]
fn once_means_one_complete_trace() {
    let folder = tempfile::tempdir().unwrap();
    let mut recv = Recv::start(folder.path(), &["--once", "--listen", "127.0.0.1:0"]);
    drop(TcpStream::connect(&recv.address).unwrap());
    let line = recv.line();
    assert!(line.contains("no trace, it closed the connection"), "{line}");
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
        for text in [address, "neither passwords nor encryption", "ssh -N -L", "--unix"] {
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

/// What `rftrace record` needs: a program that calls the tracer.
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
    assert!(stderr.contains(&format!("rftrace: sent to {}", recv.address)), "{stderr}");
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
    let wanted = format!("rftrace send unsent {}", recv.address);
    assert!(stderr.contains("was not sent") && stderr.contains(&wanted), "{stderr}");
    assert!(shown(&folder.path().join("unsent")).1.contains("leaf();"));
    let left: Vec<_> =
        fs::read_dir(folder.path().join("unsent")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name != ".recording"), "{left:?}");
}

#[test]
fn where_to_send_is_checked_before_the_program_runs() {
    for to in ["127.0.0.1:1", "http://host", "uftrace://", "uftrace://host:x"] {
        let (code, _, stderr) = run(&["record", "--to", to, "/bin/true"]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("--to"), "{stderr}");
    }
    assert_eq!(run(&["record", "--no-local", "/bin/true"]).0, Some(2));
}
