//! The ways to build a program, and to have its calls recorded: by itself, by `rftrace record` from its start, by `rftrace record -p` while it
//! runs, or by uftrace.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::cache::compile;
use crate::fixtures::{self, MUSL, aarch64, riscv64};
use crate::recorder::{aarch64_recorder, record_by, rftrace};
use crate::{CProgram, Run, require};

/// A way to build and run programs.
#[derive(Debug)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// The recorder.
    pub(super) by: By,
    compiler: Compiler,
    /// The compiler's arguments for C and C++.
    arguments: &'static [&'static str],
    /// The same for Rust, if there are any.
    rust: Option<&'static [&'static str]>,
    /// The recorder's options.
    recorder: &'static [&'static str],
    /// The options that apply: `plain`, or further ones of the recorder. For programs that trace themselves: `patched`.
    pub options: &'static [&'static str],
}

/// The recorder of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Itself,
    Recorder,
    Attach,
    /// The other tracer, whose traces must have the same calls.
    Uftrace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    Gcc,
    Clang,
    Musl,
    /// Programs run in qemu-user.
    Aarch64,
    Riscv64,
}

const PLAIN: &[&str] = &["plain"];
/// With calls of the hook, and with call sites that are switched.
const SITES: &[&str] = &["plain", "patched"];
const PATCHED: &[&str] = &["plain", "--patched"];
const KEPT: &[&str] = &["plain", "--ring"];
const BUFFERS: &[&str] = &["plain", "--ring", "--stop", "--patched", "--buffer 64K", "--libcalls"];
const ENDS: &[&str] = &["plain", "--ring", "--ends exits", "--ends returns"];

const ALL_BRANCHES: &[&str] = &["-P", "*"];

const fn new(name: &'static str, by: By, compiler: Compiler, arguments: &'static [&'static str]) -> Way {
    Way { name, by, compiler, arguments, rust: None, recorder: &[], options: PLAIN }
}

const fn itself(name: &'static str, compiler: Compiler, arguments: &'static [&'static str]) -> Way {
    new(name, By::Itself, compiler, arguments)
}

/// From its start.
const fn record(name: &'static str, arguments: &'static [&'static str]) -> Way {
    new(name, By::Recorder, Compiler::Gcc, arguments)
}

/// While it runs.
const fn attach(name: &'static str, arguments: &'static [&'static str]) -> Way {
    new(name, By::Attach, Compiler::Gcc, arguments)
}

impl Way {
    const fn by(mut self, compiler: Compiler) -> Self {
        self.compiler = compiler;
        self
    }

    const fn rust(mut self, arguments: &'static [&'static str]) -> Self {
        self.rust = Some(arguments);
        self
    }

    const fn branches(mut self) -> Self {
        self.recorder = ALL_BRANCHES;
        self
    }

    const fn libcalls(mut self) -> Self {
        self.recorder = &["--libcalls"];
        self
    }

    const fn with(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }
}

/// All.
pub const WAYS: &[Way] = &[
    itself("x86-64", Compiler::Gcc, &["-pg", "-O1"]).with(SITES),
    itself("x86-64-unoptimised", Compiler::Gcc, &["-pg", "-O0"]),
    itself("x86-64-small", Compiler::Gcc, &["-pg", "-Os"]),
    itself("x86-64-fast", Compiler::Gcc, &["-pg", "-O3"]),
    itself("fentry-unoptimised", Compiler::Gcc, &["-pg", "-O0", "-mfentry"]),
    itself("fentry-landing", Compiler::Gcc, &["-pg", "-O2", "-mfentry", "-fcf-protection=full"]),
    itself("fentry-static", Compiler::Gcc, &["-pg", "-O2", "-mfentry", "-static"]),
    itself("fentry-no-pie", Compiler::Gcc, &["-pg", "-O2", "-mfentry", "-no-pie"]),
    itself("fentry", Compiler::Gcc, &["-pg", "-O2", "-mfentry"]).with(SITES),
    itself("static", Compiler::Gcc, &["-pg", "-O1", "-static"]).with(SITES),
    itself("static-pie", Compiler::Gcc, &["-pg", "-O2", "-mfentry", "-static-pie"]).with(SITES),
    itself("no-pie", Compiler::Gcc, &["-pg", "-O1", "-no-pie"]).with(SITES),
    itself("no-plt", Compiler::Gcc, &["-pg", "-O2", "-fno-plt"]).with(SITES),
    itself("aarch64", Compiler::Aarch64, &["-pg", "-O1"]),
    itself("aarch64-static", Compiler::Aarch64, &["-pg", "-O2", "-static", PROTECTED]),
    itself("aarch64-entries", Compiler::Aarch64, &["-O1", "-fpatchable-function-entry=2"]),
    itself("aarch64-entries-static", Compiler::Aarch64, &["-O2", "-static", PROTECTED, "-fpatchable-function-entry=2"]),
    itself("riscv64", Compiler::Riscv64, &["-pg", "-O1"]),
    itself("riscv64-static", Compiler::Riscv64, &["-pg", "-O2", "-static", "-Wl,--no-relax"]),
    // Functions that call the hook.
    record("record-hook", &["-pg", "-O1"]).rust(&["-Zinstrument-mcount"]).with(BUFFERS),
    record("record-hook-fentry", &["-pg", "-O2", "-mfentry"]).with(PATCHED),
    record("record-hook-unoptimised", &["-pg", "-O0"]),
    record("record-hook-own-unwinder", &["-pg", "-O1", "-static-libgcc", "-static-libstdc++"]).with(PATCHED),
    // Functions with room for a branch, or with sleds.
    record("record-room", &["-O2", "-fpatchable-function-entry=5"]),
    record("record-room-landing", &["-O2", "-fpatchable-function-entry=5", "-fcf-protection=full"]),
    record("record-room-before", &["-O2", "-fpatchable-function-entry=16,11", "-no-pie", "-fno-pie"]),
    // Too little, and none of it within the function: first instructions are displaced, as without.
    record("record-room-short", &["-O2", "-fpatchable-function-entry=2"]),
    record("record-room-outside", &["-O2", "-fpatchable-function-entry=4,4"]),
    record("record-room-nops", &["-O2", "-pg", "-mfentry", "-mrecord-mcount", "-mnop-mcount", "-no-pie", "-fno-pie"]),
    record("record-sleds", &["-O2", XRAY, ALL_SLEDS, WITHOUT_RUNTIME]).by(Compiler::Clang).with(KEPT),
    record("record-sleds-no-pie", &["-O2", XRAY, ALL_SLEDS, WITHOUT_RUNTIME, "-no-pie", "-fno-pie"])
        .by(Compiler::Clang),
    // LLVM's runtime is in the program, and does nothing.
    record("record-sleds-runtime", &["-O2", XRAY, ALL_SLEDS]).by(Compiler::Clang),
    // Functions that know nothing of it.
    record("record-branches", &["-O2", ALIGNED]).rust(&[]).branches().with(ENDS),
    record("record-branches-unaligned", &["-O2"]).branches().with(ENDS),
    record("record-branches-no-pie", &["-O2", ALIGNED, "-no-pie", "-fno-pie"]).branches().with(ENDS),
    record("record-branches-landing", &["-O2", "-fcf-protection=full"]).branches(),
    record("record-branches-no-plt", &["-O2", ALIGNED, "-fno-plt"]).branches(),
    record("record-branches-own-unwinder", &["-O1", ALIGNED, "-static-libgcc", "-static-libstdc++"]).branches(),
    record("record-branches-clang", &["-O0"]).by(Compiler::Clang).branches(),
    // Calls of libraries' functions, by what fills and uses slots.
    record("record-calls-lazy", &["-O2", "-Wl,-z,lazy"]).libcalls(),
    record("record-calls-now", &["-O2", "-Wl,-z,now"]).libcalls(),
    record("record-calls-no-plt", &["-O2", "-fno-plt", "-Wl,-z,now"]).libcalls(),
    record("record-calls-no-pie", &["-O2", "-no-pie", "-fno-pie", "-Wl,-z,lazy"]).libcalls(),
    // Nothing can be loaded into these.
    record("record-outside-static", &["-pg", "-O1", "-static"]).with(KEPT),
    record("record-outside-static-pie", &["-pg", "-O1", "-static-pie"]).rust(&["--target", MUSL]).with(KEPT),
    record("record-outside-fentry", &["-pg", "-O1", "-mfentry", "-static"]),
    record("record-outside-musl-static", &["-pg", "-O1", "-static"]).by(Compiler::Musl).rust(&[
        "--target",
        MUSL,
        "-Crelocation-model=static",
    ]),
    record("record-outside-musl", &["-pg", "-O1"]).by(Compiler::Musl).rust(&["--target", MUSL, "-Cstrip=debuginfo"]),
    record("record-outside-branches-static", &["-O1", ALIGNED, "-static"]).branches(),
    record("record-outside-branches-static-pie", &["-O1", ALIGNED, "-static-pie"]).branches(),
    record("record-outside-branches-musl-static", &["-O1", ALIGNED, "-static"]).by(Compiler::Musl).branches(),
    record("record-outside-branches-musl", &["-O1", ALIGNED]).by(Compiler::Musl).branches(),
    record("record-aarch64-hook", &["-pg", "-O1"]).by(Compiler::Aarch64).rust(&["-Zinstrument-mcount"]).with(BUFFERS),
    record("record-aarch64-hook-protected", &["-pg", "-O1", PROTECTED]).by(Compiler::Aarch64),
    record("record-aarch64-room", &["-O1", "-fpatchable-function-entry=2", PROTECTED])
        .by(Compiler::Aarch64)
        .rust(&["-Zpatchable-function-entry=2"])
        .with(KEPT),
    record("record-aarch64-branches", &["-O1", UNPROTECTED]).by(Compiler::Aarch64).rust(&[]).branches(),
    record("record-aarch64-branches-protected", &["-O1", PROTECTED]).by(Compiler::Aarch64).branches().with(KEPT),
    record("record-aarch64-calls-lazy", &["-O2", "-Wl,-z,lazy", PROTECTED]).by(Compiler::Aarch64).libcalls(),
    record("record-aarch64-calls-now", &["-O2", "-Wl,-z,now", UNPROTECTED]).by(Compiler::Aarch64).libcalls(),
    record("record-aarch64-calls-no-pie", &["-O2", "-no-pie", "-fno-pie", "-Wl,-z,lazy"])
        .by(Compiler::Aarch64)
        .libcalls(),
    record("record-aarch64-calls-no-plt", &["-O2", "-fno-plt", "-Wl,-z,now"]).by(Compiler::Aarch64).libcalls(),
    attach("attach-hook", &["-pg", "-O1"]).with(PATCHED),
    attach("attach-hook-fentry", &["-pg", "-O1", "-mfentry", "-no-pie", "-fno-pie"]),
    attach("attach-branches", &["-O1", ALIGNED]).branches().with(ENDS),
    attach("attach-sleds", &["-O0", XRAY, ALL_SLEDS, WITHOUT_RUNTIME]).by(Compiler::Clang).branches(),
    attach("attach-sleds-no-pie", &["-O0", XRAY, ALL_SLEDS, WITHOUT_RUNTIME, "-no-pie", "-fno-pie"])
        .by(Compiler::Clang)
        .branches(),
    attach("attach-outside-static", &["-pg", "-O1", "-static"]).with(KEPT),
    attach("attach-outside-static-pie", &["-pg", "-O1", "-static-pie"]),
    attach("attach-outside-fentry", &["-pg", "-O1", "-mfentry", "-static"]),
    attach("attach-outside-musl-static", &["-pg", "-O1", "-static"]).by(Compiler::Musl),
    attach("attach-outside-musl", &["-pg", "-O1"]).by(Compiler::Musl),
    attach("attach-outside-branches-static", &["-O1", ALIGNED, "-static"]).branches(),
    attach("attach-outside-branches-static-pie", &["-O1", ALIGNED, "-static-pie"]).branches(),
    attach("attach-outside-branches-musl-static", &["-O1", ALIGNED, "-static"]).by(Compiler::Musl).branches(),
    attach("attach-outside-branches-musl", &["-O1", ALIGNED]).by(Compiler::Musl).branches(),
    new("uftrace", By::Uftrace, Compiler::Gcc, &["-pg", "-O1"]),
];

/// Code for aarch64 with landing pads that signs its return addresses, and code without.
const PROTECTED: &str = "-mbranch-protection=standard";
const UNPROTECTED: &str = "-mbranch-protection=none";
/// Short functions have room for a branch then.
const ALIGNED: &str = "-falign-functions=16";
const XRAY: &str = "-fxray-instrument";
/// All functions have sleds.
const ALL_SLEDS: &str = "-fxray-instruction-threshold=1";
const WITHOUT_RUNTIME: &str = "-fnoxray-link-deps";

impl Way {
    /// True if the way is for programs of such a language.
    pub(super) fn is_for(&self, source: &str) -> bool {
        match source.rsplit_once('.') {
            Some((_, "rs")) => self.rust.is_some(),
            Some((_, "cpp")) => self.compiler != Compiler::Musl,
            _ => true,
        }
    }

    /// Returns whether all is there that the way needs for a program; if not, the test should return.
    ///
    /// # Panics
    ///
    /// As [`tools::require`](crate::tools::require).
    #[must_use]
    pub fn require(&self, source: &str) -> bool {
        let is_rust = source.ends_with(".rs");
        let has_tools = match (self.compiler, self.by) {
            (Compiler::Aarch64, By::Itself) => aarch64::require(),
            (Compiler::Aarch64, _) => aarch64::require_machine(),
            (Compiler::Riscv64, _) => riscv64::require(),
            (_, By::Uftrace) => require(&["gcc", "g++", "uftrace"]),
            (Compiler::Clang, _) => require(&["clang", "clang++"]),
            _ if is_rust => fixtures::has_rust_for_musl(),
            (Compiler::Gcc, _) => require(&["gcc", "g++"]),
            (Compiler::Musl, _) => require(&["musl-gcc"]),
        };
        has_tools && (!is_rust || require(&["nightly"]))
    }

    /// Builds a program.
    pub(super) fn build(&self, source: &str, further: &[&str]) -> PathBuf {
        if source.ends_with(".rs") {
            return self.build_rust(source, further);
        }
        let program = CProgram::new(&[source]).without_hooks().with(self.arguments).with(further);
        let with_library = |program: CProgram, library: &Path| {
            let library = library.to_str().expect("a path of UTF-8");
            program.with(&[library, "-lpthread", "-ldl", "-lm"])
        };
        let is_alone = self.by != By::Itself;
        match self.compiler {
            Compiler::Gcc if is_alone => program.without_library().cached("program"),
            Compiler::Gcc => program.cached("program"),
            Compiler::Clang => program.by_clang().with(&["-Wno-unknown-attributes"]).cached("program"),
            Compiler::Musl => {
                let folder = fixtures::folder("c");
                let mut gcc = Command::new("musl-gcc");
                gcc.args(["-g", "-w", "-I"]).arg(&folder).arg(folder.join(source)).arg(folder.join("mcount.s"));
                compile(gcc.args(self.arguments).args(further), "program")
            }
            Compiler::Aarch64 if is_alone => program.with_compilers(aarch64::PREFIX).cached("program"),
            Compiler::Aarch64 => {
                with_library(program.with_compilers(aarch64::PREFIX), aarch64::c_library()).cached("program")
            }
            Compiler::Riscv64 => {
                with_library(program.with_compilers(riscv64::PREFIX), riscv64::c_library()).cached("program")
            }
        }
    }

    fn build_rust(&self, source: &str, further: &[&str]) -> PathBuf {
        let options = self.rust.expect("a way for Rust");
        let mut rustc = fixtures::rustc(Some("nightly"), source);
        rustc.arg("-O").args(options).args(further);
        if options.contains(&MUSL) {
            let hook = compile(Command::new("gcc").arg("-c").arg(fixtures::folder("c").join("mcount.s")), "mcount.o");
            rustc.arg("-Zinstrument-mcount").arg(format!("-Clink-arg={}", hook.display()));
        }
        if self.compiler == Compiler::Aarch64 {
            rustc.args(["--target", aarch64::TARGET]).arg(format!("-Clinker={}gcc", aarch64::PREFIX));
        }
        compile(&mut rustc, source.trim_end_matches(".rs"))
    }

    /// The options of the recorder: its own, those of the way's option, and further ones.
    pub(super) fn options<'o>(&self, option: &'static str, further: &[&'o str]) -> Vec<&'o str> {
        let own = self.recorder.iter().copied().chain(option.split(' ').filter(|&word| word != "plain"));
        own.chain(further.iter().copied()).collect()
    }

    /// Returns a command that runs the program without a recorder.
    pub(super) fn plain(&self, program: &Path) -> Command {
        match (self.compiler, self.by) {
            (Compiler::Aarch64, By::Itself) => aarch64::emulator("max", program),
            (Compiler::Aarch64, _) => aarch64::machine(program),
            (Compiler::Riscv64, _) => riscv64::emulator(program),
            _ => Command::new(program),
        }
    }

    /// Runs the program, and leaves a trace.
    pub(super) fn run(&self, program: &Path, option: &'static str, further: &[&str], arguments: &[&str]) -> Run {
        match self.by {
            By::Itself => {
                let mut command = self.plain(program);
                if self.name.contains("entries") {
                    command.env("RFTRACE_PATCHABLE", "1");
                }
                if option == "patched" {
                    command.env("RFTRACE_PATCHED", "1");
                }
                Run::of(command.args(arguments))
            }
            By::Recorder if self.compiler == Compiler::Aarch64 => {
                aarch64_recorder(&self.options(option, further), program, arguments)
            }
            By::Recorder => record_by(&mut Command::new(rftrace()), &self.options(option, further), program, arguments),
            By::Uftrace => {
                let mut uftrace = Command::new("uftrace");
                uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "--max-stack=1024", "-d", "trace"]);
                Run::of_any(uftrace.args(further).arg(program).args(arguments))
            }
            By::Attach => unreachable!("it runs when it is recorded"),
        }
    }
}
