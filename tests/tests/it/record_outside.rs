//! `rftrace record ./program` of programs that nothing can be preloaded into, as they are linked statically or have musl as their C library.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::fixtures;
use rftrace_tests::{CProgram, require, tools};
use tempfile::TempDir;

use crate::attach::{check_calls, count};
use crate::record::{build_rust_for_musl, calls, record, rftrace};

/// Builds a program of the C fixtures in all ways.
fn all(folder: &TempDir, source: &str, fixed: &[&str]) -> Vec<PathBuf> {
    let options = [&["-O1", "-static"][..], &["-O1", "-static-pie"], &["-O1", "-mfentry", "-static"]];
    let fixed = options.into_iter().map(|options| {
        let path = folder.path().join(options.concat());
        let options = [options, fixed, &["-Wno-infinite-recursion", "-lpthread"]].concat();
        CProgram::new(&[source]).without_library().with(&options).build_as(&path);
        path
    });
    let mut all: Vec<PathBuf> = fixed.collect();
    if require(&["musl-gcc"]) {
        // It has none, and programs bring their own.
        let hook = fixtures::folder("c").join("mcount.s");
        for (name, linkage) in [("fixed", &["-static"][..]), ("dynamic", &[])] {
            let path = folder.path().join(name);
            let mut compiler = Command::new("musl-gcc");
            compiler.args(["-O1", "-pg", "-w"]).arg(fixtures::folder("c").join(source)).arg(&hook);
            fixtures::build_as(compiler.arg("-I").arg(fixtures::folder("c")).args(linkage), &path);
            all.push(path);
        }
    }
    all
}

/// Rust's programs for musl, built once.
fn rust_programs() -> &'static [PathBuf] {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build_rust_for_musl("recorded"))
}

/// Builds a library with musl, and the program that loads it.
pub(crate) fn loading(folder: &TempDir) -> [PathBuf; 2] {
    let source = fixtures::folder("c").join("outside_loads.c");
    let paths = ["library.so", "program"].map(|name| folder.path().join(name));
    for (path, options) in paths.iter().zip([["-shared", "-fPIC", "-DLIBRARY"].as_slice(), &["-rdynamic"]]) {
        let mut compiler = Command::new("musl-gcc");
        fixtures::build_as(compiler.args(["-g", "-O1", "-pg", "-w"]).arg(&source).args(options), path);
    }
    paths
}

/// A filter for a library that a program with musl loads takes effect soon after, and soon counts as matched.
#[test]
fn filters_of_libraries_that_come_later() {
    if !require(&["musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [library, program] = loading(&folder);
    let library = library.to_str().unwrap();
    let everything = calls(&record(&[], &program, &[library]));
    assert_eq!(["own", "loaded", "leaf"].map(|function| everything[function]), [200; 3]);
    let run = record(&["-N", "leaf", "-N", "missing"], &program, &[library]);
    let found = calls(&run);
    assert_eq!((found["own"], found["loaded"]), (200, 200), "{}", run.stderr);
    assert!(found.get("leaf").is_none_or(|&n| n < 150), "{found:?}");
    assert!(run.stderr.contains("matches -N missing\n"), "{}", run.stderr);
    // Functions that are not named are not included, whenever they come.
    let found = calls(&record(&["--rules", "include=own; exclude=missing"], &program, &[library]));
    assert_eq!(found, [("own".to_owned(), 200)].into());
}

/// Programs that live for less than a millisecond, again and again.
#[test]
fn short_lives() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "begins.c", &[]) {
        for _ in 0..20 {
            let run = record(&[], &program, &[]);
            assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
            assert_eq!(calls(&run).values().sum::<u64>(), 6, "{}", program.display());
        }
    }
}

/// The functions in a panic's report.
#[test]
fn reports_of_panics_with_musl() {
    let report = |command: &mut Command, folder: &Path| -> Vec<String> {
        let command = command.arg("reported").current_dir(folder).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(101));
        let said = String::from_utf8(output.stderr).unwrap();
        let names = said.lines().filter_map(|line| line.split_once(": recorded::").map(|(_, name)| name.to_owned()));
        names.collect()
    };

    let folder = tempfile::tempdir().unwrap();
    for program in rust_programs() {
        let wanted = report(&mut Command::new(program), folder.path());
        assert_eq!(wanted.iter().filter(|name| *name == "descend").count(), 3 + 4, "{wanted:?}");
        let mut recorder = Command::new(rftrace());
        let recorder = recorder.args(["record", "-o", "trace", "--"]).arg(program);
        assert_eq!(report(recorder, folder.path()), wanted, "{}", program.display());
    }
}

/// A recorder with its program, which ends when its input does.
struct Recorded {
    recorder: Child,
    pid: u32,
    said: BufReader<std::process::ChildStdout>,
    folder: TempDir,
}

impl Recorded {
    fn begin(program: &Path, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "-o", "trace"]).args(options).arg(program).arg("alone");
        command.current_dir(&folder).env("XDG_RUNTIME_DIR", folder.path());
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut recorder = piped.spawn().unwrap();
        let mut said = BufReader::new(recorder.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        Self { recorder, pid: line.trim().parse().unwrap(), said, folder }
    }

    fn control(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(rftrace());
        command.args(["ctl", &self.pid.to_string()]).args(words).env("XDG_RUNTIME_DIR", self.folder.path());
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// Has the program come to its end. Returns the recorder's exit status, and what both have said.
    fn end(mut self) -> (Option<i32>, String, String, TempDir) {
        drop(self.recorder.stdin.take());
        let (mut said, mut told) = (String::new(), String::new());
        self.said.read_to_string(&mut said).unwrap();
        self.recorder.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (self.recorder.wait().unwrap().code(), said.trim().to_owned(), told, self.folder)
    }
}

/// A program that never gets to its beginning, as it makes no system call, ends by a signal to the recorder.
#[test]
fn a_signal_before_the_beginning() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["spin.c", "spin"].map(|name| folder.path().join(name));
    fs::write(&source, "volatile long n;\nvoid f(void) { n++; }\nvoid _start(void) { for (;;) f(); }\n").unwrap();
    tools::run(Command::new("gcc").args(["-static", "-nostdlib", "-o"]).args([&program, &source]));
    let mut command = Command::new(rftrace());
    command.args(["record", "-q", "-P", "*", "-o"]).arg(folder.path().join("trace")).arg(&program);
    let mut recorder = command.stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    tools::run(Command::new("kill").arg(recorder.id().to_string()));
    let since = Instant::now();
    let ended = loop {
        match recorder.try_wait().unwrap() {
            Some(ended) => break Some(ended),
            None if since.elapsed() > Duration::from_secs(20) => break None,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    if ended.is_none() {
        // Its program ends with it.
        recorder.kill().unwrap();
    }
    assert_eq!(ended.and_then(|ended| ended.code()), Some(128 + 15));
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The recorder passes on what would end it, and outlives it.
#[test]
fn signals_go_on() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "outside.c", &[]) {
        let mut recorded = Recorded::begin(&program, &["--max-size", "16M"]);
        tools::run(Command::new("kill").args(["-TERM", &recorded.recorder.id().to_string()]));
        let (pid, input) = (recorded.pid, recorded.recorder.stdin.take());
        let (code, _, told, folder) = recorded.end();
        assert_eq!(code, Some(128 + 15), "{told}");
        assert!(!is_there(pid));
        drop(input);
        check_calls(&folder.path().join("trace"), 1);
    }
}

/// `rftrace ctl` finds it, and takes the tracer out: the program goes on.
#[test]
fn controlled() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "outside.c", &[]) {
        let recorded = Recorded::begin(&program, &["--max-size", "256M", "--buffer", "4M"]);
        let (is_done, said) = recorded.control(&["status"]);
        assert!(is_done && said.contains("alone"), "{said}");
        let (is_done, said) = recorded.control(&["dump"]);
        assert!(is_done, "{said}");
        let dumps = PathBuf::from(said.trim().rsplit_once(" lies in ").unwrap().1).parent().unwrap().to_owned();
        tools::run(Command::new("kill").args(["-USR1", &recorded.recorder.id().to_string()]));
        let n_dumps = || fs::read_dir(&dumps).unwrap().flatten().filter(|it| it.path().join("info").exists()).count();
        let since = Instant::now();
        while n_dumps() < 2 {
            assert!(since.elapsed() < Duration::from_secs(60), "no dump in {}", dumps.display());
            thread::sleep(Duration::from_millis(10));
        }
        let (is_done, said) = recorded.control(&["off"]);
        assert!(is_done, "{said}");
        let (is_done, said) = recorded.control(&["patch"]);
        assert!(!is_done && said.contains("linked dynamically"), "{said}");
        let (is_done, said) = recorded.control(&["stop"]);
        assert!(is_done && said.contains("goes on without the tracer"), "{said}");
        let (code, said, told, folder) = recorded.end();
        assert_eq!((code, &*said), (Some(7), "right"), "{told}");
        check_calls(&folder.path().join("trace"), 1);
    }
}

/// The program outlives a recorder that is killed. The next attach then takes the tracer out first.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "outside.c", &[]) {
        let mut recorded = Recorded::begin(&program, &["--on-full", "drop", "--max-size", "16M"]);
        recorded.recorder.kill().unwrap();
        let stdin = recorded.recorder.stdin.take();
        recorded.recorder.wait().unwrap();
        assert!(is_there(recorded.pid));
        let mut leave = Command::new(rftrace());
        let left = leave.args(["record", "-p", &recorded.pid.to_string(), "--leave"]).output().unwrap();
        assert!(left.status.success(), "{left:?}");
        drop(stdin);
        let mut said = String::new();
        recorded.said.read_to_string(&mut said).unwrap();
        assert_eq!(said.trim(), "right", "{}", program.display());
    }
}

/// It reads and writes its own input and output.
#[test]
fn input_and_output() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "outside.c", &[]) {
        let mut command = Command::new(rftrace());
        command.args(["record", "-q", "-o", "trace"]).arg(&program).arg("rounds").current_dir(&folder);
        let mut recorder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        recorder.stdin.take().unwrap().write_all(b"10\n20000\n").unwrap();
        let output = recorder.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(7), 0), "{output:?}");
        assert!(output.stdout.ends_with(b"\ndone\ndone\nright\n"), "{output:?}");
        let trace = folder.path().join("trace");
        // One more before it tells its number.
        let n_calls = 1 + 3 * 20_010;
        assert_eq!((count(&trace, "leaf"), count(&trace, "middle")), (2 * n_calls, n_calls));
        fs::remove_dir_all(trace).unwrap();
    }
}

/// A program that cannot be recorded has not begun.
#[test]
fn refusals() {
    if !require(&["gcc", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "begins.c", &[]) {
        for options in [&["--stop"][..], &["--patched"], &["-T", "leaf"], &["--ring", "--dump-on", "panic"]] {
            let run = record(options, &program, &["begun"]);
            assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
            assert!(run.stderr.contains("is linked statically or uses musl"), "{}", run.stderr);
            assert!(!run.path("trace").exists());
        }
        for options in [&["-P", "*", "--libcalls"][..], &["--libcalls"], &["--resources", "memory"]] {
            let run = record(options, &program, &["begun"]);
            assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
        }
        let stripped = folder.path().join("stripped");
        tools::run(Command::new("strip").arg("-o").arg(&stripped).arg(&program));
        let run = record(&[], &stripped, &["begun"]);
        // The hook of a program with a dynamic linker may be exported.
        if !program.ends_with("dynamic") {
            assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
            assert!(run.stderr.contains("no -s, no strip"), "{}", run.stderr);
        }
    }
    let source = folder.path().join("bare.c");
    fs::write(
        &source,
        "void mcount(void) {} void _start(void) { __asm__ volatile(\"syscall\" :: \"a\"(1), \"D\"(1), \"S\"(\"begun\"), \"d\"(5) : \"rcx\", \"r11\"); \
         __asm__ volatile(\"syscall\" :: \"a\"(60), \"D\"(3)); }",
    )
    .unwrap();
    let bare = folder.path().join("bare");
    tools::run(
        Command::new("gcc")
            .args(["-nostdlib", "-static", "-fno-stack-protector", "-falign-functions=16", "-o"])
            .arg(&bare)
            .arg(&source),
    );
    let run = record(&[], &bare, &[]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
    assert!(run.stderr.contains("rftrace supports the GNU C library and musl"), "{}", run.stderr);
    assert!(!run.path("trace").exists());
}
