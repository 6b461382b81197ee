//! `rftrace record -p PID --resources`: what a program takes and gives back is counted while somebody is attached to it, and the program goes on
//! as if nothing had happened.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rftrace_tests::traces::{self, calls_per_task};
use rftrace_tests::{CProgram, Program, require, tools};
use serde_json::Value;

use super::attach::{Running, told};
use super::record::rftrace;
use super::resources::sums;

fn build(with: &[&str]) -> Program {
    let program = CProgram::new(&["attached_resources.c"]).without_hooks().without_library();
    program.with(&["-g", "-O1", "-fno-builtin", "-pthread", "-Wl,-z,now"]).with(with).build()
}

pub(crate) fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    &BUILT.get_or_init(|| build(&[])).path
}

pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let library = || CProgram::new(&["attached_maker.c"]).without_hooks().without_library();
    &BUILT.get_or_init(|| library().with(&["-g", "-O1", "-shared", "-fPIC"]).build()).path
}

pub(crate) fn begin(program: &Path, way: &str) -> Running {
    Running::begin_by(Command::new(program).arg(way).arg(library()))
}

/// Has it do what these letters mean.
#[track_caller]
pub(crate) fn tell(running: &mut Running, letters: &str) {
    for letter in letters.chars() {
        running.child.stdin.as_mut().unwrap().write_all(letter.to_string().as_bytes()).unwrap();
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), letter.to_string());
    }
}

fn begin_recording(running: &Running, kinds: &str) -> Child {
    running.begin_recording(&["--resources", kinds])
}

#[track_caller]
fn end_recording(recorder: &mut Child) {
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
}

/// Returns the records.
#[track_caller]
fn values(running: &Running) -> Value {
    let mut command = Command::new(rftrace());
    command.args(["resources", "--json", "--limit", "0", "--depth", "0"]).arg(running.trace());
    let output = command.output().unwrap();
    assert!(output.status.success() && !told(&output).contains("without a recorded"), "{}", told(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Blocks and bytes that were taken, blocks and bytes that are there, and what was given back that had been taken before.
fn counted(values: &Value, kind: &str) -> [u64; 5] {
    ["allocations", "allocated_bytes", "blocks", "bytes", "unknown_releases"]
        .map(|key| values[kind][key].as_u64().unwrap())
}

/// Returns mappings of files that the program does not write to: the slots of a program that has bound all of them.
pub(crate) fn constants(pid: u32) -> BTreeMap<String, Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let read = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).ok()?;
        Some((line.to_owned(), bytes))
    };
    let of_files = |line: &&str| line.contains(" r-") && line.contains(" /") && !line.contains("memfd");
    maps.lines().filter(of_files).filter_map(read).collect()
}

/// Checks that the earlier mappings are still there, and the same.
#[track_caller]
pub(crate) fn check_constants(running: &Running, before: &BTreeMap<String, Vec<u8>>) {
    let now = constants(running.pid());
    let changed: Vec<&String> =
        before.iter().filter(|&(line, bytes)| now.get(line) != Some(bytes)).map(|(line, _)| line).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

#[track_caller]
pub(crate) fn end(running: Running) {
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(7), "right\n"), "{status}");
}

#[test]
fn what_a_program_takes_while_it_is_attached_to() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "one");
    tell(&mut running, "t");
    let before = constants(running.pid());
    let mut recorder = begin_recording(&running, "memory");
    tell(&mut running, "tog");
    end_recording(&mut recorder);
    let found = values(&running);
    // 10 blocks of 100, 21 bytes that become 50, 16, and 200. Five had been taken before.
    assert_eq!(counted(&found, "memory"), [14, 1287, 0, 0, 5], "{found:#}");
    assert_eq!(sums(&found, &["take", "take_some", "main", "_start"]), [10, 1000, 0, 0], "{found:#}");
    assert_eq!(sums(&found, &["strdup", "other_ways"]), [1, 16, 0, 0], "{found:#}");
    assert_eq!((&found["memory"]["attached"], &found["memory"]["doubled"]), (&true.into(), &0.into()));
    let text = Command::new(rftrace()).arg("resources").arg(running.trace()).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("\n        5 blocks given back, taken before the attach\n"), "{text}");
    // Slots are what they were, and nothing is recorded any more.
    check_constants(&running, &before);
    tell(&mut running, "t");

    let mut recorder = begin_recording(&running, "memory,file,thread,library");
    tell(&mut running, "tfpc");
    end_recording(&mut recorder);
    let found = values(&running);
    assert_eq!(sums(&found, &["take_some", "main"]), [10, 1000, 5, 500], "{found:#}");
    assert_eq!(counted(&found, "memory")[3..], [500, 0], "{found:#}");
    // One stays open; what was open before is closed, and once more.
    assert_eq!(counted(&found, "file"), [3, 3, 1, 1, 1], "{found:#}");
    assert_eq!(found["file"]["failures"], 1, "{found:#}");
    let twice = found["stacks"].as_array().unwrap().iter().find(|stack| stack["failures"] == 1).unwrap();
    assert_eq!(twice["frames"][0]["function"], "close_twice", "{twice:#}");
    assert_eq!(counted(&found, "thread"), [2, 2, 1, 1, 0], "{found:#}");
    assert_eq!(counted(&found, "library"), [0; 5], "{found:#}");
    check_constants(&running, &before);
    end(running);
}

/// With slots that are filled at the first call, or by code without a procedure linkage table.
#[test]
fn slots_of_all_kinds() {
    if !require(&["gcc"]) {
        return;
    }
    for with in [&["-Wl,-z,lazy"][..], &["-fno-plt"], &["-no-pie"]] {
        let built = build(with);
        let mut running = begin(&built.path, "one");
        let mut recorder = begin_recording(&running, "memory");
        tell(&mut running, "tog");
        end_recording(&mut recorder);
        let found = values(&running);
        assert_eq!(counted(&found, "memory"), [14, 1287, 0, 0, 0], "{with:?} {found:#}");
        tell(&mut running, "tog");
        end(running);
    }
}

/// Return addresses that the tracer has replaced meanwhile are those that they were.
#[test]
fn calls_and_resources_in_one_trace() {
    if !require(&["gcc"]) {
        return;
    }
    let built = CProgram::new(&["attached_resources.c"]).without_library();
    let built = built.with(&["-g", "-O1", "-fno-builtin", "-pthread", "-Wl,-z,now"]).build();
    let mut running = begin(&built.path, "one");
    for _ in 0..2 {
        let mut recorder = begin_recording(&running, "memory");
        tell(&mut running, "tg");
        end_recording(&mut recorder);
        let found = values(&running);
        assert_eq!(sums(&found, &["take", "take_some", "main", "_start"]), [10, 1000, 0, 0], "{found:#}");
        assert_eq!(calls(&running, &["take"]), [10]);
    }
    // By what the tracer knows: `main` was called before.
    let mut recorder = running.begin_recording(&["--resources", "memory", "--backtraces", "shadow"]);
    tell(&mut running, "tg");
    end_recording(&mut recorder);
    let found = values(&running);
    assert_eq!(sums(&found, &["take", "take_some"]), [10, 1000, 0, 0], "{found:#}");
    assert_eq!(sums(&found, &["main"]), [0; 4], "{found:#}");
    end(running);
}

/// How often each of these functions was called.
#[track_caller]
fn calls(running: &Running, functions: &[&str]) -> Vec<u64> {
    let calls = calls_per_task(&traces::open(&running.trace()));
    functions.iter().map(|&function| calls.iter().filter_map(|calls| calls.get(function)).sum()).collect()
}

/// Both have calls through the program's slots lead to them. Each is recorded alone too, before and after, by recorders that leave or are killed.
#[test]
fn library_calls_and_resources_in_one_trace() {
    if !require(&["gcc"]) {
        return;
    }
    const FUNCTIONS: [&str; 3] = ["malloc", "free", "posix_memalign"];
    for with in [&[][..], &["-Wl,-z,lazy"], &["-fno-plt"]] {
        let built = build(with);
        let mut running = begin(&built.path, "one");
        let specification = running.folder.path().join("text.toml");
        fs::write(&specification, specified("strdup", "free")).unwrap();
        let specified = format!("memory,file,{}", specification.display());
        tell(&mut running, "tgo");
        let before = constants(running.pid());
        let ways: [&[&str]; 5] = [
            &["--resources", "memory"],
            &["--libcalls", "--resources", "memory"],
            &["--libcalls"],
            &["--libcalls", "--resources", &specified],
            &["--resources", &specified],
        ];
        for (round, options) in ways.into_iter().enumerate() {
            for is_killed in [true, false] {
                let mut recorder = running.begin_recording(options);
                tell(&mut running, "tog");
                if is_killed {
                    recorder.kill().unwrap();
                    recorder.wait().unwrap();
                    tell(&mut running, "tog");
                    // The next recorder, or this.
                    if round % 2 == 0 {
                        running.record_some(&["--leave"]);
                        check_constants(&running, &before);
                    }
                    continue;
                }
                end_recording(&mut recorder);
                check_constants(&running, &before);
                if options.contains(&"--libcalls") {
                    // Seven that were kept are given back.
                    assert_eq!(calls(&running, &FUNCTIONS), [10, 5 + 1 + 7, 1], "{with:?} {options:?}");
                }
                if options.contains(&"--resources") {
                    let found = values(&running);
                    if options.contains(&specified.as_str()) {
                        assert_eq!(counted(&found, "text")[..4], [1, 16, 0, 0], "{with:?} {options:?} {found:#}");
                    }
                    assert_eq!(counted(&found, "memory"), [14, 1287, 0, 0, 0], "{with:?} {options:?} {found:#}");
                    let named = sums(&found, &["take", "take_some", "main", "_start"]);
                    assert_eq!(named, [10, 1000, 0, 0], "{with:?} {options:?} {found:#}");
                }
                tell(&mut running, "tog");
            }
        }
        end(running);
    }
}

#[test]
fn libraries_that_come_later() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "one");
    let mut recorder = begin_recording(&running, "memory,library");
    tell(&mut running, "l");
    // It is looked five times a second.
    thread::sleep(Duration::from_secs(2));
    tell(&mut running, "L");
    end_recording(&mut recorder);
    let found = values(&running);
    assert_eq!(sums(&found, &["make", "in_library"]), [1, 4321, 1, 4321], "{found:#}");
    assert_eq!(counted(&found, "library")[..3], [1, 1, 1], "{found:#}");
    end(running);
}

/// A specification of what two functions take and give back.
pub(crate) fn specified(taking: &str, giving: &str) -> String {
    let resource = "name = 'text'\n[[resource]]\nname = 'text'\nothers = true\n";
    let taken = format!("[[function]]\nsymbol = '{taking}'\nkind = 'alloc'\nid = 'ret'\nsize = 'strlen(ret) + 1'\n");
    format!(
        "{resource}{taken}arguments = {{ text = 'str(arg0)' }}\n[[function]]\nsymbol = '{giving}'\nkind = 'free'\nid = 'arg0'\n"
    )
}

/// By slots, as those that need no specification.
#[test]
fn what_a_file_specifies() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "one");
    let path = running.folder.path().join("text.toml");
    fs::write(&path, specified("strdup", "free")).unwrap();
    let before = constants(running.pid());
    for given_back in ["", "g"] {
        let mut recorder = begin_recording(&running, &format!("{},file", path.display()));
        tell(&mut running, "tof");
        tell(&mut running, given_back);
        end_recording(&mut recorder);
        let found = values(&running);
        let there = u64::from(given_back.is_empty());
        assert_eq!(counted(&found, "text")[..4], [1, 16, there, 16 * there], "{found:#}");
        assert_eq!(sums(&found, &["other_ways", "main"])[..2], [1, 16], "{found:#}");
        assert_eq!(counted(&found, "file")[..4], [3, 3, 1, 1], "{found:#}");
    }
    check_constants(&running, &before);
    // Built-in resources, of functions that are chosen by processor: each block is filled.
    let mut recorder = begin_recording(&running, "memtransfer");
    tell(&mut running, "t");
    end_recording(&mut recorder);
    let text = Command::new(rftrace()).args(["resources", "--text", "functracer"]).arg(running.trace()).output();
    let text = String::from_utf8_lossy(&text.unwrap().stdout).into_owned();
    assert_eq!(text.matches("] memset(100) = ").count(), 10, "{text}");
    check_constants(&running, &before);
    end(running);
}

/// Each has what it has taken, and what is there of the others stays.
#[test]
fn several_processes() {
    if !require(&["gcc"]) {
        return;
    }
    let mut programs = [begin(program(), "one"), begin(program(), "threads")];
    let [one, other] = programs.each_ref().map(Running::pid);
    let before = programs.each_ref().map(|running| constants(running.pid()));
    for round in 0..2 {
        let mut recorder = programs[0].begin_recording(&["--resources", "memory", "-p", &other.to_string()]);
        tell(&mut programs[0], "t");
        tell(&mut programs[1], "tt");
        tell(&mut programs[0], "t");
        end_recording(&mut recorder);
        let found = values(&programs[0]);
        assert_eq!(sums(&found, &["take_some", "main"]), [40, 4000, 20, 2000], "{round}: {:#}", found["memory"]);
        let processes = found["memory"]["processes"].as_array().unwrap();
        let pids: Vec<u64> = processes.iter().map(|process| process["pid"].as_u64().unwrap()).collect();
        assert!(pids.len() == 2 && pids.contains(&one.into()) && pids.contains(&other.into()), "{pids:?}");
        programs.iter_mut().for_each(|running| tell(running, "g"));
    }
    for (running, before) in programs.into_iter().zip(before) {
        check_constants(&running, &before);
        end(running);
    }
}

/// The program looks at each block. Recorders come and go, or are killed.
#[test]
fn threads_that_are_in_the_allocator() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "threads");
    let before = constants(running.pid());
    for is_left in [true, false] {
        let mut recorder = begin_recording(&running, "memory");
        tell(&mut running, "t");
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        tell(&mut running, "tg");
        if is_left {
            running.record_some(&["--leave"]);
            check_constants(&running, &before);
        }
        let mut recorder = begin_recording(&running, "memory");
        tell(&mut running, "tt");
        end_recording(&mut recorder);
        let found = values(&running);
        assert_eq!(sums(&found, &["take_some", "main"]), [20, 2000, 10, 1000], "{:#}", found["memory"]);
        // Each thread has a block at a time.
        let [taken, _, there, _, unknown] = counted(&found, "memory");
        assert!(taken > 100 && there <= 10 + 4 && unknown <= 4, "{:#}", found["memory"]);
        assert_eq!((&found["memory"]["doubled"], &found["memory"]["lost"]), (&0.into(), &0.into()));
        tell(&mut running, "g");
    }
    check_constants(&running, &before);
    end(running);
}

/// A child of a fork is not recorded, nor what runs in place of the program; both do as they do without.
#[test]
fn children_and_other_programs() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "one");
    let mut recorder = begin_recording(&running, "memory");
    tell(&mut running, "tktg");
    end_recording(&mut recorder);
    let found = values(&running);
    assert_eq!(counted(&found, "memory"), [20, 2000, 0, 0, 0], "{found:#}");
    assert_eq!(found["memory"]["processes"].as_array().unwrap().len(), 1, "{found:#}");

    let mut recorder = begin_recording(&running, "memory");
    tell(&mut running, "t");
    running.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    let mut line = String::new();
    running.output.read_line(&mut line).unwrap();
    assert_eq!(line.trim().parse(), Ok(running.child.id()), "{line}");
    assert!(recorder.wait().unwrap().success());
    let found = values(&running);
    assert_eq!(counted(&found, "memory"), [10, 1000, 5, 500, 0], "{found:#}");
    tell(&mut running, "tg");
    end(running);
}

/// All is recorded that is there when a program is killed.
#[test]
fn a_program_that_is_killed() {
    if !require(&["gcc"]) {
        return;
    }
    let mut running = begin(program(), "one");
    let mut recorder = begin_recording(&running, "memory");
    tell(&mut running, "tt");
    running.child.kill().unwrap();
    assert!(recorder.wait().unwrap().success());
    let found = values(&running);
    assert_eq!(counted(&found, "memory"), [20, 2000, 10, 1000, 0], "{found:#}");
    running.child.wait().unwrap();
}

/// A function whose address a program compares has the same one all the time; a message names the calls that are not recorded then.
#[test]
fn addresses_that_are_compared() {
    if !require(&["gcc"]) {
        return;
    }
    let built = build(&["-DPOINTER"]);
    let mut running = begin(&built.path, "one");
    let recorder = running.recorder(&["--resources", "memory", "--for", "1s"]).spawn().unwrap();
    for _ in 0..10 {
        tell(&mut running, "=");
        thread::sleep(Duration::from_millis(200));
    }
    let output = recorder.wait_with_output().unwrap();
    assert!(
        output.status.success() && told(&output).contains("cannot record calls of free by the program"),
        "{}",
        told(&output)
    );
    tell(&mut running, "=tg");
    end(running);
}

#[test]
fn what_is_refused_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let running = begin(program(), "one");
    let specification = running.folder.path().join("own.toml");
    fs::write(&specification, specified("take", "free")).unwrap();
    let cases: [(&[&str], &str); 3] = [
        (&["--resources", specification.to_str().unwrap()], "cannot record take in a running program"),
        (&["--resources", "memory", "--backtraces", "shadow"], "does not call the tracer"),
        (&["--resources", "nothing.toml"], "nothing.toml"),
    ];
    for (options, wanted) in cases {
        let output = running.recorder(options).args(["--for", "10ms"]).output().unwrap();
        assert!(!output.status.success() && told(&output).contains(wanted), "{wanted}: {}", told(&output));
    }
    assert!(!fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap().contains("rftrace"));
    end(running);

    let statically = build(&["-static"]);
    let running = begin(&statically.path, "one");
    let output = running.record(&["--resources", "memory", "--for", "10ms"]);
    assert!(told(&output).contains("is linked statically"), "{}", told(&output));
    end(running);
    // Nothing in it begins threads.
    let plain = CProgram::new(&["answering.c"]).without_hooks().without_library().build();
    let running = Running::begin_by(Command::new(&plain.path).env("ANSWER", "four"));
    let output = running.record(&["--resources", "thread", "--for", "10ms"]);
    assert!(told(&output).contains("call no function of these resources"), "{}", told(&output));
    assert!(!running.trace().exists());
    assert_eq!(running.end().0.code(), Some(5));
}
