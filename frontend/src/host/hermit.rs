//! The system's services for this crate, without Linux (on Hermit): memory from the allocator, one module.

use std::alloc::{Layout, alloc_zeroed};
use std::env::{self, consts::OS};
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rftrace::abi::{LEFT_BUCKET_BYTES, LeftCell, MAX_CHUNK_BYTES};

use crate::Error;
use crate::clock::{self, calendar, tsc};
use crate::host::machine::SystemInfo;
use crate::host::program::{Identify, Identity, LoadedModule, Memory, Program};

/// Zeroed memory for records, never given back. Per-thread blocks lie in thread-local storage.
pub(crate) fn reserve(
    buffer_bytes: usize,
    _given: Option<*mut u8>,
    _prefault: bool,
    is_first: bool,
) -> Result<Memory, Error> {
    /// The memory for frames left without a return: 1,024, as they are few.
    const LEFT_BYTES: usize = 16 * LEFT_BUCKET_BYTES;

    if !is_first {
        // The tracer has no list of its threads: it could not tell them of another buffer.
        return Err(Error::AlreadyInitialized);
    }
    let failed = || Error::OutOfMemory { bytes: buffer_bytes, source: io::ErrorKind::OutOfMemory.into() };
    let layout = Layout::from_size_align(buffer_bytes, MAX_CHUNK_BYTES).map_err(|_| failed())?;
    // SAFETY: the size is not 0, it is that of at least a few chunks.
    let buffer = unsafe { alloc_zeroed(layout) };
    if buffer.is_null() {
        return Err(failed());
    }
    let layout = Layout::from_size_align(LEFT_BYTES, align_of::<LeftCell>()).map_err(|_| failed())?;
    // SAFETY: the size is not 0. Without this memory the frames stay where they are.
    let left = unsafe { alloc_zeroed(layout) };
    Ok(Memory {
        buffer,
        blocks: ptr::null_mut(),
        blocks_bytes: 0,
        left,
        left_bytes: LEFT_BYTES,
        thread_start: None,
        thread_start_key: 0,
    })
}

/// Does nothing: the memory stays allocated, as a thread may be in a hook, and write into it.
pub(crate) fn discard(_buffer: *mut u8, _bytes: usize) {}

/// The mark of a thread at work, while it lives.
#[derive(Debug)]
pub(crate) struct AtWork;

/// Nothing forks.
pub(crate) fn at_work() -> AtWork {
    AtWork
}

/// None is known.
pub(crate) fn constant_memory() -> Vec<[usize; 2]> {
    Vec::new()
}

/// Without known functions, a table has no call sites.
pub(crate) fn reserve_sites() -> Result<Option<&'static [AtomicU64]>, Error> {
    Ok(None)
}

/// Functions are not known by their names.
pub(crate) const HAS_NAMES: bool = false;

/// The tracer records no values here.
pub(crate) const HAS_VALUES: bool = false;

/// Facts from the tracer's install: none, as nothing is out of reach later.
#[derive(Debug)]
pub(crate) struct Known;

impl Known {
    /// Collects the facts.
    pub(crate) fn collect() -> Self {
        Self
    }
}

/// Everything about the running program.
pub(crate) fn program(_known: &Known, binary_name: &str) -> Program {
    let n_cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let system = SystemInfo {
        exe_name: binary_name.to_owned(),
        command_line: command_line().unwrap_or_else(|| binary_name.to_owned()),
        cpus_online: n_cpus,
        cpus_possible: n_cpus,
        cpu_description: tsc::processor_name().unwrap_or_else(|| "x86-64".to_owned()),
        memory: "0.0 / 0.0 GB".to_owned(),
        kernel: OS.to_owned(),
        hostname: OS.to_owned(),
        distribution: format!("\"{OS}\""),
        record_date: calendar::date(unix.as_secs()),
        utc_offset: utc_offset(unix),
        ..SystemInfo::default()
    };
    Program {
        pid: 1,
        identify: Identify::Function(Identity::of_number),
        exe_name: binary_name.to_owned(),
        modules: vec![LoadedModule { name: binary_name.to_owned(), start: image_start() }],
        without_names: None,
        stack: None,
        system,
        tsc_hz: clock::tsc_hz().map(|(hz, source)| (hz, source.name())),
        invariant_tsc: Some(tsc::is_invariant()),
    }
}

/// Unix time minus the clock of records in seconds, rounded.
fn utc_offset(unix: Duration) -> i64 {
    let nanos = i128::try_from(unix.as_nanos()).unwrap_or(0) - i128::from(clock::monotonic_nanos());
    i64::try_from((nanos + 500_000_000).div_euclid(1_000_000_000)).unwrap_or(0)
}

/// The arguments, separated by spaces, in one line.
fn command_line() -> Option<String> {
    let arguments: Vec<_> = env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let line = arguments.join(" ").replace(char::is_control, " ");
    (!line.is_empty()).then_some(line)
}

#[cfg(target_os = "hermit")]
unsafe extern "C" {
    safe fn sys_image_start_addr() -> usize;
}

/// The load address of the image.
#[cfg(target_os = "hermit")]
fn image_start() -> u64 {
    sys_image_start_addr() as u64
}

#[cfg(not(target_os = "hermit"))]
fn image_start() -> u64 {
    0
}
