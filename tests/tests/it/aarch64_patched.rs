//! Patched call sites on aarch64 Linux, in qemu-user: which words they are, that they are switched while threads run, and that the same
//! calls are recorded. What no emulator shows is in docs/aarch64.md.
//!
//! Not here: the conformance suite (`aarch64`), which is run with them too by `RFTRACE_PATCHED=1`.

use std::path::Path;

use rftrace_tests::fixtures::aarch64;
use rftrace_tests::traces::trees;
use rftrace_tests::{CProgram, Run, assert_same_lines, outline};

const VARIABLE: &str = "RFTRACE_PATCHED";

/// A processor with signatures, landing pads and LSE, and one without.
const PROCESSORS: [&str; 2] = ["max", "cortex-a53"];

/// Ways to compile the program and its libraries.
const BUILDS: [&[&str]; 3] =
    [&["-O0"], &["-O2", "-mbranch-protection=standard", "-Wl,-z,lazy"], &["-O2", "-fno-plt", "-Wl,-z,now"]];

/// Builds a program that is linked with rftrace.
fn build(sources: &[&str], arguments: &[&str], program: &Path) {
    let library = aarch64::c_library().to_str().expect("a path of UTF-8");
    let arguments = [arguments, &[library, "-lpthread", "-ldl", "-lm"]].concat();
    CProgram::new(sources).with(&arguments).with_compilers(aarch64::PREFIX).build_as(program);
}

fn run(cpu: &str, program: &Path, patched: &str) -> Run {
    Run::of(aarch64::emulator(cpu, program).env(VARIABLE, patched))
}

/// Runs patched.c, which looks at its own code, with and without.
fn check(program: &Path, what: &str) {
    for cpu in PROCESSORS {
        let [plain, patched] = ["0", "1"].map(|patched| {
            let run = run(cpu, program, patched);
            assert_eq!(run.stdout, "ok\n", "{what}, {cpu}: {}", run.stderr);
            outline(&run.trace("trace"))
        });
        assert!(plain.contains("linked_outer\n  linked_leaf\n"), "{plain}");
        assert_same_lines(&patched, &plain, &format!("{what}, {cpu}"));
    }
}

#[test]
fn calls_and_words_in_every_build() {
    if !aarch64::require() {
        return;
    }
    for arguments in BUILDS {
        let folder = tempfile::tempdir().unwrap();
        let library = |first: &str| {
            let path = folder.path().join(format!("{first}.so"));
            let define = format!("-DFIRST={first}");
            let library = CProgram::new(&["patched_library.c"]).with(arguments).with(&["-fPIC", "-shared", &define]);
            library.with_compilers(aarch64::PREFIX).build_as(&path);
            path.display().to_string()
        };
        let (linked, opened) = (library("linked"), format!("-DOPENED=\"{}\"", library("opened")));
        let program = folder.path().join("program");
        build(&["patched.c"], &[arguments, &[&*linked, &*opened]].concat(), &program);
        check(&program, &format!("{arguments:?}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    // Without this table functions are found by the program's symbols, and by the path that names it qemu shows itself.
    let arguments = ["-DFIRST=linked", "-O2", "-static", "-Wl,--eh-frame-hdr"];
    build(&["patched.c", "patched_library.c"], &arguments, &program);
    check(&program, "static");
}

#[test]
fn sites_change_while_threads_run() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    build(&["patched_running.c"], &["-O2"], &program);
    for cpu in PROCESSORS {
        let run = run(cpu, &program, "1");
        assert_eq!(run.stdout, "ok\n", "{cpu}: {}", run.stderr);
        // Balanced, times in order: checked when it is opened.
        let trace = run.trace("trace");
        let pid = trace.tasks()[0].pid();
        let all = trees(&trace);
        let main = all.iter().find(|tree| tree.tid == pid).expect("the main thread");
        let calls = |name: &str| main.calls().filter(|(_, call)| call.name == name).count();
        // In every second ten of 300 rounds only the leaf is chosen, which is called twice.
        assert_eq!((calls("outer"), calls("leaf")), (150, 600), "{cpu}");
    }
}
