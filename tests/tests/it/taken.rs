//! Resources of each kind but memory (`kept`) taken by programs in C++ and in Rust, which do the same: files, threads, mappings, shared
//! memory, moved resources, objects.

use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::{CProgram, Program, fixtures, require, tools};
use serde_json::Value;
use tempfile::TempDir;

use super::record::rftrace;
use super::resources::{record_kinds, resources, sums, values};

/// Linker arguments for GObject; `None` where it is not installed.
fn gobject() -> Option<Vec<String>> {
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "gobject-2.0"]).output().ok()?;
    let words = String::from_utf8(flags.stdout).ok()?;
    flags.status.success().then(|| words.split_whitespace().map(str::to_owned).collect())
}

fn in_cpp(gobject: Option<&[String]>) -> Program {
    let mut options = vec!["-g", "-O1", "-fno-builtin", "-pthread"];
    options.extend(gobject.map(|_| "-DGOBJECT"));
    options.extend(gobject.into_iter().flatten().map(String::as_str));
    CProgram::new(&["taken.cpp"]).without_hooks().without_library().with(&options).build()
}

fn in_rust(folder: &TempDir, gobject: bool) -> PathBuf {
    let program = folder.path().join("taken");
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    rustc.args(["-g", "-O", "--edition=2024", "--check-cfg=cfg(gobject)", "-o"]).arg(&program);
    if gobject {
        rustc.arg("--cfg=gobject");
    }
    tools::run(rustc.arg(fixtures::folder("taken.rs")));
    program
}

/// Runs a way of a program, recorded, and looks at what was counted.
fn found(program: &Path, kinds: &str, way: &str) -> (TempDir, Value) {
    let (folder, _) = record_kinds(kinds, &[], program, &[way]);
    let found = values(&folder, &[]);
    (folder, found)
}

fn counted(values: &Value, kind: &str, keys: &[&str]) -> Vec<u64> {
    keys.iter().map(|key| values[kind][key].as_u64().unwrap_or_else(|| panic!("{kind}: {values:#}"))).collect()
}

/// Names of functions as the language has them.
fn check(program: &Path, prefix: &str, has_gobject: bool) {
    let named = |name: &str| format!("{prefix}{name}");

    let (folder, files) = found(program, "file", "file");
    for (name, expected) in [("keep", [3, 3, 3, 3]), ("pass", [10, 10, 0, 0]), ("reuse", [1000, 1000, 0, 0])] {
        assert_eq!(sums(&files, &[&named(name)]), expected, "{name}: {files:#}");
    }
    assert_eq!(counted(&files, "file", &["failures", "unknown_releases", "doubled"]), [1, 0, 0], "{files:#}");
    let leaks = resources(&folder, &["--leaks"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(leaks.status.code() == Some(1) && told.contains("3 descriptors were not given back"), "{told}");

    let (_folder, threads) = found(program, "thread", "thread");
    assert_eq!(sums(&threads, &[&named("threads")]), [10, 10, 3, 3], "{threads:#}");
    assert_eq!(counted(&threads, "thread", &["unknown_releases"]), [0], "{threads:#}");

    let (_folder, mappings) = found(program, "mmap", "mmap");
    assert_eq!(sums(&mappings, &[&named("mappings")]), [4, 10 * 4096, 1, 4096], "{mappings:#}");

    let (_folder, shared) = found(program, "shmsysv,shmposix", "shm");
    assert_eq!(counted(&shared, "shmsysv", &["blocks"]), [1], "{shared:#}");
    // Other mappings are given back by the same function.
    let keys = ["allocations", "allocated_bytes", "blocks", "bytes", "unknown_releases"];
    assert_eq!(counted(&shared, "shm-mapping", &keys), [2, 8192 + 4096, 1, 8192, 0], "{shared:#}");

    let moved = Command::new(rftrace())
        .args(["functracer", "-s", "-e", "memtransfer", "-t", "1", "-r"])
        .arg(program)
        .arg("move")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&moved.stdout).into_owned();
    assert!(moved.status.success() && text.contains("memcpy(301) = ") && text.contains("memcpy(1999) = "), "{text}");

    if has_gobject {
        let (_folder, objects) = found(program, "gobject", "gobject");
        assert_eq!(counted(&objects, "gobject", &keys), [102, 4 * 102, 1, 4, 0], "{objects:#}");
        assert_eq!(sums(&objects, &[&named("objects")])[2], 1, "{objects:#}");
    }
}

#[test]
fn by_a_program_in_cpp() {
    if !require(&["g++"]) {
        return;
    }
    let gobject = gobject();
    if gobject.is_none() {
        tools::missing("libglib2.0-dev");
    }
    check(&in_cpp(gobject.as_deref()).path, "", gobject.is_some());
}

#[test]
fn by_a_program_in_rust() {
    if !require(&["rustc"]) {
        return;
    }
    let gobject = gobject();
    if gobject.is_none() {
        tools::missing("libglib2.0-dev");
    }
    let folder = tempfile::tempdir().unwrap();
    check(&in_rust(&folder, gobject.is_some()), "taken::", gobject.is_some());
}
