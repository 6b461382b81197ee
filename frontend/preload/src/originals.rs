//! The C library's own functions, and the unwinder's, behind those of this library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch::FIRST_VERSION;

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
    c"prctl",
    c"syscall",
    c"dlclose",
    c"_Unwind_RaiseException",
    DLSYM,
    c"posix_spawn",
    c"posix_spawnp",
    c"mlockall",
];
const N_NAMES: usize = 20;
/// This cannot be asked for itself.
const DLSYM: &CStr = c"dlsym";
const DLCLOSE: usize = 14;
const SIGACTION: usize = 1;
const MLOCKALL: usize = 19;

/// The C library's own.
static ORIGINALS: [AtomicPtr<c_void>; N_NAMES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; N_NAMES];

/// Looks them up, as long as nothing can be in the way.
pub(crate) fn find() {
    (0..N_NAMES).for_each(|place| {
        original(place);
    });
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The one at a place; null if the C library has none.
pub(crate) fn original(place: usize) -> *mut c_void {
    let known = ORIGINALS[place].load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = if NAMES[place] == DLSYM {
        // SAFETY: the names end with a NUL.
        unsafe { dlvsym(libc::RTLD_NEXT, DLSYM.as_ptr(), FIRST_VERSION.as_ptr()) }
    } else {
        // SAFETY: the name ends with a NUL.
        unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[place].as_ptr()) }
    };
    ORIGINALS[place].store(found, Relaxed);
    found
}

/// Ends the process without another word.
pub(crate) fn leave(status: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
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

/// The C library's `mlockall`.
pub(crate) fn real_mlockall(flags: c_int) -> c_int {
    // SAFETY: the C library has this function, with this type, and it takes no pointer.
    let original: extern "C" fn(c_int) -> c_int = unsafe { transmute(original(MLOCKALL)) };
    original(flags)
}

/// The C library's `dlclose`.
///
/// # Safety
///
/// As of that.
pub(crate) unsafe fn real_dlclose(handle: *mut c_void) -> c_int {
    type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

    // SAFETY: the C library has this function, with this type.
    let original: Dlclose = unsafe { transmute(original(DLCLOSE)) };
    // SAFETY: by this function's contract.
    unsafe { original(handle) }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's variable.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}
