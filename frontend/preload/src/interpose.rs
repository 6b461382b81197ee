//! Functions of the C library and the unwinder that this takes the place of: that with which an exception begins, those after which there is no program any more, or a thread that may
//! do nothing, and those that tell the program which signal handlers there are.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_frontend::bank::Loaded;

use crate::arch::passed_on;
use crate::control::{self, IS_TOLD_OF_RAISED};
use crate::environment;
use crate::notes;
use crate::originals::{errno, leave, original, real_dlclose, set_errno};
use crate::process;
use crate::program::Program;
use crate::save::{self, Moment, RECORDING, Recording};
use crate::signals;
use crate::work;

#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    save::save(Moment::Exit(Some(status)));
    leave(status)
}

#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Tells the recorder what was unloaded: what comes next may have its place. (`dlopen` is not touched: it goes by who calls it.)
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let bank = RECORDING.get().and_then(|recording| recording.bank).filter(|_| process::is_owner());
    let mut before = None;
    if bank.is_some() {
        work::alone(|| before = Some(Loaded::now()));
    }
    // SAFETY: the caller's argument.
    let result = unsafe { real_dlclose(handle) };
    if let Some((bank, before)) = bank.zip(before) {
        let errno = errno();
        work::alone(|| bank.tell_unloaded(before));
        set_errno(errno);
    }
    result
}

/// For programs that look for it (`dlsym`, or a weak symbol): a text at this moment in the trace.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_mark(text: *const c_char) {
    if text.is_null() || RECORDING.get().is_none() || !process::is_owner() {
        return;
    }
    let errno = errno();
    // SAFETY: the caller's argument ends with a NUL.
    work::alone(|| rftrace_frontend::mark(&unsafe { CStr::from_ptr(text) }.to_string_lossy()));
    set_errno(errno);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { signals::sigaction(signal, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as in the C library: a handler of this type.
    unsafe { signals::signal(signal, handler, libc::SA_RESTART) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bsd_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as above.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as above.
    unsafe { signals::signal(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// Saves, and goes on recording: what comes next may fail. Returns the C library's function.
extern "C" fn before_exec(place: usize) -> *mut c_void {
    let original = original(place);
    let tracer = RECORDING.get().filter(|recording| !recording.is_told()).map(|recording| recording.tracer);
    if let Some(tracer) = tracer.filter(|_| process::is_owner()) {
        let errno = errno();
        let was_on = tracer.is_recording();
        save::save(Moment::Exec);
        if was_on {
            tracer.enable();
        }
        control::refuse(false);
        set_errno(errno);
    }
    original
}

/// Functions that begin another program, with an environment: those of the C library, at these places, that have one as an argument.
macro_rules! begins_program {
    ($($place:literal $before:ident $name:ident($($argument:ident: $type:ty),*; $($last:ident: $of_last:ty)?) $program:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type,)* given: Texts $(, $last: $of_last)?) -> c_int {
            type Original = unsafe extern "C" fn($($type,)* Texts $(, $of_last)?) -> c_int;

            // SAFETY: the C library has this function, with this type.
            let original: Original = unsafe { transmute($before($place)) };
            // SAFETY: the caller's arguments; the environment has more in it.
            unsafe { environment::completed(&$program, given, |given| original($($argument,)* given $(, $last)?)) }
        }
    )*};
}

/// Pointers to texts, the last one null.
type Texts = *const *const c_char;
type Text = *const c_char;

begins_program! {
    2 before_exec execve(path: Text, arguments: Texts;) Program::Below(libc::AT_FDCWD, path);
    5 before_exec execvpe(file: Text, arguments: Texts;) Program::Named(file);
    9 before_exec fexecve(file: c_int, arguments: Texts;) Program::Open(file);
    10 before_exec execveat(folder: c_int, path: Text, arguments: Texts; flags: c_int) Program::Below(folder, path);
    17 original posix_spawn(pid: *mut c_void, path: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts;)
        Program::Below(libc::AT_FDCWD, path);
    18 original posix_spawnp(pid: *mut c_void, file: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts;)
        Program::Named(file);
}

unsafe extern "C" {
    static environ: Texts;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: Text, arguments: Texts) -> c_int {
    // SAFETY: the caller's arguments; the program's own environment.
    unsafe { execve(path, arguments, environ) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: Text, arguments: Texts) -> c_int {
    // SAFETY: as above.
    unsafe { execvpe(file, arguments, environ) }
}

/// Seccomp's strict mode kills a thread for all system calls but `read`, `write`, `exit` and `sigreturn`, and takes the time
/// stamp counter away: so nothing more is recorded of it, and what was is saved before.
fn before_confinement() {
    unsafe extern "C" {
        safe fn rftrace_backend_suspend_thread() -> *mut c_void;
    }
    let Some(tracer) = RECORDING.get().map(|recording| recording.tracer).filter(|_| process::is_owner()) else {
        return;
    };
    let errno = errno();
    let was_on = tracer.is_recording();
    save::save(Moment::Exec);
    if was_on {
        tracer.enable();
    }
    signals::uninstall();
    work::confine_thread();
    set_errno(errno);
    rftrace_backend_suspend_thread();
}

/// A filter of system calls may kill for those of the tracer: it makes none any more.
pub(crate) fn before_filter() {
    unsafe extern "C" {
        safe fn rftrace_backend_confine();
    }
    rftrace_backend_confine();
}

/// As [`before_filter`], where this process makes one itself. One that was there before has let the dynamic linker open files.
fn before_own_filter() {
    save::before_filter();
    before_filter();
}

/// Returns the C library's `prctl`.
extern "C" fn before_prctl(place: usize, option: c_int, argument: c_ulong) -> *mut c_void {
    if option == libc::PR_SET_SECCOMP && argument == c_ulong::from(libc::SECCOMP_MODE_STRICT) {
        before_confinement();
    } else if option == libc::PR_SET_SECCOMP {
        before_own_filter();
    }
    original(place)
}

/// Returns the C library's `syscall`.
extern "C" fn before_syscall(place: usize, number: c_long, first: c_ulong, second: c_ulong) -> *mut c_void {
    match number {
        libc::SYS_prctl => _ = before_prctl(place, first as c_int, second),
        libc::SYS_seccomp if first == c_ulong::from(libc::SECCOMP_SET_MODE_STRICT) && second == 0 => {
            before_confinement()
        }
        libc::SYS_seccomp => before_own_filter(),
        _ => {}
    }
    original(place)
}

/// An exception is about to be raised. Returns the unwinder's function, which finds the stack as if it had been called.
extern "C" fn before_raise(place: usize, exception: *const u64) -> *mut c_void {
    let is_told = |recording: &&Recording| recording.settings.tells_of_raised || IS_TOLD_OF_RAISED.load(Relaxed);
    if let Some(bank) = RECORDING.get().filter(is_told).and_then(|it| it.bank) {
        // SAFETY: the unwinder's caller passes an exception, which begins with its class (Itanium C++ ABI, 1.2).
        let class = unsafe { exception.read() };
        // The lower half is the language: `C++` with what kind of it, and `RUST`, which std writes as bytes, older ones as a number.
        let kind = match class.to_be_bytes() {
            [.., b'C', b'+', b'+', _] => Some(1),
            [.., b'R', b'U', b'S', b'T'] => Some(0),
            _ if class.to_ne_bytes().ends_with(b"RUST") => Some(0),
            _ => None,
        };
        if let Some(kind) = kind.filter(|_| process::is_owner() && !work::is_at_work()) {
            bank.tell_raised(kind);
        }
    }
    original(place)
}

/// Libraries may have come: functions of theirs are about to be called. Returns the C library's function.
extern "C" fn before_dlsym(place: usize) -> *mut c_void {
    /// How many libraries had come when the filter was obeyed.
    static SEEN: AtomicU64 = AtomicU64::new(0);

    let original = original(place);
    let Some(recording) = RECORDING.get().filter(|_| process::is_owner() && !work::is_at_work()) else {
        return original;
    };
    let n_loads = n_loads();
    if SEEN.swap(n_loads, Relaxed) != n_loads {
        let errno = errno();
        work::alone(|| {
            recording.tracer.refresh_filter();
            // Rules may match functions of what has come.
            if let Some(rules) = &recording.settings.rules {
                notes::tell_of_rules(rules, &recording.tracer.rules_in_effect());
            }
        });
        set_errno(errno);
    }
    original
}

/// How often a library was loaded into this process.
fn n_loads() -> u64 {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a module, and what it was given.
        unsafe { found.cast::<u64>().write((*info).dlpi_adds) };
        1
    }

    let mut found = 0_u64;
    // SAFETY: the callback is of this type.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

passed_on!(execl, before_exec, 6);
passed_on!(execle, before_exec, 7);
passed_on!(execlp, before_exec, 8);
// Its parent ends within the C library.
passed_on!(daemon, before_exec, 11);
passed_on!(prctl, before_prctl, 12);
passed_on!(syscall, before_syscall, 13);
passed_on!(_Unwind_RaiseException, before_raise, 15);
passed_on!(dlsym, before_dlsym, 16);
