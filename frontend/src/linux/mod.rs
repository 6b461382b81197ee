//! What this crate needs from Linux: memory, the end of threads, clocks, modules and facts for the metadata.

pub(crate) mod modules;
pub(crate) mod symbols;
pub(crate) mod sysinfo;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::ptr;

use rftrace::abi::ThreadBlock;

use self::modules::Module;
use self::symbols::SymbolTable;
use crate::Error;
use crate::backend;
use crate::host::{Memory, Program};
use crate::uftrace::encode::SystemInfo;

/// Threads that can be traced at the same time. A block takes address space only, until its thread is traced.
const MAX_THREADS: usize = 8192;

/// Memory for records and for per-thread blocks, zeroed and never unmapped.
pub(crate) fn reserve(buffer_bytes: usize) -> Result<Memory, Error> {
    let buffer = map(buffer_bytes)?;
    prepare(buffer, buffer_bytes);
    let blocks_bytes = MAX_THREADS * size_of::<ThreadBlock>();
    let blocks = map(blocks_bytes)?;
    // SAFETY: the range was just mapped. The advice keeps a thread's first call from touching 2 MiB; it may fail.
    unsafe { libc::madvise(blocks.cast(), blocks_bytes, libc::MADV_NOHUGEPAGE) };
    let thread_start_key = thread_key()?;
    Ok(Memory { buffer, blocks, blocks_bytes, thread_start: Some(libc::pthread_setspecific), thread_start_key })
}

fn map(bytes: usize) -> Result<*mut u8, Error> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(Error::OutOfMemory { bytes, source: io::Error::last_os_error() });
    }
    Ok(memory.cast())
}

/// Backs the buffer with memory now, so that the first pass through it is not one of page faults. A buffer that would
/// take most of what is free is left to fill as it is used.
fn prepare(buffer: *mut u8, bytes: usize) {
    let free = sysinfo::available_bytes();
    // SAFETY: the range was just mapped; both calls are advice that may fail.
    unsafe {
        libc::madvise(buffer.cast(), bytes, libc::MADV_HUGEPAGE);
        if (bytes as u64) < free / 2 {
            libc::madvise(buffer.cast(), bytes, libc::MADV_POPULATE_WRITE);
        }
    }
}

/// A thread-specific key whose destructor tells the tracer that a thread ends. Made early, its number is low: values of
/// the first 32 keys are stored without allocation.
fn thread_key() -> Result<libc::pthread_key_t, Error> {
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is made for the blocks that the tracer stores under this key.
    match unsafe { libc::pthread_key_create(&raw mut key, Some(backend::rftrace_backend_thread_exit)) } {
        0 => Ok(key),
        code => Err(Error::OutOfMemory { bytes: 0, source: io::Error::from_raw_os_error(code) }),
    }
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// A module of the running program, with its functions.
pub(crate) type LoadedModule = (Module, Option<SymbolTable>);

/// Everything about the running program. `_binary_name` is not needed: the kernel knows the program's path.
pub(crate) fn program(_binary_name: &str) -> Result<Program, Error> {
    let maps = PathBuf::from("/proc/self/maps");
    let text = fs::read(&maps).map_err(|source| Error::Read { path: maps.clone(), source })?;
    let modules = modules::loaded_modules().map_err(|source| Error::Read { path: maps, source })?;
    // A library that is gone or unreadable has no names; its calls are still recorded.
    let modules = modules
        .into_iter()
        .map(|module| {
            let symbols = symbols::read_symbols(&module.file_path()).ok();
            (module, symbols)
        })
        .collect();
    let system = SystemInfo::collect();
    let calibrated = sysinfo::tsc_hz().map(|(hz, source)| (hz, source.name()));
    Ok(Program {
        pid: std::process::id(),
        exe_name: system.exe_name.clone(),
        modules,
        stack: stack(&text),
        system,
        tsc_hz: calibrated,
        invariant_tsc: Some(sysinfo::invariant_tsc()),
    })
}

/// The address range of the main thread's stack.
fn stack(maps: &[u8]) -> Option<(u64, u64)> {
    let line = maps.split(|&byte| byte == b'\n').find(|line| line.ends_with(b" [stack]"))?;
    let range = std::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}
