//! aarch64 Linux, in qemu-user: what the tracer reads from prologues against `.eh_frame`, patching, and filters.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rftrace_read::Trace;
use rftrace_tests::conformance::build::build;
use rftrace_tests::conformance::{Build, Tracer, cases};
use rftrace_tests::fixtures::{aarch64, repository};
use rftrace_tests::{Profile, tools};

use crate::filters::counts;

#[path = "../../../staticlib/src/arch/aarch64_prologue.rs"]
#[allow(dead_code, reason = "the tracer's")]
mod prologue;

const TRACER: Tracer = Tracer::OursOnAarch64("max");

/// Returns the output of a tool of the cross compilers.
fn printed(tool: &str, arguments: &[&str], program: &Path) -> String {
    tools::text(Command::new(format!("{}{tool}", aarch64::PREFIX)).args(arguments).arg(program))
}

/// How far the saved x29, at which x29 points, lies below the CFA, by the address from which on that holds.
fn saved_places(program: &Path) -> BTreeMap<u64, Option<u32>> {
    let mut column = None;
    let mut places = BTreeMap::new();
    for line in printed("readelf", &["--debug-dump=frames-interp"], program).lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.first().map(|&first| (first, u64::from_str_radix(first, 16))) {
            Some(("LOC", _)) => column = fields.iter().position(|&field| field == "x29"),
            // A row, not the header of an entry.
            Some((_, Ok(address))) if fields.get(1).is_some_and(|rule| rule.contains('+')) => {
                let rule = column.and_then(|column| fields.get(column));
                places.insert(address, rule.and_then(|rule| rule.strip_prefix("c-")?.parse().ok()));
            }
            _ => {}
        }
    }
    places
}

/// Compares what is read before each call of the hook with `.eh_frame`. Returns how many there are, and of how many a few instructions
/// decide.
fn compare(program: &Path, key: prologue::Key) -> (usize, usize) {
    let places = saved_places(program);
    let (mut words, mut calls) = (Vec::new(), Vec::new());
    for line in printed("objdump", &["--disassemble"], program).lines() {
        let Some((address, rest)) = line.split_once(":\t") else { continue };
        let Ok(address) = u64::from_str_radix(address.trim(), 16) else { continue };
        let Some(Ok(word)) = rest.split_whitespace().next().map(|word| u32::from_str_radix(word, 16)) else { continue };
        if rest.contains("\tbl\t") && ["<_mcount>", "<mcount>", "<_mcount@plt>"].iter().any(|name| rest.ends_with(name))
        {
            calls.push((address + 4, words.len()));
        }
        words.push(word);
    }
    let mut n_decided = 0;
    for &(child_ip, place) in &calls {
        let decoded = prologue::decode(|number| words[..place].iter().rev().nth(number).copied());
        let (_, saved) = places.range(..=child_ip).next_back().expect("a row of .eh_frame");
        n_decided += usize::from(decoded.is_some_and(|frame| frame.decided.is_some()));
        let frame = decoded.map(|frame| (frame.cfa_offset, frame.key));
        assert_eq!(frame, saved.map(|cfa_offset| (cfa_offset, key)), "{}, at {child_ip:#x}", program.display());
    }
    (calls.len(), n_decided)
}

#[test]
fn prologues_are_read_as_eh_frame_has_them() {
    if !aarch64::require() {
        return;
    }
    let groups = cases::all();
    let case = |name| groups.iter().flat_map(|group| &group.cases).find(|case| case.name == name).expect("a case");
    let (mut n_calls, mut n_decided) = (0, 0);
    for (name, arguments, key) in [
        ("large frames", "-O2", prologue::Key::None),
        ("large frames", "-O0", prologue::Key::None),
        ("kinds of calls", "-O2 -fstack-protector-strong", prologue::Key::None),
        ("exceptions", "-O2 -mbranch-protection=standard", prologue::Key::A),
        ("stackless coroutines", "-Os -mbranch-protection=pac-ret+b-key", prologue::Key::B),
    ] {
        let folder = tempfile::tempdir().unwrap();
        build(case(name), Build::C(arguments), TRACER, folder.path()).unwrap_or_else(|printed| panic!("{printed}"));
        let (n, decided) = compare(&folder.path().join("program"), key);
        n_calls += n;
        n_decided += decided;
    }
    let folder = tempfile::tempdir().unwrap();
    build(case("panics"), Build::Rust(Profile::Release), TRACER, folder.path())
        .unwrap_or_else(|printed| panic!("{printed}"));
    let (n_rust, rust_decided) = compare(&folder.path().join("program"), prologue::Key::None);
    assert!(n_calls > 30 && n_rust > 100, "{n_calls} calls of the hook in C and C++, {n_rust} in Rust");
    // The others are read again at each call.
    let (n_calls, n_decided) = (n_calls + n_rust, n_decided + rust_decided);
    assert!(n_decided * 100 >= n_calls * 97, "a few instructions decide in {n_decided} of {n_calls}");
}

/// Unit tests of the choice of functions for branches, and of the stubs.
#[test]
fn unit_tests_of_patching() {
    if !aarch64::require() {
        return;
    }
    let printed = tools::text(&mut aarch64::unit_tests("rftrace-frontend", "patch::"));
    for name in
        ["patch::entry::stubs::tests::frames_are_whole", "patch::entry_stubs::tests::stubs_have_what_the_hook_takes"]
    {
        assert!(printed.contains(&format!("test {name} ... ok")), "{printed}");
    }
}

/// A function lies where another one was, as after a library was unloaded and another one loaded, and has a larger frame.
#[test]
fn code_that_is_replaced() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    compile("replaced_aarch64.c", &["-O2"], &[aarch64::c_library()], &program);
    for signs in ["0", "1"] {
        let printed = tools::text(aarch64::emulator("max", &program).arg(signs).current_dir(folder.path()));
        assert_eq!(printed, "32, then 96\n", "signs: {signs}");
    }
}

/// Calls of entries of the linkage table; `scenarios/filters.toml` has direct ones.
#[test]
fn filters_of_a_library() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let check = |filter: &str, expected: &str| {
        let mut run = aarch64::emulator("max", &program);
        tools::run(run.arg(filter).env("RFTRACE_PATCHABLE", "1").current_dir(folder.path()));
        let trace = Trace::open(&folder.path().join("trace")).unwrap();
        assert_eq!(counts(&trace), expected, "{filter}");
    };
    // All in a library, even `main`.
    for protection in ["none", "standard"] {
        let library = folder.path().join("libcalls.so");
        let protection = format!("-mbranch-protection={protection}");
        compile("filters.c", &["-O1", "-shared", "-fPIC", "-Wl,-z,lazy", &protection], &[], &library);
        let linked = ["-rdynamic", "-Wl,-rpath,$ORIGIN"];
        compile("", &linked, &[&library, aarch64::c_library()], &program);
        check("module=libcalls*; include=leaf", "leaf 20");
        check("include=leaf", "leaf 20");
    }
}

/// Builds a program of `fixtures/c`, or a library.
fn compile(source: &str, arguments: &[&str], libraries: &[&Path], out: &Path) {
    let mut gcc = Command::new(format!("{}gcc", aarch64::PREFIX));
    gcc.args(["-pg", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(repository().join("frontend/ffi")).args(arguments);
    if !source.is_empty() {
        gcc.arg(repository().join("tests/fixtures/c").join(source));
    }
    gcc.args(libraries);
    tools::run(gcc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(out));
}
