//! The functions that those of this library stand for: the next ones in the order of libraries, which need not be the C library's.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU32};

use crate::thread;

/// A function, by its place in [`NAMES`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Original {
    Malloc,
    Calloc,
    Realloc,
    Free,
    PosixMemalign,
    AlignedAlloc,
    Memalign,
    Valloc,
    Pvalloc,
}

const NAMES: [&CStr; N] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"posix_memalign",
    c"aligned_alloc",
    c"memalign",
    c"valloc",
    c"pvalloc",
];
const N: usize = 9;

static FOUND: [AtomicPtr<c_void>; N] = [const { AtomicPtr::new(ptr::null_mut()) }; N];
/// The thread that looks them up.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// The function. Null as long as this thread looks it up, if that allocates, and where there is no such function.
#[inline(always)]
pub(crate) fn get(original: Original) -> *mut c_void {
    let known = FOUND[original as usize].load(Relaxed);
    if known.is_null() { find(original) } else { known }
}

#[cold]
fn find(original: Original) -> *mut c_void {
    thread::keeping_errno(|| {
        // SAFETY: the call takes nothing.
        let me = unsafe { libc::gettid() }.cast_unsigned();
        if LOOKING.load(Relaxed) == me {
            return ptr::null_mut();
        }
        LOOKING.store(me, Relaxed);
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[original as usize].as_ptr()) };
        FOUND[original as usize].store(found, Relaxed);
        LOOKING.store(0, Relaxed);
        found
    })
}
