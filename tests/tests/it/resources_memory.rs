//! Memory that `rftrace record --resources memory` takes in a program.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rftrace_tests::{CProgram, Program, require};
use serde_json::Value;
use tempfile::TempDir;

use super::record::rftrace;
use super::resources::{resources, sums, values};

fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        // Both ways of a call are to stay two.
        let with = ["-g", "-O1", "-fno-builtin", "-fno-optimize-sibling-calls", "-fno-crossjumping", "-lpthread"];
        CProgram::new(&["resources_stacks.c"]).without_hooks().without_library().with(&with).build()
    };
    &BUILT.get_or_init(build).path
}

fn chunks_program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        let program = CProgram::new(&["resources_chunks.c"]).without_hooks().without_library();
        program.with(&["-g", "-O1", "-fno-builtin"]).build()
    };
    &BUILT.get_or_init(build).path
}

/// Records a program, each time at the same addresses: which pages of files the system maps beside those that are needed depends on them. Returns the trace,
/// and what the program says.
fn run(program: &Path, way: &str, arguments: &[&str]) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("setarch");
    command.arg("-R").arg(rftrace()).args(["record", "--resources", "memory", "--no-schedule"]);
    command.args(["--backtraces", way, "-o", "trace", "--"]);
    let output = command.arg(program).args(arguments).current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (folder, String::from_utf8(output.stdout).unwrap())
}

/// Records what says of itself what memory it has. Returns the trace, and all lines of `smaps` with their mapping.
fn record(program: &Path, way: &str, arguments: &[&str]) -> (TempDir, Vec<(String, String)>) {
    let (folder, told) = run(program, way, arguments);
    let (mut mapping, mut lines) = (String::new(), Vec::new());
    for line in told.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if first.contains('-') && !first.ends_with(':') {
            line.clone_into(&mut mapping);
        }
        lines.push((mapping.clone(), line.to_owned()));
    }
    (folder, lines)
}

/// KiB of this kind in all mappings that are wanted.
fn sum(lines: &[(String, String)], kind: &str, is_wanted: impl Fn(&str) -> bool) -> u64 {
    let of_kind = lines.iter().filter(|(mapping, line)| line.starts_with(kind) && is_wanted(mapping));
    of_kind.map(|(_, line)| line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

/// Those in mappings without a file, but for the program's stack and heap: what is the library's.
fn anonymous(lines: &[(String, String)]) -> u64 {
    sum(lines, "Anonymous:", |mapping| mapping.split_ascii_whitespace().nth(5).is_none())
}

/// Tables are about as large as they are full, and all that is in them is found again.
#[test]
fn many_stacks_take_little_memory() {
    /// KiB: 4,096 stacks in a table of 32, 4,096 in one of 128, and 32 for those found lately. It took 288 where that was eight times the first one.
    const MOST: u64 = 200;
    if !require(&["gcc", "setarch"]) {
        return;
    }
    let [(_, few), (trace, many)] = ["0", "13"].map(|power| record(program(), "cfi", &[power]));
    let [few, many] = [few, many].map(|lines| anonymous(&lines));
    assert!(many >= few + 100 && many < few + MOST, "{few} {many}");
    let found = values(&trace, &[]);
    let ways = found["stacks"].as_array().unwrap().iter().filter(|stack| is_of(stack, "way"));
    let ways: Vec<_> = ways.map(|stack| stack["allocations"].as_u64().unwrap()).collect();
    assert_eq!((ways.len(), ways.iter().all(|&n_blocks| n_blocks == 3)), (1 << 13, true), "{:?}", &ways[..20]);
    assert_eq!(sums(&found, &["way"])[0], 3 << 13);
}

fn is_of(stack: &Value, function: &str) -> bool {
    super::resources::functions(stack).contains(&function)
}

/// The memory for finding callers is made for the first thread, and for each other one before that begins: none has to do without.
#[test]
fn each_thread_has_what_finds_its_callers() {
    /// KiB: two caches of 16, and pages of the table of stacks. It took 120 where there were seven.
    const MOST: u64 = 80;
    const THREADS: u64 = 5;
    if !require(&["gcc", "setarch"]) {
        return;
    }
    let threads = &THREADS.to_string();
    let more = |arguments: &[&str]| {
        let [without, with] = ["none", "cfi"].map(|way| anonymous(&record(program(), way, arguments).1));
        with.checked_sub(without).unwrap()
    };
    let one = more(&["0"]);
    assert!((16..MOST).contains(&one), "{one}");
    // These take nothing themselves.
    let many = more(&["-1", threads]);
    assert!(many >= one + (THREADS - 1) * 12, "{one} {many}");
    for _ in 0..5 {
        let (trace, _) = record(program(), "cfi", &["4", threads]);
        let found = values(&trace, &[]);
        assert_eq!([sums(&found, &["way"])[0], sums(&found, &["way", "begun"])[0]], [THREADS << 4; 2], "{found:#}");
    }
}

/// Code that only the library's beginning needed is given back, except under a debugger, whose breakpoints may be in it.
#[test]
fn code_of_the_beginning_is_given_back() {
    if !require(&["gcc", "setarch", "strace"]) {
        return;
    }
    let resident =
        |lines: &[(String, String)]| sum(lines, "Rss:", |mapping| mapping.ends_with("/rftrace-preload-resources"));
    let [alone, traced] = [&[][..], &["strace", "-f", "-o", "/dev/null"]].map(|before| {
        let command = [before, &[program().to_str().unwrap()]].concat();
        resident(&record(Path::new(command[0]), "none", &[&command[1..], &["0"]].concat()).1)
    });
    // 68 in a debug build.
    assert!(alone > 0 && alone + 32 < traced, "{alone} {traced}");
}

/// Most blocks take one unit while they wait for the recorder. All are told as they were: with few bytes, many, and just few enough to be short.
#[test]
fn most_blocks_take_sixteen_bytes_until_the_recorder_comes() {
    const BLOCKS: u64 = 30_000;
    /// KiB: those of the blocks, of 100 blocks at each side of the limit, and of the system's pages at the edges. It took 944.
    const MOST: u64 = BLOCKS * 16 / 1024 + 32;
    if !require(&["gcc", "setarch"]) {
        return;
    }
    for way in ["none", "cfi"] {
        let (trace, told) = run(chunks_program(), way, &["lag", &BLOCKS.to_string()]);
        let memory: u64 = told.trim().parse().unwrap();
        assert!((BLOCKS * 16 / 1024..MOST).contains(&memory), "{way}: {memory}");
        let found = values(&trace, &[]);
        let small: u64 = (0..BLOCKS).map(|number| 8 + number % 1000).sum();
        let at_the_limit = 50 * (65_535 + 65_536 + 65_536 + 65_280);
        if way == "cfi" {
            assert_eq!(sums(&found, &["small"]), [BLOCKS, small, BLOCKS, small], "{:#}", found["memory"]);
            assert_eq!(
                sums(&found, &["at_the_limit"]),
                [200, at_the_limit, 200, at_the_limit],
                "{:#}",
                found["memory"]
            );
            assert_eq!(sums(&found, &["large"]), [1, 1 << 30, 1, 1 << 30], "{:#}", found["memory"]);
        }
        let kept = ["blocks", "bytes"].map(|key| found["memory"][key].as_u64().unwrap());
        assert_eq!(kept, [BLOCKS + 201, small + at_the_limit + (1 << 30)], "{way}: {:#}", found["memory"]);
    }
}

/// Times are right where more ticks have passed since the thread got its chunk than one unit has room for.
#[test]
fn times_after_a_long_wait() {
    const DAY: u64 = 86_400_000_000;
    if !require(&["gcc", "setarch"]) {
        return;
    }
    // 2³² ticks, where there are more than 1.1 in a nanosecond.
    let (trace, told) = run(chunks_program(), "none", &["wait", "4"]);
    let limits: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let output = resources(&trace, &["--text", "functracer"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let times = |call: &str| text.lines().filter(|line| line.contains(call)).map(micros).collect::<Vec<_>>();
    let [before, after, last] = ["malloc(100)", "malloc(200)", "malloc(300)"].map(times);
    assert_eq!([before.len(), after.len(), last.len()], [10, 10, 1], "{text}");
    // It may be midnight.
    let first = before[0];
    let all = [before, after, last].concat().iter().map(|time| (time + DAY - first) % DAY).collect::<Vec<_>>();
    assert!(all.is_sorted(), "{text}");
    let waited = all[10] - all[9];
    assert!(limits[0] * 99 / 100 <= waited && waited <= limits[1] * 101 / 100, "{waited} {limits:?}\n{text}");
}

/// Of a line with a time of day: `0. [23:59:59.123456] malloc(100) = …`.
fn micros(line: &str) -> u64 {
    let (time, _) = line.split_once('[').unwrap().1.split_once(']').unwrap();
    time.split([':', '.'])
        .zip([3_600_000_000, 60_000_000, 1_000_000, 1])
        .map(|(number, unit)| number.parse::<u64>().unwrap() * unit)
        .sum()
}
