//! Messages and their causes: `tests/messages`.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use rftrace_tests::fixtures::cache::copy;
use rftrace_tests::messages::{Cause, Row, missing, rows, tables, unlisted};
use rftrace_tests::{CProgram, golden, require};

/// A shell's function that waits until a process of the shell has become its program, and sleeps there.
const BEGUN: &str = "begun() { until grep -qE '^(h|hooked|plain|s)$' /proc/$1/comm && grep -q '^State:.S' /proc/$1/status; do sleep .01; done; }; ";

/// One that presses keys when the terminal's output, in the file `f`, has a text: `typed TEXT KEYS`.
const TYPED: &str = "typed() { until grep -qs \"$1\" f; do sleep .02; done; printf \"$2\"; }; ";

/// The output of a command in a folder of its own, with the folder's name as `DIR`. Beside the golden traces lie a small program with hooks
/// and one without.
fn shell(row: &Row, hooked: &Path, plain: &Path) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path();
    golden::copy_all(&dir.join("traces"));
    for (program, name) in [(hooked, "hooked"), (plain, "plain")] {
        copy(program, &dir.join(name));
    }
    let tools = Path::new(env!("CARGO_BIN_EXE_rftrace")).parent().expect("a folder");
    let path = format!("{}:{}", tools.display(), env::var("PATH").expect("a search path"));
    let mut shell = Command::new("timeout");
    shell
        .args(["60", "sh", "-c", &format!("{BEGUN}{TYPED}exec 2>&1; {}", row.head)])
        .current_dir(dir)
        .stdin(Stdio::null());
    shell
        .envs([("HOME", dir), ("TMPDIR", dir), ("PATH", Path::new(&path))])
        .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC")]);
    let output = shell.env_remove("NO_COLOR").output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).replace(&*dir.to_string_lossy(), "DIR")
}

#[test]
fn each_cause_has_its_messages() {
    if !require(&["gcc", "timeout"]) {
        return;
    }
    let program = CProgram::new(&["told.c"]).without_library().with(&["-O1"]);
    let (hooked, plain) = (program.cached("hooked"), program.without_hooks().cached("plain"));
    let commands: Vec<Row> =
        tables().iter().flat_map(|table| rows(table)).filter(|row| row.cause == Cause::Command).collect();
    let (next, wrong) = (Mutex::new(commands.iter()), Mutex::new(String::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(row) = { next.lock().expect("no panic").next() } {
                    let output = shell(row, &hooked, &plain);
                    if let Some(message) = missing(row, &output) {
                        let text = format!("{}: $ {}\nlacks {message}\nin\n{output}\n", row.place, row.head);
                        wrong.lock().expect("no panic").push_str(&text);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn each_message_has_a_cause() {
    let empty: Vec<String> = tables()
        .iter()
        .flat_map(|table| rows(table))
        .filter(|row| row.messages.is_empty())
        .map(|row| row.place)
        .collect();
    assert!(empty.is_empty(), "causes of nothing: {}", empty.join(", "));
    let unlisted = unlisted();
    assert!(unlisted.is_empty(), "messages in no table of tests/messages:\n{unlisted}");
}
