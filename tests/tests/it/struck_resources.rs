//! A signal's handler strikes between two instructions of the hooks of `rftrace record --resources`, and takes and gives back by the same functions.
//!
//! `fixtures/c/struck_resources.c` does that, looks whether its calls did what they should, and says what it has taken. Here that is compared with what was recorded.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::fixtures::folder;
use rftrace_tests::{CProgram, Program, require};
use serde_json::Value;

use super::record::rftrace;
use super::resources::{functions, values_as_told};

/// The kinds that the program counts.
const KINDS: [&str; 5] = ["memory", "file", "block", "text", "ticket"];

/// Functions whose calls are recorded, where stacks are of such.
const RECORDED: [&str; 6] = ["main", "afterwards", "keep", "part", "strike", "fill"];

fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        let program = CProgram::new(&["struck_resources.c"]).without_hooks().without_library();
        program.with(&["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-rdynamic"]).build()
    };
    &BUILT.get_or_init(build).path
}

/// Records it. Returns what was recorded, what it has taken of each kind, and how often it was struck.
#[track_caller]
fn record(backtraces: &str, arguments: &[&str]) -> (Value, Vec<u64>, u64) {
    let folder_of_trace = tempfile::tempdir().unwrap();
    let specification = folder("specifications").join("struck.toml");
    let mut command = Command::new(rftrace());
    command.args(["record", "--no-schedule", "-q", "-o", "trace", "--backtraces", backtraces, "--resources"]);
    command.arg(format!("memory,file,{}", specification.display()));
    if backtraces == "shadow" {
        command.args(RECORDED.into_iter().flat_map(|function| ["-P", function]));
    }
    command.arg("--").arg(program()).args(arguments);
    let output = command.current_dir(folder_of_trace.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_all_seen = !told.contains("not seen") && !told.contains("cannot record calls");
    assert!(output.status.success() && is_all_seen, "{backtraces} {arguments:?}: {told}\n{output:?}");
    let told = told.lines().find(|line| line.ends_with(" bad")).unwrap_or_else(|| panic!("{told}"));
    let numbers: Vec<u64> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
    (values_as_told(&folder_of_trace, &[]).0, numbers[..KINDS.len()].to_vec(), numbers[KINDS.len()])
}

fn number(found: &Value, kind: &str, key: &str) -> u64 {
    found[kind][key].as_u64().unwrap()
}

/// Checks the records of the part behind all strikes, with its stacks.
#[track_caller]
fn check_afterwards(backtraces: &str, found: &Value) {
    for kind in KINDS {
        assert_eq!(number(found, kind, "lost"), 0, "{backtraces}: {:#}", found[kind]);
    }
    if backtraces == "none" {
        return;
    }
    let stacks = found["stacks"].as_array().unwrap();
    let is_kept = |stack: &&Value| functions(stack).first() == Some(&"keep");
    let kept: Vec<&Value> = stacks.iter().filter(is_kept).collect();
    let sum = |key: &str| kept.iter().map(|stack| stack[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(["allocations", "blocks", "bytes"].map(sum), [100, 7, 168], "{backtraces}: {kept:#?}");
    assert!(
        kept.iter().all(|stack| functions(stack)[..3] == ["keep", "afterwards", "main"]),
        "{backtraces}: {kept:#?}"
    );
}

/// Each block, file and whatever is specified that was taken is recorded, once, and given back, once.
#[track_caller]
fn check(backtraces: &str, arguments: &[&str], least: u64) {
    if !require(&["gcc"]) {
        return;
    }
    let (plain, plain_taken, _) = record(backtraces, &["1", "0", "not"]);
    let (found, taken, n_strikes) = record(backtraces, arguments);
    assert!(n_strikes >= least, "{n_strikes} strikes");
    for ((kind, taken), plain_taken) in KINDS.into_iter().zip(taken).zip(plain_taken) {
        let what = format!("{backtraces} {arguments:?}, {kind}, {n_strikes} strikes: {:#}", found[kind]);
        // There is what the system's libraries take besides.
        let besides = number(&plain, kind, "allocations") - plain_taken;
        assert_eq!(number(&found, kind, "allocations") - besides, taken, "{what}");
        for key in ["blocks", "bytes", "unknown_releases", "doubled", "failures"] {
            assert_eq!(number(&found, kind, key), number(&plain, kind, key), "{key} of {what}");
        }
    }
    check_afterwards(backtraces, &found);
}

#[test]
fn without_backtraces() {
    check("none", &["211", "210", "light"], 100);
    check("none", &["4003", "4002", "heavy", "alternate"], 10);
}

#[test]
fn by_frame_pointers() {
    check("fp", &["499", "498", "light", "alternate"], 100);
}

#[test]
fn by_unwind_information() {
    check("cfi", &["997", "996", "light"], 100);
}

#[test]
fn by_recorded_calls() {
    check("shadow", &["499", "498", "light", "alternate"], 30);
    check("shadow", &["4003", "4002", "heavy"], 5);
}

/// Of the calls that were left nothing is sure, of all others it is.
#[test]
fn left_by_a_jump() {
    if !require(&["gcc"]) {
        return;
    }
    for (backtraces, arguments) in
        [("none", &["401", "400", "left"][..]), ("fp", &["1201", "1200", "left", "alternate"])]
    {
        let (found, _, n_strikes) = record(backtraces, arguments);
        assert!(n_strikes >= 6, "{n_strikes} strikes");
        for kind in KINDS {
            let odd = ["unknown_releases", "doubled"].map(|key| number(&found, kind, key)).iter().sum::<u64>();
            assert!(odd <= n_strikes, "{backtraces}: {:#}", found[kind]);
        }
        check_afterwards(backtraces, &found);
    }
}
