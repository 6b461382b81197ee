//! The conformance suite with this repository's tracer: one trial for each way, case and build. `cargo run -p rftrace-tests --bin conformance`
//! runs it with others.

use std::collections::BTreeSet;
use std::process::ExitCode;

use libtest_mimic::Arguments;
use rftrace_tests::conformance::{Build, Case, Hooks, Program, Tracer, cases, try_case};
use rftrace_tests::fixtures::{aarch64, riscv64};
use rftrace_tests::trials::trial;
use rftrace_tests::{Profile, fixtures, require};

/// A way to trace: its name, the tracer, and a check of the tools that it needs.
type Way = (&'static str, Tracer, fn() -> bool);

const WAYS: [Way; 10] = [
    ("x86-64", Tracer::Ours, || require(&["gcc", "g++", "nightly"])),
    ("by-branches", Tracer::OursBy(Hooks::Branches), require_recorder),
    ("by-room", Tracer::OursBy(Hooks::Room), require_recorder),
    ("by-sleds", Tracer::OursBy(Hooks::Sleds), || require_recorder() && require(&["clang", "clang++"])),
    ("by-room-and-library-calls", Tracer::OursBy(Hooks::LibraryCalls), require_recorder),
    // A processor with signatures and landing pads, and one without.
    ("aarch64-max", Tracer::OursOnAarch64("max"), aarch64::require),
    ("aarch64-cortex-a53", Tracer::OursOnAarch64(OLD), aarch64::require),
    ("aarch64-entries-max", Tracer::EntriesOnAarch64("max"), aarch64::require),
    ("aarch64-entries-cortex-a53", Tracer::EntriesOnAarch64(OLD), aarch64::require),
    ("riscv64", Tracer::OursOnRiscv64, riscv64::require),
];

/// A processor for aarch64 without signatures and landing pads.
const OLD: &str = "cortex-a53";

/// Code that signs its return addresses, and has landing pads.
const SIGNED: Build = Build::C("-O2 -mbranch-protection=standard");

/// As [`SIGNED`], by the other key.
const SIGNED_B: Build = Build::C("-O2 -mbranch-protection=pac-ret+b-key+bti");

/// Code with frame pointers.
const POINTERS: Build = Build::C("-O2 -fno-omit-frame-pointer");

const RELEASE: Build = Build::Rust(Profile::Release);

/// Cases that aarch64 does not try. Without a tracer too, glibc's `backtrace()` ends before `main` there; only an AVX register realigns a
/// frame; 60 threads that do nothing but call leave the emulator too little time; and the emulator makes a fork of a vfork.
const NOT_ON_AARCH64: &[&str] = &["backtrace", "realigned stacks", "saved amid calls", "vfork"];

/// The same for riscv64.
const NOT_ON_RISCV64: &[&str] = &["realigned stacks", "vfork"];

/// Cases whose libraries are opened while recording is on. Patched entries get their hooks when recording is next switched on.
const NOT_BY_ENTRIES: &[&str] = &["dlopen", "dlclose"];

fn require_recorder() -> bool {
    require(&["gcc", "g++", "nightly", "objdump"])
}

/// The builds of a case that a tracer tries.
fn builds(tracer: Tracer, group: &str, case: &Case) -> Vec<Build> {
    let is_rust = matches!(case.program, Program::Rust { .. });
    if case.is_unsolved || tracer.on_aarch64().is_some() && NOT_ON_AARCH64.contains(&case.name) {
        return Vec::new();
    }
    match tracer {
        Tracer::Ours => case.builds(),
        Tracer::OursBy(hooks) if case.not_tried_by(hooks).is_some() => Vec::new(),
        Tracer::OursBy(_) => case.builds().into_iter().filter(|build| tracer.can_trace(*build)).collect(),
        Tracer::EntriesOnAarch64(_) if NOT_BY_ENTRIES.contains(&case.name) => Vec::new(),
        Tracer::EntriesOnAarch64(OLD) if is_rust => Vec::new(),
        Tracer::OursOnAarch64(_) | Tracer::EntriesOnAarch64(_) if is_rust => vec![RELEASE],
        Tracer::OursOnAarch64(OLD) | Tracer::EntriesOnAarch64(OLD) => match group {
            "calls" => vec![Build::C("-O0")],
            "unwinding" => vec![Build::C("-O2 -static")],
            _ => Vec::new(),
        },
        Tracer::EntriesOnAarch64(_) if group == "calls" => vec![SIGNED_B],
        Tracer::EntriesOnAarch64(_) if group == "unwinding" => vec![SIGNED, SIGNED_B],
        Tracer::OursOnAarch64(_) | Tracer::EntriesOnAarch64(_) => vec![SIGNED],
        Tracer::OursOnRiscv64 if is_rust => vec![RELEASE],
        Tracer::OursOnRiscv64 => match (group, case.name) {
            (_, name) if NOT_ON_RISCV64.contains(&name) => Vec::new(),
            // Without a tracer too, glibc's `backtrace()` passes no other frame: GCC's default is no unwind information for C.
            (_, "backtrace") => vec![Build::C("-O2 -fasynchronous-unwind-tables")],
            (_, "kinds of calls" | "exceptions") => {
                vec![POINTERS, Build::C("-O0"), Build::C("-O2"), Build::C("-O2 -static")]
            }
            ("calls", _) => vec![POINTERS, Build::C("-O2")],
            _ => vec![POINTERS],
        },
        Tracer::Nobody | Tracer::Published | Tracer::Uftrace => unreachable!("not this repository's"),
    }
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for (way, tracer, can_try) in WAYS {
        for group in cases::all() {
            for case in group.cases {
                for build in builds(tracer, group.name, &case) {
                    let name = format!("{way}/{}/{}", case.name, build.name()).replace(' ', "-");
                    let case = case.clone();
                    trials.push(trial(name, move || {
                        if can_try() {
                            check(&case, build, tracer);
                        }
                    }));
                }
            }
        }
    }
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    trials.push(trial("all_is_tested".to_owned(), move || all_is_tested(&names)));
    trials.push(trial("no_program_is_forgotten".to_owned(), no_program_is_forgotten));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn check(case: &Case, build: Build, tracer: Tracer) {
    let faults = try_case(case, build, tracer);
    let texts: Vec<String> = faults.iter().map(|fault| format!("{}\n{}", fault.words, fault.detail)).collect();
    assert!(faults.is_empty(), "{} faults: {}", faults.len(), texts.join("\n"));
}

/// This machine tries all cases but those that are known to fail, and names tell trials apart.
fn all_is_tested(names: &[String]) {
    let different: BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "two trials have one name");
    for case in cases::all().iter().flat_map(|group| &group.cases).filter(|case| !case.is_unsolved) {
        let begins = format!("x86-64/{}/", case.name).replace(' ', "-");
        assert!(names.iter().any(|name| name.starts_with(&begins)), "{} is not tested", case.name);
    }
}

/// Every program in the folder belongs to a case.
fn no_program_is_forgotten() {
    let groups = cases::all();
    let mut used = Vec::new();
    for case in groups.iter().flat_map(|group| &group.cases) {
        if let Program::C { source, library, .. } = case.program {
            used.push(source);
            used.extend(library);
        }
    }
    for entry in std::fs::read_dir(fixtures::folder("c").join("conformance")).unwrap() {
        let name = entry.unwrap().file_name();
        let is_header = name.to_str().unwrap().ends_with(".h");
        assert!(is_header || used.contains(&name.to_str().unwrap()), "{} belongs to no case", name.display());
    }
}
