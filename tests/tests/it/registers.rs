//! Arguments, results and all other registers survive both hooks, on every path through them.

use std::process::Command;

use rftrace_tests::{CProgram, Run, require};

const BUILDS: [&[&str]; 4] = [&["-O0"], &["-O2"], &["-O0", "-mfentry"], &["-O2", "-mfentry"]];

#[test]
fn arguments_and_results_of_every_kind() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let program =
            CProgram::new(&["registers.c"]).with(arguments).with(&["-Wno-psabi", "-Wno-unused-variable"]).build();
        for how in ["loop", "threads", "off", "full", "deep"] {
            let run = program.run(&[how]);
            let says_loss = run.stderr.starts_with("rftrace: the trace in trace is incomplete: the buffer was full");
            assert!(
                if how == "full" { says_loss } else { run.stderr.is_empty() },
                "{arguments:?} {how}: {}",
                run.stderr
            );
            // It was traced at all, and is well-formed.
            let trace = run.trace("trace");
            if how == "threads" {
                assert!(trace.tasks().len() >= 100, "{arguments:?}: {} threads", trace.tasks().len());
            }
        }
    }
}

#[test]
fn every_register() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-static"]] {
        let run = CProgram::new(&["canary.c", "canary.S"]).with(arguments).build().run(&[]);
        assert_eq!(run.stderr, "", "{arguments:?}");
        let _ = run.trace("trace");
    }
}

/// With many keys `pthread_setspecific` calls malloc, whose code may use the wide vector registers.
#[test]
fn wide_vectors_in_programs_with_many_keys() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["keys.c"]).with(&["-O1", "-Wno-psabi"]).build();
    // glibc's choice of memset for this processor, and the one for AVX2, which ends with vzeroupper.
    for tunables in ["", "glibc.cpu.hwcaps=-AVX512F_Usable,-AVX512VL_Usable,-AVX512F,-AVX512VL,-AVX512BW"] {
        let run = Run::of(Command::new(&program.path).env("GLIBC_TUNABLES", tunables));
        let trace = run.trace("trace");
        assert!(trace.tasks().len() == 100 || trace.tasks().is_empty(), "{} threads", trace.tasks().len());
    }
}
