//! `rftrace record`: programs without rftrace are recorded, end as they would, and have the calls that uftrace records.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rftrace_tests::fixtures::cache::compile;
use rftrace_tests::fixtures::{self, build_as, folder};
use rftrace_tests::traces::{self, calls_per_task, uftrace};
use rftrace_tests::{CProgram, Program, Run, require, tools};

/// The command, with its preload libraries beside it.
pub(crate) fn rftrace() -> PathBuf {
    fixtures::command_line().join("rftrace")
}

/// Records a program into `trace`, in a new folder.
pub(crate) fn record(options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    record_by(&mut Command::new(rftrace()), options, program, arguments)
}

/// As [`record`], by another `rftrace`.
pub(crate) fn record_by(rftrace: &mut Command, options: &[&str], program: &Path, arguments: &[&str]) -> Run {
    rftrace.args(["record", "--buffer", "4M", "--output", "trace"]).args(options);
    Run::of_any(rftrace.arg("--").arg(program).args(arguments))
}

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

const MUSL: &str = "x86_64-unknown-linux-musl";

/// True if nightly can build for musl.
fn has_rust_for_musl() -> bool {
    if !require(&["nightly", "gcc"]) {
        return false;
    }
    let library = tools::text(fixtures::rustc(Some("nightly"), "recorded.rs").args([
        "--target",
        MUSL,
        "--print",
        "target-libdir",
    ]));
    let has_it = Path::new(library.trim()).exists();
    if !has_it {
        tools::missing("nightly's library for musl");
    }
    has_it
}

/// Builds a Rust program for musl whose functions call no hook, with further options for the compiler. `None` if there is no library for that.
pub(crate) fn build_plain_rust_for_musl(fixture: &str, options: &[&str], path: &Path) -> Option<()> {
    let mut rustc = fixtures::rustc(Some("nightly"), &format!("{fixture}.rs"));
    rustc.args(["--target", MUSL, "-O"]).args(options);
    has_rust_for_musl().then(|| build_as(&mut rustc, path))
}

/// Builds a Rust program for musl, which has no `mcount`: in all ways of linking it statically. None if there is no library for that.
pub(crate) fn build_rust_for_musl(fixture: &str) -> Vec<PathBuf> {
    if !has_rust_for_musl() {
        return Vec::new();
    }
    let hook = compile(Command::new("gcc").arg("-c").arg(folder("c").join("mcount.s")), "mcount.o");
    let hook = format!("-Clink-arg={}", hook.display());
    let ways = [&[][..], &["-Crelocation-model=static"], &["-Cstrip=debuginfo"]];
    ways.map(|options| build_any_rust(fixture, &[&["--target", MUSL, &hook], options].concat())).into()
}

pub(crate) fn rust_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build_rust(&[]))
}

/// Returns the calls that `rftrace replay` shows, without columns.
#[track_caller]
pub(crate) fn replay(run: &Run) -> String {
    let mut command = Command::new(rftrace());
    command.args(["replay", "-f", "none", "-d"]).arg(run.path("trace"));
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
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

/// How the C program ends when it is not recorded.
fn expected_status(mode: &str) -> i32 {
    // Its own signals for snapshots and the switch would kill it.
    if ["snapshot", "toggle"].contains(&mode) {
        return 0;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut plain = Command::new(&c_program().path);
    // gprof leaves a file there.
    plain.current_dir(&folder).arg(mode).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
    let status = plain.status().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// Checks how a C program ends, and how often it calls `leaf`, in how many tasks and programs.
#[track_caller]
fn check(mode: &str, expected: [u64; 3]) -> Run {
    let run = record(&[], &c_program().path, &[mode]);
    check_run(&run, mode, expected);
    let maps = fs::read_dir(run.path("trace")).unwrap().flatten();
    let maps = maps.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "map"));
    assert_eq!(maps.count() as u64, expected[2], "{mode}");
    run
}

/// As [`check`], of a run; but not its programs: qemu has each lie where it always does, and those with equal maps are one session.
#[track_caller]
pub(crate) fn check_run(run: &Run, mode: &str, [leaves, n_tasks, _]: [u64; 3]) {
    assert_eq!(run.status.code(), Some(expected_status(mode)), "{mode}: {}", run.stderr);
    assert_eq!(calls(run).get("leaf"), Some(&leaves), "{mode}: {}", run.stderr);
    let trace = run.trace("trace");
    assert_eq!(trace.tasks().len() as u64, n_tasks, "{mode}");
    // It takes the trace without a word, and knows each function.
    let report = uftrace(&["report"], &run.path("trace"));
    assert!(report.contains("leaf") && !report.contains("<"), "{mode}: {report}");
    assert!(uftrace(&["replay"], &run.path("trace")).contains("leaf()"), "{mode}");
    assert!(uftrace(&["info"], &run.path("trace")).contains("exit status"), "{mode}");
    assert!(!run.path("trace/.recording").exists() && !run.path("trace/rftrace-preload.sym").exists());
}

/// Declares tests for the C program's modes.
macro_rules! modes {
    ($($name:ident($mode:literal): $expected:expr,)*) => {
        $(
            #[test]
            fn $name() {
                if require(&["gcc", "uftrace"]) {
                    check($mode, $expected);
                }
            }
        )*

        /// The modes, and what [`check_run`] expects of them.
        pub(crate) const MODES: &[(&str, [u64; 3])] = &[$(($mode, $expected)),*];
    };
}

modes! {
    a_program("plain"): [2, 1, 1],
    forks("fork"): [35, 4, 1],
    threads_of_a_child("fork_threads"): [17, 5, 1],
    exec("exec"): [4, 1, 2],
    exec_that_fails("exec_fails"): [10, 1, 1],
    exec_in_a_child("fork_exec"): [10, 2, 2],
    exec_after_vfork("vfork"): [5, 2, 2],
    posix_spawn("spawn"): [4, 2, 2],
    daemon("daemon"): [11, 2, 1],
    all_files_closed("closes_all"): [11, 1, 1],
    another_folder("chdir"): [11, 1, 1],
    another_session("setsid"): [11, 1, 1],
    exit_in_a_thread("exit_in_thread"): [7, 2, 1],
    the_main_thread_ends_first("main_thread_ends"): [7, 2, 1],
    exit_without_handlers("_exit"): [2, 1, 1],
    quick_exit("quick_exit"): [2, 1, 1],
    segmentation_fault("segv"): [2, 1, 1],
    abort("abort"): [2, 1, 1],
    a_broken_heap("heap"): [2, 1, 1],
    stack_overflow("overflow"): [2, 1, 1],
    terminated("term"): [2, 1, 1],
    a_handler_for_faults("own_segv"): [5, 1, 1],
    a_handler_for_the_snapshots_signal("own_usr1"): [5, 1, 1],
    handlers_come_and_go("default_again"): [2, 1, 1],
    switched_by_a_signal("toggle"): [5, 1, 1],
}

/// Each takes a bank that was an ancestor's, which has ended.
#[test]
fn orphans_of_orphans() {
    if require(&["gcc", "uftrace"]) {
        check_run(&record(&[], &c_program().path, &["orphans"]), "orphans", [42, 41, 0]);
    }
}

#[test]
fn threads_have_ids_and_names() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let run = check("threads", [17, 4, 1]);
    let tasks = fs::read_to_string(run.path("trace/task.txt")).unwrap();
    let by_task = uftrace(&["report", "--task"], &run.path("trace"));
    for name in ["program", "one", "two", "three"] {
        assert!(tasks.contains(&format!(" comm=\"{name}\"\n")), "{tasks}");
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
    let run = check("snapshot", [6, 1, 1]);
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

/// A signal that has no name.
#[test]
fn a_real_time_signal_ends_the_program() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[], &c_program().path, &["real_time"]);
    assert_eq!(run.status.code(), Some(168), "{}", run.stderr);
    assert!(run.path("trace").exists());
}

/// The calls of each function in all tasks, as `uftrace report` counts them. Names are without what stands in angle brackets:
/// uftrace itself shortens those of templates.
pub(crate) fn counted(dir: &Path) -> BTreeMap<String, u64> {
    let report = uftrace(&["report", "-s", "call", "-f", "call"], dir);
    let mut counts = BTreeMap::new();
    for line in report.lines() {
        let Some((count, name)) = line.trim().split_once(char::is_whitespace) else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        let mut depth = 0;
        let short = name.trim().chars().filter(|&c| {
            depth += i32::from(c == '<');
            let keep = depth == 0;
            depth -= i32::from(c == '>');
            keep
        });
        *counts.entry(short.collect()).or_default() += count;
    }
    // Exits without entries, and thread names.
    counts.retain(|name: &String, _| !name.is_empty() && !name.starts_with("linux:"));
    counts
}

/// Returns the counts of `uftrace record`.
fn uftrace_calls(program: &Path, arguments: &[&str]) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("trace");
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-libcall", "--no-event", "--max-stack=1024", "-d"]).arg(&dir).arg(program);
    let silent =
        command.args(arguments).current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = silent.status().unwrap();
    assert!(status.code().is_some(), "{status}");
    counted(&dir)
}

#[test]
fn counts_are_those_of_uftrace() {
    if !require(&["gcc", "g++", "uftrace"]) {
        return;
    }
    let c = &c_program().path;
    for (mode, n_children) in
        [("plain", 0), ("threads", 0), ("fork", 3), ("fork_threads", 1), ("fork_exec", 1), ("exec_fails", 0)]
    {
        let mut expected = uftrace_calls(c, &[mode]);
        // Functions that are open at a fork are open in the child's trace too.
        for name in ["main", "how"] {
            *expected.get_mut(name).unwrap() += n_children;
        }
        assert_eq!(counted(&record(&[], c, &[mode]).path("trace")), expected, "C, {mode}");
    }
    let cpp = cpp_source().build();
    let run = record(&[], &cpp.path, &[]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert_eq!(counted(&run.path("trace")), uftrace_calls(&cpp.path, &[]), "C++");
}

/// Checks how the Rust program ends, how often it calls `leaf`, and how its threads are called.
#[track_caller]
pub(crate) fn check_rust(record: impl Fn(&str) -> Run) {
    for (mode, status, leaves) in [
        ("plain", 0, 2),
        ("threads", 0, 22),
        ("panics", 0, 22),
        ("panic", 101, 2),
        ("panic_in_thread", 0, 2),
        ("overflow", 134, 2),
        ("abort", 134, 2),
        ("exit", 5, 2),
        ("child", 0, 24),
    ] {
        let run = record(mode);
        assert_eq!(run.status.code(), Some(status), "{mode}: {}", run.stderr);
        assert_eq!(calls(&run).get("recorded::leaf"), Some(&leaves), "{mode}: {}", run.stderr);
        if mode == "overflow" {
            assert!(run.stderr.contains("has overflowed its stack"), "{}", run.stderr);
        }
        if mode == "threads" {
            let tasks = fs::read_to_string(run.path("trace/task.txt")).unwrap();
            assert!((0..4).all(|i| tasks.contains(&format!("comm=\"worker {i}\""))), "{tasks}");
        }
    }
}

#[test]
fn rust_programs() {
    if !require(&["nightly", "uftrace"]) {
        return;
    }
    check_rust(|mode| record(&[], rust_program(), &[mode]));
    // Where there are panics it loses its way.
    for mode in ["plain", "threads"] {
        // It does not demangle Rust's names.
        let own = |calls: &BTreeMap<String, u64>, name: fn(&str) -> String| {
            ["leaf", "work", "attempt", "descend"].map(|function| {
                let ending = name(function);
                calls.iter().filter(|(name, _)| name.ends_with(&ending)).map(|(_, &calls)| calls).sum::<u64>()
            })
        };
        let run = record(&[], rust_program(), &[mode]);
        let ours = own(&counted(&run.path("trace")), |function| format!("recorded::{function}"));
        let theirs =
            own(&uftrace_calls(rust_program(), &[mode]), |function| format!("8recorded{}{function}", function.len()));
        assert!(ours[0] >= 2, "{ours:?}");
        assert_eq!(ours, theirs, "Rust, {mode}");
    }
}

/// A program that has libgcc in itself raises exceptions by that; the library that is preloaded, another one beside it.
#[test]
fn programs_with_an_unwinder_of_their_own() {
    if !require(&["g++"]) {
        return;
    }
    let wanted = calls(&record(&[], &cpp_source().build().path, &[]));
    let with_own = || cpp_source().with(&["-static-libgcc", "-static-libstdc++"]);
    for (program, options) in [
        (with_own().build(), &[][..]),
        (with_own().build(), &["--patched"]),
        (with_own().without_hooks().build(), &["-P", "*descend*", "-P", "*attempt*", "-P", "*Guard*", "-P", "main"]),
    ] {
        let run = record(options, &program.path, &[]);
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        let found = calls(&run);
        for function in ["descend", "attempt", "Guard::~Guard", "main"] {
            assert_eq!(found.get(function), wanted.get(function), "{options:?}, {function}: {found:?}");
        }
    }
}

#[test]
fn what_is_recorded_can_be_chosen() {
    if !require(&["gcc"]) {
        return;
    }
    let program = &c_program().path;
    let of = |options: &[&str]| {
        let run = record(options, program, &["threads"]);
        assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
        let calls = calls(&run);
        let count = |name: &str| calls.get(name).copied().unwrap_or(0);
        [count("main"), count("named"), count("work"), count("leaf")]
    };
    assert_eq!(of(&[]), [1, 3, 4, 17]);
    assert_eq!(of(&["--filter", "named"]), [0, 3, 3, 15]);
    assert_eq!(of(&["-N", "work"]), [1, 3, 0, 0]);
    assert_eq!(of(&["-D", "2"]), [1, 3, 4, 0]);
    assert_eq!(of(&["--rules", "exclude=work; exclude=main"]), [0, 3, 0, 17]);
    assert_eq!(of(&["--patched"]), [1, 3, 4, 17]);
    assert_eq!(of(&["--patched", "--filter", "named"]), [0, 3, 3, 15]);
    assert_eq!(of(&["--trigger", "named"]), [0, 3, 3, 15]);
    assert_eq!(of(&["--patched", "--trigger", "named"]), [0, 3, 3, 15]);
    let run = record(&["--time-filter", "1s"], program, &["threads"]);
    assert!(run.stderr.contains("nothing was recorded"), "{}", run.stderr);
    let run = record(&["--disabled"], program, &["toggle"]);
    assert_eq!(calls(&run), BTreeMap::from([("leaf".to_owned(), 4), ("work".to_owned(), 1)]));
}

/// Records are not lost with the trace.
#[test]
fn where_no_trace_can_be_written() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&[], &c_program().path, &["in_the_way"]);
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("trace/task.txt") && run.stderr.contains("stays in "), "{}", run.stderr);
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
    assert!(run.stderr.contains("keeps the end"), "{}", run.stderr);
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
        (&*script, "is a script, which `/bin/sh` runs"),
        (&*plain.path, "does not call the tracer"),
        (&*fixed.path, "is linked statically: nothing can be preloaded into it; if it is built with -pg"),
        (&*own.path, "contains rftrace itself"),
    ] {
        let run = record(&[], program, &[]);
        assert_eq!(run.status.code(), Some(1), "{}: {}", program.display(), run.stderr);
        assert!(run.stderr.starts_with("rftrace: ") && run.stderr.contains(words), "{}", run.stderr);
        assert!(!run.path("trace").exists());
    }
    let run = record(&["--force"], &script, &[]);
    assert_eq!(run.status.code(), Some(3), "{}", run.stderr);
    for (options, words) in [
        (&["--filter", "lef"][..], "matches nothing"),
        (&["--filter", "/(/"], "what to record"),
        (&["--trigger", "lea"], "no function that calls the tracer has the name `lea`; there are: leaf"),
    ] {
        let run = record(options, &c_program().path, &["plain"]);
        assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    let run = record(&["--buffer", "5X"], &c_program().path, &["plain"]);
    assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
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
