//! The running program, as the rest of the crate sees it: its memory for the tracer, its threads and modules.

#[cfg(all(feature = "std", target_os = "linux"))]
use std::collections::HashMap;
#[cfg(feature = "std")]
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::linux::modules::Module;
use super::machine::SystemInfo;
#[cfg(target_os = "linux")]
use crate::elf::table::SymbolTable;

/// A module of the running program, with its functions.
#[cfg(target_os = "linux")]
pub(crate) type LoadedModule = (Module, Option<Arc<SymbolTable>>);

/// The image, one module; its functions are added on the host.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct LoadedModule {
    /// Its name in the trace.
    pub(crate) name: String,
    /// Its load address.
    pub(crate) start: u64,
}

/// Memory for the tracer, zeroed and never unmapped; all but `buffer` is for the first one only.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) buffer: *mut u8,
    pub(crate) blocks: *mut u8,
    pub(crate) blocks_bytes: usize,
    /// For the table of left frames.
    pub(crate) left: *mut u8,
    pub(crate) left_bytes: usize,
    pub(crate) thread_start: Option<unsafe extern "C" fn(u32, *const c_void) -> c_int>,
    pub(crate) thread_start_key: u32,
}

/// The system's id and name of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(all(feature = "std", target_os = "linux"), derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Identity {
    pub(crate) tid: u32,
    /// Empty if it is unknown.
    pub(crate) name: String,
}

impl Identity {
    /// A thread known by the tracer's number only.
    pub(crate) fn of_number(number: u32) -> Self {
        Self { tid: number, name: String::new() }
    }
}

/// The way to find a thread by the tracer's number.
#[derive(Debug)]
pub(crate) enum Identify {
    /// By a query.
    Function(fn(u32) -> Identity),
    /// For an ended program.
    #[cfg(all(feature = "std", target_os = "linux"))]
    Table(HashMap<u32, Identity>),
}

impl Identify {
    /// Returns the identity of a thread.
    pub(crate) fn of(&self, number: u32) -> Identity {
        match self {
            Self::Function(function) => function(number),
            #[cfg(all(feature = "std", target_os = "linux"))]
            Self::Table(table) => table.get(&number).cloned().unwrap_or_else(|| Identity::of_number(number)),
        }
    }
}

/// The running program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) pid: u32,
    /// Identities of threads, by the tracer's numbers.
    pub(crate) identify: Identify,
    /// Its path as in the map.
    pub(crate) exe_name: String,
    /// The program first, then its libraries.
    pub(crate) modules: Vec<LoadedModule>,
    /// Temporary or replaced libraries, each with the beginning of its time, in ticks.
    #[cfg(target_os = "linux")]
    pub(crate) opened: Vec<(LoadedModule, u64)>,
    /// A module without names, for lack of memory.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no function has a name"))]
    pub(crate) without_names: Option<PathBuf>,
    /// Address range of the main stack.
    pub(crate) stack: Option<(u64, u64)>,
    pub(crate) system: SystemInfo,
    /// Frequency of the time stamp counter, as the hardware or the hypervisor reports it, and the source.
    pub(crate) tsc_hz: Option<(u64, &'static str)>,
    /// True if the counter runs at one rate in all states of the processor.
    pub(crate) invariant_tsc: Option<bool>,
}

#[cfg(all(feature = "std", target_os = "linux"))]
impl Program {
    /// The same with functions hooked at run time, of each module by its beginning: addresses from there, and sizes.
    pub(crate) fn with_hooked<F: Iterator<Item = (u64, u64)>>(mut self, hooked: impl Fn(u64) -> F) -> Self {
        for (module, table) in &mut self.modules {
            if let Some(table) = table {
                Arc::make_mut(table).add_hooked(hooked(module.start));
            }
        }
        self
    }
}
