//! Exact call trees.

use std::fs;
use std::process::Command;

use rftrace_read::{RECORD_BYTES, Record};
use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Profile, Run, assert_same_lines, outline, outline_of, require, rust_program, tools};

/// The calls of fixtures/c/calls.c.
const C_CALLS: &str = "\
two
  leaf
  leaf
jump_twice
  jump
    two
      leaf
      leaf
even
  odd
    even
      odd
        even
countdown
  countdown
    countdown
      countdown
        leaf
";

/// Without this the test above might have no tail call to look at.
#[test]
fn optimised_c_programs_have_tail_calls() {
    if !require(&["gcc", "objdump"]) {
        return;
    }
    for arguments in [&["-O2"][..], &["-O2", "-mfentry"]] {
        let program = CProgram::new(&["calls.c"]).with(arguments).build();
        for (function, target) in [("jump_twice", "jump"), ("jump", "two"), ("even", "odd"), ("odd", "even")] {
            let mut objdump = Command::new("objdump");
            let text = tools::text(objdump.arg("-d").arg(format!("--disassemble={function}")).arg(&program.path));
            let jumps = text.lines().any(|line| line.contains("jmp ") && line.ends_with(&format!("<{target}>")));
            assert!(jumps, "{arguments:?}: {function} does not jump to {target}:\n{text}");
        }
    }
}

#[test]
fn memcheck_finds_nothing() {
    if !require(&["gcc", "valgrind"]) {
        return;
    }
    let program = CProgram::new(&["calls.c"]).with(&["-O1"]).build();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=99"]).arg(&program.path);
    let run = Run::of(&mut valgrind);
    // Valgrind does not know all of DWARF's operations; those of the return trampoline concern only its backtraces.
    let findings: Vec<&str> = run.stderr.lines().filter(|line| !line.contains("unhandled DW_OP_ opcode")).collect();
    assert_eq!(findings, <[&str; 0]>::default());
    assert_eq!(outline(&run.trace("trace")), C_CALLS);
}

/// The calls of fixtures/rust/src/bin/calls.rs, of functions of its own. Optimised, the closure is part of `apply`, and the
/// method has no name of its own crate in front.
const RUST_CALLS: &str = "\
two
  leaf
  leaf
jump
  two
    leaf
    leaf
countdown
  countdown
    countdown
      countdown
        leaf
leaf
generic::<u8>
  leaf
generic::<&str>
  leaf
inner::apply
";

#[test]
fn rust_calls_are_the_same_in_every_build() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("calls", profile).run(&[]);
        let trace = run.trace("trace");
        let closure = match profile {
            Profile::Debug => "  main::{closure#0}\n    leaf\n",
            Profile::Release => "  leaf\n",
        };
        let expected = format!("{RUST_CALLS}{closure}");
        assert_same_lines(&outline_of(&trace, "calls::"), &expected, &format!("{profile:?}"));
        let method = "<calls::Square as calls::Shape>::area";
        assert_eq!(outline_of(&trace, method), "\n", "{profile:?}");
    }
}

/// An optimised program shows what it calls and nothing else: no function of the tracer's or of the library that saves.
#[test]
fn optimised_rust_traces_hold_nothing_else() {
    if !require(&["nightly"]) {
        return;
    }
    let run = rust_program("calls", Profile::Release).run(&[]);
    let text = outline(&run.trace("trace"));
    let foreign = text.lines().filter(|line| !line.trim_start().trim_start_matches('<').starts_with("calls::"));
    assert_eq!(foreign.collect::<Vec<_>>(), <[&str; 0]>::default());
}

#[test]
fn raw_dumps_hold_the_same_records() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["calls.c"]).with(&["-O1", "-no-pie"]).build();
    let run = program.run(&["raw"]);
    let raw = fs::read(run.path("raw")).unwrap();
    let (records, rest) = raw.as_chunks::<RECORD_BYTES>();
    assert!(rest.is_empty());
    let records: Vec<Record> = records.iter().map(|bytes| Record::decode(bytes).expect("a record")).collect();
    assert!(records.is_sorted_by_key(|record| record.time_ns));
    // The program lies at fixed addresses, so another run has the same.
    let run = program.run(&[]);
    let full = run.trace("trace");
    let expected: Vec<Record> = full.records(&full.tasks()[0]).map(Result::unwrap).collect();
    let without_time = |record: &Record| (record.kind, record.depth, record.addr);
    let [records, expected] = [&records, &expected].map(|records| records.iter().map(without_time).collect::<Vec<_>>());
    assert_eq!(records, expected);
}

#[test]
fn uftrace_sees_the_same_calls() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = CProgram::new(&["calls.c"]).with(&["-O2"]).build().run(&[]);
    let replay = uftrace(&["replay", "-f", "none"], &run.path("trace"));
    let names = replay.lines().filter(|line| !line.trim_start().starts_with('}'));
    let names: String = names.map(|line| line.trim_end_matches(['(', ')', '{', ';', ' ']).to_owned() + "\n").collect();
    // uftrace prints an empty line first.
    assert_eq!(names.trim_start_matches('\n'), C_CALLS);
}
