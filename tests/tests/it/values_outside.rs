//! `rftrace record -A -R -a` of programs that nothing can be preloaded into, as they are linked statically or have musl as their C library: what is shown is
//! what it is in the program that is linked dynamically.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::fixtures::cache::compile;
use rftrace_tests::fixtures::folder;
use rftrace_tests::{CProgram, require};

use crate::attach::Running;
use crate::attach_outside::interrupt;
use crate::record::{record, rftrace};
use crate::record_outside::loading;
use crate::types;

/// Builds a program of the C fixtures.
fn linked(source: &str, options: &[&str]) -> PathBuf {
    CProgram::new(&[source]).without_library().with(options).cached("program")
}

/// Builds one with musl.
fn with_musl(source: &str, options: &[&str]) -> PathBuf {
    let mut compiler = Command::new("musl-gcc");
    compiler.args(["-g", "-pg", "-w", "-I"]).arg(folder("c"));
    compiler.args([source, "mcount.s"].map(|name| folder("c").join(name)));
    compile(compiler.args(options), "program")
}

/// Strings, numbers, structures and enumerations as debug information tells them.
#[test]
fn values_by_type() {
    if !require(&["gcc"]) {
        return;
    }
    for level in ["-O0", "-O2"] {
        let wanted = types::check(&linked("typed.c", &[level]), &[], "");
        for linkage in ["-static", "-static-pie"] {
            let program = linked("typed.c", &[level, linkage]);
            assert_eq!(types::check(&program, &[], ""), wanted, "{level} {linkage}");
        }
    }
    if require(&["musl-gcc"]) {
        for (name, linkage) in [("typed-fixed", &["-O0", "-static"][..]), ("typed-dynamic", &["-O0"])] {
            let shown = types::check(&with_musl("typed.c", linkage), &[], "");
            assert!(shown.known >= 140 && shown.unknown <= 12, "{name}: {shown:?}");
        }
    }
}

/// The calls of a function in a trace that are shown in full: the argument and the result of each.
fn calls_of(trace: &Path, function: &str) -> Vec<(i64, i64)> {
    let output = Command::new(rftrace()).args(["replay", "-f", "none", "-d"]).arg(trace).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let call = |line: &str| {
        let rest = line.trim().strip_prefix(function)?.strip_prefix('(')?;
        let (argument, result) = rest.strip_suffix(';')?.split_once(") = ")?;
        Some((argument.parse().unwrap(), result.parse().unwrap()))
    };
    shown.lines().filter_map(call).collect()
}

/// Options for a function's argument and result.
const LEAF: [&str; 4] = ["-A", "leaf@arg1/i64", "-R", "leaf@retval/i64"];

/// Most calls of the library's function are shown with their values.
#[track_caller]
fn check_library(trace: &Path) {
    let found = calls_of(trace, "leaf");
    assert!(found.len() > 100, "{found:?}");
    assert!(found.iter().all(|&(argument, result)| result == 3 * argument + 1), "{found:?}");
}

/// Options for values apply to a library, too, that a program with musl loads: its calls have them soon after, also if nothing had any before.
#[test]
fn libraries_that_come_later() {
    if !require(&["musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [library, program] = loading(&folder);
    for (options, has_own) in
        [(&["-a"][..], true), (&["-A", "*@arg1/i64", "-R", "*@retval/i64"], true), (&LEAF[..], false)]
    {
        let run = record(&[options, &["--no-schedule"]].concat(), &program, &[library.to_str().unwrap()]);
        let own = calls_of(&run.path("trace"), "own");
        let wanted: Vec<_> = (0..if has_own { 200 } else { 0 }).map(|x| (x, x + 1)).collect();
        assert_eq!(own, wanted, "{options:?}: {}", run.stderr);
        check_library(&run.path("trace"));
        assert!(run.stderr.contains("show as addresses"), "{}", run.stderr);
    }
}

/// Also if it comes when another recorder has left its table, with which the next one goes on.
#[test]
fn libraries_that_come_to_the_next_recorder() {
    if !require(&["musl-gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [library, program] = loading(&folder);
    let running = Running::begin_by(Command::new(program).arg(library).arg("wait"));
    let options = ["-A", "*@arg1/i64", "-R", "*@retval/i64", "--no-schedule"];
    let mut recorder = running.begin_recording(&options);
    interrupt(recorder.id());
    recorder.wait().unwrap();
    let mut recorder = running.begin_recording(&options);
    let trace = running.trace();
    writeln!(running.child.stdin.as_ref().unwrap()).unwrap();
    assert!(recorder.wait().unwrap().success());
    check_library(&trace);
}
