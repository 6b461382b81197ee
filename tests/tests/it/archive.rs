//! The archive with the tracer: what it exports, what it needs, and that it gets along with other code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol};
use rftrace_tests::fixtures::{self, c_library};
use rftrace_tests::{CProgram, Profile, outline, require, rust_program};

/// Names of the symbols for which `wanted` holds, over all members of an archive.
pub(crate) fn symbols(archive: &Path, wanted: impl Fn(&object::Symbol<'_, '_>) -> bool) -> BTreeSet<String> {
    let data = fs::read(archive).unwrap();
    let mut names = BTreeSet::new();
    for member in ArchiveFile::parse(&*data).unwrap().members() {
        let object = object::File::parse(member.unwrap().data(&*data).unwrap()).unwrap();
        let found = object.symbols().filter(|symbol| wanted(symbol)).map(|symbol| symbol.name().unwrap().to_owned());
        names.extend(found);
    }
    names
}

/// The names in the table of symbols in src/abi/mod.rs, but for those that are on aarch64 alone.
fn listed() -> BTreeSet<String> {
    let source = fs::read_to_string(fixtures::repository().join("src/abi/mod.rs")).unwrap();
    let mut names = BTreeSet::new();
    for line in source.lines().filter_map(|line| line.strip_prefix("//! | `")) {
        // The first column, without signatures.
        let (column, what) = line.split_once(" | ").unwrap();
        if what.starts_with("on aarch64") {
            continue;
        }
        names.extend(column.split(", ").map(|name| {
            let name = name.trim_matches('`');
            name.split('(').next().unwrap().to_owned()
        }));
    }
    assert!(names.contains("mcount") && names.contains("_mcleanup"), "the table has changed: {names:?}");
    names
}

#[test]
fn exported_symbols_are_the_listed_ones() {
    assert_eq!(symbols(&c_library().backend, |symbol| symbol.is_global() && symbol.is_definition()), listed());
}

#[test]
fn undefined_symbols_are_those_of_the_unwinder_and_weak() {
    let backend = &c_library().backend;
    let undefined = symbols(backend, |symbol| symbol.is_undefined() && symbol.name() != Ok(""));
    let expected = ["_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP"];
    // Not a symbol of any code: the linker makes it.
    let undefined: Vec<_> = undefined.iter().filter(|name| *name != "_GLOBAL_OFFSET_TABLE_").collect();
    assert_eq!(undefined, expected);
    let strong = symbols(backend, |symbol| symbol.is_undefined() && !symbol.is_weak());
    assert!(strong.iter().all(|name| name.is_empty() || name == "_GLOBAL_OFFSET_TABLE_"), "{strong:?}");
}

#[test]
fn nothing_can_panic() {
    let panicking = symbols(&c_library().backend, |symbol| symbol.name().is_ok_and(|name| name.contains("panic")));
    assert_eq!(panicking, BTreeSet::new());
}

/// Builds fixtures/c/half.rs, a Rust library for C programs, with a toolchain.
fn rust_half(toolchain: Option<&str>) -> PathBuf {
    let mut rustc = fixtures::rustc(toolchain, "c/half.rs");
    fixtures::cache::compile(rustc.args(["--crate-type=staticlib", "-O"]), "libhalf.a")
}

/// The tracer alone, as a kernel would link it, beside Rust code of this toolchain and of nightly.
#[test]
fn the_archive_links_beside_rust_code() {
    if !require(&["gcc", "nightly"]) {
        return;
    }
    for toolchain in [None, Some("nightly")] {
        let half = rust_half(toolchain);
        let backend = c_library().backend.to_str().unwrap();
        // Whichever comes first.
        for libraries in [[half.to_str().unwrap(), backend], [backend, half.to_str().unwrap()]] {
            let program = CProgram::new(&["halves.c"]).without_library().with(&["-O1"]).with(&libraries);
            let run = program.with(&["-lpthread", "-ldl", "-lm"]).build().run(&[]);
            // 10 digits of one, 20 of two figures, a caught panic, and 1.
            assert_eq!(run.stdout, "1031\n", "{toolchain:?}");
        }
    }
}

/// Every member of the archive is linked, whether it is needed or not: nothing in it clashes.
#[test]
fn the_whole_archive_links_beside_rust_code() {
    if !require(&["gcc"]) {
        return;
    }
    let half = rust_half(None);
    let whole = format!("-Wl,--whole-archive,{},--no-whole-archive", c_library().backend.display());
    for arguments in [&["-O1"][..], &["-O1", "-static"], &["-O1", "-no-pie"]] {
        let program = CProgram::new(&["halves.c"]).without_library().with(arguments);
        let program = program.with(&[&whole, half.to_str().unwrap(), "-lpthread", "-ldl", "-lm"]);
        assert_eq!(program.build().run(&[]).stdout, "1031\n", "{arguments:?}");
    }
}

/// The library for C programs brings all of Rust's std along, and so does the other half.
#[test]
fn two_rust_libraries_link_into_a_c_program() {
    if !require(&["gcc"]) {
        return;
    }
    let half = rust_half(None);
    let program = CProgram::new(&["halves.c"]).with(&["-O1", "-DRECORD", half.to_str().unwrap()]);
    let run = program.build().run(&[]);
    assert_eq!(run.stdout, "1031\n");
    assert_eq!(outline(&run.trace("trace")), "c_half\n");
}

#[test]
fn gprof_stays_out() {
    if require(&["gcc"]) {
        for arguments in [&["-O1"][..], &["-O1", "-static"], &["-O1", "-no-pie"], &["-O1", "-static-pie"]] {
            // A gmon.out would be noticed when the program has run.
            let run = CProgram::new(&["profiling.c"]).with(arguments).build().run(&[]);
            assert_eq!(outline(&run.trace("trace")), "work\n", "{arguments:?}");
        }
    }
    if require(&["nightly"]) {
        for profile in Profile::ALL {
            let _ = rust_program("profiling", profile).run(&[]).trace("trace");
        }
    }
}
