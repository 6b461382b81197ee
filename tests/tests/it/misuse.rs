//! Bad use, and places that cannot be written to: the program gets an error that says what to do, and nothing is lost.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_frontend::{Config, Filter, SaveOptions};
use rftrace_tests::{CProgram, Profile, Program, Run, outline, outline_of, require, rust_program, tools};

const KEPT: &str = "the buffer keeps the events; save them elsewhere";
const NO_HOOKS: &str =
    "0 events: no function of this program calls the tracer; build it with -Z instrument-mcount (Rust) or -pg (C)";
const NO_CALLS: &str =
    "0 events: the program called no instrumented function while recording was on, or the filter excludes them all";
const RECORDING: &str = "recording is on; switch it off before you give the tracer another buffer";
const REPLACED: &str =
    "a later buffer has replaced that of this Events (or Tracer); use the result of the last init (or install)";
const NO_INIT: &str = "rftrace is not initialised: call init first";
const NO_PATH: &str = "the path of the trace is NULL; give a path";

/// The lines that a fixture prints.
fn lines(program: &Program, arguments: &[&str]) -> Vec<String> {
    program.run(arguments).stdout.lines().map(str::to_owned).collect()
}

fn c_program() -> Program {
    CProgram::new(&["misuse.c"]).with(&["-O1"]).build()
}

#[test]
fn c_init() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program();
    let sizes = lines(&program, &["size"]);
    assert!(sizes[0].starts_with("init: a trace buffer of 0 ") && sizes[0].contains("is too small"), "{sizes:?}");
    assert!(sizes[1].contains("is too small; the minimum is "), "{sizes:?}");
    assert_eq!(
        sizes[2],
        format!("init: a trace buffer of {} events exceeds the address space; ask for fewer events", usize::MAX)
    );
    assert!(sizes[3].starts_with("init: no memory for a trace buffer of "), "{sizes:?}");
    assert!(sizes[3].ends_with("; ask for fewer events"), "{sizes:?}");
    assert_eq!(sizes[4..], ["init: no error"]);
}

#[test]
fn c_dumps_without_what_they_need() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program();
    assert_eq!(lines(&program, &["without-init"]), [format!("dump: {NO_INIT}"), format!("raw dump: {NO_INIT}")]);
    let run = program.run(&["without-path"]);
    assert_eq!(run.stdout, format!("dump: {NO_PATH}\nraw dump: {NO_PATH}\ndump without name: no error\n"));
    assert_eq!(outline(&run.trace("trace")), "outer\n  inner\n  inner\n");
}

#[test]
fn c_dumps_of_nothing() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program();
    assert_eq!(lines(&program, &["nothing-called"]), [format!("dump: {NO_CALLS}")]);
    let run = program.run(&["nothing-more"]);
    assert_eq!(run.stdout, format!("first dump: no error\nsecond dump: {NO_CALLS}\n"));
    // The first trace is still there.
    assert_eq!(outline(&run.trace("trace")), "outer\n  inner\n  inner\n");

    let without_hooks = CProgram::new(&["misuse.c"]).without_hooks().build();
    assert_eq!(lines(&without_hooks, &["nothing-more"])[0], format!("first dump: {NO_HOOKS}"));
}

/// Paths that nobody can write to, not even root: in a system of the kernel's, and below a file.
const BAD_PATHS: [(&str, &str); 2] = [
    ("/proc/nonexistent/x", "No such file or directory (os error 2)"),
    ("/etc/passwd/x", "Not a directory (os error 20)"),
];

#[test]
fn c_dumps_to_bad_paths_lose_nothing() {
    if !require(&["gcc"]) {
        return;
    }
    let program = c_program();
    for (path, why) in BAD_PATHS {
        let run = program.run(&["path", path]);
        let error = format!("cannot write {path}: {why}; {KEPT}");
        assert_eq!(run.stdout, format!("dump: {error}\nraw dump: {error}\ngood dump: no error\n"));
        assert_eq!(outline(&run.trace("trace")), "outer\n  inner\n  inner\n");
    }
}

#[test]
fn rust_init_panics() {
    if !require(&["nightly"]) {
        return;
    }
    let program = rust_program("misuse", Profile::Debug);
    for (what, message) in [
        ("size", "is too small; the minimum is ".to_owned()),
        ("huge", format!("a trace buffer of {} events exceeds the address space; ask for fewer events", usize::MAX)),
        ("while-recording", RECORDING.to_owned()),
    ] {
        let run = Run::of_any(Command::new(&program.path).arg(what));
        assert_eq!(run.status.code(), Some(101), "{what}");
        assert!(run.stderr.contains(&message), "{what}: {}", run.stderr);
    }
}

#[test]
fn rust_dumps() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let program = rust_program("misuse", profile);
        assert_eq!(lines(&program, &["nothing-called"]), [format!("dump: {NO_CALLS}")]);
        let run = program.run(&["nothing-more"]);
        let expected = format!("first dump: no error\nsecond dump: {NO_CALLS}\nraw dump: {NO_CALLS}\n");
        assert_eq!(run.stdout, expected, "{profile:?}");
        for (path, why) in BAD_PATHS {
            let run = program.run(&["path", path]);
            let error = format!("cannot write {path}: {why}; {KEPT} (source: {why})");
            assert_eq!(run.stdout, format!("dump: {error}\nraw dump: {error}\ngood dump: no error\n"), "{profile:?}");
            assert_eq!(outline_of(&run.trace("trace"), "misuse::work"), "\n", "{profile:?}");
        }
    }
}

/// The error names a file of the directory, and the next save has everything.
fn check_full_disk(run: &Run, directory: &str, why: &str) {
    let text = run.stdout.trim();
    let path = text.strip_prefix("cannot write ").and_then(|text| text.strip_suffix(&format!(": {why}; {KEPT}")));
    let path = path.unwrap_or_else(|| panic!("another error: {text}"));
    assert_eq!(Path::new(path).parent(), Some(Path::new(directory)), "{text}");
    assert_eq!(outline(&run.trace("trace")), "outer\n  inner\n".repeat(20_000));
}

#[test]
fn a_full_disk_loses_nothing() {
    if !require(&["gcc", "unshare"]) {
        return;
    }
    let program = CProgram::new(&["filler.c"]).with(&["-O1"]).build();
    // A mount that nobody else sees and that ends with the program.
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "sh", "-c"]);
    let may_mount = unshare.arg("mount -t tmpfs none /mnt").output().is_ok_and(|output| output.status.success());
    if !may_mount {
        return tools::skip("mounts are not permitted");
    }
    let full = tempfile::tempdir().unwrap();
    let full = full.path().to_str().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$1\" && exec \"$0\" \"$1/trace\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(&program.path).arg(full);
    let run = Run::of(&mut unshare);
    check_full_disk(&run, &format!("{full}/trace"), "No space left on device (os error 28)");
}

/// A write that fails in the middle of a file, where mounts are not permitted either.
#[test]
fn a_limit_for_files_is_an_error() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["filler.c"]).with(&["-O1"]).build();
    let mut shell = Command::new("sh");
    // 64 blocks of 512 bytes. Without the trap the signal would end the program.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" small"]).arg(&program.path);
    let run = Run::of_any(&mut shell);
    // The file has the thread's id for a name.
    let is_expected = |text: &str, beginning: &str| {
        let rest = text.strip_prefix(beginning).map(|text| text.trim_start_matches(|c: char| c.is_ascii_digit()));
        rest.is_some_and(|rest| rest.starts_with(".dat: File too large (os error 27)"))
    };
    assert!(is_expected(&run.stdout, "cannot write small/"), "{}", run.stdout);
    // The second save fails as well, and says so.
    assert_eq!(run.status.code(), Some(1));
    assert!(is_expected(&run.stderr, "dump: cannot write trace/"), "{}", run.stderr);
    // The remains are not taken for a trace.
    assert!(!run.path("small/info").exists() && !run.path("trace/info").exists());
}

/// This program is itself one without any call to mcount.
#[test]
fn a_rust_program_without_hooks_has_no_events() {
    let folder = tempfile::tempdir().unwrap();
    let first = Config::new().directory(folder.path().join("first")).install().unwrap();
    let tracer = Config::new().directory(folder.path().join("trace")).install().unwrap();
    let recording = tracer.record();
    let while_recording = Config::new().install().unwrap_err();
    assert_eq!(while_recording.to_string(), RECORDING);
    // The first one has no buffer any more, and changes nothing.
    first.disable();
    assert!(!first.is_recording() && !first.statistics().recording);
    assert_eq!(first.save().unwrap_err().to_string(), REPLACED);
    assert_eq!(first.save_with(&SaveOptions::new().single_threaded(true)).unwrap_err().to_string(), REPLACED);
    assert_eq!(first.save_with(&SaveOptions::new().keep(true)).unwrap_err().to_string(), REPLACED);
    assert_eq!(first.set_filter(&Filter::new().max_depth(1)).unwrap_err().to_string(), REPLACED);
    first.clear_filter();
    assert!(tracer.statistics().recording);
    drop(recording);
    assert!(!tracer.statistics().recording);
    assert_eq!(tracer.save().unwrap_err().to_string(), NO_HOOKS);
    let raw = folder.path().join("raw");
    assert_eq!(tracer.save_with(&SaveOptions::new().records_only(&raw)).unwrap_err().to_string(), NO_HOOKS);
    // Nothing was written.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The functions of 0.3 return no losses.
#[test]
fn a_dump_without_its_end_says_so() {
    if !require(&["gcc"]) {
        return;
    }
    let run = c_program().run(&["full"]);
    assert_eq!(run.stdout, "dump: no error\n");
    assert!(run.stderr.starts_with("rftrace: the trace in trace is incomplete: the buffer was full"), "{}", run.stderr);
}
