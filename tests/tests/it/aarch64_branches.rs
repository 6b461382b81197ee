//! `rftrace record -P` on aarch64 Linux, in qemu-user: programs that were not built for it do as they do without, and their functions are counted as on
//! x86-64 by calls of the hook.
//!
//! Not here: what calls the tracer or has room for a branch (`aarch64_record`).

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rftrace_tests::fixtures::aarch64;
use rftrace_tests::{CProgram, Program, Run, tools};

use crate::aarch64_record::{can_record, record};
use crate::control_flow::{edge, edges};
use crate::entry_branches::{check_calls, left_out};
use crate::record::{self, c_source, calls};

/// Code with landing pads that signs its return addresses, and code without.
const PROTECTIONS: [&str; 2] = ["-mbranch-protection=standard", "-mbranch-protection=none"];

pub(crate) fn build(source: &str, arguments: &[&str]) -> Program {
    let source = CProgram::new(&[source]).without_hooks().without_library().with(arguments);
    source.with_compilers(aarch64::PREFIX).build()
}

/// The rounding mode too, and where `longjmp` passes functions that have not returned. The slow paths too: filters that ask how deep a call is, a buffer
/// that is full all the time, values. On a processor with scalable vectors, and on one without signatures.
#[test]
fn all_registers_are_kept() {
    if !can_record() {
        return;
    }
    let program = build("keeping_aarch64.c", &["-O2"]);
    let options: [&[&str]; 5] = [
        &[],
        &["-D", "9"],
        &["--ring", "--buffer", "64K"],
        &["-A", "adds@arg1", "-R", "adds@retval", "-R", "signs@retval"],
        &["-t", "1us"],
    ];
    for cpu in ["max", "cortex-a53"] {
        for options in options {
            let mut rftrace = aarch64::machine(&aarch64::command_line().join("rftrace"));
            rftrace.env("QEMU_CPU", cpu);
            let options = [&["-P", "*"], options].concat();
            let run = record::record_by(&mut rftrace, &options, &program.path, &["100"]);
            assert_eq!((run.status.code(), &*run.stdout), (Some(0), "ok\n"), "{cpu}, {options:?}: {}", run.stderr);
            if !options.iter().any(|option| ["--ring", "-t"].contains(option)) {
                let expected = [("main", 1), ("check", 1800), ("adds", 300), ("pads", 100), ("signs", 100)];
                check_calls(&run, &expected);
                let expected = [("signs_with_b", 100), ("pads_and_signs", 100), ("address", 100), ("page", 100)];
                check_calls(&run, &expected);
                let expected = [("literal", 100), ("zero", 200), ("bit", 200), ("equal", 200), ("jumps", 100)];
                check_calls(&run, &expected);
                check_calls(&run, &[("leaves", 100), ("leaps", 300)]);
            }
        }
    }
}

fn n_jumped_to(left_out: &BTreeMap<String, String>) -> usize {
    left_out.values().filter(|reason| *reason == "a jump leads into its first instructions").count()
}

#[test]
fn what_is_left_whole_has_its_reason() {
    if !can_record() {
        return;
    }
    let program = build("keeping_aarch64.c", &["-O2"]);
    let run = record(&["-P", "*"], &program.path, &[]);
    assert!(run.stderr.contains(" functions have entry branches; 7 left out"), "{}", run.stderr);
    let left_out = left_out(&run);
    for (name, reason) in [
        ("_start", "returns twice or on another stack, or asks for its caller"),
        ("looping", "jumps to its own beginning"),
        ("jumped_into", "a jump leads into its first instructions"),
        ("part", "reads registers that it has not set"),
        ("calls", "its first instructions cannot be moved"),
        ("kernel", "its first instructions cannot be moved"),
        ("only_pad", "shorter than a branch"),
    ] {
        assert_eq!(left_out.get(name).map(String::as_str), Some(reason), "{left_out:?}");
    }
    // Data that looks like a jump is taken for one without sections, which tell data from code. Nor are there names then.
    assert_eq!(n_jumped_to(&left_out), 1, "{left_out:?}");
    let without_sections = tempfile::tempdir().unwrap();
    let path = without_sections.path().join("program");
    let mut file = fs::read(&program.path).unwrap();
    // e_shoff; e_shnum and e_shstrndx
    file[0x28..0x30].fill(0);
    file[0x3c..0x40].fill(0);
    fs::write(&path, file).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let run = record(&["-P", "*"], &path, &[]);
    assert_eq!((run.status.code(), &*run.stdout), (Some(0), "ok\n"), "{}", run.stderr);
    let left_out = self::left_out(&run);
    assert!(n_jumped_to(&left_out) > 3, "{left_out:?}");
    // Functions that call the tracer are recorded by that.
    let program = c_source().with_compilers(aarch64::PREFIX).build();
    let run = record(&["-P", "*"], &program.path, &["plain"]);
    check_calls(&run, &[("leaf", 2)]);
    assert_eq!(self::left_out(&run).get("leaf").map(String::as_str), Some("calls the tracer itself"));
}

#[test]
fn symbols_are_left_out() {
    if !can_record() {
        return;
    }
    let program = c_source().without_hooks().with_compilers(aarch64::PREFIX).build();
    let except = tempfile::NamedTempFile::new().unwrap();
    fs::write(&except, "leaf\n").unwrap();
    let run = record(&["-P", "*", "--patch-except", except.path().to_str().unwrap()], &program.path, &["fork"]);
    check_calls(&run, &[("main", 4), ("work", 4), ("leaf", 0)]);
}

/// Of a library: its own functions alone, or with the program's.
#[test]
fn libraries_have_branches_too() {
    if !can_record() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("foo.c");
    fs::write(&source, "int inner(int x) { return x + 1; } int foo(int x) { return inner(x) + inner(x); }").unwrap();
    let library = folder.path().join("libfoo.so.1");
    let mut gcc = Command::new(format!("{}gcc", aarch64::PREFIX));
    gcc.args(["-O2", "-fno-inline", "-fPIC", "-shared", "-Wl,-soname,libfoo.so.1", PROTECTIONS[0], "-o"]);
    tools::run(gcc.arg(&library).arg(&source));
    let main = folder.path().join("main.c");
    fs::write(&main, "#include <stdio.h>\nint foo(int); int main(void) { printf(\"%d\\n\", foo(3)); return 0; }")
        .unwrap();
    let program = folder.path().join("program");
    let mut gcc = Command::new(format!("{}gcc", aarch64::PREFIX));
    gcc.args(["-O2", "-o"]).arg(&program).arg(&main).arg(&library);
    tools::run(gcc.arg(format!("-Wl,-rpath,{}", folder.path().display())));
    for (patterns, expected) in [
        (&["-P", "*@libfoo"][..], [0, 1, 2]),
        (&["-P", "*", "-P", "inner@libfoo.so.1"], [1, 0, 2]),
        // The functions of libc are in use already.
        (&["-P", "*@libfoo", "-P", "*@libc"], [0, 1, 2]),
    ] {
        let run = record(patterns, &program, &[]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(0), "8\n"), "{patterns:?}: {}", run.stderr);
        let calls = calls(&run);
        let of = |name: &str| calls.iter().filter(|(known, _)| known.ends_with(name)).map(|(_, n)| n).sum::<u64>();
        assert_eq!([of("main"), of("foo"), of("inner")], expected, "{patterns:?}: {calls:?}");
    }
}

/// The emulator has each instruction be a block of its own, between which it looks for signals.
#[test]
fn signals_between_any_two_instructions() {
    if !can_record() {
        return;
    }
    for protection in PROTECTIONS {
        // No unwind information tells of the entries of a linkage table.
        let arguments = ["-O2", "-fno-omit-frame-pointer", "-fno-plt", protection];
        let program = build("struck_branches_aarch64.c", &arguments);
        let names = ["-P", "leaf", "-P", "fib", "-P", "tail?", "-P", "saves"];
        let run = struck(&names, &program.path);
        assert_eq!(run.status.code(), Some(0), "{protection}: {}", run.stderr);
        let numbers: Vec<u64> = run.stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] > 20, "too few signals to show anything: {numbers:?}");
        assert_eq!(numbers[1], 0, "backtraces without main, of {}: {protection}", numbers[0]);
        // Balanced, times in order: checked when it is opened.
        let edges = edges(&run.trace("trace"));
        assert_eq!(edge(&edges, "tail1", "tail2"), 1000, "{edges:?}");
        assert!(
            !edges.keys().any(|(caller, callee)| callee == "fib" && !["-", "fib"].contains(&caller.as_str())),
            "{edges:?}"
        );
        // The handler, which is not recorded, calls it too.
        let n_leaves = edges.iter().filter(|((_, callee), _)| callee == "leaf").map(|(_, n)| n).sum::<u64>();
        assert_eq!(n_leaves, 3000 + numbers[0], "{edges:?}");
    }
}

fn struck(options: &[&str], program: &Path) -> Run {
    record::record_by(&mut aarch64::recorder_of_steps(), options, program, &["1000", "200"])
}
