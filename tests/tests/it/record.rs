//! `rftrace record`: programs without rftrace are recorded, end as they would, and have the calls that uftrace records.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::fixtures::cache::compile;
use rftrace_tests::fixtures::{self, build_as, folder};
use rftrace_tests::traces::{self, calls_per_task, uftrace};
use rftrace_tests::{CProgram, Program, Run, require, tools};

pub(crate) use rftrace_tests::recorder::{record, record_by, replay, rftrace};

/// The C program, to be built.
pub(crate) fn c_source() -> CProgram {
    CProgram::new(&["recorded.c"]).without_library().with(&["-O1", "-Wno-infinite-recursion", "-lpthread"])
}

pub(crate) fn c_program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| c_source().build())
}

/// A C++ program that throws, to be built.
pub(crate) fn cpp_source() -> CProgram {
    CProgram::new(&["recorded_throws.cpp"]).without_library().with(&["-O1", "-lpthread"])
}

/// Builds the Rust program, with further options for the compiler.
pub(crate) fn build_rust(options: &[&str]) -> PathBuf {
    build_any_rust("recorded", options)
}

/// The same of another fixture.
fn build_any_rust(fixture: &str, options: &[&str]) -> PathBuf {
    let mut rustc = fixtures::rustc(Some("nightly"), &format!("{fixture}.rs"));
    compile(rustc.args(["-Zinstrument-mcount", "-O"]).args(options), fixture)
}

/// Builds a Rust program for musl whose functions call no hook, with further options for the compiler. `None` if there is no library for that.
pub(crate) fn build_plain_rust_for_musl(fixture: &str, options: &[&str], path: &Path) -> Option<()> {
    let mut rustc = fixtures::rustc(Some("nightly"), &format!("{fixture}.rs"));
    rustc.args(["--target", fixtures::MUSL, "-O"]).args(options);
    fixtures::has_rust_for_musl().then(|| build_as(&mut rustc, path))
}

/// Builds a Rust program for musl, which has no `mcount`: in all ways of linking it statically. None if there is no library for that.
pub(crate) fn build_rust_for_musl(fixture: &str) -> Vec<PathBuf> {
    if !fixtures::has_rust_for_musl() {
        return Vec::new();
    }
    let hook = compile(Command::new("gcc").arg("-c").arg(folder("c").join("mcount.s")), "mcount.o");
    let hook = format!("-Clink-arg={}", hook.display());
    let ways = [&[][..], &["-Crelocation-model=static"], &["-Cstrip=debuginfo"]];
    ways.map(|options| build_any_rust(fixture, &[&["--target", fixtures::MUSL, &hook], options].concat())).into()
}

pub(crate) fn rust_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_rust(&[]))
}

/// How often each function was called, in all tasks.
pub(crate) fn calls(run: &Run) -> BTreeMap<String, u64> {
    assert!(run.path("trace/info").exists(), "no trace: {}", run.stderr);
    calls_of(&run.path("trace"))
}

/// As [`calls`], of a trace.
pub(crate) fn calls_of(trace: &Path) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, calls) in calls_per_task(&traces::open(trace)).into_iter().flatten() {
        *sum.entry(name).or_default() += calls;
    }
    sum
}

#[test]
fn threads_have_ids_and_names() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = record(&[], &c_program().path, &["threads"]);
    let by_task = uftrace(&["report", "--task"], &run.path("trace"));
    for name in ["program", "one", "two", "three"] {
        assert!(by_task.lines().any(|line| line.split_whitespace().last() == Some(name)), "{by_task}");
    }
    let trace = run.trace("trace");
    // The kernel gives a thread the next number, or a later one; the tracer counts from 1.
    let tids: Vec<u32> = trace.tasks().iter().map(rftrace_read::Task::tid).collect();
    assert_eq!(tids[0], trace.tasks()[0].pid());
    assert!(tids.iter().all(|&tid| tid > 1), "{tids:?}");
}

#[test]
fn a_snapshot_is_a_trace() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = record(&[], &c_program().path, &["snapshot"]);
    assert_eq!((run.status.code(), calls(&run)["leaf"]), (Some(0), 6), "{}", run.stderr);
    let snapshot = traces::open(&run.path("trace/snapshot-1"));
    assert_eq!(calls_per_task(&snapshot)[0].get("leaf"), Some(&2));
}

#[test]
fn sigkill_leaves_nothing_of_a_buffer() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&["--stop"], &c_program().path, &["kill"]);
    assert_eq!(run.status.code(), Some(137));
    assert!(run.stderr.contains("SIGKILL"), "{}", run.stderr);
    assert!(!run.path("trace").exists());
}

/// Records are not lost with the trace.
#[test]
fn where_no_trace_can_be_written() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[], &c_program().path, &["in_the_way"]);
    // The program's is 0.
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("trace/task.txt") && run.stderr.contains("the records stay in "), "{}", run.stderr);
    let parts = fs::read_dir(run.path("trace/.recording")).unwrap().flatten();
    assert!(parts.filter(|part| part.path().join("part.txt").is_file()).count() == 1, "{}", run.stderr);
}

#[test]
fn a_full_buffer_is_told_of() {
    if !require(&["gcc"]) {
        return;
    }
    let program = &c_program().path;
    let run = record(&["--stop", "--buffer", "4M"], program, &["much"]);
    assert!(run.stderr.contains("the buffer of 1 process was full") && run.stderr.contains("--ring"), "{}", run.stderr);
    assert!(calls(&run)["leaf"] > 100_000);
    let run = record(&["--ring"], program, &["much"]);
    assert!(run.stderr.contains("has kept only the last calls"), "{}", run.stderr);
    let run = record(&["--stop", "--buffer", "64M"], program, &["much"]);
    assert_eq!(calls(&run)["leaf"], 1_000_002);
    // With `main`, `how` and two times `work`.
    assert!(run.stderr.contains("1,000,006 calls of 1 thread in 1 process"), "{}", run.stderr);
    assert!(!run.stderr.contains("full"), "{}", run.stderr);
}

/// Where functions are in the source comes into the trace, and uftrace shows it.
#[test]
fn source_lines_are_written() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("lines.c");
    fs::write(&source, "void leaf(void) {}\n\nint main(void) {\n    leaf();\n}\n").unwrap();
    let built = |options: &[&str]| {
        let program = dir.path().join("lines");
        tools::run(Command::new("gcc").args(["-pg", "-O0", "-o"]).arg(&program).arg(&source).args(options));
        record(&["--srcline"], &program, &[])
    };
    let run = built(&["-g"]);
    assert!(!run.stderr.contains("source lines"), "{}", run.stderr);
    let replayed = uftrace(&["replay", "--srcline", "-f", "none"], &run.path("trace"));
    let (leaf, main) =
        (format!("leaf(); /* {}:1 */", source.display()), format!("main() {{ /* {}:3 */", source.display()));
    assert!(replayed.contains(&leaf) && replayed.contains(&main), "{replayed}");
    let run = built(&["-g0"]);
    assert!(run.stderr.contains("no source lines of ") && run.stderr.contains("-g"), "{}", run.stderr);
    assert_eq!(calls(&run)["leaf"], 1);
}

/// Inlined functions have no calls; `--inlined` shows them where they are. By the trace alone, or by the program. uftrace takes them for comments.
#[test]
fn inlined_functions_are_told_of() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("inlined.c"), dir.path().join("inlined"));
    let inline = "__attribute__((always_inline)) static inline int";
    let text = format!(
        "{inline} second(int x) {{ return x * 3; }}\n\
         {inline} first(int x) {{ return second(x) + 1; }}\n\
         __attribute__((noinline)) int outer(int x) {{ return second(x + 1) + first(x) + second(x); }}\n\
         __attribute__((noinline)) int other(int x) {{ return x + 1; }}\n\
         int main(int argc, char **argv) {{ return outer(argc) + other(argc) == 0; }}\n"
    );
    fs::write(&source, text).unwrap();
    tools::run(Command::new("gcc").args(["-pg", "-O2", "-g", "-o"]).arg(&program).arg(&source));
    let place = |line: u32| format!("{}:{line}", source.display());
    let outer = format!("outer(); /* {}, inlined: second, first */", place(3));
    let other = format!("other(); /* {} */", place(4));
    let run = record(&[], &program, &[]);
    let trace = run.path("trace");
    let shown_by = |options: &[&str], trace: &Path| tools::text(Command::new(rftrace()).args(options).arg(trace));
    let shown = shown_by(&["replay", "--inlined"], &trace);
    assert!(shown.contains(&outer) && shown.contains(&other), "{shown}");
    assert!(shown_by(&["replay", "--srcline"], &trace).contains(&format!("outer(); /* {} */", place(3))));

    let run = record(&["--srcline"], &program, &[]);
    let trace = run.path("trace");
    fs::remove_file(&program).unwrap();
    assert!(shown_by(&["replay", "--inlined"], &trace).contains(&outer));
    for command in [&["report", "--inlined"][..], &["graph", "--inlined"]] {
        let shown = shown_by(command, &trace);
        assert!(shown.contains(&format!("outer [{}, inlined: second, first]", place(3))), "{shown}");
    }
    let chrome = shown_by(&["dump", "--chrome", "--inlined"], &trace);
    assert!(chrome.contains(&format!("\"source\":\"{}, inlined: second, first\"", place(3))), "{chrome}");
    let perfetto = dir.path().join("trace.pftrace");
    shown_by(&["dump", "--perfetto", "--inlined", "-o", perfetto.to_str().unwrap()], &trace);
    let perfetto = String::from_utf8_lossy(&fs::read(perfetto).unwrap()).into_owned();
    assert!(perfetto.contains("inlined") && perfetto.contains("second, first"));
    let replayed = uftrace(&["replay", "--srcline", "-f", "none"], &trace);
    assert!(replayed.contains(&format!("outer(); /* {} */", place(3))), "{replayed}");
}

#[test]
fn what_cannot_be_recorded_is_said() {
    if !require(&["gcc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "#!/bin/sh\nexit 3\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "int main;").unwrap();
    let build =
        |arguments: &[&str]| CProgram::new(&["recorded.c"]).without_library().without_hooks().with(arguments).build();
    let plain = build(&["-Wno-infinite-recursion", "-lpthread"]);
    let fixed = build(&["-Wno-infinite-recursion", "-static", "-lpthread"]);
    let own = CProgram::new(&["threads.c"]).build();
    for (program, words) in [
        (Path::new("/nowhere/program"), "there is no program /nowhere/program"),
        (Path::new("no-such-program"), "there is no program no-such-program in PATH"),
        (dir.path(), "is a directory"),
        (&*text, "is not executable"),
        (&*script, "is a script for `/bin/sh`"),
        (&*plain.path, "does not call the tracer"),
        (&*fixed.path, "is linked statically, so it loads no tracer: build it with -pg"),
        (&*own.path, "contains rftrace itself"),
    ] {
        let run = record(&[], program, &[]);
        assert_eq!(run.status.code(), Some(1), "{}: {}", program.display(), run.stderr);
        assert!(run.stderr.starts_with("rftrace: ") && run.stderr.contains(words), "{}", run.stderr);
        assert!(!run.path("trace").exists());
    }
    let run = record(&["--force"], &script, &[]);
    assert_eq!(run.status.code(), Some(3), "{}", run.stderr);
}

#[test]
fn older_traces_are_kept_once_and_other_folders_always() {
    if !require(&["gcc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("trace");
    let record_to = |dir: &Path| {
        let mut command = Command::new(rftrace());
        Run::of_any(command.args(["record", "-b", "1M", "-o"]).arg(dir).arg("--").arg(&c_program().path))
    };
    for _ in 0..3 {
        let run = record_to(&output);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    }
    for name in ["trace", "trace.old"] {
        assert_eq!(traces::open(&dir.path().join(name)).tasks().len(), 1);
    }
    let precious = dir.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("letter"), "Dear").unwrap();
    let run = record_to(&precious);
    assert_eq!(run.status.code(), Some(1));
    assert!(run.stderr.contains("is no trace; choose another directory"), "{}", run.stderr);
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 1);
}

#[test]
fn live_shows_the_calls() {
    if !require(&["gcc"]) {
        return;
    }
    let mut command = Command::new(rftrace());
    let run = Run::of(command.args(["record", "--live", "-b", "1M", "--"]).arg(&c_program().path));
    assert_eq!(run.stdout.matches("leaf();").count(), 2, "{}", run.stdout);
    assert!(!run.path("uftrace.data").exists());
}

#[test]
fn the_library_exports_nothing_else() {
    if !require(&["objdump"]) {
        return;
    }
    let mut objdump = Command::new("objdump");
    let symbols = tools::text(objdump.arg("-T").arg(rftrace().with_file_name("rftrace-preload")));
    let mut exported: Vec<&str> = symbols
        .lines()
        .filter(|line| line.starts_with("0") && !line.contains("*UND*"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    exported.sort_unstable();
    let expected = [
        "_Exit",
        "_Unwind_RaiseException",
        "__fentry__",
        "__monstartup",
        "__sysv_signal",
        "_exit",
        "_mcleanup",
        "bsd_signal",
        "daemon",
        "dlclose",
        "dlsym",
        "execl",
        "execle",
        "execlp",
        "execv",
        "execve",
        "execveat",
        "execvp",
        "execvpe",
        "fexecve",
        "mcount",
        "mlockall",
        "posix_spawn",
        "posix_spawnp",
        "prctl",
        "rftrace_attach",
        "rftrace_attach_again",
        "rftrace_attach_answer",
        "rftrace_attach_branches",
        "rftrace_attach_control",
        "rftrace_attach_told",
        "rftrace_backend_thread",
        "rftrace_backend_trampoline",
        "rftrace_detach",
        "rftrace_mark",
        "rftrace_work_stack",
        "sigaction",
        "signal",
        "syscall",
    ];
    assert_eq!(exported, expected);
}
