//! `rftrace record --libcalls`: calls of libraries' functions are counted exactly, and programs do as they do without.

use std::collections::BTreeMap;
use std::process::Command;

use rftrace_tests::traces::{self, calls_per_task, uftrace};
use rftrace_tests::{CProgram, Program, Run, fixtures, require};

use super::entry_branches::{c_program, recorded};
use super::record::{calls, replay};

pub(crate) const COUNTS: [(&str, u64); 12] = [
    ("malloc", 300),
    ("free", 301),
    ("strlen", 50),
    ("qsort", 2),
    ("pthread_create", 3),
    ("pthread_join", 3),
    ("signal", 1),
    ("raise", 7),
    ("write", 7),
    ("printf", 1),
    ("getenv", 1),
    // Its address is asked for.
    ("strdup", 0),
];

fn program(arguments: &[&str]) -> Program {
    c_program("library_calls.c", &[&["-fno-builtin", "-ldl"], arguments].concat())
}

/// uftrace records them if nothing is said.
#[test]
fn they_are_those_that_uftrace_records() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let hooked = CProgram::new(&["library_calls.c"]).without_library();
    let hooked = hooked.with(&["-fno-builtin", "-lpthread", "-ldl", "-Wl,-z,lazy"]).build();
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-pager", "--no-event", "-d"]).arg(dir.path()).arg(&hooked.path).arg("no jump");
    // Its own status says whether the program's is 0.
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let own = recorded(&["--libcalls", "--no-schedule"], &hooked.path, &["no jump"]);
    let mut theirs: BTreeMap<String, u64> = BTreeMap::new();
    for (name, calls) in calls_per_task(&traces::open(dir.path())).into_iter().flatten() {
        *theirs.entry(name).or_default() += calls;
    }
    // Ours leaves out what asks for its caller, and what the compiler calls.
    for name in ["dlsym", "__monstartup"] {
        assert!(theirs.remove(name).is_some_and(|calls| calls > 0), "{name} {theirs:?}");
    }
    assert_eq!(calls(&own), theirs);
    // Its reader finds ours.
    let report = uftrace(&["report"], &own.path("trace"));
    let malloc = report.lines().find(|line| line.ends_with(" malloc")).unwrap_or_default();
    assert!(malloc.split_whitespace().any(|word| word == "300"), "{report}");
}

#[test]
fn values_are_those_of_the_standards() {
    if !require(&["gcc"]) {
        return;
    }
    // Without debug information. A call during which the thread waits has other lines.
    let program = program(&["-g0"]);
    check_values(|options| recorded(&[&["--libcalls", "--no-schedule"], options].concat(), &program.path, &[]));
    let run = recorded(&["--libcalls", "--no-schedule", "-A", "raise@arg1/i32"], &program.path, &[]);
    assert!(replay(&run).contains("raise(10)"), "{}", run.stderr);
}

/// The values of the program's calls, which `record` records with further options.
pub(crate) fn check_values(record: impl Fn(&[&str]) -> Run) {
    let text = replay(&record(&["-a"]));
    assert!(text.contains("getenv(\"NO_SUCH_VARIABLE\") = NULL;\n"), "{text}");
    assert_eq!(text.matches("raise(10)").count(), 7, "{text}");
    assert!(text.contains("printf(\" %d %s %d %d %s\\n\") = 15;\n"), "{text}");
    assert_eq!(text.matches("write(1, 0x").count(), 7, "{text}");
    let text = replay(&record(&["-A", "malloc", "-R", "getenv"]));
    // `malloc(7) {` where another thread has done something meanwhile.
    let sizes: u64 = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("malloc(")?.split_once(')')?.0.parse::<u64>().ok())
        .sum();
    assert_eq!(sizes, 3 * 5050, "{text}");
    assert!(text.contains("getenv() = NULL;\n"), "{text}");
}

/// Rust programs call through their table without a jump between.
#[test]
fn rust_programs_too() {
    let program = fixtures::cache::compile(fixtures::rustc(None, "entered.rs").arg("-O"), "entered");
    let run = recorded(&["--libcalls"], &program, &[]);
    let calls = calls(&run);
    assert!(calls.get("write").is_some_and(|&n| n >= 1), "{calls:?}\n{}", run.stderr);
}
