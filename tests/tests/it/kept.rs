//! Programs whose losses are known, in C, C++ and Rust: `rftrace resources` tells them to the byte, valgrind the same ones with the same paths,
//! heaptrack the same totals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::fixtures::{self};
use rftrace_tests::{CProgram, require};
use serde_json::Value;
use tempfile::TempDir;

use super::resources::{record_kinds, resources, sums, values};

/// Losses: by the lines of the program's own file, innermost first, blocks and bytes.
type Lost = BTreeMap<Vec<u64>, [u64; 2]>;

/// Losses by `rftrace resources --leaks`.
#[track_caller]
fn by_rftrace(folder: &TempDir, source: &str) -> Lost {
    let output = resources(folder, &["--leaks", "--json", "--limit", "0", "--depth", "0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let values: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut lost = Lost::new();
    for stack in values["stacks"].as_array().unwrap() {
        let frames = stack["frames"].as_array().unwrap().iter();
        let own = frames.filter(|frame| frame["file"].as_str().is_some_and(|file| file.ends_with(source)));
        let sum = lost.entry(own.map(|frame| frame["line"].as_u64().unwrap()).collect()).or_default();
        sum[0] += stack["blocks"].as_u64().unwrap();
        sum[1] += stack["bytes"].as_u64().unwrap();
    }
    lost
}

/// Definite losses by valgrind.
fn by_valgrind(program: &Path, source: &str) -> Lost {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told.xml");
    let mut command = Command::new("valgrind");
    command.args(["--leak-check=full", "--xml=yes", "--num-callers=64"]);
    command.arg(format!("--xml-file={}", told.display())).arg(program);
    assert_eq!(command.output().unwrap().status.code(), Some(7));
    let text = fs::read_to_string(told).unwrap();
    let value = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.to_owned())
    };
    let mut lost = Lost::new();
    for error in text.split("<error>").skip(1).filter(|error| error.contains("<kind>Leak_DefinitelyLost</kind>")) {
        let own = error.split("<frame>").filter(|frame| value(frame, "file").as_deref() == Some(source));
        let path = own.filter_map(|frame| value(frame, "line")?.parse().ok()).collect();
        let sum = lost.entry(path).or_default();
        sum[0] += value(error, "leakedblocks").unwrap().parse::<u64>().unwrap();
        sum[1] += value(error, "leakedbytes").unwrap().parse::<u64>().unwrap();
    }
    lost
}

/// Allocations, and bytes that are kept, of what `main` has called, as heaptrack records it. Storage of threads is as large as libraries make
/// it, so that is left out.
fn by_heaptrack(program: &Path) -> [u64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Command::new("heaptrack").arg(program).current_dir(folder.path()).output().unwrap();
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let recording = names.into_iter().next().unwrap_or_else(|| panic!("{recorded:?}"));
    ["allocations", "leaked"].map(|cost| {
        let stacks = folder.path().join(cost);
        let mut print = Command::new("heaptrack_print");
        print.args(["--flamegraph-cost-type", cost, "-F"]).arg(&stacks).arg("-f").arg(&recording);
        let printed = print.output().unwrap();
        let text = fs::read_to_string(&stacks).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
        let lines = text.lines().filter(|line| line.contains("main") && !line.contains("_dl_allocate_tls"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    })
}

/// Records a program and compares what all say. `lost` is what is known of it: blocks and bytes.
#[track_caller]
fn compare(program: &Path, source: &str, lost: &[[u64; 2]]) {
    let (folder, told) = record_kinds("memory", &[], program, &[]);
    let found = values(&folder, &[]);
    assert_eq!((&found["memory"]["doubled"], &found["memory"]["lost"]), (&0.into(), &0.into()), "{found:#}\n{told}");
    assert_eq!(found["memory"]["unknown_releases"], 0, "{found:#}");
    let own = by_rftrace(&folder, source);
    let mut sizes: Vec<[u64; 2]> = own.values().copied().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, lost, "{own:?}");
    if require(&["valgrind"]) {
        assert_eq!(by_valgrind(program, source), own);
    }
    if require(&["heaptrack", "heaptrack_print"]) {
        let [allocations, _, _, bytes] = sums(&found, &["main"]);
        let [of_threads, _, _, their_bytes] = sums(&found, &["main", "_dl_allocate_tls"]);
        assert_eq!(by_heaptrack(program), [allocations - of_threads, bytes - their_bytes]);
    }
}

#[test]
fn what_a_c_program_loses() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["kept.c"]).without_hooks().without_library();
    let program = program.with(&["-g", "-O1", "-fno-builtin", "-pthread"]).build();
    compare(&program.path, "kept.c", &[[1, 500], [5, 500]]);
    // A block that is given back twice is nobody's. The C library ends the program for it.
    let (folder, _) = record_kinds("memory", &[], &program.path, &["twice"]);
    let output = resources(&folder, &["--json", "--limit", "0"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["memory"]["unknown_releases"], 1, "{found:#}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("1 blocks were given back without a recorded allocation"), "{told}");
}

#[test]
fn what_a_cpp_program_loses() {
    if !require(&["g++"]) {
        return;
    }
    let program = CProgram::new(&["kept_cpp.cpp"]).without_hooks().without_library();
    let program = program.with(&["-g", "-O1", "-fno-builtin", "-pthread"]).build();
    compare(&program.path, "kept_cpp.cpp", &[[1, 77], [5, 160]]);
}

#[test]
fn what_a_rust_program_loses() {
    if !require(&["rustc"]) {
        return;
    }
    let program = fixtures::cache::compile(fixtures::rustc(None, "kept.rs").args(["-g", "-O"]), "kept");
    compare(&program, "kept.rs", &[[5, 615]]);
}

/// The same of a program that has an allocator in it: what `main` has called for counts as if it were the C library's.
#[track_caller]
fn check_own_allocator(program: &Path, source: &str, lost: &[[u64; 2]], taken: u64) {
    let (folder, told) = record_kinds("memory", &[], program, &[]);
    assert!(!told.contains("not seen") && !told.contains("cannot record calls"), "{told}");
    let found = values(&folder, &[]);
    for key in ["doubled", "lost", "unknown_releases"] {
        assert_eq!(found["memory"][key], 0, "{key} of {found:#}\n{told}");
    }
    let own = by_rftrace(&folder, source);
    let mut sizes: Vec<[u64; 2]> = own.values().copied().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, lost, "{own:?}");
    let [allocations, ..] = sums(&found, &["main"]);
    let [of_threads, ..] = sums(&found, &["main", "_dl_allocate_tls"]);
    assert_eq!(allocations - of_threads, taken, "{found:#}");
    // The allocator's calls of itself are not counted as own calls.
    let stacks = found["stacks"].as_array().unwrap();
    let is_inner = |stack: &&Value| stack["frames"][0]["function"].as_str().is_some_and(|name| name.contains("je_"));
    assert_eq!(stacks.iter().find(is_inner), None);
}

/// Linker arguments for a jemalloc that becomes a part of the program.
fn jemalloc() -> Option<[&'static str; 4]> {
    let archive = Command::new("gcc").arg("-print-file-name=libjemalloc.a").output().ok()?;
    let is_there = Path::new(String::from_utf8(archive.stdout).ok()?.trim()).is_absolute();
    if !is_there {
        println!("kept: skipped, no libjemalloc.a: apt-get install libjemalloc-dev");
        assert!(std::env::var_os("CI").is_none(), "libjemalloc-dev is missing");
    }
    is_there.then_some(["-l:libjemalloc.a", "-lm", "-ldl", "-pthread"])
}

#[test]
fn what_programs_with_jemalloc_lose() {
    let Some(jemalloc) = jemalloc().filter(|_| require(&["gcc", "g++", "rustc"])) else { return };
    let built = |source: &str| {
        let program = CProgram::new(&[source]).without_hooks().without_library();
        program.with(&["-g", "-O1", "-fno-builtin"]).with(&jemalloc).build()
    };
    check_own_allocator(&built("kept.c").path, "kept.c", &[[1, 500], [5, 500]], 1_001_015);
    check_own_allocator(&built("kept_cpp.cpp").path, "kept_cpp.cpp", &[[1, 77], [5, 160]], 1_001_029);

    // As Rust's crates for it do: a `#[global_allocator]` that tells it the size of what it gives back.
    let mut rustc = fixtures::rustc(None, "kept.rs");
    rustc.args(["-g", "-O", "--check-cfg=cfg(jemalloc)", "--cfg=jemalloc"]);
    rustc.args(jemalloc.map(|argument| format!("-Clink-arg={argument}")));
    let program = fixtures::cache::compile(&mut rustc, "kept");
    check_own_allocator(&program, "kept.rs", &[[5, 615]], 1_001_029);
}

/// One that a user has written, which everybody gets: the C library too.
#[test]
fn what_a_program_with_an_allocator_of_its_own_loses() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["kept.c", "own_malloc.c"]).without_hooks().without_library();
    let program = program.with(&["-g", "-O1", "-fno-builtin", "-pthread", "-rdynamic"]).build();
    check_own_allocator(&program.path, "kept.c", &[[1, 500], [5, 500]], 1_001_015);
}
