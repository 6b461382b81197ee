//! The running program: memory for the tracer, the end of threads, modules and facts for the metadata.
//!
//! Not here: forks (`bank::child`).

use std::ffi::{c_int, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use memmap2::Mmap;

use rftrace::abi::{LEFT_BUCKET_BYTES, ThreadBlock};

use super::modules::{self, Module};
use super::sizes::MAX_SITES;
use super::sysinfo;
use super::thread_table;
use super::threads;
use crate::Error;
use crate::clock::{self, tsc};
use crate::elf::file;
use crate::elf::table::{self, SymbolTable};
use crate::host::machine::SystemInfo;
use crate::host::program::{Identify, Memory, Program};

/// The maximum number of threads traced at the same time. A block takes address space only, until its thread is traced.
const MAX_THREADS: usize = 8192;

/// Buckets of the table of left frames: 32,768 frames. Only used ones take memory. A larger table makes an unwinder slower at a
/// frame that runs again before the tracer has noticed.
const LEFT_BUCKETS: usize = 512;

/// Returns memory for records, unless that is `given`, and, the first time, for per-thread blocks and left frames. It
/// is zeroed and never unmapped.
pub(crate) fn reserve(
    buffer_bytes: usize,
    given: Option<*mut u8>,
    prefault: bool,
    is_first: bool,
) -> Result<Memory, Error> {
    let buffer = || {
        if let Some(given) = given {
            return Ok(given);
        }
        let buffer = map(buffer_bytes)?;
        prepare(buffer, buffer_bytes, prefault);
        Ok(buffer)
    };
    if !is_first {
        let buffer = buffer()?;
        return Ok(Memory {
            buffer,
            blocks: ptr::null_mut(),
            blocks_bytes: 0,
            left: ptr::null_mut(),
            left_bytes: 0,
            thread_start: None,
            thread_start_key: 0,
        });
    }
    let blocks_bytes = MAX_THREADS * size_of::<ThreadBlock>();
    let blocks = map(blocks_bytes)?;
    // SAFETY: the range was just mapped. The advice keeps a thread's first call from touching 2 MiB; it may fail.
    unsafe { libc::madvise(blocks.cast(), blocks_bytes, libc::MADV_NOHUGEPAGE) };
    let left_bytes = LEFT_BUCKETS * LEFT_BUCKET_BYTES;
    let left = map(left_bytes)?;
    // The buffer last: it is what may be too large, and then little was taken in vain.
    let buffer = buffer()?;
    prepare_unwinder();
    let thread_start_key = thread_key();
    threads::keep_in(map(thread_table::TABLE_BYTES)?, thread_start_key);
    Ok(Memory {
        buffer,
        blocks,
        blocks_bytes,
        left,
        left_bytes,
        thread_start: thread_start_key.map(|_| threads::thread_start as _),
        thread_start_key: thread_start_key.unwrap_or(0),
    })
}

/// Makes the tracer's unwinder find out the sizes of registers. libgcc does that at its first unwinding, and ends the
/// program on an earlier change of a register: when an exception from another copy of libgcc passes the tracer, such as
/// one linked by `-static-libgcc`.
///
/// A static program has no other copy, and its own may not know of any code before its constructors have run.
fn prepare_unwinder() {
    type Trace = unsafe extern "C" fn(context: *mut c_void, arg: *mut c_void) -> c_int;
    unsafe extern "C" {
        fn _Unwind_Backtrace(trace: Trace, arg: *mut c_void) -> c_int;
    }
    /// `_URC_END_OF_STACK`: no frame is looked at but this one.
    const END_OF_STACK: c_int = 5;

    unsafe extern "C" fn stop(_context: *mut c_void, _arg: *mut c_void) -> c_int {
        END_OF_STACK
    }
    // SAFETY: no more than a look at what the system has told: 0 where there is no dynamic linker.
    if unsafe { libc::getauxval(libc::AT_BASE) } == 0 {
        return;
    }
    // SAFETY: the function of every unwinder; the callback looks at nothing.
    unsafe { _Unwind_Backtrace(stop, ptr::null_mut()) };
}

/// Gives the memory of an unused buffer back to the system. It stays mapped: a thread may be in a hook, and write
/// into it.
pub(crate) fn discard(buffer: *mut u8, bytes: usize) {
    // SAFETY: an anonymous mapping of so many bytes, which nobody reads. A writer finds new pages.
    unsafe {
        libc::madvise(buffer.cast(), bytes, libc::MADV_NOHUGEPAGE);
        libc::madvise(buffer.cast(), bytes, libc::MADV_DONTNEED);
    }
}

/// The read-only parts of the program's file in memory, without libraries, each with its beginning and end. They stay as long as the
/// program runs.
pub(crate) fn constant_memory() -> Vec<[usize; 2]> {
    /// The first module is the program.
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid description of a module, and what it was given for `found`.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<[usize; 2]>>()) };
        // SAFETY: as above: so many program headers are there.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for header in headers {
            if header.p_type == libc::PT_LOAD && header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R {
                let start = (info.dlpi_addr + header.p_vaddr) as usize;
                found.push([start, start + header.p_filesz as usize]);
            }
        }
        1
    }

    let mut found: Vec<[usize; 2]> = Vec::new();
    // SAFETY: the function takes a pointer to what it is given, and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    found
}

/// The same for the process with this folder in `/proc`; none if it is unknown.
pub(crate) fn constant_memory_of(process: &Path) -> Vec<[usize; 2]> {
    let main = modules::modules_of_process(process).unwrap_or_default().into_iter().find(|module| module.is_main);
    let ranges = main.and_then(|main| {
        let file = file::map_file(&main.file_in(process)?).ok()?;
        file::read_only(&file, main.start).ok()
    });
    ranges.unwrap_or_default()
}

/// Memory for the table of call sites: zeroed, never unmapped, and taken as far as it is used.
pub(crate) fn reserve_sites() -> Result<Option<&'static [AtomicU64]>, Error> {
    let bytes = MAX_SITES * size_of::<AtomicU64>();
    let memory = map(bytes)?;
    // SAFETY: the range was just mapped. The advice keeps a small table from taking 2 MiB; it may fail.
    unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_NOHUGEPAGE) };
    // SAFETY: zeroed memory, aligned to a page, that is given to nobody else and stays mapped.
    Ok(Some(unsafe { slice::from_raw_parts(memory.cast(), MAX_SITES) }))
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

/// Returns true if so much memory is available.
fn has_room(bytes: usize) -> bool {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes.max(1), protection, flags, -1, 0) };
    // SAFETY: the range was just mapped.
    memory != libc::MAP_FAILED && unsafe { libc::munmap(memory, bytes.max(1)) } == 0
}

/// Backs the buffer with memory now, against page faults in the first pass through it. A buffer larger than half of the free memory
/// is left to fill as it is used.
fn prepare(buffer: *mut u8, bytes: usize, prefault: bool) {
    let free = sysinfo::available_bytes();
    // SAFETY: the range was just mapped; both calls are advice that may fail.
    unsafe {
        libc::madvise(buffer.cast(), bytes, libc::MADV_HUGEPAGE);
        if prefault && (bytes as u64) < free / 2 {
            libc::madvise(buffer.cast(), bytes, libc::MADV_POPULATE_WRITE);
        }
    }
}

/// Creates a thread-specific key with a destructor that reports the end of a thread to the tracer. Made early, its
/// number is low: values of the first 32 keys are stored without allocation. Without a free key the blocks of ended
/// threads are not used again.
fn thread_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is made for the blocks that the tracer stores under this key.
    let status = unsafe { libc::pthread_key_create(&raw mut key, Some(threads::thread_exit)) };
    (status == 0).then_some(key)
}

/// Functions are known by their names.
pub(crate) const HAS_NAMES: bool = true;

/// Facts from the tracer's install: programs that lock themselves in (uhyve by landlock) cannot look them up during a
/// save. The files stay mapped and take address space only.
#[derive(Debug)]
pub(crate) struct Known {
    modules: Vec<(Module, Option<Arc<Mmap>>)>,
    system: SystemInfo,
}

impl Known {
    /// Collects the facts.
    pub(crate) fn collect() -> Self {
        let modules = modules::loaded_modules(&[]).unwrap_or_default().into_iter();
        let modules = modules.map(|module| {
            let file = file::map_file(&module.file_path()).ok();
            (module, file)
        });
        Self { modules: modules.collect(), system: sysinfo::collect() }
    }

    /// Returns the present modules, or those of the install if the program has lost access to the map.
    pub(crate) fn loaded(&self) -> Vec<Module> {
        let known: Vec<&Module> = self.modules.iter().map(|(module, _)| module).collect();
        modules::loaded_modules(&known).unwrap_or_else(|_| known.into_iter().cloned().collect())
    }

    /// A module's file, if it was mapped.
    pub(crate) fn file(&self, module: &Module) -> Option<Arc<Mmap>> {
        self.modules.iter().find(|(known, _)| known.is_same_load(module)).and_then(|(_, file)| file.clone())
    }

    /// Returns the functions of a module. A vanished or unreadable one has no names; its calls are still recorded.
    /// `Err` without enough memory for them.
    fn symbols(&self, module: &Module) -> Result<Option<SymbolTable>, PathBuf> {
        if module.is_recorders() {
            return Ok(None);
        }
        let path = module.file_path();
        let Some(file) = self.file(module).or_else(|| file::map_file(&path).ok()) else { return Ok(None) };
        // More than its table of functions takes: asking for that would end the program if it is not to be had.
        if !has_room(file.len()) {
            return Err(path);
        }
        Ok(table::symbols_of(file, &path).ok())
    }
}

/// Everything about the running program. `_binary_name` is not needed: the kernel knows the program's path.
pub(crate) fn program(known: &Known, _binary_name: &str) -> Program {
    let mut without_names = None;
    let modules = known
        .loaded()
        .into_iter()
        .map(|module| {
            let symbols = known.symbols(&module).unwrap_or_else(|path| {
                without_names.get_or_insert(path);
                None
            });
            (module, symbols.map(Arc::new))
        })
        .collect();
    let maps = modules::own_maps().unwrap_or_default();
    let mut system = known.system.clone();
    system.usage = sysinfo::usage();
    Program {
        pid: std::process::id(),
        identify: Identify::Function(threads::identify),
        exe_name: system.exe_name.clone(),
        modules,
        opened: Vec::new(),
        without_names,
        stack: modules::stack(&maps),
        system,
        tsc_hz: clock::tsc_hz().map(|(hz, source)| (hz, source.name())),
        invariant_tsc: Some(tsc::is_invariant()),
    }
}
