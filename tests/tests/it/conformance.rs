//! The conformance suite with this repository's tracer. `cargo run -p rftrace-tests --bin conformance` runs it with others.

use rftrace_tests::conformance::{Build, Case, Hooks, Program, Tracer, cases, try_all};
use rftrace_tests::require;

/// Tries all builds of the cases of a group and names all that fail.
fn check(group: &str) {
    if !require(&["gcc", "g++", "nightly"]) {
        return;
    }
    let group = cases::all().into_iter().find(|candidate| candidate.name == group).expect("a known group");
    check_all(group.cases.iter(), Tracer::Ours);
}

/// Tries all cases with such hooks.
fn check_by(hooks: Hooks) {
    if !require(&["gcc", "g++", "nightly", "objdump"]) || hooks == Hooks::Sleds && !require(&["clang", "clang++"]) {
        return;
    }
    let groups = cases::all();
    let cases = groups.iter().flat_map(|group| &group.cases).filter(|case| case.not_tried_by(hooks).is_none());
    check_all(cases, Tracer::OursBy(hooks));
}

/// Tries all builds of cases and names all that fail.
///
/// `CONFORMANCE_CASE` names a part of a case's name, to try only such cases.
fn check_all<'c>(cases: impl Iterator<Item = &'c Case>, tracer: Tracer) {
    let only = std::env::var("CONFORMANCE_CASE").unwrap_or_default();
    let trials: Vec<(&Case, Build, Tracer)> = cases
        .filter(|case| case.name.contains(&only) && !case.is_unsolved)
        .flat_map(|case| case.builds().into_iter().map(move |build| (case, build, tracer)))
        .filter(|(_, build, _)| tracer.can_trace(*build))
        .collect();
    try_all(&trials);
}

/// All groups are tested, and names tell cases apart.
#[test]
fn all_is_tested() {
    let source = include_str!("conformance.rs");
    let mut names = Vec::new();
    for group in cases::all() {
        assert!(source.contains(&format!("check(\"{}\")", group.name)), "{} is not tested", group.name);
        names.extend(group.cases.iter().map(|case| case.name));
    }
    let n_names = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n_names, "two cases have one name");
}

/// Every program in the folder is a case's.
#[test]
fn no_program_is_forgotten() {
    let groups = cases::all();
    let mut used = Vec::new();
    for case in groups.iter().flat_map(|group| &group.cases) {
        if let Program::C { source, library, .. } = case.program {
            used.push(source);
            used.extend(library);
        }
    }
    for entry in std::fs::read_dir(rftrace_tests::fixtures::folder("c").join("conformance")).unwrap() {
        let name = entry.unwrap().file_name();
        let is_header = name.to_str().unwrap().ends_with(".h");
        assert!(is_header || used.contains(&name.to_str().unwrap()), "{} belongs to no case", name.display());
    }
}

#[test]
fn calls() {
    check("calls");
}

#[test]
fn unwinding() {
    check("unwinding");
}

#[test]
fn jumps() {
    check("jumps and signals");
}

#[test]
fn stacks() {
    check("stacks");
}

#[test]
fn threads() {
    check("threads");
}

#[test]
fn processes() {
    check("processes and modules");
}

#[test]
fn rust() {
    check("Rust");
}

#[test]
fn by_branches() {
    check_by(Hooks::Branches);
}

#[test]
fn by_room() {
    check_by(Hooks::Room);
}

#[test]
fn by_sleds() {
    check_by(Hooks::Sleds);
}

#[test]
fn by_room_and_library_calls() {
    check_by(Hooks::LibraryCalls);
}
