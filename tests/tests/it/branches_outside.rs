//! `-P` of programs that no library can be loaded into, as they are linked statically or have musl as their C library: those that run, and those that are
//! started. They call no hook.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::{CProgram, Program, fixtures, require, tools};
use tempfile::TempDir;

use crate::attach::{Running, count, refused, told};
use crate::attach_branches::{OWN, check_code, exceptions_pass, outlives_recorders, recorded, stop};
use crate::record::{build_plain_rust_for_musl, calls, calls_of, record, rftrace};

/// Builds a program of the C fixtures in all ways, without hooks.
fn all(folder: &TempDir, source: &str) -> Vec<PathBuf> {
    let linked = [["-static"], ["-static-pie"]].map(|options| {
        let path = folder.path().join(options.concat());
        let program = CProgram::new(&[source]).without_hooks().without_library();
        program.with(&["-O1", "-Wno-infinite-recursion"]).with(&options).with(&["-lpthread"]).build_as(&path);
        path
    });
    let mut all = linked.to_vec();
    if require(&["musl-gcc"]) {
        for (name, linkage) in [("fixed", &["-static"][..]), ("dynamic", &[])] {
            let path = folder.path().join(name);
            let mut compiler = Command::new("musl-gcc");
            compiler.args(["-O1", "-w"]).arg(fixtures::folder("c").join(source));
            fixtures::build_as(compiler.arg("-I").arg(fixtures::folder("c")).args(linkage), &path);
            all.push(path);
        }
    }
    all
}

/// The program that checks what its functions return.
fn plain() -> &'static [PathBuf] {
    static BUILT: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
    let built = || {
        let folder = tempfile::tempdir().unwrap();
        let programs = all(&folder, "attached_plain.c");
        (folder, programs)
    };
    &BUILT.get_or_init(built).1
}

/// The same program, linked dynamically.
fn linked(source: &str) -> Program {
    let program = CProgram::new(&[source]).without_hooks().without_library();
    program.with(&["-O1", "-Wno-infinite-recursion", "-lpthread"]).build()
}

/// Returns the number of mappings for stubs.
fn n_areas(running: &Running) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    maps.lines().filter(|line| line.contains("rftrace-stubs") && line.contains(" r-xp ")).count()
}

#[test]
fn stubs_are_made_once() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        let shown = program.display();
        let mut running = Running::begin(program, "asked");
        for _ in 0..2 {
            let recorder = running.begin_recording(&["-P", "*"]);
            assert_eq!(running.ask("?"), OWN, "{shown}");
            stop(recorder);
            assert_eq!(n_areas(&running), 1, "{shown}");
        }
        refused(running.pid(), |command| _ = command.args(["-P", "*", "-F", "lfea"]), "matches nothing");
    }
}

/// Has `rftrace ctl` control it.
#[track_caller]
fn control(pid: u32, words: &[&str]) -> String {
    let output = Command::new(rftrace()).args(["ctl", &pid.to_string()]).args(words).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn is_on(pid: u32) -> bool {
    control(pid, &["get", "tracing_on"]).trim() == "1"
}

/// Calls are there if recording is on, and only these: by `rftrace ctl`, and by a signal to the recorder of a program that was started.
#[test]
fn recording_is_switched() {
    if !require(&["gcc"]) {
        return;
    }
    let dynamic = linked("attached_plain.c");
    for program in plain().iter().chain([&dynamic.path]) {
        let shown = program.display();
        let mut running = Running::begin(program, "asked");
        let pid = running.pid();
        let recorder = running.begin_recording(&["-P", "*", "--disabled"]);
        for (state, is_recorded) in [(None, false), (Some("on"), true), (Some("off"), false), (Some("on"), true)] {
            state.into_iter().for_each(|state| drop(control(pid, &[state])));
            assert_eq!(is_on(pid), is_recorded, "{shown}");
            assert_eq!(running.ask("?"), OWN, "{shown}");
        }
        stop(recorder);
        let found = ["leaf", "many", "recursive"].map(|function| count(&running.trace(), function));
        assert_eq!(found, [10_000, 2000, 7994], "{shown}");
        check_code(&running);
        // The next recorder records at once.
        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("?"), OWN, "{shown}");
        stop(recorder);
        assert_eq!(count(&running.trace(), "leaf"), 5000, "{shown}");
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
    }
    for program in plain() {
        let shown = program.display();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "-P", "*", "--disabled", "-o", "trace", "--"]).arg(program).arg("asked");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir(&folder);
        let mut recorder = command.spawn().unwrap();
        let mut output = BufReader::new(recorder.stdout.take().unwrap());
        let mut input = recorder.stdin.take().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        for is_recorded in [false, true, false, true, true] {
            while is_on(pid) != is_recorded {
                tools::run(Command::new("kill").args(["-USR2", &recorder.id().to_string()]));
                let since = Instant::now();
                while is_on(pid) != is_recorded && since.elapsed() < Duration::from_secs(20) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            input.write_all(b"?").unwrap();
            line.clear();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, OWN, "{shown}");
        }
        drop(input);
        let ended = recorder.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(5), "{shown}: {}", told(&ended));
        let found = ["leaf", "many", "recursive"].map(|function| count(&folder.path().join("trace"), function));
        assert_eq!(found, [15_000, 3000, 11_991], "{shown}: {}", told(&ended));
    }
}

/// Of programs that run, and of those that are started.
#[test]
fn symbols_and_programs_are_left_out() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    // More than fits where a program is told all else.
    let unknown: String = (0..20_000).map(|n| format!("a_function_that_is_not_there_{n}\n")).collect();
    fs::write(&list, format!("leaf\n{unknown}recursive\n")).unwrap();
    let (list, elsewhere) = (list.to_str().unwrap(), folder.path().to_str().unwrap());
    let dynamic = linked("attached_plain.c");
    for program in plain().iter().chain([&dynamic.path]) {
        let (shown, own) = (program.display(), program.parent().unwrap().to_str().unwrap());
        let mut running = Running::begin(program, "asked");
        for (options, counts) in [
            (&["--patch-except", list][..], [0, 1000, 0]),
            (&["--patch-within", own], [5000, 1000, 3997]),
            (&["--patch-within", own, "--patch-except", list], [0, 1000, 0]),
        ] {
            let recorder = running.begin_recording(&[&["-P", "*"], options].concat());
            assert_eq!(running.ask("?"), OWN, "{shown}");
            stop(recorder);
            let found = ["leaf", "many", "recursive"].map(|function| count(&running.trace(), function));
            assert_eq!(found, counts, "{options:?} of {shown}");
            check_code(&running);
        }
        let within = |command: &mut Command| _ = command.args(["-P", "*", "--patch-within", elsewhere]);
        refused(running.pid(), within, "is outside of");
        let missing = |command: &mut Command| _ = command.args(["-P", "*", "--patch-except", "/nowhere/list"]);
        refused(running.pid(), missing, "/nowhere/list");
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
    }
    let built = tempfile::tempdir().unwrap();
    let own = built.path().to_str().unwrap();
    fs::write(list, "leaf\nrecurse\n").unwrap();
    let options = ["-P", "*", "--patch-except", list, "--patch-within"];
    let dynamic = linked("outside_chosen.c");
    let wanted = calls(&record(&options[..4], &dynamic.path, &[]));
    assert!(wanted.contains_key("outer") && !wanted.contains_key("leaf"), "{wanted:?}");
    for program in all(&built, "outside_chosen.c") {
        let shown = program.display();
        let run = record(&[&options[..], &[own]].concat(), &program, &[]);
        let found = calls(&run);
        assert!(wanted.iter().all(|(function, number)| found.get(function) == Some(number)), "{shown}: {found:?}");
        assert!(!found.contains_key("leaf") && !found.contains_key("recurse"), "{shown}: {found:?}");
        let run = record(&[&options[..], &[elsewhere]].concat(), &program, &[]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
        assert!(run.stderr.contains("is outside of"), "{}", run.stderr);
    }
    // One that calls the tracer is recorded by that.
    let calling = built.path().join("calling");
    CProgram::new(&["outside_chosen.c"]).without_library().with(&["-O1", "-static", "-lpthread"]).build_as(&calling);
    let run = record(&[&options[..], &[elsewhere]].concat(), &calling, &[]);
    assert!(run.status.success() && calls(&run).contains_key("leaf"), "{}", run.stderr);
}

/// Threads that do nothing else are in those functions when these get their branches.
#[test]
fn busy_threads_again_and_again() {
    if !require(&["gcc"]) {
        return;
    }
    let mut n_moved = 0;
    for (program, way) in plain().iter().flat_map(|program| ["busy", "signals"].map(|way| (program, way))) {
        let running = Running::begin(program, way);
        for _ in 0..3 {
            let options = ["-P", "*", "--for", "30ms", "--max-size", "1M", "--on-full", "drop"];
            let output = recorded(&running, &options);
            n_moved += usize::from(told(&output).contains(" out of changed code"));
            check_code(&running);
        }
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{way} of {}: {said}", program.display());
        assert_eq!(said.trim(), format!("right, handled {}", u8::from(way == "signals")), "{}", program.display());
    }
    // In some of them one stood there.
    assert!(n_moved > 0);
}

/// A function that a handler has interrupted there stays as it is.
#[test]
fn interrupted_functions_are_left_out() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        let mut running = Running::begin(program, "interrupted");
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        assert_eq!(line, "interrupted\n");
        let recorder = running.begin_recording(&["-P", "*"]);
        running.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        thread::sleep(Duration::from_millis(200));
        stop(recorder);
        let list = fs::read_to_string(running.trace().join("entry-branches.txt")).unwrap();
        let reason = "a signal interrupted a thread in its first instructions at each attempt";
        assert!(list.lines().any(|line| line.contains("\tfill\t") && line.ends_with(reason)), "{list}");
        assert!(count(&running.trace(), "round_of_work") > 0, "{}", program.display());
        check_code(&running);
        let (status, said) = running.end();
        assert_eq!((status.code(), said.trim()), (Some(7), "right, handled 1"), "{}", program.display());
    }
}

/// The program goes on with its branches, and `--leave`, or the next attach, takes them away.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        outlives_recorders(Running::begin(program, "asked"), "leaf", str::to_owned);
    }
}

/// Exceptions pass functions with branches, and come from them: while they are recorded, and while they are left.
#[test]
fn exceptions_at_any_time() {
    if !require(&["g++"]) {
        return;
    }
    for linkage in ["-static", "-static-pie"] {
        let program = CProgram::new(&["attached_throws.cpp"]).without_hooks().without_library();
        let program = program.with(&["-O2", linkage]).build();
        exceptions_pass(&program.path, &[], 8);
    }
}

#[test]
fn the_hottest_functions() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        let running = Running::begin(program, "busy");
        let top = || {
            let mut command = Command::new(rftrace());
            command.args(["top", "--once", "-e", "300ms", "-P", "*"]).arg(running.pid().to_string());
            command.stdin(Stdio::null()).output().unwrap()
        };
        let shown = (0..20).map(|_| top()).find(|output| output.status.success()).unwrap();
        let table = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(table.contains("round_of_work") && table.contains("leaf"), "{table}");
        check_code(&running);
        assert_eq!(running.end().0.code(), Some(7), "{}", program.display());
    }
}

/// Those that can have none are listed, with reasons.
#[test]
fn what_is_left_out() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain().iter().take(2) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args(["record", "-o", "trace", "-P", "*"]).arg(program).arg("asked").current_dir(&folder);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{}", told(&output));
        let list = fs::read_to_string(folder.path().join("trace/entry-branches.txt")).unwrap();
        let special = "returns twice or on another stack, or asks for its caller";
        for function in ["_setjmp", "longjmp", "clone", "_Unwind_RaiseException", "uw_init_context_1"] {
            let has = |line: &str| line.contains(&format!("\t{function}\t")) && line.ends_with(special);
            assert!(list.lines().any(has), "{function}: {list}");
        }
        let calls = calls_of(&folder.path().join("trace"));
        assert!(calls.contains_key("main") && calls.contains_key("printf"), "{calls:?}");
        // Of all that there is few are left out.
        assert!(list.lines().count() < 100, "{list}");
    }
}

/// Each function of a Rust program is called as often as in the one that is linked dynamically.
#[test]
fn panics() {
    let folder = tempfile::tempdir().unwrap();
    let panics = folder.path().join("panics.rs");
    fs::write(&panics, PANICS).unwrap();
    let [wanted, found] = [("dynamic", &[][..]), ("fixed", &["-C", "target-feature=+crt-static"])].map(|it| {
        let path = folder.path().join(it.0);
        tools::run(Command::new("rustc").args(["-O", "--edition", "2021", "-o"]).arg(&path).arg(&panics).args(it.1));
        let run = record(&["-P", "*"], &path, &[]);
        assert_eq!(
            (run.status.code(), &*run.stdout),
            (Some(0), &*tools::text(&mut Command::new(&path))),
            "{}",
            run.stderr
        );
        let calls = calls(&run);
        ["panics::leaf", "panics::middle", "panics::main"].map(|function| calls[function])
    });
    assert_eq!(found, wanted);
}

const PANICS: &str = r#"
use std::hint::black_box;
use std::panic::{self, catch_unwind};
struct Guard(u64);
impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) { black_box(self.0); }
}
#[inline(never)]
fn leaf(n: u64) -> u64 { if n == 13 { panic!("thirteen") } black_box(n) + 1 }
#[inline(never)]
fn middle(n: u64) -> u64 { let guard = Guard(n); let found = leaf(n); black_box(&guard); found }
fn main() {
    panic::set_hook(Box::new(|_| ()));
    let work = || (0..200).filter(|n| catch_unwind(|| middle(n % 20)).is_err()).count();
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(work)).collect();
    let failed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("{}", failed + work());
}
"#;

/// A Rust program for musl, which has LLVM's unwinder, in the ways of linking it statically.
fn rust_programs_for_musl() -> &'static [PathBuf] {
    static BUILT: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
    let built = || {
        let folder = tempfile::tempdir().unwrap();
        let build = |(way, options): (&str, &[&str])| {
            let path = folder.path().join(way);
            build_plain_rust_for_musl("outside_panics", options, &path).map(|()| path)
        };
        let programs = [("pie", &[][..]), ("fixed", &["-Crelocation-model=static"])].into_iter().filter_map(build);
        let programs = programs.collect();
        (folder, programs)
    };
    &BUILT.get_or_init(built).1
}

/// Its answer after each round.
const CAUGHT: &str = "caught 80, shown 5, found 5\n";
const PANICS_COUNTS: [(&str, u64); 5] =
    [("attempts", 4), ("attempt", 80), ("descend", 840), ("inner", 52), ("sink", 156)];

#[test]
fn panics_of_rust_programs_for_musl() {
    for program in rust_programs_for_musl() {
        let shown = program.display();
        let run = record(&["-P", "*"], program, &["once"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(5), CAUGHT), "{shown}: {}", run.stderr);
        let found = calls(&run);
        for (function, number) in PANICS_COUNTS {
            assert_eq!(found.get(&format!("outside_panics::{function}")), Some(&number), "{function} of {shown}");
        }
        assert!(found.len() > 100, "{found:?}");
    }
}

/// Attached to again and again, each time by other patterns: there are further stubs, which the unwinder has to know of too.
#[test]
fn panics_of_rust_programs_for_musl_that_run() {
    for program in rust_programs_for_musl() {
        let shown = program.display();
        let mut running = Running::begin(program, "asked");
        for (patterns, n_counted) in [(&["*::descend"][..], 1), (&["*::sink", "*::inner"], 2), (&["*"], 5), (&["*"], 5)]
        {
            let options: Vec<&str> = patterns.iter().flat_map(|pattern| ["-P", pattern]).collect();
            let recorder = running.begin_recording(&options);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
            stop(recorder);
            let found = calls_of(&running.trace());
            let counted =
                PANICS_COUNTS.iter().filter(|(name, n)| found.get(&format!("outside_panics::{name}")) == Some(n));
            assert_eq!(counted.count(), n_counted, "{patterns:?} of {shown}: {found:?}");
            check_code(&running);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
        }
        assert_eq!(n_areas(&running), 3, "{shown}");
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
        // While a thread panics all the time.
        let mut running = Running::begin(program, "busy");
        for _ in 0..3 {
            recorded(&running, &["-P", "*", "--for", "20ms", "--max-size", "1M", "--on-full", "drop"]);
            check_code(&running);
        }
        assert_eq!(running.ask("?"), CAUGHT, "{shown}");
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
    }
}

/// Several patterns choose the functions of each.
#[test]
fn patterns_choose() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for program in all(&folder, "outside_chosen.c") {
        let run = record(&["-P", "leaf", "-P", "ou?er"], &program, &[]);
        let found = calls(&run);
        let of = |name: &str| found.get(name).copied();
        let wanted = (Some(1810), Some(600), None);
        assert_eq!((of("leaf"), of("outer"), of("inner")), wanted, "{}: {}", program.display(), run.stderr);
    }
}

/// Patterns that choose nothing, and such that are wrong.
#[test]
fn patterns_are_looked_at() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        let run = record(&["-P", "no_such_function"], program, &["asked"]);
        assert!(run.stderr.contains("-P matches no function"), "{}", run.stderr);
        let run = record(&["-P", "/(/"], program, &["asked"]);
        assert!(run.status.code() == Some(1) && run.stderr.contains("entry branches: /(/"), "{}", run.stderr);
    }
}

/// A program that cannot be recorded is not changed, or has not begun.
#[test]
fn refusals() {
    if !require(&["gcc"]) {
        return;
    }
    for program in plain() {
        let running = Running::begin(program, "asked");
        refused(running.pid(), |_| (), "-P '*'");
        refused(running.pid(), |command| _ = command.args(["-P", "*", "--libcalls"]), "is linked statically");
        check_code(&running);
        let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
        assert!(!maps.contains("rftrace"), "{maps}");
        assert_eq!(running.end().0.code(), Some(5));
        for options in [&["--patched"][..], &["--stop"], &["--libcalls"]] {
            let run = record(&[&["-P", "*"], options].concat(), program, &["asked"]);
            assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
            assert!(run.stderr.contains("linked statically") || run.stderr.contains("musl"), "{}", run.stderr);
        }
        if !program.ends_with("dynamic") {
            let run = record(&[], program, &["asked"]);
            assert!(run.status.code() == Some(1) && run.stderr.contains("-P '*'"), "{}", run.stderr);
        }
    }
}
