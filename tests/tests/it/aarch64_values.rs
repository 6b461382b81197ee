//! Arguments, results and triggers on aarch64 Linux, in qemu-user, of functions with patched entries: as `values` and `types` have them on
//! x86-64. Of functions that call the hook behind their prologue results only.
//!
//! Not tried: what the system reads for the tracer (a heap, other threads' stacks), since qemu has no `process_vm_readv`.

use rftrace_tests::fixtures::{self, aarch64};
use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Program, Run, require};

use crate::aarch64_record::{can_record, record};
use crate::record::{self, replay};
use crate::types::{Shown, compare};

fn built(source: &str, options: &[&str]) -> Program {
    let room = ["-fpatchable-function-entry=1", "-mbranch-protection=standard"];
    CProgram::new(&[source]).without_hooks().with(&room).with(options).with_compilers(aarch64::PREFIX).build()
}

/// By debug information. A text that is not read counts as unknown.
#[track_caller]
fn check_types(run: &Run, prefix: &str) -> Shown {
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let unread = |shown: &str| {
        let mut rest = shown;
        let mut text = String::new();
        while let Some((before, behind)) = rest.split_once("\"<0x") {
            text.push_str(before);
            text.push('?');
            rest = behind.split_once('"').map_or("", |(_, rest)| rest);
        }
        text + rest
    };
    let shown = compare(&unread(&replay(run)), &run.stdout, prefix, "aarch64");
    let same = |line: &&str| !line.contains('ß') && !line.starts_with("color\t3\t");
    let printed: String = run.stdout.lines().filter(same).map(|line| format!("{line}\n")).collect();
    compare(&unread(&uftrace(&["replay", "-f", "none"], &run.path("trace"))), &printed, prefix, "uftrace, aarch64");
    shown
}

#[test]
fn values_by_type() {
    if !can_record() || !require(&["g++"]) {
        return;
    }
    for (source, options, known, plain) in [
        ("typed.c", &["-O0"][..], 130, 90),
        ("typed.c", &["-O2"], 90, 70),
        ("typed.cpp", &["-O0", "-std=c++17"], 80, 60),
        ("typed.cpp", &["-O2", "-std=c++17"], 60, 40),
    ] {
        let shown = check_types(&record(&["-a"], &built(source, options).path, &[]), "");
        println!("{source} {options:?}: {shown:?}");
        assert!(shown.known >= known, "{source} {options:?}: {shown:?}");
        shown.check_plain(plain);
    }
}

#[test]
fn values_by_type_of_rust() {
    if !can_record() {
        return;
    }
    let linker = format!("-Clinker={}gcc", aarch64::PREFIX);
    for (name, level, known) in [("typed", "0", 90), ("fields", "2", 120)] {
        let mut rustc = fixtures::rustc(Some("nightly"), &format!("{name}.rs"));
        rustc.args(["-g", "-Zpatchable-function-entry=2", "--target", aarch64::TARGET, &linker]);
        rustc.args(["-Zmerge-functions=disabled", "--cfg=by_address", &format!("-Copt-level={level}")]);
        let program = fixtures::cache::compile(&mut rustc, name);
        let shown = check_types(&record(&["-a"], &program, &[]), &format!("{name}::"));
        println!("{name}: {shown:?}");
        assert!(shown.known >= known, "{name}: {shown:?}");
    }
}

/// `--dump-on`, whose actions take the way of values.
#[test]
fn dumps() {
    if !can_record() {
        return;
    }
    let dumped = built("dumped.c", &["-O1", "-lpthread"]);
    for options in [&["--dump-on", "call:mark#3"][..], &["--dump-on", "call:mark#3", "-A", "mark@arg1/i32"]] {
        let run = record(&[&["--ring"], options].concat(), &dumped.path, &["100", "marks"]);
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        let dump = std::fs::read_dir(run.path("trace")).unwrap().flatten().map(|entry| entry.path());
        let mut dumps = dump.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("snapshot-1"));
        let calls = record::calls_of(&dumps.next().expect("a dump"));
        assert_eq!((calls["leaf"], calls["mark"]), (600, 3), "{options:?}");
    }
}
