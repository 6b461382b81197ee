//! `rftrace record --resources memory` and `rftrace resources`: programs that nobody changed do as they do without, and what they take and
//! give back is counted to the byte.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use rftrace_tests::fixtures::{self};
use rftrace_tests::{CProgram, Program, require, tools};
use serde_json::Value;
use tempfile::TempDir;

use super::record::rftrace;

fn c_program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        CProgram::new(&["resources.c"])
            .without_hooks()
            .without_library()
            .with(&["-g", "-O1", "-fno-builtin", "-lpthread"])
            .build()
    };
    &BUILT.get_or_init(build).path
}

/// Records a program with arguments, which has to end as it does by itself.
#[track_caller]
fn record(options: &[&str], program: &Path, arguments: &[&str]) -> (TempDir, String) {
    record_kinds("memory", options, program, arguments)
}

/// The same of other kinds of resources.
#[track_caller]
pub(super) fn record_kinds(kinds: &str, options: &[&str], program: &Path, arguments: &[&str]) -> (TempDir, String) {
    // Its files are in a folder of their own.
    let place = tempfile::tempdir().unwrap();
    let plain = Command::new(program).args(arguments).current_dir(place.path()).output().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--resources", kinds, "--no-schedule", "--output", "trace"]).args(options);
    let recorded = command.arg("--").arg(program).args(arguments).current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&recorded.stderr).into_owned();
    let code = plain.status.code().or(plain.status.signal().map(|signal| 128 + signal));
    assert_eq!(recorded.status.code(), code, "{told}");
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), String::from_utf8_lossy(&plain.stdout), "{told}");
    (folder, told)
}

pub(super) fn resources(folder: &TempDir, options: &[&str]) -> Output {
    Command::new(rftrace()).arg("resources").args(options).arg("trace").current_dir(folder.path()).output().unwrap()
}

/// Returns the records, all of which are in order.
#[track_caller]
pub(super) fn values(folder: &TempDir, options: &[&str]) -> Value {
    let (values, told) = values_as_told(folder, options);
    assert!(
        !told.contains("recording lacks") && !told.contains("without a recorded") && !told.contains("taken again"),
        "{told}"
    );
    values
}

/// Returns the records, and the messages beside them.
#[track_caller]
pub(super) fn values_as_told(folder: &TempDir, options: &[&str]) -> (Value, String) {
    let output = resources(folder, &[&["--json", "--limit", "0", "--depth", "0"], options].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    (serde_json::from_slice(&output.stdout).unwrap(), told)
}

/// The functions of a stack, the innermost first.
pub(super) fn functions(stack: &Value) -> Vec<&str> {
    let frames = stack["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap()).collect()
}

/// Blocks and bytes that were taken and that are still there, where all these functions are in the stack.
pub(super) fn sums(values: &Value, wanted: &[&str]) -> [u64; 4] {
    let mut sums = [0; 4];
    for stack in values["stacks"].as_array().unwrap() {
        if wanted.iter().all(|wanted| functions(stack).contains(wanted)) {
            for (sum, name) in sums.iter_mut().zip(["allocations", "allocated_bytes", "blocks", "bytes"]) {
                *sum += stack[name].as_u64().unwrap();
            }
        }
    }
    sums
}

#[track_caller]
fn check(way: &str, function: &str, expected: [u64; 4]) -> (TempDir, Value) {
    let (folder, told) = record(&[], c_program(), &[way]);
    let values = values(&folder, &[]);
    assert_eq!(sums(&values, &[function]), expected, "{way}: {values:#}\n{told}");
    (folder, values)
}

#[test]
fn what_a_program_takes_is_counted_however_it_ends() {
    if !require(&["gcc"]) {
        return;
    }
    for way in ["leak", "kill", "abort", "_exit"] {
        let (_folder, values) = check(way, "middle", [10, 1000, 5, 500]);
        let stacks = values["stacks"].as_array().unwrap();
        let stack = stacks.iter().find(|stack| functions(stack).contains(&"middle")).unwrap();
        assert_eq!(functions(stack)[..4], ["leaf", "middle", "leak", "main"], "{stack:#}");
        assert_eq!(functions(stack).last(), Some(&"_start"), "{stack:#}");
        let place = stack["frames"][0]["file"].as_str().unwrap();
        assert!(place.ends_with("resources.c") && stack["frames"][0]["line"].is_u64(), "{stack:#}");
    }
    // Each program that a process runs counts by itself.
    let (_folder, values) = check("exec", "middle", [20, 2000, 10, 1000]);
    assert_eq!(values["memory"]["processes"].as_array().unwrap().len(), 2);
}

#[test]
fn each_function_is_seen() {
    if !require(&["gcc"]) {
        return;
    }
    let bytes = 21 + 22 + 23 + 24 + 64 + 26 + 4000 + 28 + 8;
    check("kinds", "kinds", [9, bytes, 5, 21 + 23 + 64 + 4000 + 8]);
    // 10 steps, one that shrinks, and two of the block that stays.
    check("chain", "chain", [13, 5500 + 50 + 12, 1, 7]);
}

#[test]
fn blocks_go_from_thread_to_thread() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, values) = check("passing", "leaf", [200_000, 200_000 * 16, 0, 0]);
    assert_eq!(values["memory"]["unknown_releases"], 0);
    let each = 20_000 / 50 * (49 * 50 / 2) + 90;
    // At first a thread's stacks may be found without unwind information.
    let (_folder, values) = check("threads", "leaf", [40 * 20_003, 40 * each, 120, 120 * 30]);
    assert_eq!(values["memory"]["lost"], 0);
}

#[test]
fn children_signals_and_what_is_around_main() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, values) = check("children", "children", [4, 70 + 3 * 40, 4, 70 + 3 * 40]);
    assert_eq!(values["memory"]["inherited_releases"], 3);
    assert_eq!(values["memory"]["processes"].as_array().unwrap().len(), 4);
    let (_folder, values) = check("signals", "signals", [1, 9, 1, 9]);
    assert_eq!(sums(&values, &["leaf", "handle"]), [1000, 11_000, 0, 0], "{values:#}");
    check("around", "leaf", [2, 77, 2, 77]);
}

#[test]
fn frame_pointers_and_no_backtraces() {
    if !require(&["gcc"]) {
        return;
    }
    let with = ["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-lpthread"];
    let program = CProgram::new(&["resources.c"]).without_hooks().without_library().with(&with).build();
    let (folder, _) = record(&["--backtraces", "fp"], &program.path, &["leak"]);
    let found = values(&folder, &[]);
    assert_eq!(sums(&found, &["leaf", "middle", "leak", "main"]), [10, 1000, 5, 500], "{found:#}");
    let (folder, _) = record(&["--backtraces", "none"], &program.path, &["leak"]);
    let found = values(&folder, &[]);
    assert_eq!(found["stacks"].as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(found["memory"]["bytes"], 500, "{found:#}");
}

/// The memory of the last stack makes no stack wrong: by frame pointers nothing is remembered.
#[test]
fn deep_stacks_are_those_of_frame_pointers() {
    if !require(&["gcc"]) {
        return;
    }
    let with = ["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = CProgram::new(&["resources_deep.c"]).without_hooks().without_library().with(&with).build();
    let [by_cfi, by_fp] = ["cfi", "fp"].map(|way| {
        let (folder, _) = record(&["--backtraces", way], &program.path, &[]);
        let found = values(&folder, &[]);
        let within_main = |stack: &Value| {
            let frames = stack["frames"].as_array().unwrap();
            let n_frames = frames.iter().take_while(|frame| frame["function"] != "main").count();
            let frames =
                frames.iter().take(n_frames + 1).map(|frame| format!("{} {}", frame["function"], frame["line"]));
            (frames.collect::<Vec<_>>(), stack["allocations"].as_u64().unwrap())
        };
        let mut stacks: Vec<_> = found["stacks"].as_array().unwrap().iter().map(within_main).collect();
        stacks.sort();
        stacks
    });
    // Three calls of each depth, two blocks at each level.
    assert_eq!(by_cfi.iter().map(|(_, allocations)| allocations).sum::<u64>(), 6 * 2224);
    assert!(by_cfi.iter().any(|(frames, _)| frames.len() == 64));
    assert_eq!(by_cfi, by_fp);
}

#[test]
fn leaks_are_those_of_valgrind() {
    if !require(&["gcc", "valgrind"]) {
        return;
    }
    for (way, blocks, bytes, words) in [("leak", 5, 500, "5 blocks"), ("chain", 1, 7, "1 block")] {
        let (folder, _) = record(&[], c_program(), &[way]);
        let leaks = resources(&folder, &["--leaks"]);
        let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
        assert_eq!(leaks.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{bytes} bytes in {words} were not given back")), "{told}");
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--leak-check=full", "--show-leak-kinds=all", "--run-libc-freeres=yes"]);
        let output = valgrind.arg(c_program()).arg(way).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).replace(',', "");
        assert!(text.contains(&format!("in use at exit: {bytes} bytes in {blocks} blocks")), "{text}");
    }
    let (folder, _) = record(&[], c_program(), &["leak"]);
    assert!(resources(&folder, &["--leaks", "--suppress", "mid*"]).status.success());
    assert_eq!(resources(&folder, &["--leaks", "--suppress", "other"]).status.code(), Some(1));
}

#[test]
fn programs_in_cpp_and_rust() {
    if !require(&["g++", "rustc"]) {
        return;
    }
    let program = CProgram::new(&["resources.cpp"]).without_hooks().without_library().with(&["-g", "-O1"]).build();
    let (folder, _) = record(&[], &program.path, &[]);
    let found = values(&folder, &[]);
    assert_eq!(sums(&found, &["make", "operator new"]), [10, 2000, 3, 600], "{found:#}");
    // The vector and its five blocks.
    let leaks = resources(&folder, &["--leaks"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(told.contains(&format!("{} bytes in 5 blocks were not given back", 600 + 24 + 1000)), "{told}");

    let program = fixtures::cache::compile(fixtures::rustc(None, "resources.rs").args(["-O", "-g"]), "resources");
    let (folder, _) = record(&[], &program, &[]);
    let found = values(&folder, &[]);
    assert_eq!(sums(&found, &["resources::keep"]), [8, 7 * 123 + 77, 8, 7 * 123 + 77], "{found:#}");
    assert_eq!(sums(&found, &["resources::grow"]), [9, 8 * (4 + 8 + 16 + 32 + 64 + 128 + 256 + 512 + 1024), 0, 0]);
}

#[test]
fn views_choose_and_draw() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, _) = record(&[], c_program(), &["chain"]);
    let text = |options: &[&str]| String::from_utf8_lossy(&resources(&folder, options).stdout).into_owned();
    assert!(text(&[]).starts_with("memory: 13 blocks taken, 5562 bytes in all"), "{}", text(&[]));
    let first = |sort: &str| {
        let values = values(&folder, &["--sort", sort]);
        let stack = &values["stacks"][0];
        [stack["allocations"].as_u64().unwrap(), stack["bytes"].as_u64().unwrap()]
    };
    assert_eq!((first("bytes"), first("allocated")), ([1, 7], [10, 0]));
    assert_eq!(values(&folder, &["--at", "0ns"])["memory"]["allocations"], 0);
    assert_eq!(values(&folder, &["--at", "1000s"])["memory"]["allocations"], 13);
    let all = [("live", "7 bytes"), ("peak", "1,000 bytes"), ("allocated", "5,562 bytes"), ("temporary", "12 blocks")];
    for (of, all) in all {
        let picture = text(&["--flamegraph", of]);
        assert!(picture.starts_with("<?xml") && picture.contains("chain"), "{picture}");
        assert!(picture.contains(&format!("all ({all}, 100%)")), "{of}: {picture}");
    }
    let output = resources(&folder, &["--pid", "1"]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("the trace has no such process")
    );
}

#[test]
fn heaptrack_reads_the_same() {
    if !require(&["gcc", "heaptrack_print"]) {
        return;
    }
    for way in ["chain", "threads"] {
        let (folder, _) = record(&[], c_program(), &[way]);
        // The second one replaces the file of the first.
        for _ in 0..2 {
            let output = resources(&folder, &["--heaptrack", "-o", "heap"]);
            assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        }
        let mut print = Command::new("heaptrack_print");
        print.args(["--disable-builtin-suppressions", "-f"]).arg(folder.path().join("heap"));
        let printed = String::from_utf8_lossy(&tools::run(&mut print).stdout).into_owned();
        let memory = &values(&folder, &[])["memory"];
        let of = |key: &str| memory[key].as_u64().unwrap();
        // As it writes bytes.
        let bytes = |bytes: u64| match bytes as f64 {
            bytes if bytes <= 1e3 => format!("{bytes}B"),
            bytes if bytes <= 1e6 => format!("{:.2}K", bytes / 1e3),
            bytes => format!("{:.2}M", bytes / 1e6),
        };
        for line in [
            format!("calls to allocation functions: {} (", of("allocations")),
            format!("peak heap memory consumption: {}\n", bytes(of("peak_bytes"))),
            format!("total memory leaked: {}\n", bytes(of("bytes"))),
        ] {
            assert!(printed.contains(&line), "{way}: {line} {printed}");
        }
        assert!(printed.contains("resources.c:"), "{way}: {printed}");
    }
}

#[test]
fn two_traces_are_compared() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, _) = record(&[], c_program(), &["chain"]);
    let (other, _) = record(&[], c_program(), &["threads"]);
    let other = other.path().join("trace");
    let other = other.to_str().unwrap();
    let [old, new] = [values(&folder, &[]), values(&folder, &["--diff", other])];
    let same: Value = values(&folder, &["--diff", "trace"]);
    assert_eq!((&same["memory"]["bytes"], &same["memory"]["peak_bytes"]), (&0.into(), &0.into()));
    assert_eq!(same["stacks"], Value::Array(Vec::new()));
    // All of the old one is gone.
    let all: i64 =
        new["stacks"].as_array().unwrap().iter().map(|stack| stack["allocated_bytes"].as_i64().unwrap()).sum();
    assert_eq!(new["memory"]["allocated_bytes"], all);
    let has = |values: &Value, function: &str, is_less: bool| {
        let stacks = values["stacks"].as_array().unwrap();
        stacks.iter().any(|stack| {
            functions(stack).contains(&function) && (stack["allocated_bytes"].as_i64().unwrap() < 0) == is_less
        })
    };
    assert!(has(&old, "chain", false) && has(&new, "chain", true), "{new}");
    let text = String::from_utf8_lossy(&resources(&folder, &["--diff", other]).stdout).into_owned();
    assert!(text.starts_with("memory: +") && text.contains("\n-"), "{text}");
    let output = resources(&folder, &["--diff", "nothing"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("nothing/resources.dat"));
}

#[test]
fn memory_for_branches_is_the_tracers() {
    if !require(&["gcc"]) {
        return;
    }
    let program =
        CProgram::new(&["resources.c"]).without_library().with(&["-g", "-O1", "-fno-builtin", "-lpthread"]).build();
    for options in [&["-P", "*"][..], &["--libcalls"]] {
        let (folder, _) = record(options, &program.path, &["leak"]);
        let leaks = resources(&folder, &["--leaks"]);
        let said = String::from_utf8_lossy(&leaks.stderr).into_owned();
        assert!(said.contains("500 bytes in 5 blocks were not given back"), "{options:?}: {said}");
    }
}

#[test]
fn calls_and_memory_in_one_trace() {
    if !require(&["gcc"]) {
        return;
    }
    let program =
        CProgram::new(&["resources.c"]).without_library().with(&["-g", "-O1", "-fno-builtin", "-lpthread"]).build();
    let (folder, told) = record(&[], &program.path, &["leak"]);
    assert_eq!(sums(&values(&folder, &[]), &["leaf"]), [10, 1000, 5, 500], "{told}");
    // The tracer's memory for writing the trace is not the program's.
    let leaks = resources(&folder, &["--leaks"]);
    assert!(!String::from_utf8_lossy(&leaks.stdout).contains("rftrace_frontend"), "{leaks:?}");
    let said = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(leaks.status.code() == Some(1) && said.contains("500 bytes in 5 blocks were not given back"), "{said}");
    let report = Command::new(rftrace()).args(["report", "trace"]).current_dir(folder.path()).output().unwrap();
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("middle"), "{report}\n{told}");
    // Of what is preloaded no functions are written: the program's are, and all modules are in the map.
    let entries = fs::read_dir(folder.path().join("trace")).unwrap().flatten();
    let of_libraries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("rftrace-preload"));
    assert_eq!(of_libraries.count(), 0);
    let info = Command::new(rftrace()).args(["info", "trace"]).current_dir(folder.path()).output().unwrap();
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.contains("/rftrace-preload ") && info.contains("/rftrace-preload-resources "), "{info}");
}

#[test]
fn what_is_no_recording_is_said() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let told = |folder: &TempDir| {
        let output = resources(folder, &[]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(told(&folder).contains("`rftrace record --resources memory` records them"), "{}", told(&folder));
    let (folder, _) = record(&[], c_program(), &["leak"]);
    let path = folder.path().join("trace/resources.dat");
    let bytes = fs::read(&path).unwrap();
    // A file that was cut has what is there.
    fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
    let output = resources(&folder, &[]);
    let cut = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && cut.contains("the recorder was interrupted"), "{cut}");
    let mut damaged = bytes.clone();
    damaged[17] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(told(&folder).contains("no block begins here"), "{}", told(&folder));
    fs::write(&path, b"something else").unwrap();
    assert!(told(&folder).contains("not a recording of resources"), "{}", told(&folder));
}

/// The tracer's library has nothing to do in a program that does not call it.
#[test]
fn code_that_is_not_needed_takes_no_memory() {
    /// KiB. Of a debug build the beginning of the program needs some 4,700.
    const MOST: u64 = 2500;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--resources", "memory", "-o", "trace", "cat", "/proc/self/smaps"]).current_dir(&folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut is_tracer, mut n_mappings, mut resident) = (false, 0, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Rss:"), Some(kib)) if is_tracer => resident += kib.parse::<u64>().unwrap(),
            (Some(range), Some(_)) if range.contains('-') && !range.ends_with(':') => {
                is_tracer = line.ends_with("/rftrace-preload");
                n_mappings += u32::from(is_tracer);
            }
            _ => {}
        }
    }
    assert!(n_mappings >= 3 && resident < MOST, "{n_mappings} {resident}\n{text}");
}

#[test]
fn the_library_exports_nothing_else() {
    if !require(&["objdump"]) {
        return;
    }
    let library = fixtures::command_line().join("rftrace-preload-resources");
    let symbols = tools::text(Command::new("objdump").arg("-T").arg(library));
    let defined = symbols.lines().filter(|line| line.contains(" .text\t"));
    let mut names: Vec<&str> = defined.filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let expected = [
        "__close",
        "__dup2",
        "__fcntl",
        "__open",
        "__open64",
        "__open64_2",
        "__open_2",
        "__openat64_2",
        "__openat_2",
        "__pipe",
        "accept",
        "accept4",
        "aligned_alloc",
        "calloc",
        "cfree",
        "close",
        "close_range",
        "closedir",
        "closefrom",
        "creat",
        "creat64",
        "dlclose",
        "dlmopen",
        "dlopen",
        "dup",
        "dup2",
        "dup3",
        "epoll_create",
        "epoll_create1",
        "eventfd",
        "fanotify_init",
        "fclose",
        "fcloseall",
        "fcntl",
        "fcntl64",
        "fdopen",
        "fopen",
        "fopen64",
        "free",
        "freopen",
        "freopen64",
        "inotify_init",
        "inotify_init1",
        "malloc",
        "memalign",
        "memfd_create",
        "mkostemp",
        "mkostemp64",
        "mkostemps",
        "mkostemps64",
        "mkstemp",
        "mkstemp64",
        "mkstemps",
        "mkstemps64",
        "open",
        "open64",
        "openat",
        "openat64",
        "opendir",
        "pclose",
        "pipe",
        "pipe2",
        "popen",
        "posix_memalign",
        "posix_openpt",
        "prctl",
        "pthread_clockjoin_np",
        "pthread_create",
        "pthread_detach",
        "pthread_join",
        "pthread_timedjoin_np",
        "pthread_tryjoin_np",
        "pvalloc",
        "realloc",
        "rftrace_resources_attach",
        "rftrace_resources_begin",
        "rftrace_resources_branched",
        "rftrace_resources_detach",
        "rftrace_resources_hook",
        "rftrace_resources_specified",
        "shm_open",
        "signalfd",
        "socket",
        "socketpair",
        "syscall",
        "thrd_create",
        "thrd_detach",
        "thrd_join",
        "timerfd_create",
        "tmpfile",
        "tmpfile64",
        "valloc",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_sanitizers_build_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |program: &Path, name: &str, option: &str, place: &str| {
        for command in [&["record", "--resources", "file", "-o", "trace"][..], &["functracer", "-s"]] {
            let mut rftrace = Command::new(rftrace());
            let output = rftrace.args(command).arg(program).current_dir(folder.path()).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && output.stdout.is_empty(), "{told}");
            let remedy = format!("build the program without -fsanitize={option}");
            for words in [program.to_str().unwrap(), name, place, &remedy] {
                assert!(told.contains(words), "{words}: {told}");
            }
        }
    };
    let strip = |program: &Path| {
        let bare = folder.path().join("bare");
        assert!(Command::new("strip").arg("-o").arg(&bare).arg(program).status().unwrap().success());
        bare
    };
    let build = |compiler: &str, flags: &[&str]| {
        let source = fixtures::folder("c").join("resources.c");
        let program = folder.path().join(flags.concat());
        let mut command = Command::new(compiler);
        command.args(["-w", "-g", "-pthread", "-o"]).arg(&program).arg(source).args(flags);
        assert!(command.status().unwrap().success(), "{command:?}");
        program
    };
    const ALL: [(&str, &str, &str); 4] = [
        ("AddressSanitizer", "address", "asan"),
        ("ThreadSanitizer", "thread", "tsan"),
        ("LeakSanitizer", "leak", "lsan"),
        ("MemorySanitizer", "memory", "msan"),
    ];
    let gcc = require(&["gcc", "strip"]);
    let clang = require(&["clang"]);
    for (name, option, short) in ALL {
        let flag = format!("-fsanitize={option}");
        // GCC has no MemorySanitizer.
        if gcc && short != "msan" {
            refused(&build("gcc", &[&flag]), name, option, &format!("lib{short}.so"));
            let linked = build("gcc", &[&flag, &format!("-static-lib{short}")]);
            refused(&linked, name, option, "linked in");
            refused(&strip(&linked), name, option, "linked in");
        }
        if clang {
            refused(&build("clang", &[&flag]), name, option, "linked in");
        }
    }
    if gcc {
        // This one only looks at what is calculated.
        let program = build("gcc", &["-fsanitize=undefined"]);
        let (folder, _) = record(&[], &program, &["leak"]);
        assert_eq!(sums(&values(&folder, &[]), &["middle"]), [10, 1000, 5, 500]);
    }
    if require(&["nightly"]) {
        let program = folder.path().join("rust");
        let source = folder.path().join("rust.rs");
        fs::write(&source, "fn main() { std::mem::forget(vec![0u8; 10]); }").unwrap();
        let mut rustc = Command::new("rustc");
        rustc.args(["+nightly", "-Zsanitizer=address", "-o"]).arg(&program).arg(source);
        assert!(rustc.status().unwrap().success());
        refused(&program, "AddressSanitizer", "address", "linked in");
    }
}
