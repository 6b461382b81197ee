//! Building the programs that trace themselves.

pub mod aarch64;
pub mod cache;
mod places;
pub mod riscv64;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

pub use self::places::{TARGET, build_folder, cargo, folder, repository, target_folder, without_settings};

use self::cache::{LIBRARY_SOURCES, build_once, cache_folder, compile, key_of_sources, once};
use self::places::SETTINGS;
use crate::run::Run;
use crate::tools;

/// A cargo for a package of this repository's workspace, with the settings and the target folder of the tests: what they need is
/// built there already.
fn workspace_cargo(arguments: &[&str]) -> Command {
    let mut cargo = cargo(None);
    cargo.args(arguments).arg("--manifest-path").arg(repository().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(target_folder());
    keep_settings(&mut cargo);
    cargo
}

/// Has a cargo build as the tests were built.
fn keep_settings(cargo: &mut Command) {
    for name in SETTINGS {
        cargo.envs(env::var_os(name).map(|value| (name, value)));
    }
}

/// Cargo arguments that build the library for C programs in the workspace `fixtures/conformance`. There it shares its parts with the Rust
/// programs: each workspace builds packages of ours anew.
const LIBRARY_BESIDE_PROGRAMS: [&str; 7] =
    ["--package", "rftrace-conformance", "--package", "rftrace-frontend-ffi", "--lib", "--features", "ours,library"];

/// The static library for C programs, and the archive with only the tracer that went into it.
#[derive(Debug)]
pub struct CLibrary {
    /// `librftrace_frontend_ffi.a`.
    pub library: PathBuf,
    /// `librftrace_backend.a`.
    pub backend: PathBuf,
}

/// Builds the library for C programs, once, without the lines of its code: each program is linked with it.
///
/// # Panics
///
/// When that fails.
pub fn c_library() -> &'static CLibrary {
    static LIBRARY: OnceLock<CLibrary> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let key = key_of_sources(&LIBRARY_SOURCES);
        // Whatever is linked with the library has its key in its own.
        let folder = cache_folder().join(format!("library-{key:016x}"));
        let [library, backend] = ["librftrace_frontend_ffi.a", "librftrace_backend.a"].map(|name| folder.join(name));
        let copied = once(&folder.with_extension("built"), key, || {
            let built = build_c_library();
            fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            cache::copy(&built.backend, &backend);
            tools::try_run(Command::new("objcopy").arg("--strip-debug").arg(&built.library).arg(&library))
        });
        copied.unwrap_or_else(|error| panic!("{error}"));
        CLibrary { library, backend }
    })
}

fn build_c_library() -> CLibrary {
    let mut cargo = workspace_cargo(&["build", "--release", "--package", "rftrace-frontend-ffi"]);
    let messages = tools::text(cargo.arg("--message-format=json"));
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let library = messages
        .iter()
        .filter_map(|message| message["filenames"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .find(|name| name.ends_with(".a"))
        .expect("cargo names the static library");
    let backend = messages
        .iter()
        .filter(|message| {
            message["linked_libs"].as_array().is_some_and(|libs| libs.contains(&"static=rftrace_backend".into()))
        })
        .find_map(|message| message["out_dir"].as_str())
        .expect("cargo names the output folder of the tracer's build script");
    CLibrary { library: library.into(), backend: Path::new(backend).join("librftrace_backend.a") }
}

/// A program that was built.
#[derive(Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Holds it, unless it stays from run to run.
    pub(crate) _folder: Option<TempDir>,
}

impl Program {
    /// A copy of a program that the next build replaces.
    ///
    /// # Panics
    ///
    /// When it cannot be copied.
    #[must_use]
    pub fn copy_of(path: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let copy = folder.path().join(path.file_name().expect("a file's path"));
        cache::copy(path, &copy);
        Self { path: copy, _folder: Some(folder) }
    }

    /// Runs the program in a new folder; see [`Run::of`].
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(Command::new(&self.path).args(arguments))
    }
}

/// A C or C++ program of `fixtures/c` that is going to be built.
#[derive(Clone, Debug)]
pub struct CProgram {
    sources: Vec<String>,
    arguments: Vec<String>,
    library: bool,
    /// Prefix of the compilers' names.
    prefix: &'static str,
    by_clang: bool,
}

impl CProgram {
    /// A program of one or more files, built with `-pg` and linked with rftrace. C++ if the first is a `.cpp` file.
    #[must_use]
    pub fn new(sources: &[&str]) -> Self {
        let sources = sources.iter().map(|&source| source.to_owned()).collect();
        Self { sources, arguments: vec!["-pg".to_owned()], library: true, prefix: "", by_clang: false }
    }

    /// Adds arguments for the compiler, behind the sources.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Builds without `-pg`, so that no function calls mcount.
    #[must_use]
    pub fn without_hooks(mut self) -> Self {
        self.arguments.retain(|argument| argument != "-pg");
        self
    }

    /// Links without rftrace, or with what [`with`](Self::with) names.
    #[must_use]
    pub fn without_library(mut self) -> Self {
        self.library = false;
        self
    }

    /// Builds for another processor, without rftrace, by compilers whose names begin so.
    #[must_use]
    pub fn with_compilers(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self.without_library()
    }

    /// Builds by clang, without rftrace.
    #[must_use]
    pub fn by_clang(mut self) -> Self {
        self.by_clang = true;
        self.without_library()
    }

    /// Compiles and links.
    ///
    /// # Panics
    ///
    /// When that fails.
    #[must_use]
    pub fn build(&self) -> Program {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("program");
        self.build_as(&path);
        Program { path, _folder: Some(dir) }
    }

    /// Compiles and links to the file `path`, which no other program has.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn build_as(&self, path: &Path) {
        build_as(&mut self.compiler(), path);
    }

    /// Compiles and links, and returns the file `name` that nobody may change.
    ///
    /// # Panics
    ///
    /// When that fails.
    #[must_use]
    pub fn cached(&self, name: &str) -> PathBuf {
        compile(&mut self.compiler(), name)
    }

    fn compiler(&self) -> Command {
        let is_cpp = self.sources.first().is_some_and(|source| source.ends_with(".cpp"));
        let compiler = match (self.by_clang, is_cpp) {
            (true, true) => "clang++",
            (true, false) => "clang",
            (false, true) => "g++",
            (false, false) => "gcc",
        };
        let mut compiler = Command::new(format!("{}{compiler}", self.prefix));
        compiler.args(["-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(folder("c"));
        compiler.arg("-I").arg(repository().join("frontend/ffi"));
        compiler.args(self.sources.iter().map(|source| folder("c").join(source)));
        compiler.args(&self.arguments);
        if self.library {
            compiler.arg(&c_library().library).args(["-lpthread", "-ldl", "-lm"]);
        }
        compiler
    }
}

/// Has a compiler build the file `path`, which no other test has: a copy of what is kept, unless it is made of what a test has made.
///
/// # Panics
///
/// When that fails.
pub fn build_as(compiler: &mut Command, path: &Path) {
    let (ours, temporary) = (repository().to_string_lossy(), env::temp_dir());
    let temporary = temporary.to_string_lossy();
    let is_of_test = |argument: &OsStr| argument.to_string_lossy().replace(&*ours, "").contains(&*temporary);
    if compiler.get_args().any(is_of_test) {
        tools::run(compiler.arg("-o").arg(path));
    } else {
        cache::copy(&compile(compiler, "program"), path);
    }
}

/// A rustc of a toolchain, or of that which runs the test, for the source `name` of the fixtures.
#[must_use]
pub fn rustc(toolchain: Option<&str>, source: &str) -> Command {
    let mut rustc = Command::new("rustc");
    without_settings(&mut rustc);
    if let Some(toolchain) = toolchain {
        rustc.env_remove("RUSTUP_TOOLCHAIN").arg(format!("+{toolchain}"));
    }
    rustc.arg("--edition=2024").arg(folder(source));
    rustc
}

/// The target with musl.
pub const MUSL: &str = "x86_64-unknown-linux-musl";

/// True if nightly can build for musl.
#[must_use]
pub fn has_rust_for_musl() -> bool {
    if !tools::require(&["nightly", "gcc"]) {
        return false;
    }
    let mut rustc = rustc(Some("nightly"), "recorded.rs");
    let library = tools::text(rustc.args(["--target", MUSL, "--print", "target-libdir"]));
    let has_it = Path::new(library.trim()).exists();
    if !has_it {
        tools::missing("nightly's library for musl");
    }
    has_it
}

/// How a Rust fixture is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Without optimisation.
    Debug,
    /// Optimised.
    Release,
}

impl Profile {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Debug, Self::Release];
}

/// Returns a binary of the package `fixtures/rust`, built by nightly with `-Z instrument-mcount`.
///
/// # Panics
///
/// When the build fails.
#[must_use]
pub fn rust_program(name: &str, profile: Profile) -> Program {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    let folder = BUILT[profile as usize].get_or_init(|| build_rust("rftrace-fixtures", profile));
    Program { path: folder.join(name), _folder: None }
}

/// As [`rust_program`], of the package `fixtures/rust/crates`, whose programs use published crates.
///
/// # Panics
///
/// When the build fails.
#[must_use]
pub fn crates_program(name: &str, profile: Profile) -> Program {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    let folder = BUILT[profile as usize].get_or_init(|| build_rust("rftrace-fixtures-crates", profile));
    Program { path: folder.join(name), _folder: None }
}

/// Builds a package of the workspace `fixtures/rust` and returns the folder with its programs.
fn build_rust(package: &str, profile: Profile) -> PathBuf {
    let target_folder = build_folder("rust-fixtures");
    let (folder, option) = match profile {
        Profile::Debug => ("debug", None),
        Profile::Release => ("release", Some("--release")),
    };
    let mut cargo = instrumenting_cargo("build");
    cargo.args(["--bins", "--package", package]).args(option).arg("--target-dir").arg(&target_folder);
    build_once(&format!("{package}-{folder}"), &["tests/fixtures/rust"], &mut cargo);
    target_folder.join(TARGET).join(folder)
}

/// A nightly cargo that instruments what it builds in the workspace `fixtures/rust`.
#[must_use]
pub fn instrumenting_cargo(command: &str) -> Command {
    let mut cargo = cargo(Some("nightly"));
    cargo.args([command, "--target", TARGET, "--manifest-path"]).arg(folder("rust").join("Cargo.toml"));
    cargo.env("RUSTFLAGS", "-Z instrument-mcount");
    cargo
}

/// The programs that a cargo built which prints its messages as JSON, in their order.
#[must_use]
pub fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect()
}

/// Builds the command-line tools, once, and returns the folder with `rftrace`, what it preloads, and `cargo-rftrace`.
pub fn command_line() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // CI has built them with the tests, by whose dependencies they differ from what is built here.
        if env::var_os("TOOLS_ARE_BUILT").is_none() {
            let mut cargo = workspace_cargo(&["build", "--package", "rftrace-tools", "--bins"]);
            build_once("tools", &["tools"], &mut cargo);
        }
        target_folder().join("debug")
    })
}
