//! A buffer that is used up: the beginning of what happened in stop mode, the end in ring mode.

use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Program, outline, require};

/// Runs a fixture that makes some ten thousand irregular calls, and returns its outline and its result.
fn run(program: &Program, n_events: &str, ring: &str, returns: &str) -> (Vec<String>, String) {
    let run = program.run(&[n_events, ring, returns]);
    if require(&["uftrace"]) {
        assert!(!uftrace(&["replay"], &run.path("trace")).is_empty());
    }
    (outline(&run.trace("trace")).lines().map(str::to_owned).collect(), run.stdout)
}

fn depth(line: &str) -> usize {
    (line.len() - line.trim_start().len()) / 2
}

const BUILDS: [&[&str]; 2] = [&["-O0"], &["-O2", "-mfentry"]];
const SIZES: [&str; 4] = ["170", "1000", "3000", "20000"];

#[test]
fn a_stopped_trace_is_the_beginning() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["full.c"]).with(arguments).build();
        let (all, result) = run(&program, "1000000", "0", "1");
        for size in SIZES {
            let (beginning, same_result) = run(&program, size, "0", "1");
            assert_eq!(same_result, result, "{arguments:?} {size}");
            assert!(all.starts_with(&beginning), "{arguments:?} {size}: {} lines", beginning.len());
            // Each call has an entry and mostly an exit; chunk headers take a little, the last chunk may be empty.
            let n_events: usize = size.parse().unwrap();
            assert!(beginning.len() * 2 > n_events * 9 / 10, "{arguments:?} {size}: {} lines", beginning.len());
            assert!(beginning.len() < all.len());
        }
    }
}

#[test]
fn a_ring_is_the_end() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["full.c"]).with(arguments).build();
        for returns in ["0", "1"] {
            let (all, result) = run(&program, "1000000", "0", returns);
            for size in SIZES {
                let what = format!("{arguments:?} {size} {returns}");
                let (end, same_result) = run(&program, size, "1", returns);
                assert_eq!(same_result, result, "{what}");
                assert_is_end(&end, &all, &what);
                // The oldest chunk is being reused, so at least all others hold something.
                let n_events: usize = size.parse().unwrap();
                assert!(end.len() * 2 > n_events * 3 / 4, "{what}: {} lines", end.len());
            }
        }
    }
}

/// The lines of `end` are: the functions that were open at some place of `all`, outermost first, then all that follows.
fn assert_is_end(end: &[String], all: &[String], what: &str) {
    assert!(end.len() < all.len(), "{what}: nothing was overwritten");
    let n_equal = end.iter().rev().zip(all.iter().rev()).take_while(|(a, b)| a == b).count();
    let (open, _) = end.split_at(end.len() - n_equal);
    let (before, _) = all.split_at(all.len() - n_equal);
    // Which functions were open there. Some of the lines above may be equal by chance, so these are not all.
    let mut expected: Vec<&String> = Vec::new();
    for line in before {
        expected.truncate(depth(line));
        expected.push(line);
    }
    let open: Vec<&String> = open.iter().collect();
    assert!(expected.starts_with(&open), "{what}: {open:?} is not the beginning of {expected:?}");
    assert!(!end.is_empty() && depth(&end[0]) == 0, "{what}");
}
