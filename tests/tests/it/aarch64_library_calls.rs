//! `rftrace record --libcalls` on aarch64 Linux, in qemu-user: calls of libraries' functions are counted as on x86-64, and programs do as they do without.

use std::os::unix::process::ExitStatusExt;

use rftrace_tests::fixtures::{self, aarch64};
use rftrace_tests::{CProgram, Program, Run};

use crate::aarch64_branches::build;
use crate::aarch64_record::{can_record, record};
use crate::entry_branches::{check_calls, left_out};
use crate::library_calls::{COUNTS, check_values};
use crate::record::{self, calls};

fn program(arguments: &[&str]) -> Program {
    build("library_calls.c", &[&["-O2", "-fno-builtin", "-lpthread", "-ldl"], arguments].concat())
}

/// The counts of functions whose addresses nobody asks for: elsewhere than on x86-64 linkers have a slot more for that, and calls go through theirs.
fn counts() -> Vec<(&'static str, u64)> {
    COUNTS.into_iter().filter(|&(name, _)| name != "strdup").collect()
}

#[test]
fn values_are_those_of_the_standards() {
    if !can_record() {
        return;
    }
    let program = program(&[]);
    check_values(|options| record(&[&["--libcalls", "--no-schedule"], options].concat(), &program.path, &[]));
}

/// All registers, on the slow paths too: filters that ask how deep a call is, a buffer that is full all the time, values. On a processor with scalable
/// vectors, and on one without.
#[test]
fn all_registers_are_kept() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = CProgram::new(&["keeping_aarch64.c"]).without_hooks().with_compilers(aarch64::PREFIX).with(&["-O2"]);
    let library = dir.path().join("libkeeping.so");
    source.clone().with(&["-DFUNCTIONS_ALONE", "-shared", "-Wl,-Bsymbolic"]).build_as(&library);
    let (library, path) = (library.to_str().unwrap(), dir.path().join("program"));
    // The address of a function is that of the jump through its slot.
    source.with(&["-DCALLS_ALONE", "-no-pie", "-fno-pie", "-Wl,-z,now", library]).build_as(&path);
    let runs: [(&str, &[&str]); 5] = [
        ("max", &[]),
        ("max", &["-D", "9"]),
        ("max", &["--ring", "--buffer", "64K"]),
        ("max", &["-A", "adds@arg1", "-R", "adds@retval", "-R", "signs@retval"]),
        ("cortex-a53", &["-t", "1us"]),
    ];
    for (cpu, options) in runs {
        let mut rftrace = aarch64::machine(&aarch64::command_line().join("rftrace"));
        let options = [&["--libcalls"], options].concat();
        let run = record::record_by(rftrace.env("QEMU_CPU", cpu), &options, &path, &["100"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(0), "ok\n"), "{cpu}, {options:?}: {}", run.stderr);
        if !options.iter().any(|option| ["--ring", "-t"].contains(option)) {
            let expected = [("adds", 100), ("pads", 100), ("signs", 100), ("pads_and_signs", 100), ("literal", 100)];
            check_calls(&run, &expected);
            check_calls(&run, &[("zero", 200), ("bit", 200), ("equal", 200), ("jumps", 100), ("getauxval", 1600)]);
        }
    }
}

/// In stubs too: the emulator has each instruction be a block of its own, between which it looks for signals.
#[test]
fn signals_between_any_two_instructions() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = CProgram::new(&["struck_calls_aarch64.c"]).without_hooks().without_library();
    let source = source.with_compilers(aarch64::PREFIX).with(&["-O2", "-mbranch-protection=standard"]);
    let (library, path) = (dir.path().join("libstruck.so"), dir.path().join("program"));
    source.clone().with(&["-DLIBRARY", "-shared", "-fPIC"]).build_as(&library);
    let run_path = format!("-Wl,-rpath,{}", dir.path().display());
    for linkage in [["-fno-plt", "-Wl,-z,now"], ["-fplt", "-Wl,-z,lazy"]] {
        source.clone().with(&linkage).with(&[library.to_str().unwrap(), &run_path]).build_as(&path);
        let arguments = [&ROUNDS.to_string(), "200"];
        let run = record::record_by(&mut aarch64::recorder_of_steps(), &["--libcalls"], &path, &arguments);
        assert_eq!(run.status.code(), Some(0), "{linkage:?}: {}", run.stderr);
        let numbers: Vec<u64> = run.stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] > 20, "too few signals to show anything: {numbers:?}");
        // No unwind information tells of the entries of a linkage table.
        if linkage[0] == "-fno-plt" {
            assert_eq!(numbers[1], 0, "backtraces without main, of {}", numbers[0]);
        }
        // Balanced, times in order: checked when it is opened. The handler calls one of them, of which nothing may be lost either.
        check_calls(&run, &[("adds", 2 * ROUNDS + numbers[0]), ("calls_back", ROUNDS)]);
    }
}

const ROUNDS: u64 = 3000;

/// The dynamic linker does not sign slots: where the processor has signatures the program ends at its first call, with or without.
#[test]
fn signed_slots_are_left_alone() {
    if !can_record() {
        return;
    }
    let program = program(&["-Wl,-z,lazy,-z,pac-plt", "-mbranch-protection=standard"]);
    for cpu in ["max", "cortex-a53"] {
        let plain = aarch64::machine(&program.path).env("QEMU_CPU", cpu).output().unwrap();
        let mut rftrace = aarch64::machine(&aarch64::command_line().join("rftrace"));
        let run = record::record_by(rftrace.env("QEMU_CPU", cpu), &["--libcalls"], &program.path, &[]);
        assert_eq!(run.stdout, String::from_utf8_lossy(&plain.stdout), "{cpu}: {}", run.stderr);
        if cpu == "max" {
            let signal = plain.status.signal().expect("what is not signed is no address");
            assert_eq!(run.status.code(), Some(128 + signal), "{}", run.stderr);
            let left_out = left_out(&run);
            assert_eq!(
                left_out.get("malloc").map(String::as_str),
                Some("its slot needs a signed pointer"),
                "{left_out:?}"
            );
        } else {
            assert_eq!(run.status.code(), Some(9), "{}", run.stderr);
            check_calls(&run, &counts());
        }
    }
}

#[test]
fn rust_programs_too() {
    if !can_record() {
        return;
    }
    let mut rustc = fixtures::rustc(Some("nightly"), "entered.rs");
    rustc.args(["-O", "--target", aarch64::TARGET]).arg(format!("-Clinker={}gcc", aarch64::PREFIX));
    let run: Run = record(&["--libcalls"], &fixtures::cache::compile(&mut rustc, "entered"), &[]);
    assert!(calls(&run).get("write").is_some_and(|&n| n >= 1), "{}", run.stderr);
}
