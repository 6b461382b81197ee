//! The environment of a process in a trace: its modules, the machine and its clock. The file beside the spool has it
//! for other machines.
//!
//! Not here: that file (`about`).

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::tsc::TscSource;
use crate::clock::{self, tsc};
use crate::elf::file::build_id;
use crate::host::linux::modules::{self, Module, ModulesAt, Unloaded, in_root, map_path};
use crate::host::linux::sysinfo;
use crate::host::machine::SystemInfo;

/// Environment of a process, present or past.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct World {
    /// The program first.
    pub(crate) modules: Vec<Module>,
    /// Libraries at a place of other ones, each with the beginning of its time there, in ticks.
    pub(crate) opened: Vec<(Module, u64)>,
    /// The range of the main stack.
    pub(crate) stack: Option<(u64, u64)>,
    /// Stated rate of the counter, and its source.
    pub(crate) tsc_hz: Option<(u64, TscSource)>,
    pub(crate) invariant_tsc: bool,
    /// Without the program's path and command line.
    pub(crate) system: SystemInfo,
}

/// The world of a process, with its maps and unloaded libraries at that time.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) maps: Vec<Vec<u8>>,
    pub(super) unloaded: Vec<Unloaded>,
    pub(super) world: Box<World>,
}

impl Seen {
    /// The present world of a process with these maps and unloaded libraries.
    pub(super) fn of(maps: &[Vec<u8>], unloaded: &[Unloaded], exe: &Path, root: &Path) -> Self {
        let world = Box::new(World::here(maps, unloaded, exe, root));
        Self { maps: maps.to_vec(), unloaded: unloaded.to_vec(), world }
    }
}

impl World {
    /// The world of a program on this machine, with its maps at different times, the latest last, and its `unloaded`
    /// libraries. Files are looked for in its `root` directory.
    pub(crate) fn here(maps: &[Vec<u8>], unloaded: &[Unloaded], exe: &Path, root: &Path) -> Self {
        let ModulesAt { always, at_times } = modules::modules_at(maps, unloaded, exe, root);
        let mut system = sysinfo::collect();
        system.command_line.clear();
        system.exe_name = map_path(exe);
        system.build_id = build_id(&in_root(root, exe)).ok().flatten();
        Self {
            modules: always,
            opened: at_times,
            stack: maps.last().and_then(|maps| modules::stack(maps)),
            tsc_hz: clock::tsc_hz(),
            invariant_tsc: tsc::is_invariant(),
            system,
        }
    }

    /// Returns the permanent modules, then the others.
    pub(crate) fn all_modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().chain(self.opened.iter().map(|(module, _)| module))
    }
}
