//! Recording in a program that was started without this library, and runs: what `rftrace record -p` has a thread of it call.
//!
//! Functions that are to have a branch at their beginning are prepared here; the recorder, which can stop all threads, writes the branches, and
//! takes them away again.
//!
//! Its settings are a text; nothing goes into the program's environment. It records into a bank of the recorder, which makes the trace:
//! nothing is saved here, and no signal has a handler of this library. When the recorder leaves, the library stays, for a thread may be
//! in it, and is used again.
//!
//! Not here: how the library comes into the program, and how return addresses are given back (`rftrace-attach`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::iter;
use std::path::PathBuf;
use std::ptr;
use std::slice;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, Once, PoisonError};

use rftrace_format::branches::{Branch, ENTRY_BYTES};
use rftrace_format::passed::Passed;
use rftrace_frontend::bank::Bank;
use rftrace_frontend::patch::redirect::{self, Hooks, Redirected, Targets};
use rftrace_frontend::patch::{hook_library_calls, prepare_branches, prepared_branches, release_library_calls};
use rftrace_frontend::{Config, Ends, Filter, Tracer};

use super::branches;
use crate::control;
use crate::interpose;
use crate::memory;
use crate::process;
use crate::save::RECORDING;
use crate::start::__cxa_atexit;
use crate::types;
use crate::work;

unsafe extern "C" {
    safe fn rftrace_backend_control_v10() -> *const c_void;
}

/// Where the tracer's control block is, for who gives return addresses back; 0 until it has recorded.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static rftrace_attach_control: AtomicUsize = AtomicUsize::new(0);

/// Data for the recorder: its address, and its size.
#[derive(Debug)]
struct Shown([AtomicUsize; 2]);

impl Shown {
    const fn nothing() -> Self {
        Self([const { AtomicUsize::new(0) }; 2])
    }

    /// Shows that many at that address.
    fn set(&self, address: usize, number: usize) {
        self.0[1].store(0, Release);
        self.0[0].store(address, Relaxed);
        self.0[1].store(number, Release);
    }
}

/// All branches that were ever prepared, as [`Branch::encode`] writes them, and how many there are.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static rftrace_attach_branches: Shown = Shown::nothing();

/// The outcome for the functions that were to have a hook, as text, and its bytes.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static rftrace_attach_told: Shown = Shown::nothing();

/// The recorder's settings: lines of `key=value`.
#[derive(Debug, Default)]
struct Settings {
    /// `bank`: where its file is.
    bank: PathBuf,
    /// `filter`: rules; empty for none.
    filter: String,
    /// `libcalls`: whether calls of libraries' functions are recorded.
    has_library_calls: bool,
    /// `branch`, once for each: patterns of functions that get a branch.
    branches: Vec<String>,
    /// `except`, once for each: symbols of functions that get none.
    exceptions: Vec<String>,
    /// `ends`: how ends of functions with branches are seen.
    ends: Ends,
    /// `types`: where the recorder answers what values functions have.
    types: Option<Passed>,
    /// `disabled`: whether recording begins switched off.
    is_disabled: bool,
    /// `patched`: whether call sites are.
    is_patched: bool,
    /// `confined`: whether the program may be killed for system calls by which values are read.
    is_confined: bool,
    /// `interposed`: where the library for resources tells which functions it takes the place of, and of how many; empty for none.
    interposed: String,
    /// `mcount` and `fentry`: the addresses of this library's hooks, in hexadecimal.
    mcount: usize,
    fentry: usize,
}

/// This program is attached to.
#[derive(Clone, Copy, Debug)]
struct Attached {
    tracer: &'static Tracer,
    bank: &'static Bank,
    targets: Targets,
    has_library_calls: bool,
    has_branches: bool,
}

impl Attached {
    /// Has calls lead to the tracer, wherever they do not. Returns what is answered: through how many slots they do, and lines with modules and
    /// functions that are called otherwise too.
    fn redirect(self) -> io::Result<String> {
        let n_calls = if self.has_library_calls { hook_library_calls()? } else { 0 };
        let Redirected { n_hooks, n_interposed, left_out } = redirect::redirect(self.targets)?;
        let left_out = left_out.iter().map(|(module, name)| format!("\nleft={name} {module}"));
        let slots = format!("slots={}\ninterposed={n_interposed}", n_calls + n_hooks);
        Ok(iter::once(slots).chain(left_out).collect())
    }

    fn restore(self) -> io::Result<()> {
        redirect::restore(self.targets).and(release_library_calls())
    }
}

static ATTACHED: Mutex<Option<Attached>> = Mutex::new(None);

fn attached() -> Option<Attached> {
    *ATTACHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_attached(attached: Option<Attached>) {
    *ATTACHED.lock().unwrap_or_else(PoisonError::into_inner) = attached;
}

impl Settings {
    fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let address = || usize::from_str_radix(value, 16).unwrap_or(0);
            match key {
                "types" => settings.types = value.parse().ok(),
                "bank" => settings.bank = value.into(),
                "filter" => value.clone_into(&mut settings.filter),
                "branch" => settings.branches.push(value.to_owned()),
                "except" => settings.exceptions.push(value.to_owned()),
                "ends" => settings.ends = if value == "exits" { Ends::Exits } else { Ends::Returns },
                "disabled" => settings.is_disabled = value == "1",
                "patched" => settings.is_patched = value == "1",
                "confined" => settings.is_confined = value == "1",
                "libcalls" => settings.has_library_calls = value == "1",
                "interposed" => value.clone_into(&mut settings.interposed),
                "mcount" => settings.mcount = address(),
                "fentry" => settings.fentry = address(),
                _ => {}
            }
        }
        settings
    }
}

/// Begins to record. `answer` becomes text of `bytes` bytes at the most, with a NUL behind it: how many slots have a hook, or behind
/// `error=` why nothing is recorded. Returns whether it is.
///
/// # Safety
///
/// `settings` is a string, and so many bytes can be written to `answer`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_attach(settings: *const c_char, answer: *mut u8, bytes: usize) -> c_int {
    static FIRST: Once = Once::new();

    // Before anything is allocated.
    if RECORDING.get().is_none() {
        FIRST.call_once(|| {
            memory::prepare();
            work::prepare(memory::map(work::STACK_BYTES));
        });
    }
    // SAFETY: by this function's contract.
    let settings = unsafe { CStr::from_ptr(settings) };
    let begin = || begin(&Settings::parse(&settings.to_string_lossy()));
    // SAFETY: by this function's contract.
    unsafe { answered(begin, answer, bytes) }
}

/// Looks once more for slots: libraries come, and the dynamic linker writes those that it resolves at their first call.
///
/// # Safety
///
/// As of [`rftrace_attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_attach_again(answer: *mut u8, bytes: usize) -> c_int {
    let again = || {
        let attached = attached().ok_or("no recorder is attached")?;
        let answer = attached.redirect().map_err(|error| error.to_string())?;
        if attached.has_branches {
            prepare_branches();
            show(attached.tracer);
        }
        // It chooses among those too.
        attached.tracer.refresh_filter();
        attached.bank.describe();
        Ok(answer)
    };
    // SAFETY: by this function's contract.
    unsafe { answered(again, answer, bytes) }
}

/// Answers what the recorder asks, where it has asked: in the bank.
///
/// # Safety
///
/// As of [`rftrace_attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_attach_answer(answer: *mut u8, bytes: usize) -> c_int {
    let look = || {
        let attached = attached().ok_or("no recorder is attached")?;
        control::answer_in(attached.bank, attached.tracer);
        Ok(String::new())
    };
    // SAFETY: by this function's contract.
    unsafe { answered(look, answer, bytes) }
}

/// Ends recording: slots are what they were, and the bank is private memory. Does nothing if nothing is recorded. `answer` is empty if
/// nothing was; otherwise the recorder waits until no thread is in a hook, as the next bank takes this one's place.
///
/// # Safety
///
/// As of [`rftrace_attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_detach(answer: *mut u8, bytes: usize) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { answered(end, answer, bytes) }
}

/// Does that alone, on a stack of its own, and answers.
///
/// # Safety
///
/// So many bytes can be written to `answer`.
unsafe fn answered(work: impl FnOnce() -> Result<String, String>, answer: *mut u8, bytes: usize) -> c_int {
    let mut result = None;
    let is_done = work::alone(|| result = Some(work()));
    // SAFETY: by this function's contract.
    let answer = unsafe { slice::from_raw_parts_mut(answer, bytes) };
    let (text, is_right) = match &result {
        Some(Ok(text)) if is_done => (text.as_str(), true),
        Some(Err(error)) => (error.as_str(), false),
        _ => ("the process has no memory for the tracer, or is running it at this moment", false),
    };
    let text = [if is_right { "" } else { "error=" }, text].concat();
    let n_bytes = text.len().min(bytes.saturating_sub(1));
    answer[..n_bytes].copy_from_slice(&text.as_bytes()[..n_bytes]);
    if let Some(end) = answer.get_mut(n_bytes) {
        *end = 0;
    }
    c_int::from(is_right)
}

fn begin(settings: &Settings) -> Result<String, String> {
    if RECORDING.get().is_some() {
        return Err("rftrace record started the process and records it already".to_owned());
    }
    if attached().is_some() {
        return Err("another recorder is attached to the process; stop that one first".to_owned());
    }
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let bank = Bank::open_alone(&settings.bank).map_err(|error| told(&error))?;
    let mut config = Config::new().prefault(false).bank(bank).library_calls(settings.has_library_calls);
    config = config.branches_from_outside().ends(settings.ends).patched(settings.is_patched);
    config = settings.branches.iter().fold(config, |config, pattern| config.entry_branches(pattern));
    config = config.entry_exceptions(settings.exceptions.iter().cloned());
    types::begin(settings.types.as_ref());
    if settings.is_confined {
        interpose::before_filter();
    }
    if !settings.filter.is_empty() {
        config =
            config.known_values(types::ask).filter(settings.filter.parse::<Filter>().map_err(|error| told(&error))?);
    }
    let tracer = config.install().map_err(|error| {
        // The tracer has not had it.
        let _ = bank.leave_to_next();
        told(&error)
    })?;
    rftrace_attach_control.store(rftrace_backend_control_v10() as usize, Relaxed);
    bank.tell_rules(&settings.filter);
    process::begin();
    register();
    let hooks = Hooks { mcount: settings.mcount, fentry: settings.fentry };
    let has_branches = !settings.branches.is_empty();
    // SAFETY: the recorder has that from the other library, which is never unloaded.
    let targets = unsafe { Targets::new(hooks, &settings.interposed) };
    let attached = Attached { tracer, bank, targets, has_library_calls: settings.has_library_calls, has_branches };
    set_attached(Some(attached));
    show(tracer);
    if settings.has_library_calls || has_branches {
        bank.describe_hooked();
    }
    // Calls find the tracer switched off until all of them do.
    let answer = match attached.redirect() {
        Ok(answer) => answer,
        Err(error) => {
            end()?;
            return Err(format!("cannot redirect the process's calls to the tracer: {error}"));
        }
    };
    if !settings.is_disabled {
        tracer.enable();
    }
    Ok(answer)
}

/// Has the recorder see which branches it may write, and what became of the others.
fn show(tracer: &Tracer) {
    static SHOWN: Mutex<(Vec<[u8; ENTRY_BYTES]>, String)> = Mutex::new((Vec::new(), String::new()));

    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let (branches, text) = (prepared_branches().iter().map(Branch::encode).collect::<Vec<_>>(), branches::told(tracer));
    rftrace_attach_branches.set(branches.as_ptr() as usize, branches.len());
    rftrace_attach_told.set(text.as_ptr() as usize, text.len());
    *shown = (branches, text);
}

fn end() -> Result<String, String> {
    let Some(attached) = attached() else { return Ok(String::new()) };
    let Attached { tracer, bank, .. } = attached;
    tracer.disable();
    tracer.unpatch();
    attached.restore().map_err(|error| format!("cannot restore the process's calls: {error}"))?;
    bank.end(None);
    set_attached(None);
    bank.leave_to_next().map_err(|error| format!("cannot take the recorder's memory out of the process: {error}"))?;
    Ok("ended".to_owned())
}

/// Has this library know of forks and of the program's end, once.
fn register() {
    static REGISTERED: Once = Once::new();

    extern "C" fn at_exit(_: *mut c_void) {
        // A child in the memory of its parent has that one's.
        if let Some(attached) = attached().filter(|_| process::is_owner()) {
            work::alone(|| attached.bank.describe());
        }
    }
    unsafe extern "C" fn fork_begins() {
        work::fork_begins();
    }
    unsafe extern "C" fn fork_ends() {
        work::fork_ends();
    }
    unsafe extern "C" fn forked() {
        // It is not recorded. Its calls find the tracer switched off.
        set_attached(None);
        work::fork_ends();
    }

    REGISTERED.call_once(|| {
        // SAFETY: the functions are of these types, and this library is never unloaded.
        unsafe {
            __cxa_atexit(at_exit, ptr::null_mut(), ptr::null_mut());
            libc::pthread_atfork(Some(fork_begins), Some(fork_ends), Some(forked));
        }
    });
}
