//! Traces that uftrace sends and receives.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_net::send::send;
use rftrace_net::{Address, Protocol};
use rftrace_tests::{require, tools};

use crate::peer::{LONG, Running, assert_files, files, to};

const PROGRAM: &str = "
    static int leaf(int n) { return n + 1; }
    static int branch(int n) { return leaf(n) + leaf(n); }
    int main(void) { int n = 0; for (int i = 0; i < 20000; i++) n = branch(n) & 7; return n < 0; }
";

/// A program that calls the tracer, with more calls than uftrace sends at a time.
fn program(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("prog.c"), folder.join("prog"));
    fs::write(&source, PROGRAM).unwrap();
    tools::run(Command::new("gcc").args(["-pg", "-O0", "-o"]).args([&program, &source]));
    program
}

/// The tree of calls, without times and ids.
fn replay(dir: &Path) -> String {
    tools::text(
        Command::new("uftrace").args(["replay", "--no-pager", "--color=no", "-f", "none", "--no-event", "-d"]).arg(dir),
    )
}

fn record(dir: &Path, program: &Path, options: &[&str]) -> Command {
    let mut record = Command::new("uftrace");
    record.args(["record", "--no-event", "--no-pager", "--no-libcall"]).args(options).arg("-d").arg(dir).arg(program);
    record
}

#[test]
fn uftrace_records_to_a_receiver() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let local = folder.path().join("local");
    tools::run(&mut record(&local, &program, &[]));
    let server = Running::start(|_| {});
    let port = server.port().to_string();
    let to = ["--host", "127.0.0.1", "--port", &port];
    tools::run(record(Path::new("remote"), &program, &to).current_dir(&folder));
    let told = server.told();
    assert!(told.ended.is_ok(), "{told}");
    let dir = told.dir.clone().unwrap();
    assert_eq!(replay(&dir), replay(&local), "{told}");
    let names = |dir: &Path| -> Vec<String> {
        let trace = rftrace_read::Trace::open(dir).unwrap();
        assert!(trace.warnings().is_empty());
        trace.tasks().iter().map(|task| task.name().to_string()).collect()
    };
    assert_eq!(names(&dir), names(&local));
    assert_eq!(server.end().0, 1);
}

/// `uftrace recv`, which is killed when this is dropped.
struct Uftrace(Child);

impl Drop for Uftrace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `uftrace recv` at a free port: it takes none that the system chooses, so another one may have it meanwhile.
fn uftrace_recv(dir: &Path) -> (Uftrace, Address) {
    let since = Instant::now();
    while since.elapsed() < LONG {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut recv = Command::new("uftrace");
        recv.args(["recv", "--port", &port.to_string(), "-d"]).arg(dir).stdin(Stdio::null());
        let mut recv = Uftrace(recv.spawn().unwrap());
        while recv.0.try_wait().unwrap().is_none() && since.elapsed() < LONG {
            if is_listening(recv.0.id(), port) {
                return (recv, format!("127.0.0.1:{port}").parse().unwrap());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("uftrace recv does not listen")
}

/// True if a process listens at a port. Connecting instead would end `uftrace recv`.
fn is_listening(pid: u32, port: u16) -> bool {
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let mut inodes = sockets.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        (fields.get(1)?.ends_with(&local) && *fields.get(3)? == "0A").then(|| format!("socket:[{}]", fields[9]))
    });
    let Some(inode) = inodes.next() else { return false };
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&inode)))
}

#[test]
fn uftrace_receives_what_is_sent() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let local = folder.path().join("local");
    tools::run(&mut record(&local, &program, &[]));
    // Files that uftrace does not write, and an empty one.
    fs::write(local.join("clock.txt"), "clock\n").unwrap();
    fs::write(local.join("4194303.dat"), "").unwrap();
    let remote = folder.path().join("remote");
    let (_recv, address) = uftrace_recv(&remote);
    send(&local, &to(Protocol::Uftrace, &address), None, LONG).unwrap();
    let received = remote.join("local");
    let mut whole = files(&local);
    // uftrace's own options are no part of a trace; the receiver writes a file for its own.
    whole.remove("default.opts");
    let _ = fs::remove_file(received.join("default.opts"));
    assert_files(&received, &whole);
    assert_eq!(replay(&received), replay(&local));
}
