//! The beginning of a recording.

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rftrace_frontend::Config;

use crate::interpose;
use crate::process;
use crate::save::{self, Moment, RECORDING, Recording, with_signals_blocked};
use crate::settings::Settings;
use crate::signals;
use crate::trigger;

/// Called by the dynamic linker before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    fn __cxa_atexit(function: extern "C" fn(*mut c_void), argument: *mut c_void, dso: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), dso: *mut c_void) -> c_int;
}

extern "C" fn start() {
    interpose::find_originals();
    let Some(settings) = Settings::read() else { return };
    if !settings.force && !calls_hooks() {
        return;
    }
    with_signals_blocked(|| begin(settings));
}

fn begin(settings: Settings) {
    let config = Config::new().capacity_bytes(settings.buffer_bytes).mode(settings.mode).directory(&settings.folder);
    // Most programs, and children of programs, do not fill it.
    let config = config.prefault(false);
    let tracer = match config.install() {
        Ok(tracer) => tracer,
        Err(error) => return refuse(&settings, &error.to_string()),
    };
    if !settings.trigger.is_empty()
        && let Err(problem) = trigger::arm(tracer, &settings.trigger)
    {
        return refuse(&settings, &problem);
    }
    process::begin();
    process::register(&settings.folder);
    let is_off = settings.is_off || trigger::is_armed();
    let recording = RECORDING.get_or_init(|| Recording { settings, tracer });
    // SAFETY: the functions are of these types. Without a module they are called last of all: whatever registers a function
    // later, the dynamic linker's own included, has it called earlier.
    unsafe {
        __cxa_atexit(at_exit, ptr::null_mut(), ptr::null_mut());
        __cxa_at_quick_exit(at_exit, ptr::null_mut());
        libc::pthread_atfork(Some(fork_begins), None, Some(forked));
    }
    signals::install(&recording.settings);
    if !is_off {
        tracer.enable();
    }
}

/// This program is not recorded. If it is the first one, it is not run either: what was asked for makes no sense.
fn refuse(settings: &Settings, problem: &str) {
    let _ = fs::write(settings.folder.join(format!("error-{}", std::process::id())), problem);
    // SAFETY: the call takes nothing.
    if unsafe { libc::getppid() }.cast_unsigned() == settings.parent && !was_recorded(settings) {
        interpose::leave(1);
    }
}

/// Whether an earlier program of this process was recorded.
fn was_recorded(settings: &Settings) -> bool {
    let beginning = format!("process-{}-", std::process::id());
    fs::read_dir(&settings.folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().as_bytes().starts_with(beginning.as_bytes()))
    })
}

extern "C" fn at_exit(_: *mut c_void) {
    save::save(Moment::Exit);
}

unsafe extern "C" fn fork_begins() {
    if let Some(recording) = RECORDING.get() {
        with_signals_blocked(|| process::fork_begins(&recording.settings.folder));
    }
}

unsafe extern "C" fn forked() {
    save::forked();
    if let Some(recording) = RECORDING.get() {
        with_signals_blocked(|| process::forked(&recording.settings.folder));
    }
}

/// Whether the program, or a library that it starts with, calls a hook.
fn calls_hooks() -> bool {
    let mut found = false;
    // SAFETY: the function below takes a pointer to a `bool`, and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(look_for_hooks), (&raw mut found).cast()) };
    found
}

/// Looks through the dynamic symbols of a module for a hook that it takes from elsewhere.
unsafe extern "C" fn look_for_hooks(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a valid description of a module, and what it was given for `found`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<bool>()) };
    // SAFETY: as above: so many program headers are there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 0 };
    let dynamic = (info.dlpi_addr + dynamic.p_vaddr) as *const [u64; 2];
    // SAFETY: the dynamic section of a loaded module.
    *found = unsafe { imports_hook(dynamic, info.dlpi_addr) };
    c_int::from(*found)
}

/// Whether a module with this dynamic section imports a hook.
///
/// # Safety
///
/// It is that of a module that is loaded at `base`.
unsafe fn imports_hook(dynamic: *const [u64; 2], base: u64) -> bool {
    const DT_NULL: u64 = 0;
    const DT_HASH: u64 = 4;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;

    let (mut strings, mut symbols, mut hash, mut gnu_hash) = (0, 0, 0, 0);
    for place in 0.. {
        // SAFETY: the section ends with DT_NULL.
        let [tag, value] = unsafe { *dynamic.add(place) };
        // The C library turns these into addresses, but not for the vDSO.
        let address = if value < base { base + value } else { value };
        match tag {
            DT_NULL => break,
            DT_HASH => hash = address,
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_GNU_HASH => gnu_hash = address,
            _ => {}
        }
    }
    if strings == 0 || symbols == 0 {
        return false;
    }
    // Symbols from elsewhere come first; in a table with a GNU hash, before the first that is hashed.
    let n_symbols = match (gnu_hash, hash) {
        // SAFETY: the header of a hash table: buckets, first symbol; buckets, symbols.
        (1.., _) => unsafe { *(gnu_hash as *const u32).add(1) },
        // SAFETY: as above.
        (_, 1..) => unsafe { *(hash as *const u32).add(1) },
        _ => 0,
    };
    (0..n_symbols as usize).any(|place| {
        // SAFETY: so many symbols are there.
        let symbol = unsafe { &*(symbols as *const libc::Elf64_Sym).add(place) };
        // SAFETY: their names end with a NUL.
        let name = unsafe { CStr::from_ptr((strings + u64::from(symbol.st_name)) as *const _) };
        symbol.st_shndx == 0 && [c"mcount", c"__fentry__"].contains(&name)
    })
}
