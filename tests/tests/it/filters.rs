//! Choice of functions: what is recorded is what uftrace records by the same rules; lists, messages, libraries and names. What each rule lets
//! pass is in `scenarios/filters.toml`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rftrace_read::Trace;
use rftrace_tests::traces::{calls_per_task, trees};
use rftrace_tests::{
    CProgram, Profile, Program, Run, assert_same_lines, outline, outline_of, require, rust_program, tools,
};

const C_BUILDS: [&[&str]; 6] = [
    &["-O1"],
    &["-O2", "-mfentry"],
    &["-O1", "-static"],
    &["-O2", "-mfentry", "-static-pie"],
    &["-O1", "-no-pie"],
    &["-O2", "-fno-plt"],
];

pub(crate) fn counts(trace: &Trace) -> String {
    let tasks = calls_per_task(trace);
    let counts: Vec<String> = tasks[0].iter().map(|(name, count)| format!("{name} {count}")).collect();
    counts.join(", ")
}

fn filters_program(arguments: &[&str]) -> Program {
    CProgram::new(&["filters.c"]).with(arguments).build()
}

/// Runs a program that makes its calls at once, with a filter from outside.
fn run_filtered(program: &Path, filter: &str) -> Run {
    Run::of_any(Command::new(program).env("RFTRACE_FILTER", filter))
}

/// Values of the variable that patches call sites.
const PATCHED: [&str; 2] = ["0", "1"];

fn run_patched(program: &Program, patched: &str, arguments: &[&str]) -> Run {
    Run::of(Command::new(&program.path).args(arguments).env("RFTRACE_PATCHED", patched))
}

#[test]
fn uftrace_records_the_same_by_the_same_rules() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let program = filters_program(&["-O1"]);
    let theirs = CProgram::new(&["filters.c"]).without_library().with(&["-O1", "-DUFTRACE"]).build();
    for (filter, options) in [
        ("below=work", &["-F", "work"][..]),
        ("not_below=work", &["-N", "work"]),
        ("below=run; not_below=branch", &["-F", "run", "-N", "branch"]),
        // `main`, which uftrace records, is one level more.
        ("depth=2", &["-D", "3"]),
        ("below=work; depth=2", &["-F", "work", "-D", "2"]),
        ("min=1ms", &["-t", "1ms"]),
        ("below=run; min=1ms", &["-F", "run", "-t", "1ms"]),
        ("size=400", &["-Z", "400"]),
    ] {
        let run = program.run(&[filter]);
        let mut uftrace = Command::new("uftrace");
        let folder = run.path("theirs");
        uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "-d"]).arg(&folder).args(options);
        tools::run(uftrace.arg(&theirs.path));
        let their_trace = Trace::open(&folder).unwrap();
        let mut their_counts = calls_per_task(&their_trace).remove(0);
        their_counts.remove("main");
        let our_counts = calls_per_task(&run.trace("trace")).remove(0);
        assert_eq!(our_counts, their_counts, "{filter} and {options:?}");
    }
}

#[test]
fn functions_are_listed() {
    if !require(&["gcc"]) {
        return;
    }
    let list = |run: &Run| -> BTreeMap<String, String> {
        let lines = run.stdout.lines().filter_map(|line| line.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
    };
    let functions = ["branch", "holds_slow", "large", "leaf", "main", "recursive", "run", "slow", "work"];
    for arguments in C_BUILDS {
        let program = filters_program(arguments);
        let all = list(&program.run(&[]));
        assert_eq!(all.keys().collect::<Vec<_>>(), functions, "{arguments:?}");
        // Recorded, and small.
        assert_eq!(all["leaf"], "1 0", "{arguments:?}");
        assert_eq!(all["large"], "1 1", "{arguments:?}");
        let some = list(&program.run(&["include=l*"]));
        assert_eq!(some["recorded"], "2");
        assert_eq!((&*some["leaf"], &*some["run"]), ("1 0", "0 0"), "{arguments:?}");
    }
}

#[test]
fn what_is_wrong_is_told_with_a_remedy() {
    if !require(&["gcc"]) {
        return;
    }
    let program = filters_program(&["-O1"]);
    for (filter, expected) in [
        ("include=leav", "include=leav matches nothing; did you mean `leaf`?"),
        ("exclude=leaf; below=hold_slow", "below=hold_slow matches nothing; did you mean `holds_slow`?"),
        ("include=rftrace_enable", "include=rftrace_enable matches no function that can be recorded"),
        ("module=programme", "module=programme matches nothing; did you mean `program`?"),
        ("depht=3", "bad filter: RFTRACE_FILTER: at character 1, `depht=3`: no such key: `depht`"),
        ("min=1us; size=x", "at character 10, `size=x`: write the number of bytes, as in size=64"),
    ] {
        let run = run_filtered(&program.path, filter);
        assert_eq!(run.status.code(), Some(1), "{filter}");
        assert!(run.stderr.contains(expected), "{filter}: {}", run.stderr);
        assert!(run.stderr.contains("RFTRACE_FILTER"), "{filter}: {}", run.stderr);
        let run = Run::of_any(Command::new(&program.path).arg(filter));
        assert_eq!(run.status.code(), Some(1), "{filter}");
        assert!(run.stderr.contains(expected.trim_start_matches("bad filter: RFTRACE_FILTER: ")), "{}", run.stderr);
    }
}

#[test]
fn the_variable_filters_programs_that_know_nothing_of_it() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["calls.c"]).with(&["-O1"]).build();
    let run = run_filtered(&program.path, "include=jump*");
    assert_eq!(outline(&run.trace("trace")), "jump_twice\n  jump\n");
    assert_eq!(outline(&run_filtered(&program.path, " ").trace("trace")), outline(&program.run(&[]).trace("trace")));
    // Nothing is left.
    let run = run_filtered(&program.path, "exclude=*");
    assert!(run.stderr.contains("the filter excludes all called functions"), "{}", run.stderr);
}

#[test]
fn libraries_and_cpp_names() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    // Calls by way of the procedure linkage table, bound at the first call or at once, and without one.
    for library_arguments in
        [&["-fPIC"][..], &["-fPIC", "-Wl,-z,now"], &["-fPIC", "-Wl,-z,lazy", "-fcf-protection"], &["-fPIC", "-fno-plt"]]
    {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libgreet.so");
        let greet = CProgram::new(&["greet.c"]).without_library().with(library_arguments);
        greet.with(&["-shared", "-O1"]).build_as(&library);
        let origin = format!("-Wl,-rpath,{}", folder.path().display());
        let arguments = ["-O1", library.to_str().unwrap(), &origin];
        let program = CProgram::new(&["names.cpp"]).with(&arguments).build();
        for (filter, expected) in [
            ("module=libgreet*", "greet\n  greet_inner\n"),
            ("module=libgreet.so; exclude=greet", "greet_inner\n"),
            ("include=greet*; include=*::hidden; not_module=libgreet*", "shapes::(anonymous namespace)::hidden\n"),
            (
                "module=program; exclude=shapes::Circle::*",
                "shapes::twice<int>\nshapes::(anonymous namespace)::hidden\n",
            ),
            ("include=shapes::Circle::operator*", "shapes::Circle::operator*\n"),
            (
                "include=shapes::twice<int>(int const&); include=*Circle(double)",
                "shapes::Circle::Circle\nshapes::twice<int>\n",
            ),
            ("include=*::hidden(int); include=greet", "shapes::(anonymous namespace)::hidden\ngreet\n"),
        ] {
            let run = run_filtered(&program.path, filter);
            assert!(run.status.success(), "{library_arguments:?}, {filter}: {}", run.stderr);
            assert_same_lines(&outline(&run.trace("trace")), expected, &format!("{library_arguments:?}, {filter}"));
        }
    }
}

#[test]
fn rust_programs_filter_themselves() {
    if !require(&["nightly"]) {
        return;
    }
    for (profile, patched) in Profile::ALL.into_iter().flat_map(|profile| PATCHED.map(|patched| (profile, patched))) {
        let run = run_patched(&rust_program("filters", profile), patched, &[]);
        assert_eq!(run.stdout.lines().last(), Some(&*format!("patched {patched}")), "{profile:?}");
        let mut lines = run.stdout.lines().filter(|line| !line.contains("{closure"));
        for expected in [
            "filters::branch",
            "filters::main",
            "filters::work",
            "include=filters::laef matches nothing; did you mean `filters::leaf`?",
            "bad filter: include=/(/: found open group without closing ')'",
        ] {
            assert_eq!(lines.next(), Some(expected), "{profile:?}: {}", run.stdout);
        }
        let outline = |name| outline_of(&run.trace(name), "filters::");
        let work = "work\n  branch\n    leaf\n    leaf\n  leaf\n";
        assert_eq!(outline("first"), "work\n  branch\n", "{profile:?}");
        assert_eq!(outline("second"), "branch\n  leaf\n  leaf\n".repeat(2), "{profile:?}");
        assert_eq!(outline("third"), work, "{profile:?}");
        assert_eq!(outline("last"), work, "{profile:?}");
        for name in ["first", "second", "third"] {
            let trees = trees(&run.trace(name));
            let mut names = trees.iter().flat_map(|tree| tree.calls()).map(|(_, call)| &call.name);
            assert_eq!(names.find(|name| name.starts_with("rftrace")), None, "{profile:?}, {name}");
        }
    }
}

#[test]
fn rust_names_are_those_of_the_trace() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let program = rust_program("names", profile);
        for (filter, expected) in [
            (r"include=<[u8\; 3] as names::Speak>::speak", "<[u8; 3] as names::Speak>::speak\n"),
            ("include=*::Speak>::speak; include=names::gr[u-ü]ße", "<[u8; 3] as names::Speak>::speak\nnames::grüße\n"),
            ("include=names::generic::<*>", "names::generic::<(i32, &str)>\n"),
            ("include=/^names::outer/", "names::outer::inner::function\nnames::outer::inner::function\n"),
        ] {
            let run = run_filtered(&program.path, filter);
            assert!(run.status.success(), "{profile:?}, {filter}: {}", run.stderr);
            assert_same_lines(&outline(&run.trace("trace")), expected, &format!("{profile:?}, {filter}"));
        }
    }
}

/// Opening a trace checks that it is balanced, with true depths.
#[test]
fn filters_change_while_threads_run() {
    if !require(&["gcc"]) {
        return;
    }
    let builds = [&["-O1"][..], &["-O2", "-mfentry"], &["-O1", "-no-pie"]];
    for (arguments, patched) in builds.into_iter().flat_map(|build| PATCHED.map(|patched| (build, patched))) {
        let program = CProgram::new(&["refilter.c"]).with(arguments).build();
        let run = run_patched(&program, patched, &["2000"]);
        let trace = run.trace("trace");
        assert!(!trees(&trace).is_empty());
        let last = calls_per_task(&run.trace("last")).remove(0);
        let expected = BTreeMap::from([("leaf".to_owned(), 127), ("tail".to_owned(), 64)]);
        assert_eq!(last, expected, "{arguments:?}, patched {patched}");
    }
}
