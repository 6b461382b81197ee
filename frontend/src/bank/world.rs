//! What else a trace says of a process: its modules, the machine and its clock. It is kept beside the spool, as a trace may be made of that
//! when all of it is gone, or on another machine.
//!
//! Not here: the text that it becomes (`about`).

use std::path::Path;

use crate::clock::tsc::TscSource;
use crate::elf::file::build_id;
use crate::host;
use crate::host::linux::modules::{self, Module, map_path};
use crate::host::linux::sysinfo;
use crate::host::machine::SystemInfo;

/// What surrounds a process, or did.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// The program first.
    pub(crate) modules: Vec<Module>,
    /// The range of the main stack.
    pub(crate) stack: Option<(u64, u64)>,
    /// The exact rate of the counter, where there is one.
    pub(crate) exact_rate: Option<(u64, TscSource)>,
    /// What is said of its rate.
    pub(crate) tsc_hz: Option<(u64, TscSource)>,
    pub(crate) invariant_tsc: bool,
    /// Without the program's path and command line.
    pub(crate) system: SystemInfo,
}

impl World {
    /// That of this machine, for a program whose maps at different times these are, the latest last.
    pub(crate) fn here(maps: &[Vec<u8>], exe: &Path) -> Self {
        let mut system = sysinfo::collect();
        system.exe_name = map_path(exe);
        system.build_id = build_id(exe).ok().flatten();
        Self {
            modules: modules::modules_of(maps, exe),
            stack: maps.last().and_then(|maps| modules::stack(maps)),
            exact_rate: host::exact_rate(),
            tsc_hz: sysinfo::tsc_hz(),
            invariant_tsc: sysinfo::invariant_tsc(),
            system,
        }
    }
}
