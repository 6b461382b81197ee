//! `rftrace record -p`: programs in containers, whose files lie elsewhere than they say, and programs of other C libraries.

use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::{CProgram, Program, fixtures, require, tools, traces};
use tempfile::TempDir;

use crate::attach::{Running, count, refused, told};
use crate::record::{record, rftrace};

const BRANCHES: [&str; 6] = ["-P", "*", "--max-size", "4M", "--on-full", "drop"];

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = CProgram::new(&["attached_plain.c"]).without_hooks().without_library();
        program.with(&["-O1", "-lpthread", "-ldl"]).build()
    })
}

/// True if there can be namespaces here.
pub(crate) fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["-m", "-p", "-f", "--mount-proc", "true"]).stderr(Stdio::null()).status();
    let has_some = made.is_ok_and(|status| status.success());
    if !has_some {
        tools::skip("only root can make containers (unshare)");
    }
    has_some
}

/// A program that a shell in a mount namespace of its own becomes. `script` has a folder and the program's file as `$1` and `$2`.
fn begin_in_namespace(script: &str, folder: &Path) -> Running {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script, "sh"]).arg(folder).arg(&program().path);
    Running::begin_by(&mut command)
}

/// A root directory with the program and what it needs.
fn root_directory() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    fs::copy(&program().path, root.path().join("program")).unwrap();
    copy_libraries(&program().path, root.path());
    root
}

/// Copies the libraries that a file needs to the same places below a root directory.
fn copy_libraries(of: &Path, root: &Path) {
    let list = tools::text(Command::new("ldd").arg(of));
    for path in list.split_whitespace().filter(|word| word.starts_with('/')) {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(path, place).unwrap();
    }
}

/// It is recorded, functions have their names, and code is what it was.
#[track_caller]
fn check_recorded(running: &Running) {
    let code = running.code();
    running.record_some(&[&BRANCHES[..], &["--for", "100ms"]].concat());
    assert!(count(&running.trace(), "round_of_work") > 0);
    let now = running.code();
    assert!(code.iter().all(|(line, bytes)| now.get(line) == Some(bytes)), "code was changed");
}

/// The file is where nobody else sees it, also when the program has ended.
#[test]
fn files_that_others_do_not_see() {
    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs none \"$1\"; cp \"$2\" \"$1/program\"; exec \"$1/program\" busy";
    let mut running = begin_in_namespace(script, folder.path());
    check_recorded(&running);
    let mut recorder = running.begin_recording(&BRANCHES);
    running.wait_for_records();
    running.child.kill().unwrap();
    assert!(recorder.wait().unwrap().success());
    assert!(count(&running.trace(), "round_of_work") > 0);
}

/// So is the stream of such a program: its names are those of its own file, though another one lies at the same path here.
#[test]
fn a_stream_has_names_of_files_that_others_do_not_see() {
    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let others = CProgram::new(&["attached.c"]).without_library().with(&["-O1", "-lpthread"]).build();
    fs::copy(&others.path, folder.path().join("program")).unwrap();
    let script = "mount -t tmpfs none \"$1\"; cp \"$2\" \"$1/program\"; exec \"$1/program\" busy";
    let mut running = begin_in_namespace(script, folder.path());
    let mut recorder = running.begin_recording(&BRANCHES);
    let stream = running.folder.path().join("x.rfs");
    let mut reader = Command::new(rftrace());
    reader.args(["ctl", &running.pid().to_string(), "pipe", "--rfs"]).stdout(File::create(&stream).unwrap());
    let mut reader = reader.spawn().unwrap();
    let since = Instant::now();
    while fs::metadata(&stream).unwrap().len() < 100_000 {
        assert!(since.elapsed() < Duration::from_secs(120));
        thread::sleep(Duration::from_millis(5));
    }
    running.child.kill().unwrap();
    assert!(recorder.wait().unwrap().success() && reader.wait().unwrap().success());
    let received = running.folder.path().join("received");
    let mut receiver = Command::new(rftrace());
    receiver.args(["recv", "--stdin", "-o"]).arg(&received).stdin(File::open(&stream).unwrap());
    assert!(receiver.status().unwrap().success());
    let rounds = count(&received.join("trace"), "round_of_work");
    assert!(rounds > 0);
    assert_eq!(rounds, count(&running.trace(), "round_of_work"));
    let build_id = |trace: &Path| {
        let info = fs::read(trace.join("info")).unwrap();
        let line = info.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"build_id:"));
        String::from_utf8(line.unwrap().to_vec()).unwrap()
    };
    assert_eq!(build_id(&received.join("trace")), build_id(&running.trace()));
}

#[test]
fn another_root_directory() {
    const WITH_PROC: &str = "mount --rbind /proc \"$1/proc\"; exec chroot \"$1\" /program busy";

    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let branches = |command: &mut Command| _ = command.args(BRANCHES);
    let root = root_directory();
    let running = begin_in_namespace("exec chroot \"$1\" /program busy", root.path());
    refused(running.pid(), branches, "sees no /proc");
    assert_eq!(running.end().0.code(), Some(7));
    let running = begin_in_namespace(WITH_PROC, root.path());
    refused(running.pid(), branches, "libgcc_s.so.1 may be missing there");
    assert_eq!(running.end().0.code(), Some(7));
    copy_libraries(&rftrace().with_file_name("rftrace-preload"), root.path());
    let running = begin_in_namespace(WITH_PROC, root.path());
    check_recorded(&running);
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right, handled 0"));
}

/// A program that is process 1 of a container.
fn begin_with_own_numbers(way: &str) -> Running {
    let mut command = Command::new("unshare");
    command.args(["-m", "-p", "-f", "--mount-proc"]).arg(&program().path).arg(way);
    Running::begin_by(&mut command)
}

/// Its trace has the numbers that the program knows, and names of its threads.
#[test]
fn process_numbers_of_its_own() {
    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let running = begin_with_own_numbers("busy");
    assert_ne!(running.pid(), 1);
    let said = told(&running.record(&[&BRANCHES[..], &["--for", "100ms"]].concat()));
    assert!(
        said.contains("cannot record context switches: the program's container numbers processes separately"),
        "{said}"
    );
    check_recorded(&running);
    let trace = traces::open(&running.trace());
    let with_calls = trace.tasks().iter().filter(|task| task.pid() == 1);
    let tasks: Vec<(u32, &str)> = with_calls.map(|task| (task.tid(), task.name())).collect();
    assert!(!tasks.is_empty());
    assert!(tasks.iter().all(|&(tid, name)| (1..=5).contains(&tid) && name == "program"), "{tasks:?}");
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right, handled 0"));
}

/// The end of process 1 is the end of all that the container has, but not of who records it.
#[test]
fn a_container_that_ends() {
    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let mut running = begin_with_own_numbers("asked");
    let mut recorder = running.begin_recording(&["-P", "*"]);
    let pid = running.pid().to_string();
    let ctl = |words: &[&str]| tools::text(Command::new(rftrace()).args(["ctl", &pid]).args(words));
    assert!(ctl(&["status"]).contains(&format!("process {pid}")));
    let mut ask = || {
        running.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        running.output.read_line(&mut String::new()).unwrap();
    };
    ask();
    // Threads are chosen by their own numbers.
    ctl(&["set", "set_ftrace_pid", "1"]);
    ask();
    ctl(&["set", "set_ftrace_notrace_pid", "1"]);
    ask();
    drop(running.child.stdin.take());
    assert_eq!(running.child.wait().unwrap().code(), Some(5));
    assert!(recorder.wait().unwrap().success());
    assert_eq!(count(&running.trace(), "round_of_work"), 2000);
    let trace = traces::open(&running.trace());
    assert_eq!(trace.tasks().iter().map(|task| (task.pid(), task.tid())).collect::<Vec<_>>(), [(1, 1)]);
}

#[test]
fn what_needs_one_space_of_numbers() {
    if !require(&["gcc"]) || !has_namespaces() {
        return;
    }
    let (one, other) = (begin_with_own_numbers("busy"), begin_with_own_numbers("busy"));
    let of_other = other.pid().to_string();
    let both = |command: &mut Command| _ = command.args(BRANCHES).args(["-p", &of_other]);
    refused(one.pid(), both, "record one after the other");
    refused(one.pid(), |command| _ = command.args(["--resources", "memory"]), "run rftrace in that container");
    let functracer = Command::new(rftrace()).args(["functracer", "-p", &of_other, "-e", "memory"]).output().unwrap();
    assert!(String::from_utf8_lossy(&functracer.stderr).contains("run rftrace in that container"), "{functracer:?}");
    for running in [one, other] {
        assert_eq!(running.end().0.code(), Some(7));
    }
}

/// Where the library is needed, which is for the GNU C library alone, that is said, at the start of a program too, which would not begin otherwise.
#[test]
fn musl() {
    if !require(&["musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures::folder("c").join("attached_plain.c");
    let build = |name: &str, linkage: &[&str]| -> PathBuf {
        let path = folder.path().join(name);
        fixtures::build_as(Command::new("musl-gcc").args(["-O1", "-w"]).arg(&source).args(linkage), &path);
        path
    };
    for (program, wanted) in
        [(build("dynamic", &[]), "uses musl as its C library"), (build("fixed", &["-static"]), "is linked statically")]
    {
        let running = Running::begin(&program, "busy");
        refused(running.pid(), |command| _ = command.arg("--libcalls"), wanted);
        let (status, said) = running.end();
        assert_eq!((status.code(), said.trim()), (Some(7), "right, handled 0"));
        let run = record(&["--libcalls"], &program, &["busy"]);
        assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
        assert!(run.stderr.starts_with("rftrace: ") && run.stderr.contains(wanted), "{}", run.stderr);
        assert!(!run.path("trace").exists());
    }
}
