//! Patched call sites: the same calls are recorded, the bytes are what they should be, and where the system refuses
//! something the program goes on and is told. All other tests run in this mode with `RFTRACE_PATCHED=1`.

use std::path::Path;
use std::process::Command;

use rftrace_tests::traces::{outline_where, trees};
use rftrace_tests::{CProgram, Profile, Run, assert_same_lines, outline, require, rust_program, tools};

const VARIABLE: &str = "RFTRACE_PATCHED";

/// Ways to compile the program and its libraries, and to link the program.
const BUILDS: [(&[&str], &[&str]); 9] = [
    (&["-O0"], &[]),
    (&["-O2"], &[]),
    (&["-O0", "-mfentry"], &[]),
    (&["-O2", "-mfentry", "-fcf-protection=full"], &[]),
    (&["-O2"], &["-no-pie", "-fPIE"]),
    (&["-O2", "-fno-plt"], &["-Wl,--no-relax"]),
    (&["-O2", "-mfentry", "-fno-plt"], &["-Wl,--no-relax", "-Wl,-z,now"]),
    (&["-O2", "-fno-asynchronous-unwind-tables"], &["-Wl,-z,lazy"]),
    (&["-O2"], &["-Wl,-z,ibtplt", "-Wl,-z,lazy"]),
];

/// Builds a library of patched.c, whose functions' names begin with `first`.
fn build_library(folder: &Path, first: &str, arguments: &[&str]) {
    let define = format!("-DFIRST={first}");
    let library = CProgram::new(&["patched_library.c"]).with(arguments).without_library();
    library.with(&["-fPIC", "-shared", &define]).build_as(&folder.join(format!("{first}.so")));
}

fn run_patched(program: &Path, folder: &Path, patched: &str) -> String {
    let mut command = Command::new(program);
    // Libraries are found by their place, the trace goes to another folder.
    let run = Run::of(command.env(VARIABLE, patched).env("LD_LIBRARY_PATH", folder));
    assert_eq!(run.stdout, "ok\n", "{}", run.stderr);
    outline(&run.trace("trace"))
}

#[test]
fn calls_and_bytes_in_every_build() {
    if !require(&["gcc"]) {
        return;
    }
    for (arguments, for_program) in BUILDS {
        let folder = tempfile::tempdir().unwrap();
        build_library(folder.path(), "linked", arguments);
        build_library(folder.path(), "opened", arguments);
        let program = folder.path().join("program");
        let linked = folder.path().join("linked.so");
        let opened = format!("-DOPENED=\"{}\"", folder.path().join("opened.so").display());
        let linked = [linked.to_str().unwrap(), &opened];
        CProgram::new(&["patched.c"]).with(arguments).with(for_program).with(&linked).build_as(&program);
        let plain = run_patched(&program, folder.path(), "0");
        let patched = run_patched(&program, folder.path(), "1");
        assert!(plain.contains("linked_outer\n  linked_leaf\n"), "{plain}");
        assert!(plain.contains("opened_outer\n  opened_leaf\n"), "{plain}");
        assert_same_lines(&patched, &plain, &format!("{arguments:?} {for_program:?}"));
    }
}

#[test]
fn static_programs() {
    if !require(&["gcc"]) {
        return;
    }
    for arguments in [
        &["-static", "-O1"][..],
        &["-static", "-O2", "-mfentry"],
        &["-static", "-O2", "-fno-plt", "-Wl,--no-relax"],
        &["-static-pie", "-O1"],
    ] {
        let program =
            CProgram::new(&["patched.c", "patched_library.c"]).with(&["-DFIRST=linked"]).with(arguments).build();
        let folder = program.path.parent().unwrap();
        let plain = run_patched(&program.path, folder, "0");
        assert_same_lines(&run_patched(&program.path, folder, "1"), &plain, &format!("{arguments:?}"));
    }
}

/// A signal strikes in a stub.
#[test]
fn unwinders_pass_stubs() {
    if !require(&["g++"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-mfentry"], &["-O1", "-fno-plt", "-Wl,--no-relax"]] {
        let program = CProgram::new(&["patched_steps.cpp"]).with(arguments).with(&["-fnon-call-exceptions"]).build();
        for (how, expected) in [("backtrace", "4 seen, 0 caught, 0 bad"), ("throw", "10 seen, 4 caught, 0 bad")] {
            let run = Run::of(Command::new(&program.path).arg(how).env(VARIABLE, "1"));
            assert_eq!(run.stdout.trim(), expected, "{arguments:?} {how}");
            let _ = run.trace("trace");
        }
    }
}

#[test]
fn a_debugger_passes_stubs() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    for arguments in [&["-O1"][..], &["-O1", "-mfentry"]] {
        let program = CProgram::new(&["calls.c"]).with(arguments).build();
        let folder = tempfile::tempdir().unwrap();
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-ex", "set startup-with-shell off", "-ex", "break two", "-ex", "run"]);
        // Sites are found before `two` runs; then on to the jump in `leaf`.
        gdb.args(["-ex", "delete", "-ex", "tbreak *&leaf", "-ex", "continue"]);
        for _ in 0..8 {
            gdb.args(["-ex", "stepi", "-ex", "bt"]);
        }
        let text = tools::text(gdb.arg(&program.path).env(VARIABLE, "1").current_dir(folder.path()));
        let backtraces: Vec<&str> = text.split("\n#0 ").filter(|part| part.contains("in rftrace_stub ()")).collect();
        let in_stub: Vec<&&str> =
            backtraces.iter().filter(|text| text.lines().next().unwrap().contains("rftrace_stub")).collect();
        assert_eq!(in_stub.len(), 2, "{arguments:?}: {text}");
        for backtrace in in_stub {
            for (frame, function) in [("#1", "leaf ("), ("#2", "two ("), ("", " main (")] {
                let is_there = backtrace.lines().any(|line| line.starts_with(frame) && line.contains(function));
                assert!(is_there, "{arguments:?}: no {function} in\n{backtrace}");
            }
        }
    }
}

#[test]
fn rust_programs_switch_their_sites() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("patched", profile).run(&["states"]);
        let trees = trees(&run.trace("trace"));
        assert_eq!(trees.len(), 1);
        let outline = outline_where(&trees[0], |name| {
            let name = name.strip_prefix("patched::")?;
            ["leaf", "outer", "recurse"].contains(&name).then_some(name)
        });
        let once = "recurse\n  recurse\n    recurse\n      recurse\n        outer\n          leaf\n          leaf\n";
        assert_same_lines(&outline, &once.repeat(2), &format!("{profile:?}"));
    }
}

#[test]
fn sites_change_while_threads_run() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        for how in ["stress", "threads"] {
            let run = rust_program("patched", profile).run(&[how]);
            // Balanced, times in order: checked when it is opened.
            let _ = run.trace("trace");
        }
    }
}

#[test]
fn two_bytes_do_not_change_at_once() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        for (how, n_calls) in [(&["crossing"][..], 4), (&["crossing", "threads"], 2)] {
            let run = rust_program("patched", profile).run(how);
            let trace = run.trace("trace");
            // The other thread may be seen first.
            let pid = trace.tasks()[0].pid();
            let all = trees(&trace);
            let main = all.iter().find(|tree| tree.tid == pid).expect("the main thread");
            let calls = main.calls().filter(|(_, call)| call.name == "crossing").count();
            assert_eq!(calls, n_calls, "{profile:?} {how:?}");
        }
    }
}

#[test]
fn systems_that_refuse_to_change_code() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let program = rust_program("patched", profile);
        for (how, expected) in [
            // Code is written by /proc/self/mem.
            ("mdwe", " call sites patched, 0 left as they are"),
            ("seccomp", " call sites patched, 0 left as they are"),
            ("stubs", ": no executable memory within reach (Operation not permitted"),
            ("text", ": the system refuses changes of code (Operation not permitted"),
            // Half of a change is undone: all calls are recorded.
            ("half", ": the system refuses changes of code (Operation not permitted"),
        ] {
            let run = program.run(&["refused", how]);
            if run.stdout.starts_with("no mdwe") {
                tools::skip("the kernel has no PR_SET_MDWE");
                continue;
            }
            assert!(run.stdout.contains(expected), "{profile:?} {how}: {}", run.stdout);
            let fails = ["stubs", "text", "half"].contains(&how);
            let says = run.stdout.starts_with("cannot patch any call site: 0 call sites patched, ");
            assert_eq!(says, fails, "{profile:?} {how}: {}", run.stdout);
            assert!(outline(&run.trace("trace")).contains("leaf"), "{profile:?} {how}");
        }
    }
}

/// Patches that other threads may not have seen are not built upon, and a message says so.
#[test]
fn barriers_that_fail() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("patched", profile).run(&["unseen"]);
        assert!(run.stdout.starts_with("0 on; "), "{profile:?}: {}", run.stdout);
        assert!(run.stdout.contains("(Operation not permitted"), "{profile:?}: {}", run.stdout);
    }
}

#[test]
fn the_variable_is_0_or_1() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["calls.c"]).build();
    for value in ["", "2", "yes"] {
        let run = Run::of_any(Command::new(&program.path).env(VARIABLE, value));
        let message =
            format!("init: the environment variable {VARIABLE} is {value:?}; set it to 0 or 1, or unset it\n");
        assert_eq!((run.stderr, run.status.code()), (message, Some(1)));
    }
}
