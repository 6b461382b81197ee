//! Programs that are traced and run under a sanitizer at once: it finds nothing where nothing is wrong, and what is wrong
//! where something is; the trace is right. docs/conformance.md lists the failures.

use std::collections::BTreeMap;
use std::process::Command;

use rftrace_tests::traces::trees;
use rftrace_tests::{CProgram, Program, Run, require};
use rftrace_views::CallTree;

const BUILDS: [&[&str]; 2] = [&["-O1"], &["-O2", "-mfentry"]];

fn build(sanitizer: &str, arguments: &[&str]) -> Program {
    let option = format!("-fsanitize={sanitizer}");
    // Some of GCC's warnings are wrong in what sanitizers add.
    CProgram::new(&["sanitized.cpp"]).with(arguments).with(&[&option, "-Wno-maybe-uninitialized"]).build()
}

fn check_right(run: &Run, what: &str) {
    assert_eq!(run.stderr, "", "{what}");
    assert_eq!(run.stdout, "2100\n", "{what}");
    let trees = trees(&run.trace("trace"));
    assert_eq!(trees.len(), 5, "{what}: threads");
    let mut calls: BTreeMap<String, u64> = BTreeMap::new();
    for (name, n) in trees.iter().flat_map(CallTree::calls_per_function) {
        *calls.entry(name).or_default() += n;
    }
    for (name, n) in
        [("thread", 5), ("jumps", 100), ("jump", 400), ("catcher", 100), ("thrower", 100), ("recurse", 600)]
    {
        assert_eq!(calls.get(name), Some(&n), "{what}: {name}");
    }
}

#[test]
fn they_find_nothing_in_a_traced_program() {
    if !require(&["g++"]) {
        return;
    }
    for arguments in BUILDS {
        for sanitizer in ["address", "thread", "undefined"] {
            let run = build(sanitizer, arguments).run(&[]);
            check_right(&run, &format!("{arguments:?} {sanitizer}"));
        }
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == '_')
}

#[test]
fn they_find_mistakes_in_a_traced_program() {
    if !require(&["g++"]) {
        return;
    }
    for arguments in BUILDS {
        for (sanitizer, mistake, title, function) in [
            ("address", "free", "heap-use-after-free", "use"),
            ("thread", "race", "data race", "race"),
            ("undefined", "overflow", "signed integer overflow", "overflow"),
        ] {
            let what = format!("{arguments:?} {sanitizer}");
            let program = build(sanitizer, arguments);
            let mut command = Command::new(&program.path);
            command.arg(mistake).env("UBSAN_OPTIONS", "print_stacktrace=1");
            let run = Run::of_any(&mut command);
            assert!(run.stderr.contains(title), "{what}: {}", run.stderr);
            // The first stack of the report: `    #0 0x55 in use(int) file`, or without address.
            let frames: Vec<&str> = run
                .stderr
                .lines()
                .filter_map(|line| line.trim().strip_prefix('#'))
                .filter_map(|line| line.split([' ', '(']).find(|word| is_name(word) && *word != "in"))
                .filter(|&name| !name.ends_with("return_trampoline"))
                .collect();
            assert_eq!(frames[0], function, "{what}: {}", run.stderr);
            // ThreadSanitizer asks each function for its return address, which is the tracer's.
            if sanitizer != "thread" {
                let outer = format!("{function}_outer");
                assert_eq!(frames[1..3], [outer.as_str(), "main"], "{what}: {}", run.stderr);
            }
        }
    }
}
