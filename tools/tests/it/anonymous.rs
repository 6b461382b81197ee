//! `--anonymous`: no personal fact is in any file of a trace, nor in any format.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use crate::cli::{parts, rftrace, run, utf8};

const SOURCE: &str = "\
#include <string.h>
#include <unistd.h>
__attribute__((noipa)) int text(const char *name, int n) { return strlen(name) + n; }
__attribute__((noipa)) const char *told(int n) { return \"result-of-jane\" + n; }
int main(int argc, char **argv) {
    int parent = getppid();
    while (argc > 2 && getppid() == parent) { text(\"order-of-jane\", 41); usleep(20); }
    return text(\"order-of-jane\", 41) - 54 + (told(0) == argv[argc]);
}
";
/// Part of the paths.
const USER: &str = "home-of-jane";
const PASSWORD: &str = "--password=hunter2";
const VALUES: [&str; 4] = ["-A", "text@arg1/s,arg2/i32", "-R", "told@retval/s"];

/// A folder of a user with a program; `None` where there is no compiler.
fn program() -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join(USER);
    fs::create_dir(&home).expect("a writable folder");
    fs::write(home.join("prog.c"), SOURCE).expect("a writable folder");
    let mut compiler = Command::new("gcc");
    compiler.current_dir(&home).args(["-pg", "-g", "-O1", "-o", "prog"]).arg(home.join("prog.c"));
    crate::import::text(&mut compiler).map(|_| (folder, home))
}

/// Records the program, and returns the trace.
fn record(home: &Path, name: &str, options: &[&str]) -> PathBuf {
    let trace = home.join(name);
    let mut record = rftrace(&["record", "-q", "--srcline", "-o", utf8(&trace)]);
    let command = record.args(options).args(VALUES).arg("--").arg(home.join("prog")).arg(PASSWORD);
    let (code, _, stderr) = parts(&command.output().expect("the command starts"));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{options:?}");
    trace
}

fn secrets() -> Vec<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned();
    [USER, "hunter2", "order-of-jane", "result-of-jane", &format!("hostname={host}")].map(str::to_owned).into()
}

/// The secrets in some bytes.
fn found_in(bytes: &[u8]) -> Vec<String> {
    let has = |secret: &String| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
    secrets().into_iter().filter(has).collect()
}

/// All files below a directory.
fn bytes_below(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        bytes.extend(entry.file_name().into_encoded_bytes());
        let path = entry.path();
        bytes.extend(if path.is_dir() { bytes_below(&path) } else { fs::read(path).expect("a file") });
    }
    bytes
}

/// The data in a page.
fn unpacked(html: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(html);
    let (_, data) = text.split_once("id=\"data\">").expect("data");
    let packed = STANDARD.decode(data.split_once('<').expect("an end").0).expect("base64");
    let mut gzip = Command::new("gzip").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
    let mut stdin = gzip.stdin.take().expect("a pipe");
    let writing = thread::spawn(move || stdin.write_all(&packed));
    let output = gzip.wait_with_output().expect("its output");
    writing.join().expect("no panic").expect("it reads");
    output.stdout
}

/// All that a dump writes.
fn dump(trace: &Path, to: &Path, format: &str, options: &[&str]) -> Vec<u8> {
    let args = [&["dump", format, "-q", "-o", utf8(to), utf8(trace)], options].concat();
    assert_eq!(run(&args), (Some(0), String::new(), String::new()), "{args:?}");
    let bytes = if to.is_dir() { bytes_below(to) } else { fs::read(to).expect("a file") };
    if format == "--html" { unpacked(&bytes) } else { bytes }
}

#[test]
fn a_recorded_trace_has_no_personal_facts() {
    let Some((_folder, home)) = program() else { return };
    assert_eq!(found_in(&bytes_below(&record(&home, "open", &[]))), secrets());
    let trace = record(&home, "trace", &["--anonymous"]);
    assert_eq!(found_in(&bytes_below(&trace)), [""; 0]);
    let (code, replay, stderr) = run(&["replay", "--srcline", utf8(&trace)]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for shown in ["text(\"…\", 41)", "told() = \"…\"", "prog.c:3"] {
        assert!(replay.contains(shown), "{shown}: {replay}");
    }
    let mut uftrace = Command::new("uftrace");
    uftrace.args(["replay", "--no-pager", "--color=no", "-d"]).arg(&trace);
    if let Some(replay) = crate::import::text(&mut uftrace) {
        assert!(replay.contains("text(\"…\", 41)") && replay.contains("main("), "{replay}");
    }
}

#[test]
fn no_format_has_personal_facts() {
    let Some((folder, home)) = program() else { return };
    let trace = record(&home, "trace", &[]);
    let whole = bytes_below(&trace);
    for (format, is_with_names_only) in [
        ("--chrome", false),
        ("--perfetto", false),
        ("--firefox", false),
        ("--flamegraph", false),
        ("--folded", true),
        ("--html", false),
        ("--uftrace", false),
    ] {
        let to = |name: &str| folder.path().join(format!("{name}{format}"));
        let open = dump(&trace, &to("open"), format, &["--srcline"]);
        assert_eq!(found_in(&open).is_empty(), is_with_names_only, "{format}");
        let anonymous = dump(&trace, &to("anonymous"), format, &["--srcline", "--anonymous"]);
        assert_eq!(found_in(&anonymous), [""; 0], "{format}");
        assert!(anonymous.windows(4).any(|part| part == b"main"), "{format}");
    }
    assert!(bytes_below(&trace) == whole, "the trace stays as it is");
}

#[test]
fn a_recovered_trace_has_no_personal_facts() {
    let Some((_folder, home)) = program() else { return };
    let trace = home.join("trace");
    let mut record = rftrace(&["record", "-q", "--anonymous", "-o", utf8(&trace)]);
    record.args(VALUES).arg("--").arg(home.join("prog")).args([PASSWORD, "for ever"]);
    let mut recorder = record.stdin(Stdio::null()).spawn().expect("the command starts");
    let wait = |args: &[&str], text: &str| {
        let since = Instant::now();
        loop {
            let (code, stdout, stderr) = run(args);
            if code == Some(0) && stdout.contains(text) {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(60), "{args:?}: {stderr}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait(&["report", utf8(&trace)], "text");
    recorder.kill().and_then(|()| recorder.wait()).expect("it ends");
    wait(&["recover", utf8(&trace)], "");
    assert_eq!(found_in(&bytes_below(&trace)), [""; 0]);
    assert!(run(&["report", utf8(&trace)]).1.contains("text"));
}
