//! Atomic changes on aarch64, in qemu-user: what each does, and that they are those of Armv8.1 (LSE) where the processor has them, and nowhere else.
//!
//! Which instructions have run the emulator tells. What they cost where many threads want one word no emulator shows.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSegment, ObjectSymbol};
use rftrace_tests::fixtures::{self, aarch64};
use rftrace_tests::{CProgram, Run, tools};

/// The tracer's functions for this.
const ALL: &str = "rftrace_outlined_atomics";

/// The kinds of instructions that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Lse,
    Exclusive,
}

/// By Arm's encodings: compare and swap; changes of memory; exclusive loads and stores.
fn kind(word: u32) -> Option<Kind> {
    let is = |mask, bits| word & mask == bits;
    if is(0x3fa0_7c00, 0x08a0_7c00) || is(0x3b20_0c00, 0x3820_0000) {
        return Some(Kind::Lse);
    }
    is(0x3fa0_7c00, 0x0800_7c00).then_some(Kind::Exclusive)
}

/// The functions of [`ALL`] in a program: names, where they are, and that of all of them.
fn functions(file: &object::File<'_>) -> (Vec<(String, Range<u64>)>, Range<u64>) {
    let place = |symbol: &object::Symbol<'_, '_>| symbol.address()..symbol.address() + symbol.size();
    let all = place(&file.symbols().find(|symbol| symbol.name() == Ok(ALL)).expect("the tracer's"));
    let is_one = |symbol: &object::Symbol<'_, '_>| {
        all.contains(&symbol.address()) && symbol.name().is_ok_and(|name| name.starts_with("__aarch64_"))
    };
    let names = |symbol: object::Symbol<'_, '_>| (symbol.name().unwrap().to_owned(), place(&symbol));
    (file.symbols().filter(is_one).map(names).collect(), all)
}

/// Runs a program that lies at a fixed place, and must print `ok`. Returns the functions that have changed a word, and by what.
fn executed(cpu: &str, program: &Path, arguments: &[&str]) -> BTreeSet<(String, Kind)> {
    let data = fs::read(program).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let (functions, all) = functions(&file);
    // Each instruction is a block of its own, and is told of.
    let mut emulator = aarch64::emulator(cpu, program);
    emulator.args(arguments).env("QEMU_SINGLESTEP", "1").env("QEMU_LOG", "exec,nochain");
    emulator.env("QEMU_DFILTER", format!("{:#x}..{:#x}", all.start, all.end - 1));
    let run = Run::of(&mut emulator);
    assert_eq!(run.stdout, "ok\n", "{cpu}, {arguments:?}");
    let word = |address: u64| {
        let mut segments = file.segments();
        let bytes = segments.find_map(|segment| segment.data_range(address, 4).ok().flatten()).expect("code");
        u32::from_le_bytes(bytes.try_into().unwrap())
    };
    // Trace 0: 0x7f… [flags/address/…]
    let address = |line: &str| u64::from_str_radix(line.split_once('[')?.1.split('/').nth(1)?, 16).ok();
    let addresses: BTreeSet<u64> = run.stderr.lines().filter_map(address).collect();
    let told = |address: u64| {
        let (name, _) = functions.iter().find(|(_, place)| place.contains(&address))?;
        Some((name.clone(), kind(word(address))?))
    };
    addresses.into_iter().filter_map(told).collect()
}

/// Each of them: where the processor has LSE and this is said, where it is not said, and where the processor has none.
#[test]
fn each_function_changes_words_as_it_is_to() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    rustc.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "--edition=2024", "--target", aarch64::TARGET, "-O"]);
    rustc.arg(format!("-Clinker={}gcc", aarch64::PREFIX));
    // As build.rs builds the tracer, so that they are those of this object.
    rustc.args(["-Ccodegen-units=1", "-Ctarget-feature=+outline-atomics,+crt-static", "-o"]).arg(&program);
    tools::run(rustc.arg(fixtures::folder("c").join("atomics_aarch64.rs")));
    let data = fs::read(&program).unwrap();
    let (functions, _) = functions(&object::File::parse(&*data).unwrap());
    assert!(functions.len() > 10, "{functions:?}");
    for (cpu, arguments, kind) in
        [("max", &["lse"][..], Kind::Lse), ("max", &[], Kind::Exclusive), ("cortex-a53", &[], Kind::Exclusive)]
    {
        let expected: BTreeSet<_> = functions.iter().map(|(name, _)| (name.clone(), kind)).collect();
        assert_eq!(executed(cpu, &program, arguments), expected, "{cpu}, {arguments:?}");
    }
}

/// In the tracer, while threads take chunks of one ring: the frontend tells it what there is.
#[test]
fn chunks_are_taken_by_lse_where_it_is() {
    if !aarch64::require() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let library = aarch64::c_library().to_str().expect("a path of UTF-8");
    let source = CProgram::new(&["chunks_aarch64.c"]).with(&["-O2", "-static", library, "-lpthread", "-ldl", "-lm"]);
    source.with_compilers(aarch64::PREFIX).build_as(&program);
    for (cpu, kind) in [("max", Kind::Lse), ("cortex-a72", Kind::Exclusive), ("cortex-a53", Kind::Exclusive)] {
        let executed = executed(cpu, &program, &[]);
        assert!(executed.iter().all(|(_, by)| *by == kind), "{cpu}: {executed:?}");
        // Chunks are counted, and their leases exchanged.
        for name in ["__aarch64_ldadd8_relax", "__aarch64_cas8_acq_rel"] {
            assert!(executed.contains(&(name.to_owned(), kind)), "{cpu}: {name}: {executed:?}");
        }
        // Balanced, times in order: checked when it is opened.
        let run = Run::of(&mut aarch64::emulator(cpu, &program));
        assert_eq!(run.stdout, "ok\n", "{cpu}");
        assert!(!run.trace("trace").tasks().is_empty());
    }
}

/// The tracer brings all of them: none is somebody else's.
#[test]
fn the_tracer_refers_to_the_unwinder_alone() {
    if !aarch64::require() {
        return;
    }
    let data = fs::read(aarch64::c_library()).unwrap();
    let members = ArchiveFile::parse(&*data).unwrap();
    let objects =
        members.members().filter_map(|member| object::File::parse(member.unwrap().data(&*data).unwrap()).ok());
    let is_defined = |symbol: object::Symbol<'_, '_>| symbol.is_definition() && symbol.name() == Ok("_mcount");
    let mut tracers = objects.filter(|object| object.symbols().any(is_defined));
    let (tracer, None) = (tracers.next().expect("the tracer"), tracers.next()) else { panic!("two tracers") };
    let undefined = tracer.symbols().filter(|symbol| symbol.is_undefined()).filter_map(|symbol| symbol.name().ok());
    let undefined: BTreeSet<&str> = undefined.filter(|name| !name.is_empty()).collect();
    assert_eq!(undefined, BTreeSet::from(["_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP"]));
    let is_outlined = |symbol: &object::Symbol<'_, '_>| symbol.name().is_ok_and(|name| name.starts_with("__aarch64_"));
    let outlined: Vec<_> = tracer.symbols().filter(is_outlined).collect();
    assert!(outlined.len() > 10 && outlined.iter().all(|symbol| symbol.is_local()), "{outlined:?}");
}
