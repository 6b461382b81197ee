//! The processors whose programs are recorded.

use std::env::consts::ARCH;

use object::{Architecture, elf};

/// What programs for a processor look like.
#[derive(Debug)]
pub struct Processor {
    /// What it is called.
    pub name: &'static str,
    /// As targets are named, and `std::env::consts::ARCH`.
    pub arch: &'static str,
    /// Whether all is there: attaching, XRay's sleds, who takes memory. If not, what calls the tracer, has room for a branch, is chosen to get one
    /// without, or is called of libraries is recorded.
    pub has_all: bool,
    /// Whether arguments are known where a function calls the tracer. Elsewhere they are where it has room for a branch.
    pub(crate) has_arguments_at_calls: bool,
    /// What `-fpatchable-function-entry` and rustc's `-Z patchable-function-entry` leave that is enough for a branch: so many NOPs.
    pub room: &'static str,
    /// As ELF files say it.
    pub(crate) machine: elf::Machine,
    pub(crate) architecture: Architecture,
    /// The functions that instrumented prologues call.
    pub(crate) hooks: &'static [&'static str],
}

const ALL: [Processor; 2] = [
    Processor {
        name: "x86-64",
        arch: "x86_64",
        has_all: true,
        has_arguments_at_calls: true,
        room: "5",
        machine: elf::EM_X86_64,
        architecture: Architecture::X86_64,
        hooks: &["mcount", "__fentry__"],
    },
    Processor {
        name: "aarch64",
        arch: "aarch64",
        has_all: false,
        has_arguments_at_calls: false,
        room: "1",
        machine: elf::EM_AARCH64,
        architecture: Architecture::Aarch64,
        hooks: &["_mcount"],
    },
];

impl Processor {
    /// The one whose programs this one records: its own. `None` if it is none of them.
    pub fn own() -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.arch == ARCH)
    }

    /// That of a target, by the beginning of its name.
    pub fn of_target(target: &str) -> Option<&'static Self> {
        let (arch, _) = target.split_once('-')?;
        ALL.iter().find(|processor| processor.arch == arch)
    }

    /// That of an ELF file.
    pub(crate) fn of_machine(machine: elf::Machine) -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.machine == machine)
    }

    /// That of an object file.
    pub(crate) fn of_architecture(architecture: Architecture) -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.architecture == architecture)
    }
}
