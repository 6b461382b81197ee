//! riscv64 Linux, in qemu-user: registers, filters, and what the tracer reads from prologues against `.eh_frame`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rftrace_read::Trace;
use rftrace_tests::conformance::build::build;
use rftrace_tests::conformance::{Build, Tracer, cases};
use rftrace_tests::fixtures::{command_line, repository, riscv64};
use rftrace_tests::{Profile, tools};

use crate::filters::counts;

#[path = "../../../staticlib/src/arch/riscv64_prologue.rs"]
#[allow(dead_code, reason = "the tracer's")]
mod prologue;

#[test]
fn every_register() {
    if !riscv64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    for arguments in [&["-O1"][..], &["-O2", "-static", "-fno-omit-frame-pointer"]] {
        compile(&["canary_riscv64.c", "canary_riscv64.S"], arguments, &program);
        let printed = tools::text(riscv64::emulator(&program).current_dir(folder.path()));
        assert_eq!(printed, "3001 checks\n", "{arguments:?}");
        Trace::open(&folder.path().join("trace")).unwrap();
    }
}

/// A function lies where another one was, as after a library was unloaded and another one loaded, and has a larger frame.
#[test]
fn code_that_is_replaced() {
    if !riscv64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    compile(&["replaced_riscv64.c"], &["-O2"], &program);
    for has_pointer in ["0", "1"] {
        let printed = tools::text(riscv64::emulator(&program).arg(has_pointer).current_dir(folder.path()));
        assert_eq!(printed, "32, then 96\n", "with a frame pointer: {has_pointer}");
    }
}

/// Calls of entries of the linkage table; `scenarios/filters.toml` has direct ones.
#[test]
fn filters_of_a_library() {
    if !riscv64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let check = |filter: &str, expected: &str| {
        tools::run(riscv64::emulator(&program).arg(filter).current_dir(folder.path()));
        let trace = Trace::open(&folder.path().join("trace")).unwrap();
        assert_eq!(counts(&trace), expected, "{filter}");
    };
    // All in a library, even `main`.
    let library = folder.path().join("libcalls.so");
    let source = repository().join("tests/fixtures/c/filters.c");
    let mut gcc = Command::new(format!("{}gcc", riscv64::PREFIX));
    gcc.args(["-g", "-pg", "-O1", "-shared", "-fPIC", "-I"]).arg(repository().join("frontend/ffi"));
    tools::run(gcc.arg(source).arg("-o").arg(&library));
    compile(&[], &["-rdynamic", "-Wl,-rpath,$ORIGIN", library.to_str().unwrap()], &program);
    check("module=libcalls*; include=leaf", "leaf 20");
    check("include=leaf", "leaf 20");
}

/// Sites stay calls, as where the system does not let code be changed; `rftrace record` says what to do.
#[test]
fn what_is_not_there_is_refused() {
    if !riscv64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    compile(&["filters.c"], &["-O1"], &program);
    tools::run(riscv64::emulator(&program).arg("include=leaf").env("RFTRACE_PATCHED", "1").current_dir(folder.path()));
    let trace = Trace::open(&folder.path().join("trace")).unwrap();
    assert_eq!(counts(&trace), "leaf 20");
    let mut record = Command::new(command_line().join("rftrace"));
    let output = record.arg("record").arg(&program).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("docs/riscv64.md"), "{said}");
}

/// Returns the output of a tool of the cross compilers.
fn printed(tool: &str, arguments: &[&str], program: &Path) -> String {
    tools::text(Command::new(format!("{}{tool}", riscv64::PREFIX)).args(arguments).arg(program))
}

/// The CFA's base register, its offset from that, and the return address's offset below it, from `.eh_frame`.
type Place = (String, u32, Option<u32>);

/// These, by the address from which on they hold.
fn places(program: &Path) -> BTreeMap<u64, Place> {
    let mut column = None;
    let mut places = BTreeMap::new();
    for line in printed("readelf", &["--debug-dump=frames-interp"], program).lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.first().map(|&first| (first, u64::from_str_radix(first, 16))) {
            Some(("LOC", _)) => column = fields.iter().position(|&field| field == "ra"),
            // A row, not the header of an entry.
            Some((_, Ok(address))) => {
                let Some((base, offset)) = fields.get(1).and_then(|rule| rule.split_once('+')) else { continue };
                let rule = column.and_then(|column| fields.get(column));
                let saved = rule.and_then(|rule| rule.strip_prefix("c-")?.parse().ok());
                places.insert(address, (base.to_owned(), offset.parse().expect("a number"), saved));
            }
            _ => {}
        }
    }
    places
}

/// Compares what is read before each call of the hook with `.eh_frame`. Returns how many there are, and of how many two instructions
/// decide.
fn compare(program: &Path) -> (usize, usize) {
    let places = places(program);
    let (mut halves, mut calls) = (BTreeMap::new(), Vec::new());
    for line in printed("objdump", &["--disassemble"], program).lines() {
        let Some((address, rest)) = line.split_once(":\t") else { continue };
        let Ok(address) = u64::from_str_radix(address.trim(), 16) else { continue };
        let Some(digits) = rest.split_whitespace().next() else { continue };
        let Ok(word) = u32::from_str_radix(digits, 16) else { continue };
        let bytes = digits.len() as u64 / 2;
        for number in 0..bytes / 2 {
            halves.insert(address + 2 * number, (word >> (16 * number)) as u16);
        }
        if rest.contains("\tjal") && ["<_mcount>", "<mcount>", "<_mcount@plt>"].iter().any(|name| rest.ends_with(name))
        {
            calls.push(address + bytes);
        }
    }
    let mut n_decided = 0;
    for &child_ip in &calls {
        let frame = prologue::decode(|place| halves.get(&(child_ip - 2 * place as u64)).copied());
        let (_, expected) = places.range(..child_ip).next_back().expect("a row of .eh_frame");
        n_decided += usize::from(frame.is_some_and(|frame| frame.decisive.is_some()));
        let base = |has_frame_pointer| if has_frame_pointer { "s0" } else { "sp" };
        let place =
            frame.map(|frame| (base(frame.has_frame_pointer).to_owned(), frame.cfa_offset, Some(frame.return_offset)));
        // Where sp is changed by a number in a register, and there is no frame pointer.
        let is_far = place.is_none() && expected.0 == "sp" && expected.1 > 2048;
        assert!(
            is_far || place.as_ref() == Some(expected),
            "{}, {child_ip:#x}: {place:?}, {expected:?}",
            program.display()
        );
    }
    (calls.len(), n_decided)
}

#[test]
fn prologues_are_read_as_eh_frame_has_them() {
    if !riscv64::require() {
        return;
    }
    let groups = cases::all();
    let case = |name| groups.iter().flat_map(|group| &group.cases).find(|case| case.name == name).expect("a case");
    let (mut n_calls, mut n_decided) = (0, 0);
    for (name, build_as) in [
        ("large frames", Build::C("-O2 -funwind-tables -fno-omit-frame-pointer")),
        ("large frames", Build::C("-O2 -funwind-tables")),
        ("large frames", Build::C("-O0 -funwind-tables -march=rv64g -mabi=lp64d")),
        ("kinds of calls", Build::C("-O2 -funwind-tables -fstack-protector-strong")),
        ("kinds of calls", Build::C("-O3 -funwind-tables -fno-omit-frame-pointer")),
        ("exceptions", Build::C("-O2 -march=rv64g -mabi=lp64d")),
        ("stackless coroutines", Build::C("-Os")),
        ("panics", Build::Rust(Profile::Release)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        build(case(name), build_as, Tracer::OursOnRiscv64, folder.path()).unwrap_or_else(|printed| panic!("{printed}"));
        let (n, decided) = compare(&folder.path().join("program"));
        assert!(n > 3, "{n} calls of the hook in {name}");
        n_calls += n;
        n_decided += decided;
    }
    assert!(n_calls > 80, "{n_calls} calls of the hook");
    // The others are read again at each call.
    assert!(n_decided * 100 >= n_calls * 90, "two instructions decide in {n_decided} of {n_calls}");
}

/// Builds a program of `fixtures/c`.
fn compile(sources: &[&str], arguments: &[&str], out: &Path) {
    let folder = repository().join("tests/fixtures/c");
    let mut gcc = Command::new(format!("{}gcc", riscv64::PREFIX));
    gcc.args(["-g", "-pg", "-Wall", "-Wextra", "-Werror", "-I"]).arg(repository().join("frontend/ffi")).args(arguments);
    gcc.args(sources.iter().map(|source| folder.join(source))).arg(riscv64::c_library());
    tools::run(gcc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(out));
}
