//! `rftrace record -P`: programs that were not built for it do as they do without, and their functions are counted exactly.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rftrace_tests::fixtures::{self};
use rftrace_tests::{CProgram, Program, Run, require, tools};

use super::record::{calls, record, rftrace};

pub(super) fn c_program(source: &str, arguments: &[&str]) -> Program {
    CProgram::new(&[source]).without_hooks().without_library().with(&["-O2", "-lpthread"]).with(arguments).build()
}

/// Records a program, and checks that it does what it does without.
#[track_caller]
pub(super) fn recorded(options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    let plain = Command::new(program).args(arguments).output().unwrap();
    let run = record(options, program, arguments);
    assert_eq!(run.stdout, String::from_utf8_lossy(&plain.stdout), "{}", run.stderr);
    assert_eq!(run.status.code(), plain.status.code(), "{}", run.stderr);
    run
}

/// How often each of these functions was called; the others must not be there.
#[track_caller]
pub(super) fn check_calls(run: &Run, expected: &[(&str, u64)]) {
    let calls = calls(run);
    let found: BTreeMap<&str, u64> =
        expected.iter().map(|&(name, _)| (name, calls.get(name).copied().unwrap_or(0))).collect();
    assert_eq!(found, expected.iter().copied().collect(), "{calls:?}\n{}", run.stderr);
}

/// The functions that were left out, and why.
pub(super) fn left_out(run: &Run) -> BTreeMap<String, String> {
    let list = fs::read_to_string(run.path("trace/entry-branches.txt")).unwrap_or_default();
    let fields = list.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    fields.map(|fields| (fields[2].clone(), fields[3].clone())).collect()
}

pub(super) const COUNTS: [(&str, u64); 17] = [
    ("main", 1),
    ("leaf", 8307),
    ("middle", 4100),
    ("tail", 100),
    ("empty", 10),
    ("even", 5),
    ("odd", 5),
    ("down", 4),
    ("up", 4),
    ("jump_a", 9),
    ("jump_b", 9),
    ("handler", 7),
    ("work", 4),
    ("variable", 1),
    ("registers_stay", 1),
    ("modest", 3000),
    ("looping", 0),
];

/// A choice by name records other functions than those that the compiler has left room in.
#[test]
fn some_functions_have_room() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program("entered.c", &["-fpatchable-function-entry=0", "-DROOM=patchable_function_entry(8)"]);
    check_calls(&recorded(&[], &program.path, &[]), &[("leaf", 8307), ("middle", 0), ("main", 0)]);
    check_calls(&recorded(&["-P", "middle"], &program.path, &[]), &[("leaf", 0), ("middle", 4100)]);
    check_calls(&recorded(&["-D", "1"], &program.path, &[]), &[("leaf", 8307), ("middle", 0)]);
}

#[test]
fn patterns_choose() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program("entered.c", &[]);
    let run = recorded(&["-P", "mid*", "-P", "/^leaf$/"], &program.path, &[]);
    check_calls(&run, &[("main", 0), ("leaf", 8307), ("middle", 4100), ("tail", 0)]);
    let run = recorded(&["-P", "no_such_function"], &program.path, &[]);
    assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
}

#[test]
fn symbols_and_programs_are_left_out() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program("entered.c", &[]);
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    fs::write(&list, "leaf\nwork\n").unwrap();
    let (list, folder) = (list.to_str().unwrap(), folder.path().to_str().unwrap());
    let run = recorded(&["-P", "*", "--patch-except", list], &program.path, &[]);
    check_calls(&run, &[("main", 1), ("leaf", 0), ("middle", 4100), ("work", 0)]);
    let own = program.path.parent().unwrap().to_str().unwrap();
    let run = recorded(&["-P", "*", "--patch-within", own], &program.path, &[]);
    check_calls(&run, &COUNTS);
    let run = recorded(&["-P", "*", "--patch-within", folder], &program.path, &[]);
    assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
}

#[test]
fn functions_without_names_are_known_by_their_addresses() {
    if !require(&["gcc", "strip"]) {
        return;
    }
    let program = c_program("entered.c", &[]);
    let all = recorded(&["-P", "*"], &program.path, &[]);
    tools::run(Command::new("strip").arg(&program.path));
    let run = recorded(&["-P", "*"], &program.path, &[]);
    let (named, unnamed) = (calls(&all), calls(&run));
    let of_program = |calls: &BTreeMap<String, u64>| {
        let mut counts: Vec<u64> =
            calls.iter().filter(|(name, _)| !name.contains(':')).map(|(_, &calls)| calls).collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(of_program(&named), of_program(&unnamed), "{named:?} {unnamed:?}");
    assert!(unnamed.keys().all(|name| name.starts_with("sub_") || name.contains(':')), "{unnamed:?}");
    let (busiest, _) = unnamed.iter().max_by_key(|&(_, calls)| calls).unwrap();
    check_calls(&recorded(&["-P", busiest], &program.path, &[]), &[(busiest, 8307)]);
}

#[test]
fn backtraces_pass_at_each_instruction() {
    if !require(&["gcc"]) {
        return;
    }
    check_each_instruction(&c_program("entered_steps.c", &[]));
}

/// A handler at each instruction of `entered_steps.c` finds the callers that there are.
pub(crate) fn check_each_instruction(program: &Program) {
    // Not the handler: it would write a record between any two instructions of a hook that takes one.
    let names = ["-P", "inner", "-P", "calling", "-P", "choosing", "-P", "saving"];
    // A depth has the hooks ask the filter.
    for filter in [&[][..], &["-D", "9"]] {
        let run = recorded(&[&names[..], filter].concat(), &program.path, &[]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert!(run.stderr.contains(" 0 without the caller"), "{}", run.stderr);
        check_calls(&run, &[("calling", 1), ("choosing", 1), ("saving", 1), ("inner", 5)]);
    }
}

#[test]
fn panics_pass_in_a_released_rust_program() {
    let program = fixtures::cache::compile(fixtures::rustc(None, "entered.rs").arg("-O"), "entered");
    let run = recorded(&["-P", "*"], &program, &[]);
    assert_eq!(run.stdout, "19 40\n");
    let calls = calls(&run);
    let of = |name: &str| calls.iter().find(|(known, _)| known.ends_with(name)).map_or(0, |(_, &calls)| calls);
    assert_eq!([of("::thrower"), of("::middle"), of("::outer"), of("::catcher")], [20; 4], "{calls:?}");
    assert_eq!(of("Guard as core::ops::drop::Drop>::drop"), 40, "{calls:?}");
}

/// Returns a program's own output.
fn of_program(output: &Output) -> (Vec<u8>, String, Option<i32>) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let own = stderr.lines().filter(|line| !line.starts_with("rftrace: ") && !line.starts_with("  rftrace "));
    (output.stdout.clone(), own.map(|line| format!("{line}\n")).collect(), output.status.code())
}

/// The share of functions that are recorded, in per cent, by what the command says.
fn share(stderr: &str) -> f64 {
    let is_told = |line: &&str| line.contains("have entry branches") || line.contains("of libraries are recorded");
    let line = stderr.lines().find(is_told).unwrap_or_default();
    let number = |word: usize| line.split(' ').nth(word).map_or(0.0, |text| text.replace(',', "").parse().unwrap());
    100.0 * number(1) / number(3)
}

#[test]
fn programs_as_distributed_do_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&dir).args(["-c", "user.name=N", "-c", "user.email=e@x"]).args(arguments);
        git
    };
    let script = "for i in 1 2 3; do x=$((i*i)); done; echo $x $(echo inner); f() { return 3; }; f; exit $?";
    let counting = r#"my %h; $h{$_ % 97} += $_ for 1..500; print map {"$_=$h{$_}\n"} sort keys %h; die "so\n""#;
    let mut programs: Vec<(&str, Vec<&str>)> = vec![
        ("bash", vec!["--libcalls", "bash", "-c", script]),
        ("perl", vec!["--libcalls", "perl", "-e", counting]),
        ("xz", vec!["--libcalls", "xz", "-9", "-c", "-k", "file"]),
        ("sqlite3", vec!["--libcalls", "sqlite3", ":memory:", "select sqlite_version(), 1 + 2;"]),
        ("bash", vec!["-P", "*", "bash", "-c", script]),
        ("bash", vec!["-P", "*", "-P", "*@libc", "bash", "-c", script]),
        ("perl", vec!["-P", "*", "-P", "*@libperl", "perl", "-e", counting]),
        ("xz", vec!["-P", "*", "-P", "*@liblzma", "xz", "-9", "-c", "-k", "file"]),
        ("sqlite3", vec!["-P", "*", "-P", "*@libsqlite3", "sqlite3", ":memory:", "select sqlite_version(), 1 + 2;"]),
    ];
    fs::write(dir.path().join("file"), "some text\n".repeat(300)).unwrap();
    if require(&["git"]) {
        for arguments in [&["init", "-q"][..], &["add", "file"], &["commit", "-q", "-m", "first"]] {
            tools::run(&mut git(arguments));
        }
        programs.push(("git", vec!["-P", "*", "git", "--no-pager", "log", "--stat", "-p"]));
        programs.push(("git", vec!["-P", "*", "-P", "*@libc", "git", "status"]));
        programs.push(("git", vec!["--libcalls", "git", "--no-pager", "log", "--stat", "-p"]));
    }
    for (name, arguments) in programs {
        let Ok(path) = which(name) else {
            tools::skip(&format!("{name} is not installed"));
            continue;
        };
        let place = arguments.iter().position(|&argument| argument == name).unwrap();
        let plain = Command::new(&path).current_dir(&dir).args(&arguments[place + 1..]).output().unwrap();
        let mut command = Command::new(rftrace());
        let trace = tempfile::tempdir().unwrap();
        command.args(["record", "--buffer", "64M", "-o"]).arg(trace.path().join("trace"));
        let recorded = command.current_dir(&dir).args(&arguments[..place]).arg("--").arg(&path);
        let recorded = recorded.args(&arguments[place + 1..]).output().unwrap();
        assert_eq!(of_program(&recorded), of_program(&plain), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&recorded.stderr);
        let least = if arguments.contains(&"--libcalls") { 85.0 } else { 98.5 };
        assert!(share(&stderr) >= least, "{arguments:?}: {stderr}");
        assert!(trace.path().join("trace/info").exists(), "{arguments:?}: {stderr}");
    }
}

fn which(name: &str) -> Result<PathBuf, ()> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file()).ok_or(())
}
