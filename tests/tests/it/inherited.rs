//! Inherited properties do not disturb `rftrace record`, and the program gets all of them: ignored and blocked signals, limits, libraries that
//! somebody else has preloaded.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::{CProgram, Program, Run, require};

use crate::record::{calls, rftrace};

fn program() -> Program {
    CProgram::new(&["inherited.c"]).without_library().with(&["-O1"]).build()
}

/// Runs the program by `line`, a shell's, where `$0` is this program; with `$record` before it that is recorded. Returns both runs.
fn both(program: &Path, line: &str, options: &[&str]) -> [Run; 2] {
    let run = |record: &str| {
        let mut command = Command::new("bash");
        Run::of_any(command.args(["-c", line]).arg(program).env("record", record).env_remove("LD_PRELOAD"))
    };
    let record = format!("{} record -o trace {}", rftrace().display(), options.join(" "));
    [run(""), run(&record)]
}

#[test]
fn a_program_gets_what_its_recorder_has() {
    if !require(&["gcc", "bash"]) {
        return;
    }
    let program = program();
    let ways: [&[&str]; 4] = [&[], &["--ring"], &["--stop"], &["--libcalls"]];
    let lines = [
        "exec $0 with $record $0",
        "trap '' HUP INT CHLD; exec $record $0",
        "ulimit -Sn 30; exec $record $0",
        "ulimit -n 70; exec $record $0",
        "ulimit -Sf 10; exec $record $0",
        "ulimit -f 100000; exec $record $0",
        "ulimit -Sv 1000000; exec $record $0",
    ];
    let named = |line: &str| line.replace("$0", &format!("'{}'", program.path.display()));
    for (number, line) in lines.into_iter().enumerate() {
        // The first lines concern all ways.
        for way in &ways[..if number < 2 { 4 } else { 1 }] {
            let [alone, recorded] = both(&program.path, &named(line), way);
            assert_eq!(alone.status.code(), Some(6), "{line}: {}", alone.stderr);
            assert_eq!(recorded.status.code(), Some(6), "{line}, {way:?}: {}", recorded.stderr);
            assert_eq!(recorded.stdout, alone.stdout, "{line}, {way:?}: {}", recorded.stderr);
            assert_eq!(calls(&recorded)["work"], 10, "{line}, {way:?}: {}", recorded.stderr);
        }
    }
}

#[test]
fn limits_that_leave_too_little_are_named() {
    if !require(&["gcc", "bash"]) {
        return;
    }
    let program = program();
    for (limit, name) in [("-f 10", "(ulimit -f)"), ("-n 16", "(ulimit -n)"), ("-Sv 400000", "(ulimit -v)")] {
        let [_, recorded] = both(&program.path, &format!("ulimit {limit}; exec $record $0"), &[]);
        assert_eq!(recorded.status.code(), Some(1), "{limit}: {}", recorded.stderr);
        assert!(recorded.stderr.starts_with("rftrace: the limit of "), "{limit}: {}", recorded.stderr);
        assert!(recorded.stderr.contains(name) && recorded.stderr.lines().count() == 1, "{limit}: {}", recorded.stderr);
        assert_eq!(recorded.stdout, "", "{limit}: it ran");
    }
}

#[test]
fn libraries_of_others_are_for_the_program() {
    if !require(&["gcc", "bash"]) {
        return;
    }
    let program = program();
    let library = CProgram::new(&["preloaded_by_others.c"]).without_library().with(&["-shared", "-fPIC"]).build();
    let line = format!("SEEN=$PWD/seen LD_PRELOAD={} exec $record $0", library.path.display());
    let [_, recorded] = both(&program.path, &line, &[]);
    assert_eq!(recorded.status.code(), Some(6), "{}", recorded.stderr);
    assert_eq!(calls(&recorded)["work"], 10, "{}", recorded.stderr);
    // The recorder has left it behind.
    let seen = fs::read_to_string(recorded.path("seen")).unwrap();
    assert_eq!(seen.lines().map(Path::new).collect::<Vec<_>>(), [rftrace().as_path(), &program.path], "{seen}");
}
