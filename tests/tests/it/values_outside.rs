//! `rftrace record -A -R -a` of programs that nothing can be preloaded into, as they are linked statically or have musl as their C library: what is shown is
//! what it is in the program that is linked dynamically.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::fixtures::cache::compile;
use rftrace_tests::fixtures::folder;
use rftrace_tests::traces::assert_same_lines;
use rftrace_tests::{CProgram, require};

use crate::attach::Running;
use crate::attach_outside::{ends_well, interrupt, programs as running_programs};
use crate::record::{record, replay, rftrace};
use crate::record_outside::loading;
use crate::types;
use crate::values::{VALUES, calls, check, check_struck, printed};

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

/// The program of [`values`](crate::values), which installs no filter of system calls, linked in all ways; built once.
fn programs() -> &'static [PathBuf] {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| {
        let ways = [&["-O1", "-static"][..], &["-O2", "-static-pie"], &["-O1", "-mfentry", "-static"]];
        let fixed = |way: &[&str]| linked("values.c", &[way, &["-DWITHOUT_FILTERS", "-lpthread"]].concat());
        let mut all: Vec<PathBuf> = ways.into_iter().map(fixed).collect();
        if require(&["musl-gcc"]) {
            let options = ["-O1", "-DWITHOUT_FILTERS"];
            all.push(with_musl("values.c", &[&options[..], &["-static"]].concat()));
            all.push(with_musl("values.c", &options));
        }
        all
    })
}

#[test]
fn values_are_those_that_the_program_prints() {
    if !require(&["gcc"]) {
        return;
    }
    for program in programs() {
        let run = check(program, &[], "values");
        assert!(!run.stderr.contains("shown by its address"), "{}", run.stderr);
        let run = record(&[&["--no-schedule"], &VALUES[..]].concat(), program, &["alone"]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert_same_lines(&calls(&replay(&run)), &printed(&run), &format!("alone in {}", program.display()));
    }
}

#[test]
fn values_in_all_modes() {
    if !require(&["gcc"]) {
        return;
    }
    for program in programs() {
        for options in [
            &["--ring"][..],
            &["--buffer", "64K", "--ring"],
            &["--stream", "--buffer", "64K"],
            &["-F", "nested", "-F", "*"],
            &["-t", "1ns"],
        ] {
            check(program, options, "values");
        }
    }
}

#[test]
fn signals_while_values_are_recorded() {
    if !require(&["gcc"]) {
        return;
    }
    programs().iter().for_each(|program| check_struck(program, &[]));
}

/// Where a filter of system calls might be installed, none is made for values: strings that lie elsewhere are shown as their addresses, and that is said.
#[test]
fn filters_of_system_calls_are_respected() {
    if !require(&["gcc"]) {
        return;
    }
    for linkage in ["-static", "-static-pie"] {
        let program = CProgram::new(&["values.c"]).without_library().with(&["-O1", linkage, "-lpthread"]).build();
        let run = record(&[&["--no-schedule"], &VALUES[..]].concat(), &program.path, &["filtered"]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert_same_lines(&calls(&replay(&run)), &printed(&run), "filtered");
        assert!(run.stderr.contains("shown by its address"), "{}", run.stderr);
        // Nothing is said where there are no values.
        let run = record(&[], &program.path, &["filtered"]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert!(!run.stderr.contains("shown by its address"), "{}", run.stderr);
    }
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

/// One recorder after the other, each of which wants other values, or none.
#[test]
fn programs_that_run() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in running_programs(&folder) {
        let mut running = Running::begin(&program, "rounds");
        let code = running.code();
        for (options, is_known) in [
            (&LEAF[..], true),
            (&[], false),
            (&LEAF, true),
            (&["-A", "middle@arg1/i64"], false),
            (&["-A", "le*@arg1/i64;middle@arg1", "-R", "/^(leaf|middle)$/@retval/i64"], true),
        ] {
            let mut recorder = running.begin_recording(&[&["--no-schedule"], options].concat());
            let mut line = String::new();
            writeln!(running.child.stdin.as_ref().unwrap(), "100").unwrap();
            running.output.read_line(&mut line).unwrap();
            assert_eq!(line, "done\n");
            interrupt(recorder.id());
            assert!(recorder.wait().unwrap().success());
            let found = calls_of(&running.trace(), "leaf");
            let wrong = found.iter().find(|&&(argument, result)| result != 3 * argument + 1);
            assert_eq!(wrong, None, "{options:?} of {}", program.display());
            // There are 600, by three threads at the same time: not all are shown on one line.
            assert_eq!(found.len() > 100, is_known, "{options:?} of {}: {}", program.display(), found.len());
            assert_eq!(running.code(), code, "{}", program.display());
        }
        ends_well(running, &program);
    }
}

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
        assert!(run.stderr.contains("shown by its address"), "{}", run.stderr);
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
