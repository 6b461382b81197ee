//! The beginning of a recording.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use rftrace_format::recording::Entry;
use rftrace_format::setting::{Settings, VARIABLE};
use rftrace_format::system;
use rftrace_frontend::bank::Bank;
use rftrace_frontend::{Config, Mode};

use crate::arch::branches::Branches;
use crate::arch::{HOOKS, led, trigger};
use crate::control;
use crate::environment;
use crate::interpose;
use crate::memory;
use crate::notes;
use crate::originals;
use crate::process;
use crate::save::{self, Moment, RECORDING, Recording};
use crate::signals;
use crate::types;
use crate::work;

/// Called by the dynamic linker before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    pub(crate) fn __cxa_atexit(function: extern "C" fn(*mut c_void), argument: *mut c_void, dso: *mut c_void) -> c_int;
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), dso: *mut c_void) -> c_int;
}

extern "C" fn start() {
    originals::find();
    // SAFETY: the name ends with a NUL; nobody changes the environment yet.
    if unsafe { libc::getenv(c"RFTRACE_RECORD".as_ptr()) }.is_null() {
        return;
    }
    memory::prepare();
    work::prepare(memory::map(work::STACK_BYTES));
    let settings = Settings::of_value(&std::env::var_os(VARIABLE).unwrap_or_default());
    if !settings.folder.is_absolute() {
        return;
    }
    work::alone(environment::remember);
    if let Some(led) = &settings.led {
        work::alone(|| {
            notes::begin(settings.notes.as_ref());
            led::begin(led);
        });
    }
    let branches = Branches::of(&settings);
    if !settings.is_forced && branches.is_empty() && !calls_hooks() {
        work::alone(|| {
            if !status_has("TracerPid:") {
                memory::leave_file();
            }
        });
        return;
    }
    let folder = settings.folder.clone();
    if !work::alone(|| begin(settings, &branches)) {
        let _ = fs::write(error_file(&folder), "not enough memory for the tracer; raise ulimit -v");
    }
}

fn begin(settings: Settings, branches: &Branches) {
    notes::begin(settings.notes.as_ref());
    if has_filter() {
        interpose::before_filter();
    }
    let mode = if settings.is_ring { Mode::Ring } else { Mode::Stop };
    let config = Config::new().capacity_bytes(settings.buffer_bytes).mode(mode).directory(&settings.folder);
    // Most programs, and children of programs, do not fill it.
    let config = config.prefault(false).save_at_exit(false).recorded(true);
    let bank = open_bank(&settings);
    let config = match bank {
        Some(bank) => config.bank(bank),
        None => config,
    };
    // A system call that a filter of these forbids may be the program's end.
    if !has_filter() {
        types::begin(settings.types.as_ref());
    }
    let config = config.known_values(types::ask);
    let config = match branches.choose(config) {
        Ok(config) => config,
        Err(problem) => return refuse(&settings, &problem),
    };
    let tracer = match config.install() {
        Ok(tracer) => tracer,
        Err(error) => return refuse(&settings, &error.to_string()),
    };
    branches.tell(settings.branches_told.as_ref(), tracer, bank);
    if let Some(rules) = &settings.rules {
        notes::tell_of_rules(rules, &tracer.rules_in_effect());
    }
    if !settings.trigger.is_empty()
        && let Err(problem) = trigger::arm(tracer, &settings.trigger)
    {
        return refuse(&settings, &problem);
    }
    process::begin();
    process::register(&settings.folder);
    let is_off = settings.is_off || trigger::is_armed();
    let asked = bank.or_else(|| open_requests(&settings));
    let recording = RECORDING.get_or_init(|| Recording { settings, tracer, bank, asked });
    // SAFETY: the functions are of these types. Without a module they are called last of all: whatever registers a function
    // later, the dynamic linker's own included, has it called earlier.
    unsafe {
        on_exit(at_exit, ptr::null_mut());
        __cxa_at_quick_exit(at_quick_exit, ptr::null_mut());
        libc::pthread_atfork(Some(fork_begins), Some(fork_ends), Some(forked));
    }
    control::tell_first_rules(recording);
    signals::install(&recording.settings);
    if !is_off {
        tracer.enable();
    }
}

/// True if the program runs under a filter of system calls, with unknown rules.
fn has_filter() -> bool {
    status_has("Seccomp:")
}

/// True if the system reports another value than 0 for this process.
fn status_has(name: &str) -> bool {
    let status = system::read_text("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix(name).is_some_and(|value| value.trim() != "0"))
}

/// The bank of this process, if what is recorded goes there. Without one it records into memory of its own, and saves that itself.
fn open_bank(settings: &Settings) -> Option<&'static Bank> {
    match Bank::open(settings.bank.as_ref()?) {
        Ok(bank) => Some(bank),
        Err(error) => {
            notes::tell(&format!(
                "cannot open the recorder's buffers, so the process records into its own memory: {error}"
            ));
            None
        }
    }
}

/// Where the recorder asks this process, which keeps what is recorded. Not where memory is limited: the program is to have all of that.
fn open_requests(settings: &Settings) -> Option<&'static Bank> {
    let requests = settings.requests.as_ref().filter(|_| !save::is_memory_limited())?;
    let bank = Bank::open_for_requests(requests).ok()?;
    bank.listen();
    Some(bank)
}

/// This program is not recorded. If it is the first one, it is not run either: what was asked for makes no sense.
fn refuse(settings: &Settings, problem: &str) {
    let _ = fs::write(error_file(&settings.folder), problem);
    // SAFETY: the call takes nothing.
    if unsafe { libc::getppid() }.cast_unsigned() == settings.recorder && !was_recorded(settings) {
        originals::leave(1);
    }
}

/// Where it is said why this process is not recorded.
fn error_file(folder: &Path) -> PathBuf {
    folder.join(Entry::Error { pid: std::process::id() }.to_string())
}

/// True if an earlier program of this process was recorded.
fn was_recorded(settings: &Settings) -> bool {
    let own = std::process::id();
    let is_own =
        |name: &OsStr| matches!(name.to_str().and_then(Entry::of), Some(Entry::Process { pid, .. }) if pid == own);
    fs::read_dir(&settings.folder).is_ok_and(|entries| entries.flatten().any(|entry| is_own(&entry.file_name())))
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    save::save(Moment::Exit(Some(status)));
}

extern "C" fn at_quick_exit(_: *mut c_void) {
    save::save(Moment::Exit(None));
}

unsafe extern "C" fn fork_begins() {
    work::fork_begins();
    if let Some(recording) = RECORDING.get() {
        process::fork_begins(&recording.settings.folder);
        if let Some(asked) = recording.asked.filter(|_| recording.bank.is_none()) {
            asked.keep_for_child();
        }
    }
}

unsafe extern "C" fn fork_ends() {
    work::fork_ends();
}

unsafe extern "C" fn forked() {
    if let Some(recording) = RECORDING.get() {
        process::forked(&recording.settings.folder);
        if recording.bank.is_some_and(|bank| !bank.has_slot()) {
            notes::tell("the process was not recorded: too many processes are recorded at the same time");
        }
        if let Some(asked) = recording.asked.filter(|_| recording.bank.is_none()) {
            asked.listen_in_child();
        }
    }
    work::fork_ends();
}

/// True if the program, or a library that it starts with, calls a hook.
fn calls_hooks() -> bool {
    let mut found = false;
    // SAFETY: the function below takes a pointer to a `bool`, and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(look_for_hooks), (&raw mut found).cast()) };
    found
}

/// Looks through the relocations of a module for a hook that it takes from elsewhere.
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

/// True if a module with this dynamic section imports a hook: a relocation names it. The number of symbols, and which of them are
/// imported, are given differently from linker to linker and from option to option.
///
/// # Safety
///
/// It is that of a module that is loaded at `base`.
unsafe fn imports_hook(dynamic: *const [u64; 2], base: u64) -> bool {
    const DT_NULL: u64 = 0;
    const DT_PLTRELSZ: u64 = 2;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_RELA: u64 = 7;
    const DT_RELASZ: u64 = 8;
    const DT_JMPREL: u64 = 23;
    /// `Elf64_Rela`: the place, the symbol's number and the kind, the addend.
    type Relocation = [u64; 3];

    let (mut strings, mut symbols) = (0, 0);
    // Where relocations are, and their bytes: those for calls, and all others.
    let mut relocations = [(0, 0); 2];
    for place in 0.. {
        // SAFETY: the section ends with DT_NULL.
        let [tag, value] = unsafe { *dynamic.add(place) };
        // The C library turns these into addresses, but not for the vDSO.
        let address = if value < base { base + value } else { value };
        match tag {
            DT_NULL => break,
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_JMPREL => relocations[0].0 = address,
            DT_PLTRELSZ => relocations[0].1 = value,
            DT_RELA => relocations[1].0 = address,
            DT_RELASZ => relocations[1].1 = value,
            _ => {}
        }
    }
    if strings == 0 || symbols == 0 {
        return false;
    }
    relocations.into_iter().filter(|&(start, _)| start != 0).any(|(start, bytes)| {
        let start = start as *const Relocation;
        (0..bytes as usize / size_of::<Relocation>()).any(|place| {
            // SAFETY: so many relocations are there.
            let [_, info, _] = unsafe { *start.add(place) };
            let number = info >> 32;
            if number == 0 {
                return false;
            }
            // SAFETY: the symbol that the relocation names.
            let symbol = unsafe { &*(symbols as *const libc::Elf64_Sym).add(number as usize) };
            // SAFETY: its name ends with a NUL.
            let name = unsafe { CStr::from_ptr((strings + u64::from(symbol.st_name)) as *const _) };
            symbol.st_shndx == 0 && HOOKS.contains(&name)
        })
    })
}
