//! The processors whose programs can be recorded.

use std::env::consts::ARCH;

use object::{Architecture, elf};

/// The properties of programs for a processor.
#[derive(Debug)]
pub struct Processor {
    /// The name in messages.
    pub name: &'static str,
    /// The name in targets and in `std::env::consts::ARCH`.
    pub arch: &'static str,
    /// True if all features work: attaching, XRay's sleds, resources. Otherwise these functions are recorded: those
    /// that call the tracer, have room for a branch, or are chosen for a branch without room, and called library
    /// functions.
    pub has_all: bool,
    /// True if arguments are known at a function's call of the tracer. Otherwise they are known with room for a branch.
    pub(crate) has_arguments_at_calls: bool,
    /// The number of NOPs that leave room for a branch, for `-fpatchable-function-entry` and rustc's
    /// `-Z patchable-function-entry`.
    pub room: &'static str,
    /// Its number in ELF files.
    pub(crate) machine: elf::Machine,
    pub(crate) architecture: Architecture,
    /// The functions called by instrumented prologues.
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
    /// Returns the processor whose programs this one records: its own. `None` for other processors.
    pub fn own() -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.arch == ARCH)
    }

    /// Returns the processor of a target, by the beginning of the target's name.
    pub fn of_target(target: &str) -> Option<&'static Self> {
        let (arch, _) = target.split_once('-')?;
        ALL.iter().find(|processor| processor.arch == arch)
    }

    /// The processor of an ELF file.
    pub(crate) fn of_machine(machine: elf::Machine) -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.machine == machine)
    }

    /// The processor of an object file.
    pub(crate) fn of_architecture(architecture: Architecture) -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.architecture == architecture)
    }
}
