//! sp-rtrace's own postprocessor reads the text that is written for it, and says the same of it as `rftrace functracer-postproc`.
//!
//! It is built from its source, of which `RFTRACE_SP_RTRACE` is the folder (<https://github.com/maemo-tools-old/sp-rtrace>); else
//! `../shared/sp-rtrace` beside the repository.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::fixtures::folder;
use rftrace_tests::{CProgram, Program, require, tools};
use tempfile::TempDir;

use super::record::rftrace;
use super::resources::{record_kinds, resources, values};

/// Builds the postprocessor, if there is its source.
fn postprocessor(place: &Path) -> Option<PathBuf> {
    let given = env::var_os("RFTRACE_SP_RTRACE").map(PathBuf::from);
    let source =
        given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/sp-rtrace")).join("src");
    let files = |folder: &str, names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|name| source.join(folder).join(name).with_extension("c")).collect()
    };
    let all = [
        files(
            "rtrace-postproc",
            &["sp_rtrace_postproc", "parse_binary", "parse_text", "leaks_sort", "writer", "filter"],
        ),
        files("common", &["rtrace_data", "htable", "dlist", "utils", "header", "msg", "resolve_utils"]),
        files("library", &["sp_rtrace_context", "sp_rtrace_formatter", "sp_rtrace_parser", "sp_rtrace_filter"]),
    ]
    .concat();
    if !all.iter().all(|file| file.is_file()) {
        tools::skip("no source of sp-rtrace: RFTRACE_SP_RTRACE is to name its folder");
        return None;
    }
    // The file that its configure script would write.
    fs::write(place.join("config.h"), "#define PACKAGE_STRING \"sp-rtrace\"\n").unwrap();
    let program = place.join("sp-rtrace-postproc");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-w",
        "-O1",
        "-D_GNU_SOURCE",
        "-DBUILD_ARCH=\"x86_64\"",
        "-DPACKAGE_STRING=\"sp-rtrace\"",
        "-DBINDIR=\"/\"",
        "-DLIBDIR=\"/\"",
    ]);
    for folder in [place, &source.join("common"), &source.join("library"), &source] {
        gcc.arg("-I").arg(folder);
    }
    assert!(gcc.args(&all).arg("-ldl").arg("-o").arg(&program).status().unwrap().success());
    Some(program)
}

/// Writes a recording's text for sp-rtrace.
fn text(folder: &TempDir, options: &[&str]) -> PathBuf {
    let output = resources(folder, &[&["--text", "sp-rtrace"], options].concat());
    assert!(output.status.success(), "{output:?}");
    let path = folder.path().join("text");
    fs::write(&path, output.stdout).unwrap();
    path
}

/// The head of a text, its calls with their callers, and its sums, in an order of their own.
fn parts(text: &str) -> Vec<&str> {
    let first = text.find(". [").and_then(|at| text[..at].rfind('\n')).map_or(text.len(), |at| at + 1);
    let (head, rest) = text.split_at(first);
    let mut parts: Vec<&str> = [head].into_iter().chain(rest.split("\n\n")).collect();
    parts.sort_unstable();
    parts
}

/// The sizes by which it is sorted.
fn summaries(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# allocation summary: ")?.split("total size ").nth(1)).collect()
}

/// Returns a postprocessor's output for it.
fn processed(program: &Path, arguments: &[&str], text: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(text).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn build(source: &str, flags: &[&str]) -> Program {
    CProgram::new(&[source]).without_hooks().without_library().with(flags).build()
}

#[test]
fn its_own_postprocessor_reads_the_text() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let Some(theirs) = postprocessor(place.path()) else { return };
    let common = ["-g", "-O1", "-fno-builtin", "-w", "-pthread"];
    let functions = build("functracer.c", &common);
    let blocks = build("resources.c", &common);
    let specified = build("specified.c", &common[..4]);
    let throwing = build("resources.cpp", &common);
    let pool = folder("specifications").join("pool.toml");
    let library = build("pool_library.cpp", &["-shared", "-fPIC", "-O1", "-g", "-w"]);
    let user = build("pool_user.cpp", &["-g", "-O1", "-pthread", "-Wl,--no-as-needed", library.path.to_str().unwrap()]);
    let several = format!("memory,{}", pool.display());
    for (kinds, program, arguments) in [
        ("memory", &blocks, &["leak"][..]),
        ("memory", &blocks, &["chain"]),
        ("memory", &throwing, &[]),
        ("memory,file", &functions, &["file"]),
        ("thread", &functions, &["thread"]),
        ("mmap", &specified, &["mmap"]),
        ("shmsysv,shmposix", &specified, &["shm"]),
        (&several, &user, &[]),
    ] {
        let what = format!("{kinds} {arguments:?}");
        let (folder, _) = record_kinds(kinds, &[], &program.path, arguments);
        for resolved in [&[][..], &["--resolve"]] {
            let text = text(&folder, resolved);
            for options in
                [&["-l"][..], &["-c"], &["-l", "-c", "-s", "size"], &["-c", "-s", "size-asc"], &["-l", "-b", "2"]]
            {
                let by_them = processed(&theirs, &[options, &["-i"]].concat(), &text);
                let by_us = processed(&rftrace(), &[&["functracer-postproc"], options].concat(), &text);
                // Without an order they are in that of a hash table, and so are those that have the same size or number.
                let [mut ours, mut by_order] = [parts(&by_us), parts(&by_them)];
                if by_them.contains("\n<4> : ") {
                    // From the third kind on their sums are those of another one.
                    ours.retain(|part| !part.starts_with("# Resource"));
                    by_order.retain(|part| !part.starts_with("# Resource"));
                }
                assert_eq!(ours, by_order, "{what} {options:?}\n{by_them}\nand\n{by_us}");
                if options.contains(&"-s") {
                    assert_eq!(summaries(&by_us), summaries(&by_them), "{what} {options:?}\n{by_them}\nand\n{by_us}");
                }
            }
        }
        // Their sums are those of the report.
        let left = processed(&theirs, &["-l", "-i"], &text(&folder, &[]));
        let found = values(&folder, &[]);
        let total = |kind: &str| found[kind]["blocks"].as_u64();
        let sums: Vec<u64> = left
            .lines()
            .filter_map(|line| line.strip_prefix("# ")?.split_once(" block(s) leaked with total size"))
            .map(|(blocks, _)| blocks.parse().unwrap())
            .collect();
        if kinds == "memory" {
            assert_eq!(sums, [total("memory").unwrap()], "{what}: {left}");
        }
        assert!(!sums.is_empty(), "{what}: {left}");
    }
}
