//! The build of the tracer within the build of a program: what it must not see, when it runs, what it says.
//!
//! All builds are of the packaged crate, unpacked outside of the repository in a folder with an awkward name.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection, SectionKind};
use rftrace_tests::fixtures::cache;
use rftrace_tests::fixtures::{self, TARGET, build_folder, cargo};
use rftrace_tests::{require, tools};
use serde_json::Value;
use tempfile::TempDir;

use crate::archive::symbols;

/// The crate as it would be published, unpacked.
///
/// There is one at a time: builds share target folders, in which cargo takes all packages for the same one.
struct Package {
    _folder: TempDir,
    _alone: File,
    path: PathBuf,
}

impl Package {
    fn unpack() -> Self {
        let alone = cache::alone("subbuild");
        let target_folder = build_folder("package");
        let sources = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs/architecture.md"];
        let mut cargo = cargo(None);
        cargo.args(["package", "-p", "rftrace", "--allow-dirty", "--no-verify", "--offline", "--manifest-path"]);
        cargo.arg(fixtures::repository().join("Cargo.toml")).arg("--target-dir").arg(&target_folder);
        cache::build_once("package", &sources, &mut cargo);
        let version = concat!("rftrace-", env!("CARGO_PKG_VERSION"), ".crate");
        let package = target_folder.join("package").join(version);
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("ein Pfad mit Ümläuten");
        fs::create_dir(&parent).unwrap();
        // Cargo goes by the times of files, and those in packages are all the same: the files are as of now.
        tools::run(Command::new("tar").args(["--touch", "-xf"]).arg(&package).arg("-C").arg(&parent));
        let path = parent.join(package.file_stem().unwrap());
        Self { _folder: folder, _alone: alone, path }
    }

    /// Changes the tracer's source a little, so that it is built again. Returns the file.
    fn touch(&self) -> PathBuf {
        let source = self.path.join("staticlib/src/lib.rs");
        let old = fs::read_to_string(&source).unwrap();
        fs::write(&source, old + "// More.\n").unwrap();
        source
    }

    /// A cargo command for the package. Builds of one toolchain share a target folder, and with it the build
    /// script's dependencies.
    fn cargo(&self, toolchain: Option<&str>, arguments: &[&str]) -> Command {
        let mut cargo = cargo(toolchain);
        cargo.args(arguments).arg("--offline").current_dir(&self.path);
        cargo.arg("--target-dir").arg(target_folder(toolchain));
        cargo
    }
}

fn target_folder(toolchain: Option<&str>) -> PathBuf {
    build_folder("subbuild").join(toolchain.unwrap_or("default"))
}

/// Runs a cargo that prints JSON and returns the path of the archive that it built.
fn archive_of(cargo: &mut Command) -> PathBuf {
    let messages = tools::text(cargo.arg("--message-format=json"));
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = messages.filter(|message| message["reason"] == "build-script-executed");
    let of_tracer = built.find(|message| {
        message["package_id"].as_str().is_some_and(|id| id.contains("rftrace") && id.ends_with("0.3.3"))
    });
    let of_tracer = of_tracer.expect("the build script of rftrace ran");
    Path::new(of_tracer["out_dir"].as_str().unwrap()).join("librftrace_backend.a")
}

/// Runs a cargo that checks the package with sources that have just changed, and returns the code of the tracer.
///
/// Cargo runs no build script again only because flags or configuration files changed.
fn built_code(package: &Package, cargo: &mut Command) -> BTreeSet<Vec<u8>> {
    let source = package.touch();
    let archive = archive_of(cargo);
    let [of_source, of_archive] = [&source, &archive].map(|path| fs::metadata(path).unwrap().modified().unwrap());
    assert!(of_archive > of_source, "the tracer was not built again");
    code(&archive)
}

/// The code in an archive: the contents of all sections with instructions, without regard to their order.
fn code(archive: &Path) -> BTreeSet<Vec<u8>> {
    let data = fs::read(archive).unwrap();
    let mut sections = BTreeSet::new();
    for member in ArchiveFile::parse(&*data).unwrap().members() {
        let object = object::File::parse(member.unwrap().data(&*data).unwrap()).unwrap();
        let code = object.sections().filter(|section| section.kind() == SectionKind::Text);
        sections.extend(code.map(|section| section.data().unwrap().to_owned()));
    }
    assert!(sections.iter().map(Vec::len).sum::<usize>() > 1_000, "the archive has code");
    sections
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

#[test]
fn the_package_builds_alone_and_only_when_something_changed() {
    let package = Package::unpack();
    let before = files(&package.path);
    assert!(before.contains(&package.path.join("staticlib/src/lib.rs")));
    let archive = archive_of(&mut package.cargo(None, &["build"]));
    let built = fs::metadata(&archive).unwrap().modified().unwrap();
    assert_eq!(files(&package.path), before, "the build leaves nothing in the sources");

    let again = |message: &str| {
        let output = tools::run(&mut package.cargo(None, &["build", "--verbose"]));
        let text = stderr(&output);
        assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{message} rftrace "))), "{text}");
        fs::metadata(&archive).unwrap().modified().unwrap() > built
    };
    let append = |name: &str, text: &str| {
        let path = package.path.join(name);
        let old = fs::read_to_string(&path).unwrap();
        fs::write(&path, old + text).unwrap();
    };
    assert!(!again("Fresh"), "rebuilt without need");
    append("README.md", "More.\n");
    append("docs/architecture.md", "More.\n");
    assert!(!again("Fresh"), "rebuilt for a text");
    package.touch();
    assert!(again("Dirty"), "not rebuilt though its source changed");
    assert!(again("Fresh"));
}

#[test]
fn the_tracer_builds_without_a_network() {
    if !require(&["unshare"]) {
        return;
    }
    let mut unshare = Command::new("unshare");
    let permitted = unshare.args(["--net", "--map-root-user", "true"]).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return tools::skip("network namespaces are not permitted");
    }
    let package = Package::unpack();
    let cargo = package.cargo(None, &["build"]);
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--map-root-user"]).arg(cargo.get_program()).args(cargo.get_args());
    fixtures::without_settings(&mut unshare);
    assert!(archive_of(unshare.current_dir(&package.path)).exists());
}

#[test]
fn check_clippy_and_doc() {
    let package = Package::unpack();
    // docs.rs has no network and needs no archive. One of an earlier test may be there.
    let mut doc = package.cargo(None, &["doc", "--no-deps"]);
    let archive = archive_of(doc.env("DOCS_RS", "1"));
    let _ = fs::remove_file(&archive);
    package.touch();
    tools::run(&mut doc);
    assert!(!archive.exists());
    assert!(target_folder(None).join("doc/rftrace/abi/index.html").exists());
    assert_eq!(archive_of(&mut package.cargo(None, &["check"])), archive);
    assert!(archive.exists());
    let has_clippy = cargo(None).args(["clippy", "--version"]).output().is_ok_and(|output| output.status.success());
    if has_clippy {
        tools::run(package.cargo(None, &["clippy"]).args(["--", "-D", "warnings"]));
    } else {
        tools::missing("clippy");
    }
}

/// Settings that a program's developer may have, and that would break or slow down the tracer.
const CONFIG: &str = r#"
[build]
rustflags = ["-Z", "instrument-mcount", "-C", "target-cpu=native", "-C", "overflow-checks=on", "--cfg", "hostile"]

[target.x86_64-unknown-linux-gnu]
rustflags = ["-Z", "instrument-mcount", "-C", "target-cpu=native"]

[profile.release]
opt-level = 0
debug = true
overflow-checks = true
codegen-units = 16

[profile.dev]
opt-level = 1
"#;

#[test]
fn settings_of_the_program_do_not_reach_the_tracer() {
    if !require(&["nightly"]) {
        return;
    }
    let nightly = Some("nightly");
    let package = Package::unpack();
    let check = ["check", "--target", TARGET];
    let expected = built_code(&package, &mut package.cargo(nightly, &check));

    let elsewhere = tempfile::tempdir().unwrap();
    let mut by_variables = package.cargo(nightly, &check);
    by_variables.env("RUSTFLAGS", "-Z instrument-mcount -C target-cpu=native");
    by_variables.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Z instrument-mcount");
    by_variables.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "true");
    by_variables.env("CARGO_TARGET_DIR", elsewhere.path()).env("CARGO_BUILD_TARGET_DIR", elsewhere.path());
    by_variables.env("CARGO_BUILD_RUSTFLAGS", "-Z instrument-mcount").env("CARGO_INCREMENTAL", "1");
    assert_eq!(built_code(&package, &mut by_variables), expected, "variables");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "the target folder is that of the option");

    let mut encoded = package.cargo(nightly, &check);
    encoded.env("CARGO_ENCODED_RUSTFLAGS", "-Zinstrument-mcount\x1f-Ctarget-cpu=native");
    assert_eq!(built_code(&package, &mut encoded), expected, "encoded flags");

    // In the package's folder and above it, as in a workspace and in a home.
    for folder in [&*package.path, package.path.parent().unwrap()] {
        fs::create_dir(folder.join(".cargo")).unwrap();
        fs::write(folder.join(".cargo/config.toml"), CONFIG).unwrap();
        assert_eq!(built_code(&package, &mut package.cargo(nightly, &check)), expected, "configuration files");
    }
    // A wrapper around the compiler, as of a cache.
    let wrapper = elsewhere.path().join("wrapper");
    fs::write(&wrapper, "#!/bin/sh\ncase \"$*\" in *--crate-name\\ rftrace_backend*) exit 1;; esac\nexec \"$@\"\n")
        .unwrap();
    tools::run(Command::new("chmod").arg("+x").arg(&wrapper));
    let mut wrapped = package.cargo(nightly, &check);
    // Another flag, so that everything is built again.
    wrapped.env("RUSTC_WRAPPER", &wrapper).env("RUSTFLAGS", "--cfg wrapped");
    assert_eq!(built_code(&package, &mut wrapped), expected, "a wrapper");
}

/// Returns whether nightly has the sources of `core`.
fn require_sources() -> bool {
    if !require(&["nightly"]) {
        return false;
    }
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    let rustc = rustc.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "--print", "sysroot"]);
    let there = Path::new(tools::text(rustc).trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml").exists();
    if !there {
        tools::missing("component rust-src of nightly");
    }
    there
}

#[test]
fn build_std_of_the_program_does_not_reach_the_tracer() {
    if !require_sources() {
        return;
    }
    let package = Package::unpack();
    let check = ["check", "--target", TARGET];
    let expected = built_code(&package, &mut package.cargo(Some("nightly"), &check));
    // The sources of std have dependencies of their own, which a new cargo home has to fetch.
    let mut fetch = cargo(Some("nightly"));
    let sources = tools::text(Command::new("rustc").args(["+nightly", "--print", "sysroot"]));
    let library = Path::new(sources.trim()).join("lib/rustlib/src/rust/library/Cargo.toml");
    tools::text(fetch.args(["fetch", "--locked", "--manifest-path"]).arg(library));
    fs::create_dir(package.path.join(".cargo")).unwrap();
    fs::write(package.path.join(".cargo/config.toml"), "[unstable]\nbuild-std = [\"core\"]\n").unwrap();
    assert_eq!(built_code(&package, &mut package.cargo(Some("nightly"), &check)), expected);
}

/// The feature `buildcore`, for a target that rustup has no library for: one that somebody has written down.
#[test]
fn the_tracer_can_bring_its_own_core() {
    if !require_sources() || !require(&["objdump"]) {
        return;
    }
    let package = Package::unpack();
    let mut rustc = Command::new("rustc");
    fixtures::without_settings(&mut rustc);
    rustc.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "-Z", "unstable-options"]);
    rustc.args(["--print", "target-spec-json", "--target", "x86_64-unknown-none"]);
    let specification = package.path.join("kernel target.json");
    // It would have to be the builtin target otherwise.
    let json = tools::text(&mut rustc).replace("\"is-builtin\": true", "\"is-builtin\": false");
    fs::write(&specification, json).unwrap();
    let mut check = package.cargo(Some("nightly"), &["check", "--features", "buildcore"]);
    let archive = archive_of(check.env("RFTRACE_TARGET_TRIPLE", &specification));
    assert_eq!(vector_instructions(&archive), <[&str; 0]>::default());
}

/// Other build scripts find the archive: that of a kernel links it itself.
#[test]
fn dependents_are_told_the_path() {
    let package = Package::unpack();
    let dependent = package.path.parent().unwrap().join("dependent");
    fs::create_dir_all(dependent.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"dependent\"\nedition = \"2024\"\n[dependencies]\nrftrace.path = \"../{}\"\n[workspace]\n",
        package.path.file_name().unwrap().display()
    );
    fs::write(dependent.join("Cargo.toml"), manifest).unwrap();
    fs::copy(package.path.join("Cargo.lock"), dependent.join("Cargo.lock")).unwrap();
    fs::write(dependent.join("src/lib.rs"), "").unwrap();
    let script = r#"fn main() {
        let archive = std::env::var("DEP_RFTRACE_ARCHIVE").unwrap();
        assert!(std::path::Path::new(&archive).is_file(), "{archive}");
    }"#;
    fs::write(dependent.join("build.rs"), script).unwrap();
    tools::run(package.cargo(None, &["check"]).current_dir(&dependent));
}

/// The errors of a build that must fail.
fn errors(cargo: &mut Command) -> Vec<String> {
    let output = cargo.stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    stderr(&output).lines().filter(|line| line.starts_with("error: rftrace")).map(str::to_owned).collect()
}

#[test]
fn a_missing_target_is_one_error_with_what_to_do() {
    let package = Package::unpack();
    // Nobody has the library of this one installed for a test.
    let target = "sparcv9-sun-solaris";
    let errors = errors(package.cargo(None, &["check"]).env("RFTRACE_TARGET_TRIPLE", target));
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains(&format!("the tracer is built for {target}, and this toolchain has no library")));
    assert!(errors[0].contains(&format!(": rustup target add {target}")), "{}", errors[0]);
    assert!(errors[0].contains("`buildcore`"), "{}", errors[0]);
}

#[test]
fn an_unknown_target_is_an_error() {
    let package = Package::unpack();
    let unknown = errors(package.cargo(None, &["check"]).env("RFTRACE_TARGET_TRIPLE", "no-such-target"));
    assert!(unknown[0].contains("the tracer could not be built for no-such-target"), "{unknown:#?}");
    let file = errors(package.cargo(None, &["check"]).env("RFTRACE_TARGET_TRIPLE", "/no/such/target.json"));
    assert!(file[0].contains("RFTRACE_TARGET_TRIPLE names the target specification /no/such/target.json"), "{file:#?}");
}

/// A toolchain that has the library of a target: that of the test or nightly.
fn toolchain_with(target: &str) -> Option<Option<&'static str>> {
    [None, Some("nightly")].into_iter().find(|toolchain| {
        let mut rustc = Command::new("rustc");
        fixtures::without_settings(&mut rustc);
        if let Some(toolchain) = toolchain {
            rustc.env_remove("RUSTUP_TOOLCHAIN").arg(format!("+{toolchain}"));
        }
        let output = rustc.args(["--print", "target-libdir", "--target", target]).output().unwrap();
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        fs::read_dir(folder)
            .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
    })
}

/// Instructions of a disassembly that use a register of x87, MMX, SSE or AVX.
fn vector_instructions(archive: &Path) -> Vec<String> {
    let text = tools::text(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(archive));
    assert!(text.contains("<mcount>:"), "the disassembly has the hooks");
    let is_vector = |line: &&str| {
        let registers = ["%xmm", "%ymm", "%zmm", "%mm", "%st", "%k0", "%k1"];
        let mnemonic = line.split('\t').nth(1).unwrap_or_default().trim();
        let mnemonics = ["fld", "fst", "fxsave", "fxrstor", "xsave", "xrstor", "vzero", "ldmxcsr", "stmxcsr", "fninit"];
        registers.iter().any(|register| line.contains(register))
            || mnemonics.iter().any(|prefix| mnemonic.starts_with(prefix))
    };
    text.lines().filter(is_vector).map(str::to_owned).collect()
}

#[test]
fn kernels_get_a_tracer_without_vector_instructions() {
    if !require(&["objdump"]) {
        return;
    }
    let target = "x86_64-unknown-none";
    let Some(toolchain) = toolchain_with(target) else {
        return tools::missing("library of x86_64-unknown-none");
    };
    let package = Package::unpack();
    let mut archives = Vec::new();
    for (features, needed) in [
        ("", &[][..]),
        ("interruptsafe", &[]),
        ("threadhook", &["rftrace_thread_area"]),
        ("interruptsafe,threadhook", &["rftrace_thread_area"]),
    ] {
        let mut check = package.cargo(toolchain, &["check", "--features", features]);
        let archive = archive_of(check.env("RFTRACE_TARGET_TRIPLE", target));
        assert_eq!(vector_instructions(&archive), <[&str; 0]>::default(), "{features:?}");
        let undefined = symbols(&archive, |symbol| object::ObjectSymbol::is_undefined(symbol));
        let undefined: Vec<_> =
            undefined.iter().filter(|name| !name.is_empty() && *name != "_GLOBAL_OFFSET_TABLE_").collect();
        assert_eq!(undefined, needed, "{features:?}");
        archives.push(code(&archive));
    }
    assert!(
        archives.iter().enumerate().all(|(i, code)| !archives[..i].contains(code)),
        "the features make a difference"
    );
    // The same test finds those of a program's tracer.
    let ordinary = archive_of(&mut package.cargo(toolchain, &["check"]));
    assert!(!vector_instructions(&ordinary).is_empty());
}

#[test]
fn kernels_of_aarch64_get_a_tracer_without_vector_instructions() {
    if !require(&["aarch64-linux-gnu-objdump"]) {
        return;
    }
    let target = "aarch64-unknown-none-softfloat";
    let Some(toolchain) = toolchain_with(target) else {
        return tools::missing("library of aarch64-unknown-none-softfloat");
    };
    // An instruction whose operands name one.
    let vectors = |archive: &Path| {
        let text =
            tools::text(Command::new("aarch64-linux-gnu-objdump").args(["-d", "--no-show-raw-insn"]).arg(archive));
        assert!(text.contains("mcount>:"), "the disassembly has the hooks");
        let is_vector = |operand: &str| {
            let (kind, number) = operand.split_at_checked(1).unwrap_or_default();
            "bhsdqv".contains(kind) && number.split('.').next().is_some_and(|number| number.parse::<u8>().is_ok())
        };
        // Targets of jumps look the same, but have a name behind them.
        let operands = text.lines().filter_map(|line| line.split('\t').nth(2)).flat_map(|operands| operands.split(','));
        operands
            .filter(|operand| !operand.contains('<'))
            .any(|operand| operand.split(['[', ']', '{', '}', ' ', '-']).any(is_vector))
    };
    let package = Package::unpack();
    for features in ["", "interruptsafe"] {
        let mut check = package.cargo(toolchain, &["check", "--features", features]);
        let archive = archive_of(check.env("RFTRACE_TARGET_TRIPLE", target));
        assert!(!vectors(&archive), "{features:?}");
        let undefined = symbols(&archive, |symbol| object::ObjectSymbol::is_undefined(symbol));
        assert_eq!(undefined.iter().find(|name| !name.is_empty()), None, "{features:?}");
        let exported = symbols(&archive, |symbol| {
            object::ObjectSymbol::is_global(symbol) && object::ObjectSymbol::is_definition(symbol)
        });
        let own = |name: &&String| name.starts_with("rftrace_") || ["mcount", "_mcount"].contains(&name.as_str());
        assert!(exported.contains("mcount") && exported.iter().all(|name| own(&name)), "{exported:?}");
    }
    let mut threadhook = package.cargo(toolchain, &["check", "--features", "threadhook"]);
    let errors = errors(threadhook.env("RFTRACE_TARGET_TRIPLE", target));
    let said = "the feature `threadhook` is for kernels of x86-64";
    assert!(errors.iter().any(|error| error.contains(said)), "{errors:#?}");
    // The same test finds those of a program's tracer.
    let linux = "aarch64-unknown-linux-gnu";
    if let Some(toolchain) = toolchain_with(linux) {
        assert!(vectors(&archive_of(package.cargo(toolchain, &["check"]).env("RFTRACE_TARGET_TRIPLE", linux))));
    }
}

/// Nobody but programs has gprof's start-up code.
#[test]
fn kernels_get_no_symbols_of_gprof() {
    let target = "x86_64-unknown-none";
    let Some(toolchain) = toolchain_with(target) else {
        return tools::missing("library of x86_64-unknown-none");
    };
    let package = Package::unpack();
    let archive = archive_of(package.cargo(toolchain, &["check"]).env("RFTRACE_TARGET_TRIPLE", target));
    let exported = symbols(&archive, |symbol| {
        object::ObjectSymbol::is_global(symbol) && object::ObjectSymbol::is_definition(symbol)
    });
    assert!(exported.contains("mcount") && exported.contains("__fentry__"), "{exported:?}");
    let foreign = |name: &&String| !name.starts_with("rftrace_") && *name != "mcount" && *name != "__fentry__";
    assert_eq!(exported.iter().find(foreign), None);
}
