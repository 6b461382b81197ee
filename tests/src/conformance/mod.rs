//! The conformance suite: programs with difficult control flow, each with what must be in its trace, for this
//! repository's tracer and for others.
//!
//! - [`Case`]: a program, the ways to build it, and a check of its trace. All are in [`cases::all`].
//! - [`build`]: a case's program with one of the [`Tracer`]s.
//! - [`Hooks`]: what else than calls of the tracer functions may be recorded by.
//! - [`trial`]: runs it, looks at the trace, and says what is wrong in words.
//!
//! The test binary `conformance` runs all cases with this repository's tracer; the binary `conformance` of this package runs
//! them with all three and writes `docs/conformance.md`.

pub mod build;
pub mod cases;
pub mod seen;
pub mod trial;

use crate::Profile;

pub use seen::{Fault, Seen, Task};
pub use trial::try_case;

/// The tracer of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// Nobody: the program must be right by itself.
    Nobody,
    /// This repository.
    Ours,
    /// The same on aarch64 Linux, run by qemu-user as a processor with this name.
    OursOnAarch64(&'static str),
    /// The same of programs with patched entries, which do not call it.
    EntriesOnAarch64(&'static str),
    /// The same on riscv64 Linux, run by qemu-user.
    OursOnRiscv64,
    /// This repository, by `rftrace record`, of programs that do not call it.
    OursBy(Hooks),
    /// rftrace 0.3.2 and its frontend, from crates.io.
    Published,
    /// `uftrace record`.
    Uftrace,
}

/// Hooks of functions that do not call the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Branches in place of their first instructions.
    Branches,
    /// Branches in room that the compiler has left for them.
    Room,
    /// XRay's sleds.
    Sleds,
    /// Room, and stubs for calls of libraries' functions.
    LibraryCalls,
}

impl Hooks {
    /// All.
    pub const ALL: [Self; 4] = [Self::Branches, Self::Room, Self::Sleds, Self::LibraryCalls];

    /// Flags for the compiler.
    #[must_use]
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Branches => &["-DBY_BRANCHES"],
            Self::Room | Self::LibraryCalls => &["-fpatchable-function-entry=5"],
            // Not all that is in the programs is known to this compiler.
            Self::Sleds => &[
                "-fxray-instrument",
                "-fxray-instruction-threshold=1",
                "-fnoxray-link-deps",
                "-Wno-error",
                "-Wno-unknown-attributes",
            ],
        }
    }

    /// Flags for rustc.
    #[must_use]
    pub fn rust_flags(self) -> &'static str {
        match self {
            Self::Branches => "",
            Self::Room | Self::LibraryCalls => "-Z patchable-function-entry=5",
            Self::Sleds => "-Z instrument-xray=always",
        }
    }
}

impl Tracer {
    /// Its name in tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no tracer",
            Self::Ours => "ours",
            Self::OursOnAarch64(_) => "ours on aarch64",
            Self::EntriesOnAarch64(_) => "ours by entries on aarch64",
            Self::OursOnRiscv64 => "ours on riscv64",
            Self::OursBy(Hooks::Branches) => "ours by branches",
            Self::OursBy(Hooks::Room) => "ours by room",
            Self::OursBy(Hooks::Sleds) => "ours by sleds",
            Self::OursBy(Hooks::LibraryCalls) => "ours with library calls",
            Self::Published => "rftrace 0.3.2",
            Self::Uftrace => "uftrace",
        }
    }

    /// True if it can trace programs built this way: rftrace 0.3.2 has no `__fentry__`, uftrace and `rftrace record` refuse static ones. With
    /// hooks other than calls of the tracer one build of each kind of executable is tried: for sleds without optimisation, as clang would leave
    /// calls out that GCC is told to keep.
    #[must_use]
    pub fn can_trace(self, build: Build) -> bool {
        let lacks = match self {
            Self::Published => "-mfentry",
            Self::Uftrace => "-static",
            Self::OursBy(hooks) => {
                let wanted: &[&str] = match hooks {
                    Hooks::Sleds => &["-O0", "debug", "release"],
                    Hooks::Branches | Hooks::Room | Hooks::LibraryCalls => {
                        &["-O2", "-O2 -no-pie", "-O2 -mstackrealign", "debug", "release"]
                    }
                };
                return wanted.contains(&build.name());
            }
            // Its compilers have no such call.
            Self::OursOnAarch64(_) | Self::EntriesOnAarch64(_) | Self::OursOnRiscv64 => "-mfentry",
            Self::Ours | Self::Nobody => return true,
        };
        !build.name().contains(lacks)
    }

    /// The processor, for programs for aarch64.
    #[must_use]
    pub fn on_aarch64(self) -> Option<&'static str> {
        match self {
            Self::OursOnAarch64(cpu) | Self::EntriesOnAarch64(cpu) => Some(cpu),
            _ => None,
        }
    }

    /// True if it is this repository's.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::OursOnRiscv64 | Self::OursBy(_)) || self.on_aarch64().is_some()
    }
}

/// A program, and the check of its trace.
#[derive(Clone, Debug)]
pub struct Case {
    /// A name of its own.
    pub name: &'static str,
    /// Its actions, in a few words.
    pub what: &'static str,
    /// The program.
    pub program: Program,
    /// True if it switches recording off and on.
    pub switches: bool,
    /// True if this repository's tracer is known to fail; the test leaves it out, the table does not.
    pub is_unsolved: bool,
    /// True if it ends within functions.
    pub may_end_open: bool,
    /// Hooks that it is not about, with the reasons.
    pub not_by: &'static [(Hooks, &'static str)],
    /// Looks at the trace.
    pub check: fn(&Seen) -> Result<(), Fault>,
}

/// A case's program.
#[derive(Clone, Debug)]
pub enum Program {
    /// C or C++.
    C {
        /// Its source, in `fixtures/c/conformance`.
        source: &'static str,
        /// Arguments for the compiler in all builds.
        arguments: &'static [&'static str],
        /// Further arguments, one build for each.
        builds: &'static [&'static str],
        /// The source of a shared library, which the program finds in its folder as `library.so`.
        library: Option<&'static str>,
    },
    /// A binary of the package `fixtures/conformance`.
    Rust {
        /// The binary.
        binary: &'static str,
        /// One build for each.
        profiles: &'static [Profile],
    },
}

impl Case {
    /// A program in C, or C++ if the name ends so, built with [`DEFAULT_BUILDS`].
    #[must_use]
    pub const fn c(name: &'static str, source: &'static str, what: &'static str, check: Check) -> Self {
        let program = Program::C { source, arguments: &[], builds: DEFAULT_BUILDS, library: None };
        Self { name, what, program, switches: false, is_unsolved: false, may_end_open: false, not_by: &[], check }
    }

    /// A binary of the package `fixtures/conformance`, unoptimised and optimised.
    #[must_use]
    pub const fn rust(name: &'static str, binary: &'static str, what: &'static str, check: Check) -> Self {
        let program = Program::Rust { binary, profiles: &Profile::ALL };
        Self { name, what, program, switches: false, is_unsolved: false, may_end_open: false, not_by: &[], check }
    }

    /// Adds arguments for the compiler.
    #[must_use]
    pub fn with(mut self, more: &'static [&'static str]) -> Self {
        if let Program::C { arguments, .. } = &mut self.program {
            *arguments = more;
        }
        self
    }

    /// Other builds than [`DEFAULT_BUILDS`].
    #[must_use]
    pub fn built(mut self, with: &'static [&'static str]) -> Self {
        if let Program::C { builds, .. } = &mut self.program {
            *builds = with;
        }
        self
    }

    /// Builds a shared library too.
    #[must_use]
    pub fn with_library(mut self, source: &'static str) -> Self {
        if let Program::C { library, .. } = &mut self.program {
            *library = Some(source);
        }
        self
    }

    /// Says that this repository's tracer is known to fail.
    #[must_use]
    pub fn unsolved(mut self) -> Self {
        self.is_unsolved = true;
        self
    }

    /// Says that the program ends within functions, which tracers that save at the very end cannot give an exit.
    #[must_use]
    pub fn ending_open(mut self) -> Self {
        self.may_end_open = true;
        self
    }

    /// Says that the program switches recording off and on, or that functions are called before it begins.
    #[must_use]
    pub fn switching(mut self) -> Self {
        self.switches = true;
        self
    }

    /// Says which hooks it is not about, and why.
    #[must_use]
    pub fn not_by(mut self, hooks: &'static [(Hooks, &'static str)]) -> Self {
        self.not_by = hooks;
        self
    }

    /// Why it is not tried with such hooks, if it is not.
    #[must_use]
    pub fn not_tried_by(&self, hooks: Hooks) -> Option<&'static str> {
        if self.switches {
            return Some("recording is switched by functions of the library that the program would be linked with");
        }
        self.not_by.iter().find(|(others, _)| *others == hooks).map(|(_, reason)| *reason)
    }

    /// The ways to build it, by name.
    #[must_use]
    pub fn builds(&self) -> Vec<Build> {
        match self.program {
            Program::C { builds, .. } => builds.iter().map(|&arguments| Build::C(arguments)).collect(),
            Program::Rust { profiles, .. } => profiles.iter().map(|&profile| Build::Rust(profile)).collect(),
        }
    }
}

/// Looks at a trace.
pub type Check = fn(&Seen) -> Result<(), Fault>;

/// The builds that hook in different ways.
pub const DEFAULT_BUILDS: &[&str] = &["-O0", "-O2", "-O2 -mfentry"];

/// These, and other kinds of executables.
pub const ALL_BUILDS: &[&str] = &["-O0", "-O2", "-O2 -mfentry", "-O2 -static", "-O2 -no-pie"];

/// One way to build a case's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// With these arguments for the compiler.
    C(&'static str),
    /// With cargo.
    Rust(Profile),
}

impl Build {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::C(arguments) => arguments,
            Self::Rust(Profile::Debug) => "debug",
            Self::Rust(Profile::Release) => "release",
        }
    }
}
