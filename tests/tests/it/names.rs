//! Names of functions, as uftrace shows them without being told where to look.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rftrace_read::Trace;
use rftrace_tests::traces::{trees, uftrace};
use rftrace_tests::{CProgram, Profile, Program, outline, require, rust_program};

/// The functions that uftrace's replay shows, in order of their calls.
fn replayed(dir: &Path) -> Vec<String> {
    let replay = uftrace(&["replay", "-f", "none"], dir);
    let calls = replay.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('}'));
    calls.map(|line| line.trim_end_matches([' ', '{', ';']).to_owned()).collect()
}

fn in_tree(trace: &Trace) -> Vec<String> {
    trees(trace).iter().flat_map(|tree| tree.calls().map(|(_, call)| format!("{}()", call.name))).collect()
}

fn cpp_program(arguments: &[&str]) -> (Program, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libgreet.so");
    CProgram::new(&["greet.c"]).without_library().with(&["-shared", "-fPIC", "-O1"]).build_as(&library);
    let path = library.to_str().unwrap();
    let origin = format!("-Wl,-rpath,{}", folder.path().display());
    (CProgram::new(&["names.cpp"]).with(arguments).with(&[path, &origin]).build(), folder)
}

#[test]
fn cpp_and_library_functions_have_names() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    let expected = [
        "shapes::Circle::Circle",
        "shapes::Circle::area",
        "shapes::Circle::operator*",
        "shapes::Circle::~Circle",
        "shapes::twice<int>",
        "shapes::(anonymous namespace)::hidden",
        "greet",
        "  greet_inner",
    ];
    for arguments in [&["-O0"][..], &["-O2", "-mfentry"], &["-O1", "-no-pie"]] {
        let (program, _library) = cpp_program(arguments);
        let run = program.run(&[]);
        let text = outline(&run.trace("trace"));
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{arguments:?}");
        if require(&["uftrace"]) {
            let expected: Vec<String> = expected.iter().map(|name| format!("{}()", name.trim())).collect();
            assert_eq!(replayed(&run.path("trace")), expected, "{arguments:?}");
        }
    }
}

#[test]
fn rust_functions_have_names() {
    if !require(&["nightly"]) {
        return;
    }
    let expected = [
        "names::outer::inner::function()",
        "<names::Pair<u8, f64>>::swap()",
        "<[u8; 3] as names::Speak>::speak()",
        "names::generic::<(i32, &str)>()",
        "names::grüße()",
        "names::outer::inner::function()",
    ];
    for profile in Profile::ALL {
        let run = rust_program("names", profile).run(&[]);
        let names = in_tree(&run.trace("trace"));
        let own: Vec<&String> = names.iter().filter(|name| expected.contains(&name.as_str())).collect();
        assert_eq!(own, expected, "{profile:?}: {names:?}");
        // Nothing is mangled or without a name.
        let odd: BTreeSet<&String> = names
            .iter()
            .filter(|name| {
                name.starts_with("_R")
                    || name.starts_with("_Z")
                    || name.starts_with("<0x")
                    || name.contains("<deadbeef")
            })
            .collect();
        assert_eq!(odd, BTreeSet::new());
        let unnamed = |name: &str| {
            let digits = name.strip_prefix('<').and_then(|name| name.strip_suffix(">()"));
            let is_address = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
            is_address || name.starts_with("sub_")
        };
        assert!(!names.iter().any(|name| unnamed(name)), "{profile:?}: {names:?}");
        if require(&["uftrace"]) {
            assert_eq!(replayed(&run.path("trace")), names, "{profile:?}");
        }
    }
}

/// A program may be moved and its folder may have any name.
#[test]
fn paths_with_white_space_and_umlauts_have_symbols() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a prögram with \"quotes\"");
    CProgram::new(&["calls.c"]).build_as(&path);
    let run = rftrace_tests::Run::of(&mut std::process::Command::new(&path));
    assert!(outline(&run.trace("trace")).starts_with("two\n  leaf\n"));
    if require(&["uftrace"]) {
        assert_eq!(replayed(&run.path("trace"))[..2], ["two()", "leaf()"]);
    }
}

/// A library that has the place of one that was unloaded does not get its names, however soon after one another they come.
#[test]
fn libraries_that_follow_one_another_in_one_place() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let names = ["apple", "berry", "cherry"];
    for name in names {
        let define = format!("-DNAME={name}");
        let library = CProgram::new(&["plugin.c"]).without_library();
        library.with(&["-shared", "-fPIC", "-O1", &define]).build_as(&folder.path().join(format!("{name}.so")));
    }
    let program = CProgram::new(&["plugins.c"]).without_library().with(&["-O1", "-ldl"]).build();
    let order = ["apple", "berry", "apple", "cherry", "cherry", "berry"];
    for options in [&[][..], &["--keep-stream"]] {
        let mut command = Command::new(crate::record::rftrace());
        command.args(["record", "--no-schedule", "-o", "trace"]).args(options).arg("--").arg(&program.path);
        command.args(order.map(|name| folder.path().join(format!("{name}.so")))).current_dir(&folder);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "they had different places");
        if !options.is_empty() {
            let mut command = Command::new(crate::record::rftrace());
            let output = command.args(["recover", "trace"]).current_dir(&folder).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let trace = folder.path().join("trace");
        let calls = rftrace_tests::traces::calls_per_task(&rftrace_tests::traces::open(&trace));
        let count = |name: &str| calls.iter().filter_map(|task| task.get(name)).sum::<u64>();
        assert_eq!(names.map(|name| count(&format!("{name}_inner"))), [20, 20, 20], "{calls:?}");
        assert_eq!(names.map(|name| count(&format!("{name}_ends"))), [2, 2, 2], "{calls:?}");
        let report = rftrace_tests::traces::uftrace(&["report"], &trace);
        for name in names {
            let line = report.lines().find(|line| line.ends_with(&format!("{name}_inner")));
            assert!(line.is_some_and(|line| line.contains(" 20 ")), "{report}");
        }
    }
}
