//! `rftrace record -a` of what is not the program that was started: libraries, programs that it becomes, programs that run.

use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, require};

use crate::record::{record, replay};

fn source() -> CProgram {
    CProgram::new(&["values_elsewhere.c"]).without_library()
}

/// The program, the library that it loads, and the program that it becomes.
fn built(options: &[&str]) -> [PathBuf; 3] {
    let library =
        |name: &str, function: &str| source().with(&["-fPIC", "-shared", function]).with(options).cached(name);
    let linked = library("liblinked.so", "-DFUNCTION=linked");
    let program = |name: &str| source().with(&[linked.to_str().unwrap(), "-ldl"]).with(options).cached(name);
    [program("program"), library("libplugged.so", "-DFUNCTION=plugged"), program("other")]
}

fn arguments(paths: &[PathBuf; 3]) -> [&str; 2] {
    [paths[1].to_str().unwrap(), paths[2].to_str().unwrap()]
}

#[test]
fn libraries_and_other_programs_have_values() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&["-O0"][..], &["-O2", "-mfentry"]] {
        let paths = built(options);
        let run = record(&["-a"], &paths[0], &arguments(&paths));
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        let expected = [
            "linked(\"linked\", 5) = LEFT;",
            "plugged(\"plugged\", 7) = RIGHT;",
            "own(4) = 8;",
            "plugged(\"forked\", 8) = LEFT;",
            "own(9) = 18;",
        ];
        let shown = replay(&run);
        for expected in expected {
            assert!(shown.contains(expected), "{options:?}: no {expected} in {shown}{}", run.stderr);
        }
        if require(&["uftrace"]) {
            let shown = uftrace(&["replay", "-f", "none"], &run.path("trace"));
            for expected in expected {
                assert!(shown.contains(expected), "{options:?}: no {expected} in {shown}");
            }
        }
    }
}

/// A filter chooses among functions of libraries that are loaded later, too.
#[test]
fn functions_of_libraries_that_are_loaded_are_chosen() {
    if !require(&["gcc"]) {
        return;
    }
    let paths = built(&["-O0"]);
    let run = record(&["-A", "plug*", "-R", "own", "-N", "linked"], &paths[0], &arguments(&paths));
    let shown = replay(&run);
    assert!(shown.contains("plugged(\"plugged\", 7);") && shown.contains("own() = 8;"), "{shown}");
    assert!(!shown.contains("linked()"), "{shown}");
    assert!(!run.stderr.contains("matches"), "{}", run.stderr);
    let run = record(&["-N", "plugged"], &paths[0], &arguments(&paths));
    let shown = replay(&run);
    assert!(shown.contains("linked();") && !shown.contains("plugged"), "{shown}");
    assert!(!run.stderr.contains("matches"), "{}", run.stderr);
}

#[test]
fn what_has_no_debug_information_is_told() {
    if !require(&["gcc", "objcopy"]) {
        return;
    }
    let paths = built(&["-O0", "-fno-inline"]);
    let strip = |path: &Path| Command::new("objcopy").arg("--strip-debug").arg(path).status().unwrap();
    assert!(strip(&paths[1]).success() && strip(&paths[2]).success());
    let run = record(&["-a"], &paths[0], &arguments(&paths));
    let shown = replay(&run);
    assert!(shown.contains("linked(\"linked\", 5) = LEFT;") && shown.contains("plugged();"), "{shown}");
    for path in &paths[1..] {
        assert!(run.stderr.contains(&format!("{} has no debug information", path.display())), "{}", run.stderr);
    }
    // A result is a number then.
    let run = record(&["-R", "plugged", "-R", "linked"], &paths[0], &arguments(&paths));
    let shown = replay(&run);
    assert!(shown.contains("linked() = LEFT;") && shown.contains("plugged() = 1;"), "{shown}");
    std::fs::remove_dir_all(paths[0].parent().unwrap()).unwrap();
}
