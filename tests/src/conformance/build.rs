//! Building a case's program with a tracer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Build, Case, Hooks, Program, Tracer};
use crate::fixtures::cache;
use crate::fixtures::{TARGET, build_folder, c_library, cargo, folder, repository};
use crate::fixtures::{aarch64, riscv64};
use crate::{Profile, tools};

/// The functions of the program that are not to be recorded, where only their section tells.
pub(super) const NOT_TRACED: &str = "not-traced";

/// Builds the program of `case` as `program` in `folder`, and its library as `library.so` beside it.
///
/// # Errors
///
/// The output of the compiler or the linker.
pub fn build(case: &Case, build: Build, tracer: Tracer, folder: &Path) -> Result<(), String> {
    match (&case.program, build) {
        (&Program::C { source, arguments, library, .. }, Build::C(more)) => {
            let arguments: Vec<&str> = arguments.iter().copied().chain(more.split_whitespace()).collect();
            if let Some(library) = library {
                let fitting = arguments.iter().copied().filter(|&argument| argument != "-no-pie");
                let mut compiler = compiler(library, tracer);
                compile(compiler.args(fitting).args(["-shared", "-fPIC"]), &folder.join("library.so"))?;
            }
            let mut compiler = compiler(source, tracer);
            compiler.arg(self::folder("c").join(match tracer {
                Tracer::Ours
                | Tracer::OursOnAarch64(_)
                | Tracer::EntriesOnAarch64(_)
                | Tracer::OursOnRiscv64
                | Tracer::Published => "conformance_rftrace.c",
                Tracer::Uftrace | Tracer::Nobody | Tracer::OursBy(_) => "conformance_uftrace.c",
            }));
            compiler.args(&arguments);
            match tracer {
                Tracer::Ours => drop(compiler.arg(&c_library().library)),
                Tracer::OursOnAarch64(_) | Tracer::EntriesOnAarch64(_) => drop(compiler.arg(aarch64::c_library())),
                Tracer::OursOnRiscv64 => drop(compiler.arg(riscv64::c_library())),
                Tracer::Published => drop(compiler.arg(published_library())),
                Tracer::Uftrace | Tracer::Nobody | Tracer::OursBy(_) => {}
            }
            compile(compiler.args(["-lpthread", "-ldl", "-lm"]), &folder.join("program"))?;
            if tracer == Tracer::OursBy(Hooks::Branches) {
                list_not_traced(folder);
            }
            Ok(())
        }
        (&Program::Rust { binary, .. }, Build::Rust(profile)) => {
            let built = rust_programs(profile, tracer)?.join(binary);
            cache::copy(&built, &folder.join("program"));
            Ok(())
        }
        _ => unreachable!("a case has builds of its own language"),
    }
}

fn compiler(source: &str, tracer: Tracer) -> Command {
    let name = match (tracer, source.ends_with(".cpp")) {
        (Tracer::OursBy(Hooks::Sleds), true) => "clang++",
        (Tracer::OursBy(Hooks::Sleds), false) => "clang",
        (_, true) => "g++",
        (_, false) => "gcc",
    };
    let prefix = match tracer {
        Tracer::OursOnAarch64(_) | Tracer::EntriesOnAarch64(_) => aarch64::PREFIX,
        Tracer::OursOnRiscv64 => riscv64::PREFIX,
        _ => "",
    };
    let mut compiler = Command::new(format!("{prefix}{name}"));
    compiler.args(["-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(folder("c"));
    compiler.arg("-I").arg(repository().join("frontend/ffi"));
    match tracer {
        Tracer::Nobody => {}
        Tracer::OursBy(hooks) => drop(compiler.args(hooks.flags())),
        Tracer::EntriesOnAarch64(_) => drop(compiler.arg("-fpatchable-function-entry=2")),
        _ => drop(compiler.arg("-pg")),
    }
    compiler.arg(folder("c").join("conformance").join(source));
    compiler
}

/// Writes a list of the functions of the program that lie in sections which say that they are not to be recorded, and of the one that GCC
/// lets lie in none, as it is a destructor.
fn list_not_traced(folder: &Path) {
    let symbols = tools::text(Command::new("objdump").arg("-t").arg(folder.join("program")));
    let is_listed = |line: &&str| line.contains(" F not_traced") || line.contains("5GuardD");
    let names = symbols.lines().filter(is_listed).filter_map(|line| line.split_whitespace().last());
    let list: String = names.map(|name| format!("{name}\n")).collect();
    fs::write(folder.join(NOT_TRACED), list).expect("a file in a temporary folder");
}

/// Compiles the file `path`, or says why not. A file that compiles was perhaps compiled before.
fn compile(compiler: &mut Command, path: &Path) -> Result<(), String> {
    let built = cache::try_compile(compiler, "program")?;
    cache::copy(&built, path);
    Ok(())
}

/// A cargo that can build rftrace 0.3.2, as the benchmarks do; see `benches/setup-published`.
fn cargo_for_published() -> Command {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let mut setup = Command::new(repository().join("benches/setup-published"));
        tools::text(setup.arg(build_folder("published-home"))).trim_end().into()
    });
    let mut cargo = Command::new(home.join("bin/cargo"));
    crate::fixtures::without_settings(&mut cargo);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(home.join("bin")).chain(std::env::split_paths(&path)));
    cargo.env("CARGO_HOME", home).env("PATH", path.expect("a search path")).env("RUSTUP_TOOLCHAIN", "nightly");
    cargo
}

/// rftrace 0.3.2 as a library for C programs.
fn published_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target_folder = build_folder("published-library");
        let mut cargo = cargo_for_published();
        cargo.args(["build", "--release", "--manifest-path"]);
        cargo.arg(repository().join("tests/peers/published/Cargo.toml"));
        cargo.arg("--target-dir").arg(&target_folder);
        cache::build_once("published", &["tests/peers/published"], &mut cargo);
        target_folder.join("release/libpublished.a")
    })
}

/// The folder of the Rust programs, which are built together, once.
fn rust_programs(profile: Profile, tracer: Tracer) -> Result<PathBuf, String> {
    // The machine makes no difference to the program.
    let tracer = match tracer {
        Tracer::OursOnAarch64(_) => Tracer::OursOnAarch64(""),
        Tracer::EntriesOnAarch64(_) => Tracer::EntriesOnAarch64(""),
        _ => tracer,
    };
    let (mut cargo, output) = match tracer {
        Tracer::OursOnRiscv64 => rust_programs_on_riscv64(),
        Tracer::EntriesOnAarch64(_) => rust_programs_with_entries(),
        _ => rust_programs_with_hooks(profile, tracer),
    };
    let name = format!("conformance {} {profile:?}", tracer.name()).replace(' ', "-");
    cache::try_build_once(&name, &["tests/fixtures/conformance"], cargo.arg("--bins"))?;
    Ok(output)
}

/// Returns the cargo that builds them so that all functions call a hook, and the folder of the results.
fn rust_programs_with_hooks(profile: Profile, tracer: Tracer) -> (Command, PathBuf) {
    let target_folder = build_folder("conformance-programs").join(tracer.name().replace(' ', "-"));
    let (name, flag) = match profile {
        Profile::Debug => ("debug", None),
        Profile::Release => ("release", Some("--release")),
    };
    let target = if tracer.on_aarch64().is_some() { aarch64::TARGET } else { TARGET };
    let mut cargo = if tracer == Tracer::Published { cargo_for_published() } else { cargo(Some("nightly")) };
    cargo.args(["build", "--target", target, "--manifest-path"]).arg(folder("conformance").join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&target_folder).args(flag);
    match tracer {
        Tracer::Ours => drop(cargo.args(["--features", "ours"])),
        Tracer::OursOnAarch64(_) => drop(aarch64::set_linker(&mut cargo).args(["--features", "ours"])),
        Tracer::Published => drop(cargo.args(["--features", "published"])),
        _ => {}
    }
    match tracer {
        Tracer::Nobody => {}
        Tracer::OursBy(hooks) => drop(cargo.env("RUSTFLAGS", hooks.rust_flags())),
        _ => drop(cargo.env("RUSTFLAGS", "-Z instrument-mcount")),
    }
    (cargo, target_folder.join(target).join(name))
}

/// The same on aarch64 with room at the entries of their own functions.
fn rust_programs_with_entries() -> (Command, PathBuf) {
    let mut cargo = aarch64::cargo_build();
    cargo.args(["--features", "ours", "-Z", "profile-rustflags", "--config"]);
    cargo.arg("profile.release.package.rftrace-conformance.rustflags=['-Zpatchable-function-entry=2']");
    (cargo, aarch64::output())
}

/// The same on riscv64, where only their own functions call the hook.
fn rust_programs_on_riscv64() -> (Command, PathBuf) {
    let mut cargo = riscv64::cargo_build();
    riscv64::instrument(cargo.args(["--features", "ours"]), "rftrace-conformance");
    (cargo, riscv64::output())
}
