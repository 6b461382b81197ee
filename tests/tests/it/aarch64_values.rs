//! Arguments, results and triggers on aarch64 Linux, in qemu-user, of functions with patched entries: as `values` and `types` have them on
//! x86-64. Of functions that call the hook behind their prologue results only.
//!
//! Not tried: what the system reads for the tracer (a heap, other threads' stacks), since qemu has no `process_vm_readv`.

use rftrace_tests::fixtures::{self, aarch64};
use rftrace_tests::traces::{self, uftrace};
use rftrace_tests::{CProgram, Program, Run, require};

use crate::aarch64_record::{can_record, record};
use crate::record::{self, counted, cpp_source, replay};
use crate::types::{Shown, compare};
use crate::values::{VALUES, calls};

fn built(source: &str, options: &[&str]) -> Program {
    let room = ["-fpatchable-function-entry=1", "-mbranch-protection=standard"];
    CProgram::new(&[source]).without_hooks().with(&room).with(options).with_compilers(aarch64::PREFIX).build()
}

/// A line with a text of which nothing was read, or only what is in the page of the stack where its function is at work.
fn is_cut(shown: &str, printed: &str) -> bool {
    let Some(text) = shown.strip_prefix("text(\"").and_then(|rest| rest.split_once('"')) else { return false };
    let Some(whole) = printed.strip_prefix("text(\"").and_then(|rest| rest.split_once('"')) else { return false };
    let is_address = text.0.starts_with("<0x");
    (is_address || text.0.strip_suffix("...").is_some_and(|begun| whole.0.starts_with(begun))) && text.1 == whole.1
}

/// Checks that the values are those that the program has printed. Returns how many lines have texts that were not read.
#[track_caller]
fn check(shown: &str, printed: &str, way: &str) -> usize {
    let (shown, printed): (Vec<&str>, Vec<&str>) = (shown.lines().collect(), printed.lines().collect());
    assert_eq!(shown.len(), printed.len(), "{way}: {shown:#?}");
    let mut n_cut = 0;
    for (shown, printed) in shown.into_iter().zip(printed) {
        let printed = printed.trim_end_matches(';');
        n_cut += usize::from(shown != printed);
        assert!(shown == printed || is_cut(shown, printed), "{way}: {shown}, it is {printed}");
    }
    n_cut
}

#[test]
fn values_are_those_that_the_program_prints() {
    if !can_record() {
        return;
    }
    for (level, options) in
        [("-O0", &[][..]), ("-O2", &[]), ("-O1", &["--ring", "--buffer", "64K"]), ("-O2", &["-t", "1ns"])]
    {
        let run = record(&[options, &VALUES].concat(), &built("values.c", &[level]).path, &["plain"]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        let n_cut = check(&calls(&replay(&run)), &run.stdout, level);
        // Four texts on the heap; and in the middle of a page some of thirteen end in the next one.
        assert!((4..=17).contains(&n_cut), "{n_cut}");
        let theirs = uftrace(&["replay", "-f", "none"], &run.path("trace"));
        assert_eq!(check(&calls(&theirs), &run.stdout, "uftrace"), n_cut);
        assert!(traces::open(&run.path("trace")).warnings().is_empty());
    }
}

/// Signals strike while values are read and written.
#[test]
fn signals_while_values_are_recorded() {
    if !can_record() {
        return;
    }
    let run = record(&VALUES, &built("values.c", &["-O1"]).path, &["struck"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let of_echo = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with("echo("))
            .map(|line| line.split(") ").next().unwrap().to_owned())
            .collect()
    };
    let (shown, printed) = (of_echo(&calls(&replay(&run))), of_echo(&run.stdout));
    assert_eq!(shown.len(), 5000);
    assert_eq!(shown, printed);
}

/// Where functions call the hook.
#[test]
fn results_without_arguments() {
    if !can_record() {
        return;
    }
    let program = CProgram::new(&["values.c"]).with(&["-O1"]).with_compilers(aarch64::PREFIX).build();
    let run = record(&VALUES, &program.path, &["plain"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("arguments are known where functions have room for a branch"), "{}", run.stderr);
    let shown = calls(&replay(&run));
    for line in ["add() = -1", "mul() = 0.375000", "name() = \"one\"", "letter() = 'b'", "} = 42"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    assert!(!shown.contains("add(3"), "{shown}");
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

/// Exceptions pass functions whose results are recorded: they return to another trampoline. Those that call the hook sign what is in their frames.
#[test]
fn exceptions() {
    if !can_record() || !require(&["g++"]) {
        return;
    }
    let with_room = |bytes: &'static str| cpp_source().without_hooks().with(&[bytes]);
    let sources = [
        (cpp_source(), cpp_source()),
        (with_room("-fpatchable-function-entry=1"), with_room("-fpatchable-function-entry=5")),
    ];
    for (source, native) in sources {
        let program = source.with(&["-mbranch-protection=standard"]).with_compilers(aarch64::PREFIX).build();
        let run = record(&["-R", "*"], &program.path, &[]);
        let native = record::record(&["-R", "*"], &native.build().path, &[]);
        assert_eq!((run.status.code(), &run.stdout), (Some(0), &native.stdout), "{}", run.stderr);
        assert_eq!(counted(&run.path("trace")), counted(&native.path("trace")));
        assert!(replay(&run).contains(" = "), "no result was recorded");
    }
}

/// `-T` and `--dump-on`, whose actions take the way of values: as on x86-64, of functions that call the hook and of such with room.
#[test]
fn triggers() {
    if !can_record() {
        return;
    }
    let source = || CProgram::new(&["triggered.c"]).with(&["-O1"]);
    let native = source().without_library().build();
    let program = source().with_compilers(aarch64::PREFIX).build();
    let options: [&[&str]; 3] = [
        &["-T", "off@trace_off", "-T", "on@trace_on"],
        &["-T", "last@finish"],
        &["-D", "4", "-T", "work@depth=2", "-R", "work"],
    ];
    for options in options {
        let (run, there) = (record(options, &program.path, &[]), record::record(options, &native.path, &[]));
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        assert_eq!(record::calls(&run), record::calls(&there), "{options:?}: {}", run.stderr);
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
