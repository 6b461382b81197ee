//! Patched entries on aarch64 Linux, in qemu-user: they are recorded where calls of the hook are, switched while threads run, and passed by
//! signals between any two instructions.
//!
//! Not here: filters (`aarch64`), and `rftrace record` (`aarch64_record`).

use std::path::Path;

use rftrace_tests::fixtures::aarch64;
use rftrace_tests::traces::trees;
use rftrace_tests::{CProgram, Run, assert_same_lines, outline};

use crate::control_flow::{edge, edges};

const VARIABLE: &str = "RFTRACE_PATCHABLE";

/// A processor with signatures, landing pads and LSE, and one without.
const PROCESSORS: [&str; 2] = ["max", "cortex-a53"];

/// Builds a program that is linked with rftrace, with calls of the hook if it is told so.
fn build(source: &str, arguments: &[&str], program: &Path) {
    let library = aarch64::c_library().to_str().expect("a path of UTF-8");
    let arguments = [arguments, &[library, "-lpthread", "-ldl", "-lm"]].concat();
    let source = CProgram::new(&[source]).without_hooks().with(&arguments);
    source.with_compilers(aarch64::PREFIX).build_as(program);
}

fn run(cpu: &str, program: &Path, is_patchable: &str) -> Run {
    Run::of(aarch64::emulator(cpu, program).env(VARIABLE, is_patchable))
}

#[test]
fn entries_change_while_threads_run() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    for arguments in
        [&["-O2", "-fpatchable-function-entry=1"][..], &["-O1", "-static", "-fpatchable-function-entry=4,2"]]
    {
        build("patched_running.c", arguments, &program);
        for cpu in PROCESSORS {
            let run = run(cpu, &program, "1");
            assert_eq!(run.stdout, "ok\n", "{arguments:?}, {cpu}: {}", run.stderr);
            // Balanced, times in order: checked when it is opened.
            let trace = run.trace("trace");
            let pid = trace.tasks()[0].pid();
            let all = trees(&trace);
            let main = all.iter().find(|tree| tree.tid == pid).expect("the main thread");
            let calls = |name: &str| main.calls().filter(|(_, call)| call.name == name).count();
            // In every second ten of 300 rounds only the leaf is chosen, which is called twice.
            assert_eq!((calls("outer"), calls("leaf")), (150, 600), "{arguments:?}, {cpu}");
        }
    }
}

/// Functions that call the hook and have room too are recorded once. Without the variable nothing is recorded by its room.
#[test]
fn functions_are_recorded_once() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    for linked in ["-pie", "-static"] {
        let arguments = ["-O2", "-fpatchable-function-entry=2", "-mbranch-protection=standard", linked];
        build("calls.c", &arguments, &program);
        let recorded = |patchable| outline(&run("max", &program, patchable).trace("trace"));
        let by_room = recorded("1");
        build("calls.c", &[&arguments[..], &["-pg"]].concat(), &program);
        for patchable in ["0", "1"] {
            assert_same_lines(&recorded(patchable), &by_room, &format!("{linked}, {patchable}"));
        }
    }
}

/// The emulator has each instruction be a block of its own, between which it looks for signals.
#[test]
fn signals_between_any_two_instructions() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let room = ["-fpatchable-function-entry=2", "-mbranch-protection=standard", "-DROOM_BYTES=12"];
    for hooks in [&["-pg", "-mbranch-protection=standard", "-DROOM_BYTES=0"][..], &room] {
        // No unwind information tells of the entries of a linkage table.
        build("struck_aarch64.c", &[hooks, &["-O2", "-fno-plt", "-fno-optimize-sibling-calls"]].concat(), &program);
        let mut emulator = aarch64::emulator("max,pauth-impdef=on", &program);
        let run = Run::of(emulator.args(["1000", "500"]).env(VARIABLE, "1").env("QEMU_SINGLESTEP", "1"));
        let numbers: Vec<u64> = run.stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] > 20, "too few signals to show anything: {numbers:?}");
        assert_eq!(numbers[1], 0, "backtraces without main, of {}: {hooks:?}", numbers[0]);
        let edges = edges(&run.trace("trace"));
        assert_eq!(edge(&edges, "tail1", "tail2"), 1000, "{edges:?}");
        assert_eq!(
            edges.iter().filter(|((_, callee), _)| callee == "handler").map(|(_, n)| n).sum::<u64>(),
            numbers[0]
        );
        assert!(
            !edges.keys().any(|(caller, callee)| callee == "fib" && !["-", "fib"].contains(&caller.as_str())),
            "{edges:?}"
        );
    }
}
