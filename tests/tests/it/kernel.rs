//! examples/kernel under QEMU: its results, its trees, and that what its tasks record is balanced.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rftrace_frontend::{Image, ImportOptions};
use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{Run, assert_same_lines, fixtures, require, tools};

use crate::kernel_raw::RawTrace;

/// Prefix of the kernel's function names.
const PREFIX: &str = "rftrace_example_kernel::";
/// How QEMU ends when the kernel wants it: all was well, or it has panicked.
pub(crate) const SUCCESS: i32 = 33;
const PANIC: i32 = 35;
/// Real time: cores run side by side, and interrupts come at the ends of basic blocks.
pub(crate) const REAL_TIME: &[&str] = &["-accel", "tcg,thread=multi"];
/// Time counted in instructions, for one and for two cores, which take turns: 8 ns for each instruction of a core. Interrupts
/// come between any two of them, and in each run at the same ones.
const COUNTED_TIME: [&[&str]; 2] =
    [&["-accel", "tcg", "-icount", "shift=3,sleep=off"], &["-accel", "tcg", "-icount", "shift=2,sleep=off"]];

/// A kernel, and the machine that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    machine: Machine,
    pub(crate) path: &'static Path,
}

#[derive(Clone, Copy, Debug)]
enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-none",
            Self::Aarch64 => "aarch64-unknown-none-softfloat",
        }
    }

    fn emulator(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }

    /// Has it end when the kernel wants that, and send the trace to a file: at the end or, `is_streamed`, while it runs.
    fn qemu(self, file: &str, is_streamed: bool) -> Command {
        let mut qemu = Command::new(self.emulator());
        qemu.args([
            "-cpu",
            "max",
            "-m",
            "64M",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
        ]);
        match self {
            Self::X86_64 => {
                qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
                qemu.args([if is_streamed { "-serial" } else { "-debugcon" }, &format!("file:{file}")]);
            }
            Self::Aarch64 => {
                qemu.args(["-M", "virt", "-chardev", &format!("file,id=trace,path={file}")]);
                qemu.args(["-semihosting-config", "enable=on,target=native,chardev=trace"]);
            }
        }
        qemu
    }
}

/// The kernel for x86-64, built once; `None` if what that needs is missing, which is said.
pub(crate) fn kernel() -> Option<Kernel> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    built(Machine::X86_64, &KERNEL, "kernel", &[])
}

/// The same for aarch64.
fn kernel_of_aarch64() -> Option<Kernel> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    built(Machine::Aarch64, &KERNEL, "kernel-aarch64", &[])
}

/// The kernel that says itself where its tasks' state is.
fn kernel_without_tls() -> Option<Kernel> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    built(Machine::X86_64, &KERNEL, "kernel-threadhook", &["--features", "threadhook"])
}

fn built(machine: Machine, kernel: &'static OnceLock<PathBuf>, folder: &str, options: &[&str]) -> Option<Kernel> {
    let target = machine.target();
    if !require(&["nightly", machine.emulator()]) {
        return None;
    }
    if !has_library(target) {
        tools::missing(&format!("nightly's library of {target}"));
        return None;
    }
    let path = kernel.get_or_init(|| {
        let target_folder = fixtures::build_folder(folder);
        let mut cargo = fixtures::cargo(Some("nightly"));
        // There are the flags for the kernel.
        cargo.current_dir(fixtures::repository().join("examples/kernel"));
        cargo.args(["build", "--release", "--target", target]).args(options).arg("--target-dir").arg(&target_folder);
        fixtures::cache::build_once(folder, &["examples/kernel"], &mut cargo);
        target_folder.join(target).join("release/rftrace-example-kernel")
    });
    Some(Kernel { machine, path })
}

fn has_library(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    rustc.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "--print", "target-libdir", "--target", target]);
    let folder = tools::text(&mut rustc);
    fs::read_dir(folder.trim())
        .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
}

/// Boots the kernel with a command line, and makes a directory `trace` of what it sends.
pub(crate) fn boot(kernel: Kernel, n_cores: usize, clock: &[&str], command_line: &str, status: i32) -> Run {
    let mut qemu = kernel.machine.qemu("trace.img", false);
    qemu.args(clock).args(["-smp", &n_cores.to_string(), "-append", command_line]).arg("-kernel").arg(kernel.path);
    let run = Run::of_any(&mut qemu);
    assert_eq!(run.status.code(), Some(status), "{command_line}:\n{}{}", run.stdout, run.stderr);
    let image = Image::read(&run.path("trace.img")).unwrap();
    assert_eq!(image.name(), "rftrace-example-kernel");
    let mut options = ImportOptions::default();
    options.binary = Some(kernel.path.to_owned());
    let imported = image.write_directory(&run.path("trace"), &options).unwrap();
    assert_eq!(imported.lost, 0);
    run
}

/// Boots the kernel so that it sends its trace while it runs. Returns what came.
fn boot_streamed(kernel: Kernel, command_line: &str) -> (Run, Vec<u8>) {
    let mut qemu = kernel.machine.qemu("stream.img", true);
    qemu.args(COUNTED_TIME[0]).args(["-smp", "1", "-append", command_line]).arg("-kernel").arg(kernel.path);
    let run = Run::of_any(&mut qemu);
    assert_eq!(run.status.code(), Some(SUCCESS), "{command_line}:\n{}{}", run.stdout, run.stderr);
    let sent = fs::read(run.path("stream.img")).unwrap();
    (run, sent)
}

/// How often functions were called, as a trace of what came tells it, and what is said of it.
fn calls_of(kernel: Kernel, run: &Run, sent: &[u8]) -> (BTreeMap<String, usize>, Vec<String>) {
    let image = Image::parse(sent, Path::new("sent")).unwrap();
    let mut options = ImportOptions::default();
    options.binary = Some(kernel.path.to_owned());
    let imported = image.write_directory(&run.path("streamed"), &options).unwrap();
    let mut calls = BTreeMap::new();
    for tree in trees(&run.trace("streamed")) {
        for line in outline_of_tree(&tree, PREFIX).lines() {
            *calls.entry(line.trim().to_owned()).or_insert(0) += 1;
        }
    }
    (calls, imported.warnings)
}

#[test]
fn a_trace_is_as_long_as_the_line_lives() {
    let Some(kernel) = kernel() else { return };
    check_streamed(kernel);
}

#[test]
fn a_trace_is_as_long_as_the_line_lives_on_aarch64() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    check_streamed(kernel);
}

/// A buffer of 1 MiB holds 65,536 records; here are more than twice as many.
fn check_streamed(kernel: Kernel) {
    const ROUNDS: usize = 3_000;

    let (run, sent) = boot_streamed(kernel, &format!("mode=tree cores=1 rounds={ROUNDS} send=stream"));
    let (calls, warnings) = calls_of(kernel, &run, &sent);
    let expected = [
        ("work::fibonacci", 5 * ROUNDS),
        ("work::checksum", ROUNDS),
        ("work::add_to_checksum", 9 * ROUNDS),
        ("arch::memory::map", ROUNDS),
        ("arch::interrupts::system_call", ROUNDS),
        ("arch::interrupts::page_fault", ROUNDS),
        ("arch::interrupts::timer", ROUNDS),
    ];
    for (name, n_calls) in expected {
        assert_eq!(calls.get(name), Some(&n_calls), "{name}");
    }
    assert!(2 * calls.values().sum::<usize>() > 2 * 65_536);
    assert!(warnings.iter().all(|warning| warning.contains("one rate")), "{warnings:?}");

    // A line that is disturbed is resumed by the next image: some is missing, and that is said.
    let places: Vec<usize> = (0..sent.len()).filter(|&at| sent[at..].starts_with(b"\x93RFT\r\n\x1a\n")).collect();
    assert!(places.len() > 3, "{places:?}");
    let mut disturbed = sent.clone();
    for at in [places[1] + 300, places[2] + 9] {
        disturbed[at] ^= 0x55;
    }
    let (fewer, warnings) = calls_of(kernel, &run, &disturbed);
    assert!(fewer["work::checksum"] < ROUNDS && fewer["work::checksum"] > ROUNDS / 2, "{fewer:?}");
    assert!(
        warnings.iter().any(|warning| warning.contains("the line has damaged the recording in 2 places")),
        "{warnings:?}"
    );
    // Text before, between and behind.
    let text = b"\x93booting\r\n".to_vec();
    let (before, after) = sent.split_at(places[2]);
    let (same, warnings) =
        calls_of(kernel, &run, &[&text, before, &text, after, &text].map(|part| part.to_vec()).concat());
    assert_eq!(same, calls);
    assert!(warnings.iter().all(|warning| warning.contains("one rate")), "{warnings:?}");
    // One that was cut, also in the beginning of the first.
    let (cut, warnings) = calls_of(kernel, &run, &sent[..sent.len() / 2]);
    assert!(cut["work::checksum"] < ROUNDS, "{cut:?}");
    assert!(warnings.iter().any(|warning| warning.contains("ended before the recording:")), "{warnings:?}");
    let (late, _) = calls_of(kernel, &run, &sent[3..]);
    assert!(late["work::checksum"] < ROUNDS && late["work::checksum"] > ROUNDS / 2, "{late:?}");
}

/// The calls of each task, without crate names, in the order of their texts: which core comes first is chance.
fn outlines(run: &Run) -> Vec<String> {
    let mut outlines: Vec<String> =
        trees(&run.trace("trace")).iter().map(|tree| outline_of_tree(tree, PREFIX)).collect();
    outlines.sort();
    outlines
}

const YIELD: &str = "  arch::interrupts::yielded
    tasks::switch
";

/// A task that yields once, between two rounds that call `first` and `second`.
fn two_rounds(name: &str, first: &str, second: &str) -> String {
    format!("tasks::tell_core\nwork::{name}\n{first}{YIELD}{second}tasks::end\n")
}

/// Returns the tasks' calls on each core in `mode=tree`, and the core's own before and after.
fn expected_outlines(machine: Machine) -> [Vec<String>; 2] {
    let idle = "run_tasks\n  tasks::run_all\n    arch::interrupts::yielded\n      tasks::switch\n".to_owned();
    let timer = "  arch::interrupts::timer\n    tasks::tick\n    tasks::switch\n";
    // Of 3, which needs 2 and 1, of which the first needs 1 and 0.
    let fibonacci = "  work::fibonacci
    work::fibonacci
      work::fibonacci
      work::fibonacci
    work::fibonacci
";
    // Of 0 3 1 4 2: of nothing, and of 3 1 4 2, which becomes 2 1 and 4.
    let sort = "  work::sort
    work::sort
    work::sort
      work::sort
        work::sort
          work::sort
          work::sort
        work::sort
      work::sort
        work::sort
        work::sort
";
    // On x86-64 the processor enters the handlers of exceptions itself: they are calls that take no time.
    let indent = match machine {
        Machine::X86_64 => "",
        Machine::Aarch64 => "  ",
    };
    let paging = format!(
        "  arch::memory::unmap
  arch::interrupts::page_fault
  {indent}arch::memory::map
  arch::interrupts::system_call
    tasks::count_system_call
  work::checksum
{}",
        "    work::add_to_checksum\n".repeat(9)
    );
    let recursion = format!("{timer}{fibonacci}");
    let mut first =
        vec![idle.clone(), two_rounds("recursion", &recursion, &recursion), two_rounds("paging", &paging, &paging)];
    let mut both = first.clone();
    both.extend([idle, two_rounds("sorting", sort, sort), two_rounds("paging", &paging, &paging)]);
    first.sort();
    both.sort();
    [first, both]
}

#[test]
fn the_tree_is_exact_on_one_and_on_two_cores() {
    let Some(kernel) = kernel() else { return };
    check_trees(kernel);
}

#[test]
fn the_tree_is_exact_on_one_and_on_two_cores_of_aarch64() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    check_trees(kernel);
}

#[test]
fn the_tree_is_exact_without_thread_local_storage() {
    let Some(kernel) = kernel_without_tls() else { return };
    let symbols = tools::text(Command::new("nm").arg(kernel.path));
    assert!(symbols.contains("rftrace_thread_area") && !symbols.contains("rftrace_local_block"), "{symbols}");
    check_trees(kernel);
    let storm = boot(kernel, 1, COUNTED_TIME[0], "mode=storm cores=1 seconds=1 hz=12000 timer=iret", SUCCESS);
    RawTrace::read(&storm.path("trace.img")).check();
}

fn check_trees(kernel: Kernel) {
    for (n_cores, expected) in [1, 2].into_iter().zip(expected_outlines(kernel.machine)) {
        let run = boot(kernel, n_cores, REAL_TIME, &format!("mode=tree cores={n_cores}"), SUCCESS);
        let actual = outlines(&run);
        assert_same_lines(&actual.join("\n"), &expected.join("\n"), &format!("{n_cores} cores"));
        let raw = RawTrace::read(&run.path("trace.img"));
        assert_eq!(raw.check(), 0, "functions are open at the end");
    }
}

#[test]
fn the_trace_of_a_panic_arrives() {
    let Some(kernel) = kernel() else { return };
    check_panic(kernel);
}

#[test]
fn the_trace_of_a_panic_arrives_from_aarch64() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    check_panic(kernel);
}

fn check_panic(kernel: Kernel) {
    for n_cores in [1, 2] {
        let run = boot(kernel, n_cores, REAL_TIME, &format!("mode=panic cores={n_cores} seconds=1000"), PANIC);
        assert!(run.stdout.contains("panicked at src/work.rs"), "{}", run.stdout);
        assert!(run.stdout.contains("as the command line wants it"), "{}", run.stdout);
        let trace = run.trace("trace");
        let panicking: Vec<String> = trees(&trace)
            .iter()
            .map(|tree| outline_of_tree(tree, ""))
            .filter(|outline| outline.contains("work::panicking"))
            .collect();
        let [outline] = &panicking[..] else { panic!("tasks that panic: {panicking:?}") };
        // A timer interrupt may come at any place but after the panic.
        let is_timer =
            |line: &&str| ["interrupts::timer", "tasks::tick", "tasks::switch"].iter().any(|name| line.ends_with(name));
        let end: Vec<&str> = outline.lines().filter(|line| !is_timer(line)).rev().take(5).collect();
        let descend = format!("{PREFIX}work::descend");
        let expected = [5, 4, 3, 2, 1].map(|depth| {
            format!(
                "{:indent$}{}",
                "",
                if depth == 5 { "__rustc::rust_begin_unwind" } else { &descend },
                indent = 2 * depth
            )
        });
        assert_eq!(end, expected, "{outline}");
    }
}

/// How often in a second the timer has interrupted a core, and for how many milliseconds, as the kernel says.
fn interrupts(run: &Run, core: usize) -> (u64, u64) {
    let prefix = format!("core {core}: ");
    let line =
        run.stdout.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("{}", run.stdout));
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [_, millis, hz] = numbers[..] else { panic!("{line}") };
    (hz, millis)
}

/// Timer interrupts for ten seconds, as many in a second as `words` say and `least_hz` at least, while tasks check their results.
fn storm(kernel: Kernel, n_cores: usize, clock: &[&str], least_hz: u64, words: &str) {
    let command_line = format!("mode=storm cores={n_cores} seconds=10 {words}");
    // With another status a task's result was wrong, or the processor found a fault.
    let is_fast = |run: &Run| (0..n_cores).all(|core| interrupts(run, core).0 >= least_hz);
    let mut run = boot(kernel, n_cores, clock, &command_line, SUCCESS);
    // Cores that take turns lose interrupts where the machine is busy.
    for _ in 0..2 {
        if !is_fast(&run) {
            run = boot(kernel, n_cores, clock, &command_line, SUCCESS);
        }
    }
    for core in 0..n_cores {
        let (hz, millis) = interrupts(&run, core);
        assert!(hz >= least_hz && millis >= 10_000, "{}", run.stdout);
    }
    let n_right = run.stdout.lines().filter(|line| line.ends_with(" rounds, 0 wrong")).count();
    assert_eq!(n_right, 2 * n_cores, "{}", run.stdout);
    let raw = RawTrace::read(&run.path("trace.img"));
    assert!(raw.n_records() > 50_000, "the ring is full of records: {}", raw.n_records());
    raw.check();
    // In real time some tasks may have had none while the ring was last filled, and are not in it then.
    let least = if clock == REAL_TIME { 1 } else { 3 * n_cores };
    let n_tasks = run.trace("trace").tasks().len();
    assert!((least..=3 * n_cores).contains(&n_tasks), "{n_tasks}");
}

#[test]
fn a_storm_on_one_core() {
    let Some(kernel) = kernel() else { return };
    storm(kernel, 1, COUNTED_TIME[0], 10_000, "hz=12000");
}

#[test]
fn a_storm_on_one_core_of_aarch64() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    storm(kernel, 1, COUNTED_TIME[0], 10_000, "hz=12000");
}

#[test]
fn a_storm_on_two_cores() {
    let Some(kernel) = kernel() else { return };
    storm(kernel, 2, COUNTED_TIME[1], 10_000, "hz=12000");
}

#[test]
fn a_storm_on_two_cores_of_aarch64() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    storm(kernel, 2, COUNTED_TIME[1], 10_000, "hz=12000");
}

/// How many interrupts come here depends on what else the machine does.
#[test]
fn a_storm_on_two_cores_side_by_side() {
    let Some(kernel) = kernel() else { return };
    storm(kernel, 2, REAL_TIME, 10, "hz=12000");
}

/// As above.
#[test]
fn a_storm_on_two_cores_of_aarch64_side_by_side() {
    let Some(kernel) = kernel_of_aarch64() else { return };
    storm(kernel, 2, REAL_TIME, 10, "hz=12000");
}

#[test]
fn a_storm_of_functions_that_interrupts_enter() {
    let Some(kernel) = kernel() else { return };
    storm(kernel, 1, COUNTED_TIME[0], 10_000, "hz=12000 timer=iret");
    // Cores that take turns lose interrupts while they wait.
    storm(kernel, 2, COUNTED_TIME[1], 10_000, "hz=22000 timer=iret");
    storm(kernel, 2, REAL_TIME, 10, "hz=12000 timer=iret");
}
