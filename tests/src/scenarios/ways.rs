//! The ways to build a program that traces itself, and to run it.

use std::process::Command;

use crate::fixtures::{aarch64, riscv64};
use crate::{CProgram, require};

/// A way to build and run programs.
#[derive(Debug)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// The compiler's arguments.
    arguments: &'static [&'static str],
    machine: Machine,
    /// The options that apply: `plain`, or those that `command` knows.
    pub options: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Machine {
    X86_64,
    /// In qemu-user, by calls of the hook.
    Aarch64,
    /// The same by patched entries.
    Aarch64Entries,
    Riscv64,
}

/// With calls of the hook, and with call sites that are switched.
const SITES: &[&str] = &["plain", "patched"];
const PLAIN: &[&str] = &["plain"];

/// All.
pub const WAYS: [Way; 12] = [
    Way { name: "x86-64", arguments: &["-O1"], machine: Machine::X86_64, options: SITES },
    Way { name: "fentry", arguments: &["-O2", "-mfentry"], machine: Machine::X86_64, options: SITES },
    Way { name: "static", arguments: &["-O1", "-static"], machine: Machine::X86_64, options: SITES },
    Way {
        name: "static-pie",
        arguments: &["-O2", "-mfentry", "-static-pie"],
        machine: Machine::X86_64,
        options: SITES,
    },
    Way { name: "no-pie", arguments: &["-O1", "-no-pie"], machine: Machine::X86_64, options: SITES },
    Way { name: "no-plt", arguments: &["-O2", "-fno-plt"], machine: Machine::X86_64, options: SITES },
    Way { name: "aarch64", arguments: &["-O1"], machine: Machine::Aarch64, options: PLAIN },
    Way {
        name: "aarch64-static",
        arguments: &["-O2", "-static", "-mbranch-protection=standard"],
        machine: Machine::Aarch64,
        options: PLAIN,
    },
    Way { name: "aarch64-entries", arguments: &["-O1"], machine: Machine::Aarch64Entries, options: PLAIN },
    Way {
        name: "aarch64-entries-static",
        arguments: &["-O2", "-static", "-mbranch-protection=standard"],
        machine: Machine::Aarch64Entries,
        options: PLAIN,
    },
    Way { name: "riscv64", arguments: &["-O1"], machine: Machine::Riscv64, options: PLAIN },
    Way {
        name: "riscv64-static",
        arguments: &["-O2", "-static", "-Wl,--no-relax"],
        machine: Machine::Riscv64,
        options: PLAIN,
    },
];

impl Way {
    /// Returns whether all tools of the way are there; if not, the test should return.
    ///
    /// # Panics
    ///
    /// As [`tools::require`](crate::tools::require).
    #[must_use]
    pub fn require(&self) -> bool {
        match self.machine {
            Machine::X86_64 => require(&["gcc"]),
            Machine::Aarch64 | Machine::Aarch64Entries => aarch64::require(),
            Machine::Riscv64 => riscv64::require(),
        }
    }

    /// Builds a program and returns what runs it.
    pub(super) fn command(&self, source: &str, option: &str) -> Command {
        let program = CProgram::new(&[source]).with(self.arguments);
        let with_library = |program: CProgram, prefix, library: &std::path::Path| {
            let library = library.to_str().expect("a path of UTF-8");
            program.with_compilers(prefix).with(&[library, "-lpthread", "-ldl", "-lm"])
        };
        let for_aarch64 = |program| with_library(program, aarch64::PREFIX, aarch64::c_library()).cached("program");
        let mut command = match self.machine {
            Machine::X86_64 => Command::new(program.cached("program")),
            Machine::Aarch64 => aarch64::emulator("max", &for_aarch64(program)),
            Machine::Aarch64Entries => {
                let program = program.without_hooks().with(&["-fpatchable-function-entry=2"]);
                let mut emulator = aarch64::emulator("max", &for_aarch64(program));
                emulator.env("RFTRACE_PATCHABLE", "1");
                emulator
            }
            Machine::Riscv64 => {
                let program = with_library(program, riscv64::PREFIX, riscv64::c_library());
                riscv64::emulator(&program.cached("program"))
            }
        };
        match option {
            "plain" => {}
            "patched" => drop(command.env("RFTRACE_PATCHED", "1")),
            _ => unreachable!("an option of a way"),
        }
        command
    }
}
