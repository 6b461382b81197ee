//! examples/kernel under QEMU: its results, its trees, and that what its tasks record is balanced.

use std::collections::BTreeMap;
use std::fs;
use std::mem::{self, offset_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rftrace::abi::{ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, kind, lease};
use rftrace_frontend::{Image, ImportOptions};
use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{Run, assert_same_lines, fixtures, require, tools};

const TARGET: &str = "x86_64-unknown-none";
/// What the names of the kernel's functions begin with.
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

/// The kernel, built once; `None` if what that needs is missing, which is said.
pub(crate) fn kernel() -> Option<&'static Path> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    built(&KERNEL, "kernel", &[])
}

/// The kernel that says itself where its tasks' state is.
fn kernel_without_tls() -> Option<&'static Path> {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    built(&KERNEL, "kernel-threadhook", &["--features", "threadhook"])
}

fn built(kernel: &'static OnceLock<PathBuf>, folder: &str, options: &[&str]) -> Option<&'static Path> {
    if !require(&["nightly", "qemu-system-x86_64"]) {
        return None;
    }
    if !has_library() {
        tools::missing("nightly's library of x86_64-unknown-none");
        return None;
    }
    Some(kernel.get_or_init(|| {
        let target_folder = fixtures::build_folder(folder);
        let mut cargo = fixtures::cargo(Some("nightly"));
        // There are the flags for the kernel.
        cargo.current_dir(fixtures::repository().join("examples/kernel"));
        tools::run(cargo.args(["build", "--release"]).args(options).arg("--target-dir").arg(&target_folder));
        target_folder.join(TARGET).join("release/rftrace-example-kernel")
    }))
}

fn has_library() -> bool {
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    rustc.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "--print", "target-libdir", "--target", TARGET]);
    let folder = tools::text(&mut rustc);
    fs::read_dir(folder.trim())
        .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
}

/// Boots the kernel with a command line, and makes a directory `trace` of what it sends.
pub(crate) fn boot(kernel: &Path, n_cores: usize, clock: &[&str], command_line: &str, status: i32) -> Run {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-cpu", "max", "-m", "64M", "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"]);
    qemu.args(["-debugcon", "file:trace.img", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    qemu.args(clock).args(["-smp", &n_cores.to_string(), "-append", command_line]).arg("-kernel").arg(kernel);
    let run = Run::of_any(&mut qemu);
    assert_eq!(run.status.code(), Some(status), "{command_line}:\n{}{}", run.stdout, run.stderr);
    let image = Image::read(&run.path("trace.img")).unwrap();
    assert_eq!(image.name(), "rftrace-example-kernel");
    let mut options = ImportOptions::default();
    options.binary = Some(kernel.to_owned());
    let imported = image.write_directory(&run.path("trace"), &options).unwrap();
    assert_eq!(imported.lost, 0);
    run
}

/// Boots the kernel so that it sends its trace while it runs, by the second serial port. Returns what came.
fn boot_streamed(kernel: &Path, command_line: &str) -> (Run, Vec<u8>) {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-cpu", "max", "-m", "64M", "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"]);
    qemu.args(["-serial", "file:stream.img", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    qemu.args(COUNTED_TIME[0]).args(["-smp", "1", "-append", command_line]).arg("-kernel").arg(kernel);
    let run = Run::of_any(&mut qemu);
    assert_eq!(run.status.code(), Some(SUCCESS), "{command_line}:\n{}{}", run.stdout, run.stderr);
    let sent = fs::read(run.path("stream.img")).unwrap();
    (run, sent)
}

/// How often functions were called, as a trace of what came tells it, and what is said of it.
fn calls_of(kernel: &Path, run: &Run, sent: &[u8]) -> (BTreeMap<String, usize>, Vec<String>) {
    let image = Image::parse(sent, Path::new("sent")).unwrap();
    let mut options = ImportOptions::default();
    options.binary = Some(kernel.to_owned());
    let imported = image.write_directory(&run.path("streamed"), &options).unwrap();
    let mut calls = BTreeMap::new();
    for tree in trees(&run.trace("streamed")) {
        for line in outline_of_tree(&tree, PREFIX).lines() {
            *calls.entry(line.trim().to_owned()).or_insert(0) += 1;
        }
    }
    (calls, imported.warnings)
}

/// A buffer of 1 MiB holds 65,536 records; here are more than twice as many.
#[test]
fn a_trace_is_as_long_as_the_line_lives() {
    const ROUNDS: usize = 3_000;

    let Some(kernel) = kernel() else { return };
    let (run, sent) = boot_streamed(kernel, &format!("mode=tree cores=1 rounds={ROUNDS} send=stream"));
    let (calls, warnings) = calls_of(kernel, &run, &sent);
    let expected = [
        ("work::fibonacci", 5 * ROUNDS),
        ("work::checksum", ROUNDS),
        ("work::add_to_checksum", 9 * ROUNDS),
        ("memory::map", ROUNDS),
        ("interrupts::system_call", ROUNDS),
        ("interrupts::page_fault", ROUNDS),
        ("interrupts::timer", ROUNDS),
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
    assert!(warnings.iter().any(|warning| warning.contains("the line was disturbed, in 2 places")), "{warnings:?}");
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
    assert!(warnings.iter().any(|warning| warning.contains("ended before the recording did")), "{warnings:?}");
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

const YIELD: &str = "  interrupts::yielded
    tasks::switch
";

/// A task that yields once, between two rounds that call `first` and `second`.
fn two_rounds(name: &str, first: &str, second: &str) -> String {
    format!("tasks::tell_core\nwork::{name}\n{first}{YIELD}{second}tasks::end\n")
}

/// What the tasks of each core do in `mode=tree`, and what the core does before and after.
fn expected_outlines() -> [Vec<String>; 2] {
    let idle = "run_tasks\n  tasks::run_all\n    interrupts::yielded\n      tasks::switch\n".to_owned();
    let timer = "  interrupts::timer\n    tasks::tick\n    tasks::switch\n";
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
    let paging = format!(
        "  memory::unmap
  interrupts::page_fault
  memory::map
  interrupts::system_call
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
fn the_tree_is_exact_without_thread_local_storage() {
    let Some(kernel) = kernel_without_tls() else { return };
    let symbols = tools::text(Command::new("nm").arg(kernel));
    assert!(symbols.contains("rftrace_thread_area") && !symbols.contains("rftrace_local_block"), "{symbols}");
    check_trees(kernel);
    let storm = boot(kernel, 1, COUNTED_TIME[0], "mode=storm cores=1 seconds=1 hz=12000 timer=iret", SUCCESS);
    RawTrace::read(&storm.path("trace.img")).check();
}

fn check_trees(kernel: &Path) {
    for (n_cores, expected) in [1, 2].into_iter().zip(expected_outlines()) {
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
fn storm(n_cores: usize, clock: &[&str], least_hz: u64, words: &str) {
    let Some(kernel) = kernel() else { return };
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
    assert_eq!(run.trace("trace").tasks().len(), 3 * n_cores);
}

#[test]
fn a_storm_on_one_core() {
    storm(1, COUNTED_TIME[0], 10_000, "hz=12000");
}

#[test]
fn a_storm_on_two_cores() {
    storm(2, COUNTED_TIME[1], 10_000, "hz=12000");
}

/// How many interrupts come here depends on what else the machine does.
#[test]
fn a_storm_on_two_cores_side_by_side() {
    storm(2, REAL_TIME, 100, "hz=12000");
}

#[test]
fn a_storm_of_functions_that_interrupts_enter() {
    storm(1, COUNTED_TIME[0], 10_000, "hz=12000 timer=iret");
    // Cores that take turns lose interrupts while they wait.
    storm(2, COUNTED_TIME[1], 10_000, "hz=22000 timer=iret");
    storm(2, REAL_TIME, 100, "hz=12000 timer=iret");
}

/// The records of each task as they were sent, read without the frontend, which mends what is not balanced.
pub(crate) struct RawTrace {
    /// By task and the chunk's place in time.
    chunks: BTreeMap<(u32, u64), RawChunk>,
}

struct RawChunk {
    /// Where its task was before.
    prev_index: u64,
    /// Functions that were open before.
    n_open: usize,
    words: Vec<u64>,
    ticks: Vec<u64>,
}

/// Times and words of a packed chunk's records, by docs/image-format.md.
fn unpacked(header: &[u64], payload: &[u64]) -> Vec<u64> {
    let (n_bytes, n_records) = ((header[6] >> 32) as usize, header[7] as usize);
    let payload: Vec<u8> = payload.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(payload.len(), n_bytes.next_multiple_of(8));
    let mut bytes = payload[..n_bytes].iter().copied();
    let mix = |word: u64| (word >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (mut next, mut cache, mut open) = ([0; 1024], [0; 256], Vec::new());
    let (mut tsc, mut before) = (header[4], 0_u64);
    let mut records = Vec::new();
    for _ in 0..n_records {
        let place = (mix(before ^ (before & 1) << 20) >> 54) as usize;
        let first = number(&mut bytes);
        tsc += first >> 2;
        let form = if first & 3 == 3 { bytes.next().unwrap() } else { 0 };
        if form != 0 {
            // Older than the record before.
            let number = number(&mut bytes);
            assert!(form == 1 && first == 3 && number & 1 == 1, "{form}, {first:#x}, {number:#x}");
            tsc -= (number >> 1) + 1;
        }
        let word = match first & 3 {
            0 => open.pop().unwrap(),
            1 => next[place],
            2 => cache[usize::from(bytes.next().unwrap())],
            _ => u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap())),
        };
        if form == 0 {
            if first & 3 != 0 {
                next[place] = word;
            }
            if first & 3 == 3 {
                cache[(mix(word) >> 56) as usize] = word;
            }
            if word & 7 == 0 && open.len() < 1023 {
                open.push(word >> 16 << 16 | 1);
            }
        }
        before = word;
        records.extend([tsc, word]);
    }
    assert_eq!(bytes.next(), None);
    records
}

/// Seven bits in each byte, the lowest first.
fn number(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes.next().unwrap();
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

impl RawTrace {
    pub(crate) fn read(path: &Path) -> Self {
        let image = fs::read(path).unwrap();
        let words: Vec<u64> =
            image.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        let mut chunks = BTreeMap::new();
        let mut n_packed = 0;
        // The magic and the versions; then sections: tag and size, content, checksum.
        let mut rest = &words[2..];
        while let [head, following @ ..] = rest {
            let (content, behind) = following.split_at((head >> 32) as usize / 8);
            let tag = (*head as u32).to_le_bytes();
            if [*b"CHNK", *b"CHNZ"].contains(&tag) {
                let (header, records) = content.split_at(CHUNK_HEADER_BYTES / 8);
                let field = |offset: usize| header[offset / 8] >> (offset % 8 * 8);
                let taken_tsc = field(offset_of!(ChunkHeader, taken_tsc));
                let unpacked = if tag == *b"CHNZ" { unpacked(header, records) } else { records.to_vec() };
                n_packed += usize::from(tag == *b"CHNZ");
                let n_open = field(offset_of!(ChunkHeader, depth)) as u32 as usize;
                let index = lease::index(field(offset_of!(ChunkHeader, lease)));
                let mut tid = field(offset_of!(ChunkHeader, tid)) as u32;
                let mut chunk = RawChunk {
                    prev_index: field(offset_of!(ChunkHeader, prev_index)),
                    n_open,
                    words: Vec::new(),
                    ticks: Vec::new(),
                };
                for record in unpacked.chunks_exact(2).filter(|record| record[0] >= taken_tsc) {
                    const NEW_THREAD: u64 = kind::RESYNC | kind::NEW_THREAD;
                    if record[1] & (kind::MASK | kind::NEW_THREAD) == NEW_THREAD {
                        // A task has ended, and another one goes on in its chunk.
                        assert!(chunks.insert((tid, index), chunk).is_none());
                        tid = (record[1] >> ADDRESS_SHIFT) as u32;
                        chunk = RawChunk { prev_index: 0, n_open: 0, words: Vec::new(), ticks: Vec::new() };
                    } else {
                        chunk.words.push(record[1]);
                        chunk.ticks.push(record[0]);
                    }
                }
                assert!(chunks.insert((tid, index), chunk).is_none());
            }
            rest = &behind[1..];
        }
        assert!(n_packed > 0, "no chunk is packed");
        Self { chunks }
    }

    /// When each task entered and left functions, in ticks.
    pub(crate) fn ticks(&self) -> BTreeMap<u32, Vec<u64>> {
        let mut ticks: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (&(tid, _), chunk) in &self.chunks {
            for (&word, &tick) in chunk.words.iter().zip(&chunk.ticks) {
                let n_events = match word & kind::MASK {
                    // A call that takes no time has one record.
                    kind::ENTRY if word & kind::POINT != 0 => 2,
                    kind::ENTRY | kind::EXIT => 1,
                    _ => 0,
                };
                ticks.entry(tid).or_default().extend((0..n_events).map(|_| tick));
            }
        }
        ticks
    }

    fn n_records(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.words.len()).sum()
    }

    /// Checks that each exit is that of the innermost open function, and that each chunk begins where the one before has ended.
    /// Returns how many functions are open at the end.
    fn check(&self) -> usize {
        struct Task {
            last_index: u64,
            /// The addresses of open functions, as far as they are known.
            open: Vec<Option<u64>>,
            /// Whether one more may be open: the first chunk that is left says one too few where an interrupt has struck a hook.
            may_have_one_more: bool,
        }
        let mut tasks: BTreeMap<u32, Task> = BTreeMap::new();
        for (&(tid, index), chunk) in &self.chunks {
            let first = || Task {
                last_index: chunk.prev_index,
                open: vec![None; chunk.n_open],
                may_have_one_more: chunk.prev_index != 0,
            };
            let task = tasks.entry(tid).or_insert_with(first);
            if task.last_index != chunk.prev_index {
                // The ring has passed over the task's chunk from long ago, and has overwritten some since.
                *task = first();
            }
            task.last_index = index;
            let open = &mut task.open;
            // A function whose hook an interrupt has struck when the exit was recorded still counts as open, and one whose entry
            // has a place does not count yet.
            assert!(
                chunk.n_open.abs_diff(open.len()) <= 1,
                "task {tid}: {} functions are open before chunk {index}, which says {}",
                open.len(),
                chunk.n_open
            );
            for (place, word) in chunk.words.iter().enumerate() {
                let here = || format!("task {tid}, chunk {index}, record {place}: {word:#x}, open: {open:x?}");
                let address = word >> ADDRESS_SHIFT;
                match word & kind::MASK {
                    kind::ENTRY if word & kind::POINT != 0 => {}
                    kind::ENTRY => open.push(Some(address)),
                    kind::EXIT if open.is_empty() && mem::take(&mut task.may_have_one_more) => {}
                    kind::EXIT => {
                        let entered = open.last().copied().unwrap_or_else(|| panic!("no function is open: {}", here()));
                        assert!(entered.is_none_or(|entered| entered == address), "another function: {}", here());
                        open.pop();
                    }
                    kind::RESYNC if word & (kind::CORE | kind::SUSPENDED | kind::RESUMED) != 0 => {}
                    _ => panic!("records were lost: {}", here()),
                }
            }
        }
        tasks.values().map(|task| task.open.len()).sum()
    }
}
