//! Functions of the C library that this takes the place of: those after which there is no program any more, and those that
//! tell the program which signal handlers there are.

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use crate::process;
use crate::save::{self, Moment, RECORDING};
use crate::signals;

/// The functions' names; their places are those in [`ORIGINALS`].
const NAMES: [&CStr; N_NAMES] = [
    c"_exit",
    c"sigaction",
    c"execve",
    c"execv",
    c"execvp",
    c"execvpe",
    c"execl",
    c"execle",
    c"execlp",
    c"fexecve",
    c"execveat",
    c"daemon",
];
const N_NAMES: usize = 12;
const SIGACTION: usize = 1;

/// The C library's own.
static ORIGINALS: [AtomicPtr<c_void>; N_NAMES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; N_NAMES];

/// Looks them up, as long as nothing can be in the way.
pub(crate) fn find_originals() {
    (0..N_NAMES).for_each(|place| {
        original(place);
    });
}

fn original(place: usize) -> *mut c_void {
    let known = ORIGINALS[place].load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[place].as_ptr()) };
    ORIGINALS[place].store(found, Relaxed);
    found
}

/// Ends the process without another word.
pub(crate) fn leave(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}

#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    save::save(Moment::Exit);
    leave(status)
}

#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// The C library's `sigaction`.
///
/// # Safety
///
/// As of that.
pub(crate) unsafe fn real_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

    // SAFETY: the C library has this function, with this type.
    let original: Sigaction = unsafe { transmute(original(SIGACTION)) };
    // SAFETY: by this function's contract.
    unsafe { original(signal, new, old) }
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
    let tracer = RECORDING.get().map(|recording| recording.tracer);
    if let Some(tracer) = tracer.filter(|_| process::is_owner()) {
        let errno = errno();
        let was_on = tracer.is_recording();
        save::save(Moment::Exec);
        if was_on {
            tracer.enable();
        }
        set_errno(errno);
    }
    original
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's variable.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// A function of the `exec` family: calls [`before_exec`], then goes on in the C library's function as if called directly,
/// with all arguments, those on the stack included.
///
/// On entry rsp is 8 above a multiple of 16; seven registers are put aside, so it is one at the call.
macro_rules! exec {
    ($name:ident, $place:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "mov edi, {place}",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                place = const $place,
                before = sym before_exec,
            );
        }
    };
}

exec!(execve, 2);
exec!(execv, 3);
exec!(execvp, 4);
exec!(execvpe, 5);
exec!(execl, 6);
exec!(execle, 7);
exec!(execlp, 8);
exec!(fexecve, 9);
exec!(execveat, 10);
// Its parent ends within the C library.
exec!(daemon, 11);
