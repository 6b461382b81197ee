//! Backtraces of resources where the program's calls are recorded too: the tracer has replaced return addresses, and knows functions by itself
//! (`--backtraces shadow`). All are compared with those of the same program whose calls nobody records.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rftrace_tests::fixtures::{self};
use rftrace_tests::{CProgram, Program, require};
use serde_json::Value;

use super::record::rftrace;
use super::resources::{record_kinds, values};

/// Stacks, each with its number of blocks; of a stack its functions and their lines, the innermost first.
type Stacks = BTreeMap<Vec<String>, u64>;

/// The stacks in which there is anything of this file, cut to that.
fn of_file(found: &Value, file: &str) -> Stacks {
    let mut stacks = Stacks::new();
    for stack in found["stacks"].as_array().unwrap() {
        let frames = stack["frames"].as_array().unwrap().iter();
        let own = frames.filter(|frame| frame["file"].as_str().is_some_and(|path| path.ends_with(file)));
        let own: Vec<String> = own.map(|frame| format!("{} {}", frame["function"], frame["line"])).collect();
        if !own.is_empty() {
            *stacks.entry(own).or_default() += stack["allocations"].as_u64().unwrap();
        }
    }
    stacks
}

#[track_caller]
fn recorded(program: &Path, options: &[&str]) -> Value {
    let (folder, told) = record_kinds("memory", options, program, &[]);
    let found = values(&folder, &[]);
    assert_eq!(found["memory"]["lost"], 0, "{told}");
    found
}

fn build(source: &str, hooks: Option<&[&str]>, with: &[&str]) -> Program {
    let program = CProgram::new(&[source]).without_library().with(with);
    match hooks {
        Some(options) => program.with(options).build(),
        None => program.without_hooks().build(),
    }
}

/// The lines of functions alone: where a function has called is not known if that is not recorded.
fn without_lines(stacks: Stacks) -> Stacks {
    let mut plain = Stacks::new();
    for (frames, blocks) in stacks {
        let names = frames.iter().map(|frame| frame.rsplit_once(' ').unwrap().0.to_owned());
        *plain.entry(names.collect()).or_default() += blocks;
    }
    plain
}

const HOOKS: [&[&str]; 2] = [&[], &["-mfentry"]];

#[test]
fn replaced_return_addresses_are_found() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    let with_pointers = ["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    for (source, with, ways) in [
        ("resources_deep.c", &with_pointers[..], &["cfi", "fp"][..]),
        ("resources_calls.cpp", &["-g", "-O2", "-pthread", "-fno-optimize-sibling-calls"], &["cfi"]),
    ] {
        let plain = build(source, None, with);
        let expected = of_file(&recorded(&plain.path, &[]), source);
        assert!(expected.len() > 12, "{expected:#?}");
        for way in ways {
            for hooks in HOOKS {
                let program = build(source, Some(hooks), with);
                for more in [&[][..], &["--patched"], &["--libcalls"]] {
                    let found = recorded(&program.path, &[&["--backtraces", way], more].concat());
                    assert_eq!(of_file(&found, source), expected, "{source} {way} {hooks:?} {more:?}");
                }
            }
            for more in [&["-P", "*"][..], &["--libcalls"], &["-P", "*", "--libcalls"]] {
                let found = recorded(&plain.path, &[&["--backtraces", way], more].concat());
                assert_eq!(of_file(&found, source), expected, "{source} {way} {more:?}");
            }
        }
    }
}

/// The tracer knows the functions that `cfi` finds, as far as they are recorded; at the same lines, except for callers that are functions without
/// records.
#[test]
fn the_tracer_knows_the_same_functions() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    let source = "resources_deep.c";
    let with = ["-g", "-O1", "-fno-builtin", "-fno-optimize-sibling-calls"];
    let plain = build(source, None, &with);
    let expected = of_file(&recorded(&plain.path, &["--backtraces", "cfi"]), source);
    let check = |program: &Path, options: &[&str]| {
        let found = recorded(program, &[&["--backtraces", "shadow"], options].concat());
        assert_eq!(of_file(&found, source), expected, "{options:?}");
        let frames = |stack: &Value| stack["frames"].as_array().unwrap().clone();
        let mut all = found["stacks"].as_array().unwrap().iter().flat_map(frames);
        assert!(all.all(|frame| frame["file"].as_str().is_some_and(|file| file.ends_with(source))), "{found:#}");
    };
    for hooks in HOOKS {
        let program = build(source, Some(hooks), &with);
        check(&program.path, &[]);
        check(&program.path, &["--libcalls"]);
    }
    check(&plain.path, &["-P", "*"]);
    check(&plain.path, &["-P", "*", "--libcalls"]);
}

#[test]
fn functions_that_are_not_recorded_are_left_out() {
    if !require(&["g++"]) {
        return;
    }
    let source = "resources_calls.cpp";
    let with = ["-g", "-O2", "-pthread", "-fno-optimize-sibling-calls"];
    let plain = build(source, None, &with);
    let mut expected = Stacks::new();
    for (frames, blocks) in without_lines(of_file(&recorded(&plain.path, &[]), source)) {
        let mut frames: Vec<_> = frames.into_iter().filter(|frame| frame != "\"left_out\"").collect();
        // It has called by a jump: its frame is gone, but its call is open.
        if let Some(place) = frames.iter().position(|frame| frame == "\"jumped_to\"") {
            frames.insert(place + 1, "\"jumps\"".to_owned());
        }
        *expected.entry(frames).or_default() += blocks;
    }
    for hooks in HOOKS {
        let program = build(source, Some(hooks), &with);
        let found = recorded(&program.path, &["--backtraces", "shadow"]);
        assert_eq!(without_lines(of_file(&found, source)), expected, "{hooks:?}\n{found:#}");
    }
    let found = recorded(&plain.path, &["--backtraces", "shadow", "-P", "[!l]*"]);
    assert_eq!(without_lines(of_file(&found, source)), expected, "{found:#}");
}

#[test]
fn functions_of_rust() {
    if !require(&["rustc"]) {
        return;
    }
    let build = |name: &str, options: &[&str]| {
        let mut rustc = fixtures::rustc(Some("nightly"), "resources.rs");
        fixtures::cache::compile(rustc.args(["-O", "-g"]).args(options), name)
    };
    let [plain, hooked] = [build("plain", &[]), build("hooked", &["-Zinstrument-mcount"])];
    let own = |program: &Path, options: &[&str]| of_file(&recorded(program, options), "resources.rs");
    let expected = own(&plain, &[]);
    assert!(expected.len() >= 3, "{expected:#?}");
    for options in [&["--backtraces", "cfi"][..], &["--backtraces", "shadow"]] {
        assert_eq!(own(&hooked, options), expected, "{options:?}");
        assert_eq!(own(&plain, &[options, &["-P", "*"]].concat()), expected, "{options:?} -P");
    }
}

#[test]
fn a_program_that_does_not_call_the_tracer_is_refused() {
    if !require(&["gcc"]) {
        return;
    }
    let plain = build("resources_deep.c", None, &[]);
    for more in [&[][..], &["--libcalls"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "--resources", "memory", "--backtraces", "shadow", "-o", "trace"]).args(more);
        let output = command.arg(&plain.path).current_dir(folder.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !folder.path().join("trace").exists(), "{told}");
        let words = ["does not call the tracer", "--backtraces shadow", "-P '*'", "--backtraces cfi"];
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
}
