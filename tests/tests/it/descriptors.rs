//! `rftrace record --resources file,thread`: descriptors and threads are counted as the system counts them, and programs do as they do
//! without.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::{CProgram, Program, require};
use serde_json::Value;
use tempfile::TempDir;

use super::resources::{functions, record_kinds, resources, sums, values};

fn c_program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        CProgram::new(&["descriptors.c"]).without_hooks().without_library().with(&["-g", "-O1", "-lpthread"]).build()
    };
    &BUILT.get_or_init(build).path
}

/// The number in a value.
#[track_caller]
fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value:#}"))
}

/// Records a way of the program. Descriptors that were taken, that are still there in its own process, and closes of what was not open have
/// to be so many; and the system has to say the same of what is still there.
#[track_caller]
fn check(way: &str, [taken, there, failures]: [u64; 3]) -> (TempDir, Value) {
    let (folder, told) = record_kinds("file,thread", &[], c_program(), &[way]);
    let values = values(&folder, &[]);
    let file = &values["file"];
    // Its own two are those by which it counts itself.
    assert_eq!(number(file, "allocations"), taken + 2, "{way}: {values:#}\n{told}");
    assert_eq!(number(file, "failures"), failures, "{way}: {values:#}");
    assert_eq!((number(file, "doubled"), number(file, "lost")), (0, 0), "{way}: {values:#}");
    let processes = file["processes"].as_array().unwrap();
    let own = processes.iter().find(|process| process["forked"] == false).unwrap();
    assert_eq!(number(own, "blocks"), there, "{way}: {values:#}");
    let printed = Command::new(c_program()).arg(way).output().unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let counted = if way == "twice" { there - 1 } else { there };
    assert_eq!(printed.lines().last(), Some(&*counted.to_string()), "{way}: {printed}");
    (folder, values)
}

#[test]
fn descriptors_are_those_of_the_system() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, values) = check("leak", [5, 3, 0]);
    let stacks = values["stacks"].as_array().unwrap();
    let stack = stacks.iter().find(|stack| functions(stack).contains(&"leak")).unwrap();
    assert_eq!(functions(stack)[..3], ["leaf", "leak", "main"], "{stack:#}");
    let details: Vec<&str> =
        stack["held"].as_array().unwrap().iter().map(|held| held["detail"].as_str().unwrap()).collect();
    assert_eq!((&stack["kind"], details), (&"file".into(), vec!["/dev/null"; 3]), "{stack:#}");

    let (_folder, values) = check("chain", [4, 1, 0]);
    assert_eq!(sums(&values, &["chain"]), [4, 4, 1, 1], "{values:#}");
    check("many", [100_000, 0, 0]);
    check("passing", [10_002, 0, 0]);
    check("racing", [40_004, 4, 0]);
    check("ranges", [11, 2, 0]);
}

#[test]
fn each_function_gives_what_it_opens() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, values) = check("kept", [28, 28, 0]);
    assert_eq!(sums(&values, &["kinds"]), [28, 28, 28, 28], "{values:#}");
    check("closed", [28, 0, 0]);
    // One is closed before its stream is.
    let (_folder, values) = check("streams", [10, 3, 1]);
    assert_eq!(sums(&values, &["streams"]), [10, 10, 3, 3], "{values:#}");
}

#[test]
fn closing_what_is_not_open_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    // The descriptor in place of stdin is one that the program has opened, in place of one that it has not.
    let (folder, values) = check("twice", [2, 1, 2]);
    assert_eq!(number(&values["file"], "unknown_releases"), 1, "{values:#}");
    let text = String::from_utf8_lossy(&resources(&folder, &[]).stdout).into_owned();
    assert!(
        text.contains("2 closes without an open descriptor\n")
            && text.contains("\n1 close without an open descriptor:\n    twice"),
        "{text}"
    );
    // And it is no leak.
    let leaks = resources(&folder, &["--leaks", "--kind", "file"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(
        leaks.status.success() && told.contains("all descriptors were given back; 1 descriptor does not count"),
        "{told}"
    );
}

#[test]
fn children_handlers_and_cancelled_threads() {
    if !require(&["gcc"]) {
        return;
    }
    // A child of fork closes what is its parent's, and leaves one of its own; one of vfork is in its parent's memory.
    let (_folder, values) = check("children", [2, 1, 0]);
    assert_eq!(number(&values["file"], "inherited_releases"), 1, "{values:#}");
    assert_eq!(number(&values["file"], "blocks"), 2, "{values:#}");
    let (_folder, values) = check_some("signals", 3);
    let [taken, _, there, _] = sums(&values, &["handle"]);
    assert!(taken > 0 && there == 0, "{values:#}");
    check("cancelled", [1, 0, 0]);
}

/// As `check`, where nobody knows how many were taken.
#[track_caller]
fn check_some(way: &str, there: u64) -> (TempDir, Value) {
    let (folder, _) = record_kinds("file", &[], c_program(), &[way]);
    let values = values(&folder, &[]);
    let own =
        values["file"]["processes"].as_array().unwrap().iter().find(|process| process["forked"] == false).unwrap();
    assert_eq!((number(own, "blocks"), number(&values["file"], "doubled")), (there, 0), "{values:#}");
    (folder, values)
}

#[test]
fn threads_are_joined_or_detached() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, values) = check("threads", [0, 0, 0]);
    let thread = &values["thread"];
    // A thread that begins detached is nobody's.
    assert_eq!((number(thread, "allocations"), number(thread, "blocks")), (2 * 500 + 6, 2), "{values:#}");
    assert_eq!(number(thread, "unknown_releases"), 0, "{values:#}");
    let leaks = resources(&folder, &["--leaks"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(leaks.status.code() == Some(1) && told.contains("2 threads were not given back"), "{told}");
    for way in ["passing", "racing"] {
        let (_folder, values) = check_threads(way);
        assert_eq!(number(&values["thread"], "blocks"), 0, "{values:#}");
    }
}

fn check_threads(way: &str) -> (TempDir, Value) {
    let (folder, _) = record_kinds("thread", &[], c_program(), &[way]);
    let values = values(&folder, &[]);
    assert!(values["file"].is_null() && values["memory"].is_null(), "{values:#}");
    (folder, values)
}

#[test]
fn a_function_that_calls_another_one_counts_once() {
    if !require(&["gcc"]) {
        return;
    }
    let library = CProgram::new(&["nested_descriptors.c"]).without_hooks().without_library();
    let library = library.with(&["-shared", "-fPIC", "-O1"]).build();
    let path = library.path.to_str().unwrap();
    let with = ["-g", "-O1", "-lpthread", "-Wl,--no-as-needed", path];
    let program = CProgram::new(&["descriptors.c"]).without_hooks().without_library().with(&with).build();
    let (folder, told) = record_kinds("file", &[], &program.path, &["streams"]);
    let values = values(&folder, &[]);
    // The library's fopen calls open.
    assert_eq!(sums(&values, &["streams", "fopen"])[0], 4, "{path}: {values:#}\n{told}");
    assert_eq!((number(&values["file"], "allocations"), number(&values["file"], "blocks")), (12, 3), "{values:#}");
    assert_eq!(number(&values["file"], "doubled"), 0, "{values:#}");
}

#[test]
fn kinds_are_chosen_and_compared() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, told) = record_kinds("memory,file,thread", &[], c_program(), &["threads"]);
    let all = values(&folder, &[]);
    assert!(
        ["memory", "file", "thread"].iter().all(|kind| all[kind]["allocations"].as_u64() > Some(0)),
        "{all:#}\n{told}"
    );
    let file = values(&folder, &["--kind", "file"]);
    assert!(file["memory"].is_null() && file["file"] == all["file"], "{file:#}");
    let (other, _) = record_kinds("file", &[], c_program(), &["leak"]);
    let other_trace = other.path().join("trace");
    let output = resources(&folder, &["--json", "--diff", other_trace.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let difference: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&difference["file"]["blocks"], &difference["file"]["allocations"]),
        (&3.into(), &5.into()),
        "{difference:#}"
    );
    assert!(told.contains("no comparison of memory: ") && told.contains("no comparison of thread: "), "{told}");
    let text =
        String::from_utf8_lossy(&resources(&folder, &["--diff", other_trace.to_str().unwrap()]).stdout).into_owned();
    assert!(
        text.starts_with("file: +5 descriptors taken; ") && text.contains("\n+3 descriptors still there; "),
        "{text}"
    );
    // A kind that was not recorded is reported.
    let output = resources(&other, &["--kind", "memory"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("the trace has no memory, and has file: "), "{told}");
    assert!(!resources(&other, &["--heaptrack"]).status.success());
    let picture = String::from_utf8_lossy(&resources(&other, &["--flamegraph", "live"]).stdout).into_owned();
    assert!(picture.contains("descriptors") && picture.contains("leaf"), "{picture}");
}

#[test]
fn leaks_that_do_not_count() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, _) = record_kinds("file", &[], c_program(), &["leak"]);
    let leaks = resources(&folder, &["--leaks"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(leaks.status.code() == Some(1) && told.contains("3 descriptors were not given back"), "{told}");
    let file = folder.path().join("suppressed");
    for (text, code) in [("# leaf\n\nother\n", Some(1)), ("# of libraries\n\n le?f \n", Some(0))] {
        fs::write(&file, text).unwrap();
        let output = resources(&folder, &["--leaks", "--suppressions", "suppressed"]);
        assert_eq!(output.status.code(), code, "{text}: {output:?}");
    }
    fs::write(&file, "a\n/(/\n").unwrap();
    let output = resources(&folder, &["--leaks", "--suppressions", "suppressed"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("line 2 of suppressed"), "{told}");
}
