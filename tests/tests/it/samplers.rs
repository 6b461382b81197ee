//! The commands for gdb and lldb: sampled shares of time are the true ones, in a process and in a kernel under QEMU; the
//! newest records are read from a program's memory.

use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rftrace::abi::{self, ChunkHeader, Control, Record, chunk_state, kind, state};
use rftrace_tests::fixtures::repository;
use rftrace_tests::{CProgram, Program, Run, require, tools};
use serde_json::{Value, json};

const SAMPLES: u32 = 200;
/// 0.75 of them, give or take five times the standard deviation of a fair draw.
const EXPECTED: std::ops::RangeInclusive<u32> = 120..=180;

fn script(name: &str) -> PathBuf {
    repository().join("tools").join(name)
}

/// A gdb that executes `commands` on a program, with our commands.
fn gdb(program: &Path, commands: &[&str]) -> Run {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-ex", "set debuginfod enabled off", "-ex"]);
    gdb.arg(format!("source {}", script("gdb/rftrace.py").display()));
    for command in commands {
        gdb.args(["-ex", command]);
    }
    Run::of_any(gdb.arg(program))
}

/// An lldb that runs Python, which Debian's package of version 14 does not; a test that finds none says so.
fn lldb() -> Option<&'static str> {
    let works = |name: &&str| {
        let mut lldb = Command::new(name);
        let output = lldb.args(["--no-lldbinit", "--batch", "-o", "script import lldb; print(6 * 7)"]).output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "42"))
    };
    let found = ["lldb", "lldb-19"].into_iter().find(works);
    if found.is_none() {
        tools::missing("an lldb with Python (lldb-19)");
    }
    found
}

/// Checks folded stacks: `both` calls the two functions, and all samples are in them.
fn check_shares(folded: &Path, run: &Run) {
    let folded = fs::read_to_string(folded).unwrap_or_else(|_| panic!("{}{}", run.stdout, run.stderr));
    let count = |end: &str| {
        let ending = folded.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(stack, _)| stack.ends_with(end));
        ending.map(|(_, count)| count.parse::<u32>().unwrap()).sum::<u32>()
    };
    let [long, short] = [";both;spin_long", ";both;spin_short"].map(count);
    assert!(EXPECTED.contains(&long), "{long} of {SAMPLES} instead of three quarters:\n{folded}{}", run.stdout);
    // The rest of the program takes next to no time.
    assert!(long + short >= SAMPLES - 5, "{folded}");
}

fn shares() -> Program {
    CProgram::new(&["shares.c"]).with(&["-O1"]).without_hooks().without_library().build()
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

#[test]
fn gdb_samples_a_program_that_it_started() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    let sample = format!("rftrace-sample -n {SAMPLES} -i 3 -f folded");
    let run = gdb(&shares().path, &["break both", "run", "delete", &sample, "kill"]);
    check_shares(&run.path("folded"), &run);
    assert!(run.stdout.contains(&format!("{SAMPLES} samples in {SAMPLES} stops")), "{}", run.stdout);
    let lines: Vec<&str> = run.stdout.lines().skip_while(|line| !line.contains("Self")).skip(2).collect();
    assert!(lines[0].ends_with("  spin_long") && lines[1].ends_with("  spin_short"), "{}", run.stdout);
    assert!(!run.stdout.contains("SIGINT"), "each stop is shown:\n{}", run.stdout);
}

#[test]
fn gdb_samples_a_program_that_it_attached_to() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    let program = shares();
    let running = start(&mut Command::new(&program.path));
    let attach = format!("attach {}", running.0.id());
    let run = gdb(&program.path, &[&attach, &format!("rftrace-sample -n {SAMPLES} -i 3 -f folded"), "detach"]);
    check_shares(&run.path("folded"), &run);
}

#[test]
fn gdb_samples_a_kernel_by_the_stub_of_qemu() {
    if !require(&["gcc", "gdb", "qemu-system-x86_64"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel");
    let linker_script =
        format!("-Wl,-n,--build-id=none,-T,{}/shares.ld", rftrace_tests::fixtures::folder("c").display());
    let program = CProgram::new(&["shares.c", "shares_boot.S"]).without_hooks().without_library();
    let program = program.with(&["-O1", "-DKERNEL", "-ffreestanding", "-fno-pie", "-fno-omit-frame-pointer"]);
    program.with(&["-nostdlib", "-static", "-no-pie", &linker_script]).build_as(&kernel);

    let socket = folder.path().join("gdb");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-display", "none", "-accel", "tcg", "-m", "32M", "-no-reboot", "-S", "-gdb"]);
    qemu.arg(format!("unix:{},server=on,wait=off", socket.display())).arg("-kernel").arg(&kernel);
    let _running = start(&mut qemu);
    let began = Instant::now();
    while !socket.exists() {
        assert!(began.elapsed() < Duration::from_secs(30), "QEMU does not start");
        sleep(Duration::from_millis(20));
    }
    let remote = format!("target remote {}", socket.display());
    let sample = format!("rftrace-sample -n {SAMPLES} -i 3 -f folded");
    let run = gdb(&kernel, &[&remote, "break both", "continue", "delete", &sample, "kill"]);
    check_shares(&run.path("folded"), &run);
}

#[test]
fn lldb_samples_a_program() {
    if !require(&["gcc"]) {
        return;
    }
    let Some(lldb) = lldb() else { return };
    let program = shares();
    let running = start(&mut Command::new(&program.path));
    let mut command = Command::new(lldb);
    command.args(["--no-lldbinit", "--batch", "-o"]);
    command.arg(format!("command script import {}", script("lldb/rftrace.py").display()));
    command.args(["-o", &format!("process attach --pid {}", running.0.id())]);
    command.args(["-o", &format!("rftrace-sample -n {SAMPLES} -i 3 -f folded"), "-o", "detach"]);
    let run = Run::of_any(command.arg(&program.path));
    check_shares(&run.path("folded"), &run);
}

/// The events of lines `TICKS SINCE THREAD entry name`, oldest first.
fn events(text: &str) -> Vec<String> {
    let header = |line: &&str| !line.trim_start().starts_with("TICKS");
    let lines = text.lines().skip_while(header).skip(1).map(str::split_whitespace);
    let is_event = |words: &Vec<&str>| words.len() == 5 && words[0].parse::<u64>().is_ok();
    lines.map(Iterator::collect).filter(is_event).map(|words| words[3..].join(" ")).collect()
}

#[test]
fn the_newest_records_are_read_from_memory() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    let program = CProgram::new(&["debugged.c"]).with(&["-O1"]).build();
    let commands = ["break stop_here", "run", "finish", "rftrace-records 4", "generate-core-file core", "kill"];
    let run = gdb(&program.path, &commands);
    let expected = ["entry first", "entry middle", "entry stop_here", "exit stop_here"];
    assert_eq!(events(&run.stdout), expected, "{}{}", run.stdout, run.stderr);
    // Those of a core file are the same.
    let core = format!("core-file {}", run.path("core").display());
    let of_core = gdb(&program.path, &[&core, "rftrace-records 4"]);
    assert_eq!(events(&of_core.stdout), expected, "{}{}", of_core.stdout, of_core.stderr);

    let Some(lldb) = lldb() else { return };
    let mut command = Command::new(lldb);
    command.args(["--no-lldbinit", "--batch", "-o"]);
    command.arg(format!("command script import {}", script("lldb/rftrace.py").display()));
    command.args([
        "-o",
        "break set -n rftrace_dump_full_uftrace",
        "-o",
        "run",
        "-o",
        "rftrace-records 3",
        "-o",
        "kill",
    ]);
    let run = Run::of_any(command.arg(&program.path));
    assert_eq!(events(&run.stdout), ["exit stop_here", "exit middle", "exit first"], "{}{}", run.stdout, run.stderr);
}

#[test]
fn messages_of_the_commands() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    let run = gdb(&shares().path, &["rftrace-records", "rftrace-sample", "rftrace-sample -n 0", "rftrace-records x"]);
    for message in [
        "no symbol rftrace_backend_control_v10",
        "no program is running",
        "invalid count value: '0'",
        "x: not a number above 0",
    ] {
        assert!(run.stderr.contains(message), "{message}:\n{}", run.stderr);
    }
    assert!(!run.stderr.contains("Traceback"), "{}", run.stderr);
}

#[test]
fn offsets_are_those_of_the_tracer() {
    if !require(&["python3"]) {
        return;
    }
    let print = "import json, rftrace_records as r; print(json.dumps([r.VERSION, r.LAYOUT]))";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", print]).current_dir(script("debugger"));
    let known: Value = serde_json::from_str(&tools::text(&mut python)).unwrap();
    let layout = json!({
        "Control.chunk_bytes": offset_of!(Control, chunk_bytes),
        "Control.n_chunks": offset_of!(Control, n_chunks),
        "Control.chunks": offset_of!(Control, chunks),
        "Control.cycle_start_tsc": offset_of!(Control, cycle_start_tsc),
        "ChunkHeader.lease": offset_of!(ChunkHeader, lease),
        "ChunkHeader.tid": offset_of!(ChunkHeader, tid),
        "ChunkHeader.taken_tsc": offset_of!(ChunkHeader, taken_tsc),
        "ChunkHeader": size_of::<ChunkHeader>(),
        "Record.tsc": offset_of!(Record, tsc),
        "Record.word": offset_of!(Record, word),
        "Record": size_of::<Record>(),
        "chunk_state.MASK": chunk_state::MASK,
        "chunk_state.FREE": chunk_state::FREE,
        "chunk_state.FULL": chunk_state::FULL,
        "kind.MASK": kind::MASK,
        "kind.ENTRY": kind::ENTRY,
        "kind.EXIT": kind::EXIT,
        "kind.LOST": kind::LOST,
        "kind.RESYNC": kind::RESYNC,
        "kind.POINT": kind::POINT,
        "kind.LEFT": kind::LEFT,
        "kind.NEW_THREAD": kind::NEW_THREAD,
        "state.HIDDEN": state::HIDDEN,
        "ADDRESS_SHIFT": abi::ADDRESS_SHIFT,
        "MIN_CHUNK_BYTES": abi::MIN_CHUNK_BYTES,
        "MAX_CHUNK_BYTES": abi::MAX_CHUNK_BYTES,
    });
    assert_eq!(known, json!([abi::VERSION, layout]));
}
