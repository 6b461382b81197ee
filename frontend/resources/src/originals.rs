//! The functions that those of this library stand for: the next ones in the order of libraries, which need not be the C library's.
//!
//! In a program that ran before nobody calls those of this library by their names: there slots lead to them, and the functions are what the
//! slots hold (`slots`).

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU32};

use rftrace_format::resources::Resource;

use crate::state;
use crate::thread;

/// The functions, each by its name.
macro_rules! functions {
    ($($name:ident)*) => {
        /// A function, by its place in [`NAMES`].
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(crate) enum Original {
            $($name,)*
        }

        unsafe extern "C" {
            $(#[link_name = concat!("rftrace_own_", stringify!($name))] fn $name();)*
        }

        /// This library's functions of these names, whatever else these lead to.
        const OWN: &[unsafe extern "C" fn()] = &[$($name,)*];

        pub(crate) const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no NUL"),
            },
        )*];
    };
}

functions! {
    malloc calloc realloc free posix_memalign aligned_alloc memalign valloc pvalloc
    open open64 __open __open64 __open_2 __open64_2 openat openat64 __openat_2 __openat64_2 creat creat64
    mkstemp mkstemp64 mkostemp mkostemp64 mkstemps mkstemps64 mkostemps mkostemps64 shm_open memfd_create posix_openpt
    fopen fopen64 freopen freopen64 fdopen fcloseall tmpfile tmpfile64 popen opendir
    dup dup2 __dup2 dup3 fcntl fcntl64 __fcntl pipe __pipe pipe2 socket socketpair accept accept4
    epoll_create epoll_create1 eventfd signalfd timerfd_create inotify_init inotify_init1 fanotify_init
    close __close fclose pclose closedir close_range closefrom
    pthread_create pthread_join pthread_tryjoin_np pthread_timedjoin_np pthread_clockjoin_np pthread_detach
    thrd_create thrd_join thrd_detach
    dlopen dlmopen dlclose
    prctl syscall
}

static FOUND: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];
/// The thread that looks them up.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// The function. Null as long as this thread looks it up, if that allocates, and where there is no such function.
#[inline(always)]
pub(crate) fn get(original: Original) -> *mut c_void {
    let known = FOUND[original as usize].load(Relaxed);
    if known.is_null() { find(original as usize) } else { known }
}

/// The resource of a function, by its place. `None`: it is not recorded, but looked at in programs started with this library.
pub(crate) fn resource_of(place: usize) -> Option<Resource> {
    match place {
        _ if place <= Original::pvalloc as usize => Some(Resource::Memory),
        _ if place <= Original::closefrom as usize => Some(Resource::File),
        _ if place <= Original::thrd_detach as usize => Some(Resource::Thread),
        _ if place <= Original::dlclose as usize => Some(Resource::Library),
        _ => None,
    }
}

/// True if a function depends on its caller.
fn looks_at_caller(place: usize) -> bool {
    place == Original::dlopen as usize || place == Original::dlmopen as usize
}

/// This library's function in place of one that is specified too, if it records what is wanted, or is looked at: that one goes on to it. Not what looks who has called it.
///
/// Calls no function of the C library: that may be the specified one.
///
/// # Safety
///
/// `name` is a string.
pub(crate) unsafe fn own(name: *const c_char, wanted: u32) -> Option<usize> {
    // SAFETY: by this function's contract.
    let place = NAMES.iter().position(|own| unsafe { are_same(own.as_ptr(), name) })?;
    let is_wanted = resource_of(place).map_or(!state::is_attached(), |resource| wanted & resource.bit() != 0);
    (is_wanted && !looks_at_caller(place)).then(|| OWN[place] as usize)
}

/// True if two strings are equal.
///
/// # Safety
///
/// Both are strings.
unsafe fn are_same(one: *const c_char, other: *const c_char) -> bool {
    let mut at = 0;
    loop {
        // SAFETY: up to the first difference or NUL.
        let bytes = unsafe { [*one.add(at), *other.add(at)] };
        match bytes {
            [0, 0] => return true,
            [one, other] if one != other => return false,
            _ => at += 1,
        }
    }
}

/// Says what the function at a place is.
pub(crate) fn set(place: usize, function: *mut c_void) {
    FOUND[place].store(function, Relaxed);
}

/// Looks all of them up, so that none has to be where that must not be done: in a signal handler.
pub(crate) fn find_all() {
    let is_unknown = |place: &usize| FOUND[*place].load(Relaxed).is_null();
    let missing = (0..NAMES.len()).filter(is_unknown).filter(|&place| find(place).is_null()).count();
    if missing > 0 {
        // An older C library has not all of them, and what it says of that is not for the program.
        // SAFETY: forgets what it was about to tell.
        unsafe { libc::dlerror() };
    }
}

/// The next function of this name behind this library; null if there is none. The C library's own `dlsym` looks it up:
/// the tracer's `dlsym` calls functions that may be specified, and lead here again.
///
/// # Safety
///
/// `name` is a string.
pub(crate) unsafe fn next(name: *const c_char) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    /// The first version of the C library on this processor, which no other library's functions have.
    const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

    unsafe extern "C" {
        fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    }

    let mut dlsym = DLSYM.load(Relaxed);
    if dlsym.is_null() {
        // SAFETY: names that end with a NUL.
        dlsym = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), FIRST_VERSION.as_ptr()) };
        DLSYM.store(dlsym, Relaxed);
    }
    if dlsym.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library's function of this name has this type.
    let dlsym: Dlsym = unsafe { transmute(dlsym) };
    // SAFETY: by this function's contract.
    unsafe { dlsym(libc::RTLD_NEXT, name) }
}

#[cold]
fn find(place: usize) -> *mut c_void {
    thread::keeping_errno(|| {
        // SAFETY: the call takes nothing.
        let me = unsafe { libc::gettid() }.cast_unsigned();
        if LOOKING.load(Relaxed) == me {
            return ptr::null_mut();
        }
        LOOKING.store(me, Relaxed);
        // SAFETY: the name ends with a NUL.
        let found = unsafe { next(NAMES[place].as_ptr()) };
        FOUND[place].store(found, Relaxed);
        LOOKING.store(0, Relaxed);
        found
    })
}
