//! Programs that end without a save, and other uses of the library that would lose what was recorded.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{CProgram, Profile, Run, outline_of, require, rust_program};

fn run(what: &str) -> Run {
    Run::of_any(Command::new(&rust_program("unsaved", Profile::Debug).path).arg(what))
}

/// The lines of the library.
fn notices(run: &Run) -> Vec<&str> {
    run.stderr.lines().filter(|line| line.starts_with("rftrace: ")).collect()
}

/// Returns true if the five levels below the first `work` are there.
fn has_work(run: &Run, trace: &str) -> bool {
    let levels: String = (0..6).map(|depth| format!("{:1$}work\n", "", 2 * depth)).collect();
    trees(&run.trace(trace)).iter().any(|tree| outline_of_tree(tree, "unsaved::").contains(&levels))
}

#[test]
fn what_is_unsaved_at_exit_is_saved() {
    if !require(&["nightly"]) {
        return;
    }
    for (what, status, output) in [
        ("return", Some(0), "out\n"),
        ("exit", Some(3), ""),
        ("exit-in-thread", Some(4), ""),
        ("panic", Some(101), ""),
        ("handler", Some(7), ""),
        ("stream", Some(0), "out\n"),
        ("chdir", Some(0), "out\n"),
        ("elsewhere", Some(0), "out\n"),
    ] {
        let run = run(what);
        assert_eq!((run.status.code(), run.stdout.as_str()), (status, output), "{what}: {}", run.stderr);
        let notices = notices(&run);
        let [line] = notices[..] else { panic!("{what}: {}", run.stderr) };
        assert!(line.starts_with("rftrace: the program ended without a save; "), "{what}: {line}");
        let place = format!(" events are in {}", fs::canonicalize(run.path("trace")).unwrap().display());
        assert!(line.ends_with(&place), "{what}: {line}");
        assert!(has_work(&run, "trace"), "{what}");
    }
}

#[test]
fn what_is_saved_or_not_to_be_saved_is_left_alone() {
    if !require(&["nightly"]) {
        return;
    }
    for what in ["saved", "snapshot", "own-first", "own-later"] {
        let run = run(what);
        assert!(run.status.success() && notices(&run).is_empty(), "{what}: {}", run.stderr);
        assert!(has_work(&run, "trace"), "{what}");
    }
    for what in ["off", "never-on", "abort"] {
        let run = run(what);
        assert!(notices(&run).is_empty() && !run.path("trace").exists(), "{what}: {}", run.stderr);
    }
    // The trace is the one that the program has saved.
    let run = run("saved-before");
    let [line] = notices(&run)[..] else { panic!("{}", run.stderr) };
    assert!(line.starts_with("rftrace: the program ended without another save; "), "{line}");
    assert!(has_work(&run, "trace"));
}

/// The library links into a C program with its part of the exit. `rftrace_init` knows no directory.
#[test]
fn a_stream_of_a_c_program_is_saved_at_exit() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["own_stream.c"]).with(&["-O1", "-lpthread"]).build();
    let run = |way| Run::of_any(Command::new(&program.path).args(["1000", way]));
    let stream = run("unsaved-stream");
    let [line] = notices(&stream)[..] else { panic!("{}", stream.stderr) };
    assert!(line.starts_with("rftrace: the program ended without a save; "), "{line}");
    assert!(stream.status.code() == Some(7) && stream.path("trace/info").exists());
    let buffer = run("unsaved-buffer");
    assert_eq!((buffer.status.code(), buffer.stderr.as_str()), (Some(7), ""));
}

/// The parent's trace stays, and the child says what it has not saved.
#[test]
fn a_forked_child_leaves_the_directory_alone() {
    if !require(&["nightly"]) {
        return;
    }
    let run = run("fork");
    let [line] = notices(&run)[..] else { panic!("{}", run.stderr) };
    assert!(line.starts_with("rftrace: the forked process "), "{line}");
    assert!(run.status.success() && has_work(&run, "trace"));
}

/// The program ends as it would without a tracer, whatever fails.
#[test]
fn a_failing_save_at_exit_changes_nothing() {
    if !require(&["nightly"]) {
        return;
    }
    for (what, why) in [
        (
            "bad-path",
            "cannot write /proc/nonexistent/x: No such file or directory (os error 2); choose another directory",
        ),
        ("small-files", "raise the limit of file sizes (ulimit -f)"),
    ] {
        let run = run(what);
        assert_eq!((run.status.code(), run.stdout.as_str()), (Some(0), "out\n"), "{what}: {}", run.stderr);
        let [line] = notices(&run)[..] else { panic!("{what}: {}", run.stderr) };
        assert!(line.starts_with("rftrace: the program ended without a save") && line.ends_with(why), "{what}: {line}");
    }
    let run = run("no-stderr");
    assert_eq!((run.status.code(), run.stdout.as_str()), (Some(0), "out\n"));
    assert!(has_work(&run, "trace"));
}

#[test]
fn another_buffer_waits_for_a_save() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("unsaved", profile).run(&["second"]);
        let said: Vec<&str> = run.stdout.lines().collect();
        let unsaved = "recorded events are in no trace yet; save them first, or call `Config::discard_unsaved`";
        assert!(said[0].ends_with(unsaved), "{profile:?}: {said:?}");
        assert_eq!(said[1..], ["no error", "no error", "no error", "out"], "{profile:?}");
        assert!(has_work(&run, "trace"), "{profile:?}");
    }
}

#[test]
fn a_save_without_events_names_the_cause() {
    if !require(&["nightly"]) {
        return;
    }
    let guard = "0 events: the program dropped the guard of `record` before it called an instrumented function; keep the guard with \
        `let _recording = tracer.record();` (`let _ = ` drops it at once)";
    let no_calls =
        "0 events: the program called no instrumented function while recording was on, or the filter excludes them all";
    for profile in Profile::ALL {
        let run = rust_program("unsaved", profile).run(&["nothing"]);
        let said: Vec<&str> = run.stdout.lines().collect();
        let never_on =
            "0 events: the program has not switched recording on since the last save; call `enable` or `record` first";
        let filtered = "0 events: the filter excludes all called functions; `Tracer::functions` lists its choice";
        assert_eq!(said, [never_on, guard, no_calls, no_calls, filtered], "{profile:?}");
        assert!(notices(&run).is_empty() && !run.path("trace").exists(), "{profile:?}: {}", run.stderr);
    }
}

/// The first program in the texts compiles and makes a trace, and all print the same one.
#[test]
fn the_printed_program_works() {
    if !require(&["nightly"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let program = include_str!("../../fixtures/rust/src/bin/printed.rs");
    let dependencies = "rftrace = { git = \"https://github.com/hermit-os/rftrace\" }\n\
        rftrace-frontend = { git = \"https://github.com/hermit-os/rftrace\" }\n";
    for text in ["README.md", "frontend/README.md", "src/lib.rs", "frontend/src/lib.rs"] {
        let printed = fs::read_to_string(root.join(text)).unwrap();
        let printed: String = printed
            .lines()
            .map(|line| line.strip_prefix("//!").map_or(line, |line| line.strip_prefix(' ').unwrap_or(line)))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert!(printed.contains(program), "{text} has another program");
        assert!(printed.contains(dependencies), "{text} has other dependencies");
    }
    let run = rust_program("printed", Profile::Debug).run(&[]);
    assert_eq!(run.stdout, "at work\n");
    assert!(run.stderr.is_empty() && !outline_of(&run.trace("trace"), "printed::work").is_empty(), "{}", run.stderr);
}
