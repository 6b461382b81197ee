//! The system that the program runs on: what the rest of the crate asks it for.

#[cfg(feature = "std")]
use std::ffi::{c_int, c_void};

#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) use crate::generic::{
    Catalogue, HAS_NAMES, Known, LoadedModule, TracedFunction, exact_rate, monotonic_nanos, program, reserve,
    reserve_sites, tsc_hz,
};
#[cfg(target_os = "linux")]
pub(crate) use crate::linux::LoadedModule;
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use crate::linux::functions::{Catalogue, TracedFunction};
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use crate::linux::{HAS_NAMES, Known, exact_rate, monotonic_nanos, program, reserve, reserve_sites, tsc_hz};
use crate::uftrace::encode::SystemInfo;

/// Memory for the tracer, zeroed and never given back.
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

/// What the system calls a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) tid: u32,
    /// Empty if it is unknown.
    pub(crate) name: String,
}

impl Identity {
    /// Of a thread of which only the tracer's number is known.
    pub(crate) fn of_number(number: u32) -> Self {
        Self { tid: number, name: String::new() }
    }
}

/// The running program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) pid: u32,
    /// What the system calls the thread with some number of the tracer.
    pub(crate) identify: fn(u32) -> Identity,
    /// Its path as in the map.
    pub(crate) exe_name: String,
    /// The program first, then its libraries.
    pub(crate) modules: Vec<LoadedModule>,
    /// Address range of the main stack.
    pub(crate) stack: Option<(u64, u64)>,
    pub(crate) system: SystemInfo,
    /// Frequency of the time stamp counter, as the hardware or the hypervisor tells it, and who that is.
    pub(crate) tsc_hz: Option<(u64, &'static str)>,
    /// Whether the counter runs at one rate in all states of the processor.
    pub(crate) invariant_tsc: Option<bool>,
}
