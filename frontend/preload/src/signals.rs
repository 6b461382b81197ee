//! Signals: a save before one kills the program, snapshots, and the switch.
//!
//! A signal has a handler of this library only as long as it has none of the program's, and the program does not see it:
//! who asks is told that the default action is in force, and who wants that gets the handler.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::setting::Settings;

use crate::arch::trigger;
use crate::control;
use crate::memory;
use crate::originals::{errno, real_sigaction, set_errno};
use crate::process;
use crate::save::{self, Moment, RECORDING};
use crate::work;

/// Signals whose default action is the process's end, but for SIGKILL.
const FATAL: [c_int; 23] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGUSR1,
    libc::SIGSEGV,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSYS,
    0,
];

/// Those of the settings.
static SNAPSHOT: AtomicI32 = AtomicI32::new(0);
static TOGGLE: AtomicI32 = AtomicI32::new(0);
static CONTROL: AtomicI32 = AtomicI32::new(0);
static FINISH: AtomicI32 = AtomicI32::new(0);

/// For the main thread, on which a handler begins.
const ALTERNATE_BYTES: usize = 64 << 10;

/// Which handler of this library a signal gets.
fn handler_of(signal: c_int) -> Option<libc::sighandler_t> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = match signal {
        0 => return None,
        signal if signal == SNAPSHOT.load(Relaxed) => on_snapshot,
        signal if signal == TOGGLE.load(Relaxed) => on_toggle,
        signal if signal == CONTROL.load(Relaxed) => on_request,
        signal if signal == FINISH.load(Relaxed) => on_finish,
        signal if FATAL.contains(&signal) => on_fatal,
        _ => return None,
    };
    RECORDING.get().map(|_| handler as libc::sighandler_t)
}

fn is_ours(action: &libc::sigaction) -> bool {
    let ours: [extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void); 5] =
        [on_snapshot, on_toggle, on_request, on_finish, on_fatal];
    ours.iter().any(|&handler| handler as libc::sighandler_t == action.sa_sigaction)
}

/// Installs the handlers where the default action is in force.
pub(crate) fn install(settings: &Settings) {
    SNAPSHOT.store(settings.snapshot, Relaxed);
    TOGGLE.store(settings.toggle, Relaxed);
    CONTROL.store(settings.control, Relaxed);
    FINISH.store(settings.finish, Relaxed);
    // A handler cannot begin on a stack that is used up. A program may set another; it is told of this one.
    let alternate = libc::stack_t { ss_sp: memory::map(ALTERNATE_BYTES).cast(), ss_flags: 0, ss_size: ALTERNATE_BYTES };
    if !alternate.ss_sp.is_null() {
        // SAFETY: the memory is new and stays mapped.
        unsafe { libc::sigaltstack(&raw const alternate, ptr::null_mut()) };
    }
    let chosen = [settings.snapshot, settings.toggle, settings.control, settings.finish];
    for signal in FATAL.into_iter().chain(chosen) {
        let Some(handler) = handler_of(signal) else { continue };
        let mut current = MaybeUninit::uninit();
        // SAFETY: the structure is filled by the call if it succeeds.
        let known = unsafe { real_sigaction(signal, ptr::null(), current.as_mut_ptr()) } == 0;
        // SAFETY: as above.
        if known && unsafe { current.assume_init() }.sa_sigaction == libc::SIG_DFL {
            set(signal, handler);
        }
    }
}

/// Takes the handlers of this library away, for good: a thread may make no system calls any more, and would be killed for those
/// of a handler.
pub(crate) fn uninstall() {
    control::tell_signal(0);
    let chosen = [&SNAPSHOT, &TOGGLE, &CONTROL, &FINISH].map(|signal| signal.swap(0, Relaxed));
    for signal in FATAL.into_iter().chain(chosen).filter(|&signal| signal != 0) {
        let mut current = MaybeUninit::uninit();
        // SAFETY: the structure is filled by the call if it succeeds.
        let known = unsafe { real_sigaction(signal, ptr::null(), current.as_mut_ptr()) } == 0;
        // SAFETY: as above.
        if known && is_ours(&unsafe { current.assume_init() }) {
            set_default(signal);
        }
    }
}

/// Gives a signal a handler of this library.
fn set(signal: c_int, handler: libc::sighandler_t) -> c_int {
    // SAFETY: all zero is a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is made for this; the set is writable.
    unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        let status = real_sigaction(signal, &raw const action, ptr::null_mut());
        if status == 0 && signal == CONTROL.load(Relaxed) {
            control::tell_signal(signal);
        }
        status
    }
}

/// Sets the default action, for good.
fn set_default(signal: c_int) {
    // SAFETY: all zero is the default action.
    unsafe {
        let action: libc::sigaction = mem::zeroed();
        real_sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// `sigaction`, as the program sees it.
///
/// # Safety
///
/// As of the C library's.
pub(crate) unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let ours = handler_of(signal);
    // SAFETY: by this function's contract, null or valid.
    let wants_default = unsafe { new.as_ref() }.is_some_and(|action| action.sa_sigaction == libc::SIG_DFL);
    let status = match ours {
        Some(handler) if wants_default => {
            // SAFETY: `old` is null or writable.
            let status = unsafe { real_sigaction(signal, ptr::null(), old) };
            if status == 0 { set(signal, handler) } else { status }
        }
        _ => {
            // First: it is not sent any more when the program has a handler for it.
            if !new.is_null() && signal == CONTROL.load(Relaxed) && signal != 0 {
                control::refuse(true);
            }
            // SAFETY: by this function's contract.
            unsafe { real_sigaction(signal, new, old) }
        }
    };
    // SAFETY: null, or filled by now.
    if let Some(old) = unsafe { old.as_mut() }.filter(|old| status == 0 && is_ours(old)) {
        // SAFETY: all zero is the default action.
        *old = unsafe { mem::zeroed() };
    }
    status
}

/// `signal`, with the flags of one of its kinds.
///
/// # Safety
///
/// The handler is one, or stands for none.
pub(crate) unsafe fn signal(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    if handler == libc::SIG_ERR {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all zero is a valid value.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (mem::zeroed(), mem::zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: the sets and structures are writable.
    unsafe {
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut new.sa_mask, signal);
        }
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

extern "C" fn on_fatal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = errno();
    let tracer = RECORDING.get().map(|recording| recording.tracer);
    if signal == trigger::SIGNAL && tracer.is_some_and(|tracer| trigger::hit(tracer, context)) {
        return set_errno(errno);
    }
    save::save(Moment::Killed(signal));
    set_default(signal);
    // SAFETY: the kernel passes what the signal is about.
    let is_fault =
        unsafe { &*info }.si_code > 0 && [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL].contains(&signal);
    // A faulting instruction faults again. Other signals are sent again; they wait until this returns.
    if !is_fault {
        // SAFETY: the calls take no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    }
    set_errno(errno);
}

extern "C" fn on_snapshot(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let errno = errno();
    save::snapshot();
    set_errno(errno);
}

extern "C" fn on_toggle(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let errno = errno();
    if process::is_owner() {
        work::alone(toggle);
    }
    set_errno(errno);
}

extern "C" fn on_request(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let errno = errno();
    if process::is_owner() {
        work::alone(control::answer);
    }
    set_errno(errno);
}

extern "C" fn on_finish(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let errno = errno();
    if process::is_owner() {
        work::alone(|| RECORDING.get().into_iter().for_each(|recording| recording.tracer.disable()));
    }
    set_errno(errno);
}

fn toggle() {
    let Some(tracer) = RECORDING.get().map(|recording| recording.tracer) else { return };
    if tracer.is_recording() {
        tracer.disable();
    } else {
        tracer.enable();
    }
}
