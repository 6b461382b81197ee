//! `rftrace record -p -P`: functions that call no hook, in programs that run. Branches come and go while all threads are stopped, and nobody sees
//! them but the trace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, Program, require};

use crate::attach::{BUSY, Running, count, refused, told};
use crate::record::rftrace;

pub(crate) use rftrace_tests::running::stop;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = CProgram::new(&["attached_plain.c"]).without_hooks().without_library();
        program.with(&["-O1", "-lpthread", "-ldl"]).build()
    })
}

/// All functions have sleds.
const XRAY: [&str; 3] = ["-fxray-instrument", "-fxray-instruction-threshold=1", "-fnoxray-link-deps"];
/// First bytes of a sled at the beginning of a function while it is recorded.
const LONG_CALL: [u8; 7] = [0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x48, 0xe8];

/// The program's answer: by a function of its own, or of the library.
pub(crate) const OWN: &str = "1499500\n";
const OF_LIBRARY: &str = "501500\n";

/// How often functions are called in one round for each of 1,000 numbers.
const COUNTS: [(&str, u64); 5] =
    [("round_of_work", 1000), ("many", 1000), ("recursive", 3997), ("number", 3000), ("main", 0)];

/// Code is what it is in files.
#[track_caller]
pub(crate) fn check_code(running: &Running) {
    for (line, bytes) in running.code() {
        let mut fields = line.splitn(6, ' ');
        let offset = usize::from_str_radix(fields.nth(2).unwrap(), 16).unwrap();
        let file = fs::read(fields.nth(2).unwrap().trim_start()).unwrap();
        let in_file = &file[offset..(offset + bytes.len()).min(file.len())];
        assert!(bytes.starts_with(in_file), "{line} was changed");
    }
}

/// Ends of functions are seen by return addresses or by branches, in one process in turns: stubs of one way stay while the other is used.
#[test]
fn ends_are_seen_one_way_or_the_other() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = Running::begin_by(Command::new(&program().path).arg("asked"));
    assert_eq!(running.ask("?"), OWN);
    for (times, ends) in (1..).zip(["returns", "exits", "exits", "returns", "exits"]) {
        let recorder = running.begin_recording(&["-P", "*", "--ends", ends]);
        (0..times).for_each(|_| assert_eq!(running.ask("?"), OWN));
        stop(recorder);
        for (function, number) in COUNTS {
            assert_eq!(count(&running.trace(), function), times * number, "{function}, {ends}");
        }
        assert_eq!(count(&running.trace(), "leaf"), times * 5000, "{ends}");
        check_code(&running);
        assert_eq!(running.ask("?"), OWN);
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(5), ""));
}

/// A filter knows the functions that have got branches since the one before.
#[test]
fn filters_of_functions_that_are_new() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = Running::begin_by(Command::new(&program().path).arg("asked"));
    for (function, number) in [("leaf", 5000), ("many", 1000)] {
        let recorder = running.begin_recording(&["-P", function, "-F", function]);
        assert_eq!(running.ask("?"), OWN);
        stop(recorder);
        assert_eq!(count(&running.trace(), function), number, "{function}");
        check_code(&running);
    }
    assert_eq!(running.end().0.code(), Some(5));
}

/// A child has the branches of its parent, and goes on.
#[test]
fn children_and_libraries() {
    if !require(&["gcc"]) {
        return;
    }
    let library = CProgram::new(&["attached_library.c"]).without_hooks().without_library();
    let library = library.with(&["-O2", "-shared", "-fPIC"]).build();
    let name = library.path.file_name().unwrap().to_str().unwrap();
    let all = format!("*@{name}");
    // Of a filter that leaves its function out none is recorded, whenever the library comes.
    for (filter, is_recorded) in [(&[][..], true), (&["--rules", "exclude=of_library"], false)] {
        let mut running = Running::begin_by(Command::new(&program().path).arg("asked").arg(&library.path));
        let recorder = running.begin_recording(&[&["-P", "*", "-P", &all], filter].concat());
        assert_eq!(running.ask("f"), OWN);
        assert_eq!(running.ask("l"), OF_LIBRARY);
        // Until somebody has looked which libraries there are.
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(200));
            assert_eq!(running.ask("?"), OF_LIBRARY);
        }
        stop(recorder);
        assert_eq!(count(&running.trace(), "round_of_work"), 12_000);
        let n_calls = count(&running.trace(), "of_library");
        assert!(if is_recorded { n_calls >= 1000 } else { n_calls == 0 }, "{filter:?}: {n_calls}");
        check_code(&running);
        assert_eq!(running.end().0.code(), Some(5));
    }
}

/// XRay's sleds: all calls are counted, and sleds are what they were, while threads come from hooks in them.
#[test]
fn sleds_of_a_program_that_runs() {
    if !require(&["clang"]) {
        return;
    }
    let build = |arguments: &[&str]| {
        let program = CProgram::new(&["attached_plain.c"]).without_hooks().without_library().by_clang().with(&XRAY);
        program.with(&["-O0", "-Wno-unknown-attributes", "-lpthread", "-ldl"]).with(arguments).build()
    };
    for arguments in [&[][..], &["-no-pie", "-fno-pie"]] {
        let program = build(arguments);
        let mut running = Running::begin_by(Command::new(&program.path).arg("asked"));
        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("?"), OWN);
        // Sleds, no branches: these would have calls at the functions' first bytes.
        let changed = running.code();
        stop(recorder);
        let has_call = |code: &[u8]| code.windows(LONG_CALL.len()).any(|bytes| bytes == LONG_CALL);
        assert!(changed.values().any(|code| has_call(code)), "no sled was used: {arguments:?}");
        check_code(&running);
        assert_eq!(running.end().0.code(), Some(5));
    }
    // Threads that are in the hooks all the time when they are taken away.
    let program = build(&["-O1"]);
    for way in ["busy", "signals"] {
        let running = Running::begin(&program.path, way);
        for _ in 0..4 {
            recorded(&running, &["-P", "*", "--for", "30ms", "--max-size", "1M", "--on-full", "drop"]);
            check_code(&running);
        }
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{way}: {said}");
        assert_eq!(said.trim(), format!("right, handled {}", u8::from(way == "signals")));
    }
}

/// Threads that do nothing else are in those functions when these get their branches, one of them always.
#[test]
fn busy_threads_again_and_again() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["busy", "signals"] {
        let running = Running::begin(&program().path, way);
        let mut n_moved = 0;
        for ends in ["returns", "exits", "returns", "exits"] {
            let limits = ["--for", "30ms", "--max-size", "1M", "--on-full", "drop"];
            let output = recorded(&running, &[&["-P", "*", "--ends", ends], &limits[..]].concat());
            n_moved += usize::from(told(&output).contains(" out of changed code"));
            check_code(&running);
        }
        assert!(n_moved > 0, "{way}");
        let (status, said) = running.end();
        assert_eq!(status.code(), Some(7), "{way}: {said}");
        assert_eq!(said.trim(), format!("right, handled {}", u8::from(way == "signals")));
    }
}

/// Records, and tries again where others have the processors.
#[track_caller]
pub(crate) fn recorded(running: &Running, options: &[&str]) -> Output {
    for _ in 0..20 {
        let output = running.record(options);
        if output.status.success() {
            // No thread was found that could be borrowed for it: of branches alone nothing is left then either.
            if told(&output).contains("cannot remove the tracer from process") {
                running.record_some(&["--leave"]);
            }
            return output;
        }
        assert!(BUSY.iter().any(|said| told(&output).contains(said)), "{}", told(&output));
    }
    panic!("20 times");
}

/// Its one thread waits for the child of a `vfork` when the recorder comes, and is borrowed as soon as that has begun its program.
#[test]
fn a_thread_that_waits_for_its_child() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["attached_vfork.c"]).without_hooks().without_library().with(&["-O1"]).build();
    let mut running = Running::begin_by(&mut Command::new(&program.path));
    let mut recorder = running.recorder(&["-P", "*"]).spawn().unwrap();
    let status = format!("/proc/{}/status", running.pid());
    while fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n") {
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder has ended");
        thread::sleep(Duration::from_millis(1));
    }
    // Until it is known that it cannot be stopped. If this is too short it is borrowed all the same.
    thread::sleep(Duration::from_millis(300));
    running.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
    let mut reader = BufReader::new(recorder.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("recording process") {
        assert!(reader.read_line(&mut said).unwrap() > 0, "{said}");
    }
    thread::spawn(move || reader.read_to_end(&mut Vec::new()));
    assert_eq!(running.ask("?"), OWN);
    stop(recorder);
    assert_eq!(count(&running.trace(), "leaf"), 1000);
    check_code(&running);
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(5), ""));
}

/// A function that a handler has interrupted there stays as it is.
#[test]
fn interrupted_functions_are_left_out() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = Running::begin(&program().path, "interrupted");
    let mut line = String::new();
    running.output.read_line(&mut line).unwrap();
    assert_eq!(line, "interrupted\n");
    let recorder = running.begin_recording(&["-P", "*"]);
    running.child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
    running.wait_for_records();
    stop(recorder);
    let list = fs::read_to_string(running.trace().join("entry-branches.txt")).unwrap();
    let reason = "a signal interrupted a thread in its first instructions at each attempt";
    assert!(list.lines().any(|line| line.contains("\tfill\t") && line.ends_with(reason)), "{list}");
    assert!(count(&running.trace(), "round_of_work") > 0);
    check_code(&running);
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right, handled 1"));
}

/// The program goes on with its branches, and `--leave`, or the next attach, takes them away.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    outlives_recorders(Running::begin_by(Command::new(&program().path).arg("asked")), "leaf", str::to_owned);
}

/// A program goes on whenever its recorder is killed, and has its own code again as soon as one has left it.
pub(crate) fn outlives_recorders(mut running: Running, leaf: &str, name: impl Fn(&str) -> String) {
    for is_left in [true, false] {
        let mut recorder = running.begin_recording(&["-P", "*", "--on-full", "drop"]);
        assert_eq!(running.ask("?"), OWN);
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert_eq!(running.ask("?"), OWN);
        let changed = running.code();
        if is_left {
            running.record_some(&["--leave"]);
        } else {
            let recorder = running.begin_recording(&["-P", leaf]);
            assert_eq!(running.ask("?"), OWN);
            stop(recorder);
            assert_eq!(["leaf", "many"].map(|function| count(&running.trace(), &name(function))), [5000, 0]);
        }
        assert_ne!(running.code(), changed, "there were no branches");
        check_code(&running);
    }
    // At any time.
    for millis in (5..400).step_by(40) {
        let mut recorder = running.recorder(&["-P", "*", "--for", "10ms", "--on-full", "drop"]).spawn().unwrap();
        thread::sleep(Duration::from_millis(millis));
        assert_eq!(running.ask("?"), OWN);
        let _ = recorder.kill();
        recorder.wait().unwrap();
        assert_eq!(running.ask("?"), OWN);
        let _ = fs::remove_dir_all(running.trace());
    }
    let recorder = running.begin_recording(&["-P", "*"]);
    assert_eq!(running.ask("?"), OWN);
    stop(recorder);
    check_code(&running);
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(5), ""));
}

/// Exceptions pass functions with branches, and come from them.
#[test]
fn exceptions_at_any_time() {
    if !require(&["g++"]) {
        return;
    }
    let program = CProgram::new(&["attached_throws.cpp"]).without_hooks().without_library().with(&["-O2"]).build();
    for ends in ["returns", "exits"] {
        exceptions_pass(&program.path, &["--ends", ends], 3);
    }
}

/// It throws all the time, and each exception comes where it belongs while it is recorded some times.
#[track_caller]
pub(crate) fn exceptions_pass(program: &Path, options: &[&str], n_recordings: usize) {
    let running = Running::begin(program, "");
    for _ in 0..n_recordings {
        let limits = ["-P", "*", "--for", "20ms", "--max-size", "1M", "--on-full", "drop"];
        recorded(&running, &[&limits[..], options].concat());
        check_code(&running);
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right"), "{}: {status}", program.display());
}

/// A program as it is distributed does what it does without.
#[test]
fn a_program_of_the_system() {
    const SCRIPT: &str = "$| = 1; print \"$$\\n\"; my %seen; while (<STDIN>) { chomp; $seen{$_}++; my @all = sort { $seen{$a} <=> $seen{$b} \
                          || $a cmp $b } keys %seen; print join(',', map { \"$_=$seen{$_}\" } @all), \"\\n\"; } exit 9;";

    if !require(&["perl"]) {
        return;
    }
    let mut running = Running::begin_by(Command::new("perl").args(["-e", SCRIPT]));
    let mut seen = BTreeMap::new();
    let mut ask = |running: &mut Running, word: &'static str| {
        *seen.entry(word).or_insert(0) += 1;
        let mut all: Vec<(i32, &str)> = seen.iter().map(|(&word, &number)| (number, word)).collect();
        all.sort_unstable();
        writeln!(running.child.stdin.as_mut().unwrap(), "{word}").unwrap();
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        let wanted: Vec<String> = all.iter().map(|(number, word)| format!("{word}={number}")).collect();
        assert_eq!(line.trim(), wanted.join(","));
    };
    ask(&mut running, "one");
    for ends in ["returns", "exits"] {
        let recorder = running.begin_recording(&["-P", "*", "-P", "*@libc", "--ends", ends]);
        ["two", "three", "two"].into_iter().for_each(|word| ask(&mut running, word));
        stop(recorder);
        let left_out = fs::read_to_string(running.trace().join("entry-branches.txt")).unwrap_or_default();
        let without = left_out.lines().filter(|line| !line.ends_with("recorded late")).count();
        assert!(without < 100, "{left_out}");
        check_code(&running);
        ask(&mut running, "one");
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(9), ""));
}

/// Call sites become NOPs and jumps, and what they were.
#[test]
fn patched_call_sites() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&crate::attach::program().path, "waits");
    for _ in 0..2 {
        let options = ["--patched", "-P", "*", "--for", "50ms", "--max-size", "4M", "--on-full", "drop"];
        recorded(&running, &options);
        assert!(count(&running.trace(), "middle") > 0);
        check_code(&running);
    }
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

#[test]
fn the_hottest_functions() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&program().path, "busy");
    let top = |options: &[&str]| {
        let mut command = Command::new(rftrace());
        command.args(["top", "--once", "-e", "300ms"]).args(options).arg(running.pid().to_string());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let shown = (0..20).map(|_| top(&["-P", "*"])).find(|output| output.status.success()).unwrap();
    let table = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(table.contains("round_of_work") && table.contains("leaf"), "{table}");
    check_code(&running);
    assert_eq!(running.end().0.code(), Some(7));
}

#[test]
fn refusals() {
    if !require(&["gcc"]) {
        return;
    }
    let plain = CProgram::new(&["attached.c"]).without_hooks().without_library();
    let plain = plain.with(&["-DNO_SLOT", "-lpthread"]).build();
    let running = Running::begin(&plain.path, "malloc");
    refused(running.pid(), |_| (), "use -P '*' to record its functions");
    let none = running.record(&["-P", "no_such_function", "--for", "10ms"]);
    assert!(told(&none).contains("-P matches no function"), "{}", told(&none));
    let wrong = running.record(&["-P", "/(/", "--for", "10ms"]);
    assert!(!wrong.status.success() && told(&wrong).contains("entry branches: /(/"), "{}", told(&wrong));
    check_code(&running);
    running.end();
}
