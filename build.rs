//! Builds the tracer (`staticlib/`) apart from the program and links it.
//!
//! The tracer must not be instrumented, must not share symbols with the program's copy of `core`, and may be built for
//! another target. So it is compiled by a cargo of its own that sees nothing of the outer build: no flags, no
//! configuration files, no profiles. The result is one object file (a library crate whose code is all reachable from
//! its exported functions needs no other object, not even `core`'s), which goes into an archive.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Everything that the tracer is made of, relative to the package.
const SOURCES: [&str; 2] = ["staticlib", "src/abi"];

/// The target of the tracer for Hermit programs, whose kernel may be traced too: its code uses no vector registers. Rustup
/// has no library for Hermit itself.
fn kernel_target(hermit: &str) -> &'static str {
    if hermit.starts_with("aarch64") { "aarch64-unknown-none-softfloat" } else { "x86_64-unknown-none" }
}

/// Features that change the tracer's code.
const TRACER_FEATURES: [&str; 2] = ["interruptsafe", "threadhook"];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-env-changed=RFTRACE_TARGET_TRIPLE");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let docs_only = env::var_os("DOCS_RS").is_some();
    if docs_only {
        return ExitCode::SUCCESS;
    }
    // This script may be instrumented as well, by the program's flags: gprof then leaves a file where it ends.
    let _ = env::set_current_dir(cargo_var("OUT_DIR"));
    let backend = if has_feature("backend") { Backend::from_env().build() } else { Ok(()) };
    let is_for = |part: &str, wanted: &str| cargo_var(&format!("CARGO_CFG_TARGET_{part}")) == wanted;
    let has_outside = has_feature("outside") && is_for("OS", "linux") && is_for("ARCH", "x86_64");
    let built = backend.and_then(|()| if has_outside { Backend::outside().build_image() } else { Ok(()) });
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn has_feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some()
}

/// A variable that cargo sets for every build script.
fn cargo_var(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}

/// The built package, and its place.
struct Backend {
    package: PathBuf,
    /// Holds the generated package, its target folder, the object and the archive.
    out: PathBuf,
    /// A triple, or the path of a target specification.
    target: String,
    build_core: bool,
    /// The features of this package that the tracer has too.
    features: Vec<&'static str>,
}

impl Backend {
    fn from_env() -> Self {
        let outer = cargo_var("TARGET").to_string_lossy().into_owned();
        let is_hermit = outer.contains("hermit");
        let target = match env::var("RFTRACE_TARGET_TRIPLE") {
            Ok(target) if !target.is_empty() => target,
            _ if is_hermit => kernel_target(&outer).to_owned(),
            _ => outer,
        };
        Self {
            package: cargo_var("CARGO_MANIFEST_DIR").into(),
            out: cargo_var("OUT_DIR").into(),
            target,
            build_core: has_feature("buildcore"),
            // Hermit's handlers return with `iretq`. Without the feature a traced one crashes.
            features: TRACER_FEATURES
                .into_iter()
                .filter(|&name| has_feature(name) || is_hermit && name == "interruptsafe")
                .collect(),
        }
    }

    /// The one that is put into processes from outside.
    fn outside() -> Self {
        Self {
            package: cargo_var("CARGO_MANIFEST_DIR").into(),
            out: PathBuf::from(cargo_var("OUT_DIR")).join("outside"),
            target: cargo_var("TARGET").to_string_lossy().into_owned(),
            build_core: has_feature("buildcore"),
            features: vec!["outside"],
        }
    }

    /// Builds it, and links it by itself, as a library that needs no other one. Who depends on this package finds it by its metadata `outside`.
    fn build_image(&self) -> Result<(), String> {
        /// Segments begin at pages of their own, code is not written to, and nothing of it is to be found elsewhere.
        const ARGUMENTS: [&str; 10] = [
            "-shared",
            "-nostdlib",
            "-Wl,-z,text",
            "-Wl,-z,norelro",
            "-Wl,-z,noexecstack",
            "-Wl,-z,separate-code",
            "-Wl,-z,max-page-size=4096",
            "-Wl,-Bsymbolic",
            "-Wl,--build-id",
            "-Wl,--strip-all",
        ];

        let manifest = self.write_manifest()?;
        let (object, image) = (self.out.join("rftrace_outside.o"), self.out.join("rftrace_outside.so"));
        self.compile(&manifest, &object)?;
        let mut linker = cc::Build::new().cargo_warnings(false).get_compiler().to_command();
        linker.args(ARGUMENTS).arg("-o").arg(&image).arg(&object);
        let output = linker.output().map_err(|e| format!("cannot start {}: {e}", linker.get_program().display()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the tracer for processes without library could not be linked:\n{text}"));
        }
        println!("cargo::metadata=outside={}", image.display());
        Ok(())
    }

    fn build(&self) -> Result<(), String> {
        if self.target.ends_with(".json") {
            let path = Path::new(&self.target);
            if !path.is_file() {
                return Err(format!(
                    "RFTRACE_TARGET_TRIPLE names the target specification {}, which is not there; give an absolute path",
                    path.display()
                ));
            }
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let manifest = self.write_manifest()?;
        let object = self.out.join("rftrace_backend.o");
        self.compile(&manifest, &object)?;
        self.archive(&object);
        Ok(())
    }

    /// The tracer's package is generated: a folder with a manifest would be left out of the published crate.
    fn write_manifest(&self) -> Result<PathBuf, String> {
        let template = self.package.join("staticlib/manifest.toml");
        #[allow(clippy::disallowed_methods, reason = "a file of this package")]
        let read = fs::read_to_string(&template).map_err(|e| format!("cannot read {}: {e}", template.display()))?;
        let library = self.package.join("staticlib/src/lib.rs");
        let library = library
            .to_str()
            .ok_or_else(|| format!("the path {} is not Unicode, which cargo's manifests need", library.display()))?;
        let folder = self.out.join("package");
        let manifest = folder.join("Cargo.toml");
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&manifest, format!("{read}\n[lib]\npath = {library:?}\n")))
            .map_err(|e| format!("cannot write {}: {e}", manifest.display()))?;
        Ok(manifest)
    }

    fn compile(&self, manifest: &Path, object: &Path) -> Result<(), String> {
        let mut cargo = isolated_cargo(&self.out, self.build_core)?;
        cargo.args(["rustc", "--release", "--lib"]);
        cargo.arg("--manifest-path").arg(manifest);
        cargo.arg("--target-dir").arg(self.out.join("target"));
        cargo.args(["--target", &self.target]);
        cargo.arg("--features").arg(self.features.join(","));
        if self.build_core {
            cargo.args(["-Z", "build-std=core"]);
        } else {
            cargo.arg("--offline");
        }
        if self.target.ends_with(".json") {
            cargo.args(["-Z", "json-target-spec"]);
        }
        let mut emit = OsString::from("--emit=obj=");
        emit.push(object);
        cargo.arg("--").arg(emit);
        if self.target.starts_with("aarch64") {
            // The object calls functions that choose between kinds of atomic instructions: its own, see staticlib/src/arch/aarch64_atomics.rs.
            cargo.args(["-C", "target-feature=+outline-atomics"]);
        }

        // An object of an earlier build must not be taken for this one's; without it cargo has to compile again.
        let _ = fs::remove_file(object);
        let _ = fs::remove_dir_all(self.out.join("target"));
        let output = cargo.output().map_err(|e| format!("cannot start {}: {e}", cargo.get_program().display()))?;
        let text = String::from_utf8_lossy(&output.stderr);
        eprintln!("{text}");
        if output.status.success() && object.is_file() {
            return Ok(());
        }
        let toolchain = env::var("RUSTUP_TOOLCHAIN").map_or(String::new(), |name| format!(" --toolchain {name}"));
        let target = &self.target;
        if text.contains("error[E0463]") {
            return Err(format!(
                "the tracer is built for {target}, and this toolchain has no library for that target: \
                 rustup target add {target}{toolchain} (or, with nightly and rust-src, the feature `buildcore` of rftrace)"
            ));
        }
        if self.build_core && (text.contains("rust-src") || text.contains("library/Cargo.lock")) {
            return Err(format!(
                "the feature `buildcore` compiles core from source, which this toolchain does not have: \
                 rustup component add rust-src{toolchain}"
            ));
        }
        if self.build_core && text.contains("nightly") {
            return Err("the feature `buildcore` needs a nightly toolchain: cargo +nightly …".to_owned());
        }
        Err(format!("the tracer could not be built for {target} ({}):\n{text}", output.status))
    }

    /// Puts the object into an archive, which `cc` also tells cargo to link.
    fn archive(&self, object: &Path) {
        println!("cargo::metadata=archive={}", self.out.join("librftrace_backend.a").display());
        cc::Build::new().cargo_warnings(false).object(object).out_dir(&self.out).compile("rftrace_backend");
    }
}

/// The cargo that runs this script, without anything that the outer build was told.
fn isolated_cargo(out: &Path, build_core: bool) -> Result<Command, String> {
    let mut cargo = Command::new(cargo_var("CARGO"));
    for (name, _) in env::vars_os() {
        if is_build_setting(&name) {
            cargo.env_remove(name);
        }
    }
    // The toolchain stays the one that builds the program. An empty list of flags still wins over configuration files.
    cargo.env("RUSTC", cargo_var("RUSTC"));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "");
    // Cargo reads the configuration of the folder it is started in and of all folders above.
    let root = out.ancestors().last().unwrap_or(Path::new("/"));
    cargo.current_dir(root);
    // And that of its home. Without dependencies nothing there is needed; the sources of `core` may have some.
    if !build_core {
        let home = out.join("cargo-home");
        fs::create_dir_all(&home).map_err(|e| format!("cannot create {}: {e}", home.display()))?;
        cargo.env("CARGO_HOME", home);
    } else if let Some(home) = env::var_os("CARGO_HOME") {
        cargo.env("CARGO_HOME", home);
    }
    Ok(cargo)
}

/// True if a variable tells cargo or rustc how to build. The variables with rustup's folders are none of these.
fn is_build_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let kept = ["RUSTUP_HOME", "RUSTUP_TOOLCHAIN"].contains(&&*name);
    let settings = ["CARGO", "RUST", "DEP_", "CLIPPY_", "RUSTDOC"];
    let single = ["TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG", "NUM_JOBS", "OUT_DIR", "MAKEFLAGS"];
    !kept && (settings.iter().any(|prefix| name.starts_with(prefix)) || single.contains(&&*name))
}
