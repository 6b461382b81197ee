//! Which process this is, and whether it is recorded.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use rftrace_format::resources::{Kind, MAX_TEXT_BYTES, pool};

use crate::chunks::{self, Writing};
use crate::memory;
use crate::modules;
use crate::stacks;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Not asked yet.
const UNKNOWN: u8 = 0;
/// A thread is about to find out.
const BEGINNING: u8 = 1;
const RECORDED: u8 = 2;
const NOT_RECORDED: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The number of this process; 0 in the child of a fork, as the system clears the page there.
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_NUMBER).cast_mut());
static NO_NUMBER: AtomicU64 = AtomicU64::new(0);
/// The same, which a child has from its parent.
static KNOWN: AtomicU32 = AtomicU32::new(0);
/// The number of the parent.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// The recorder does not know of this process.
static IS_UNTOLD: AtomicBool = AtomicBool::new(false);

/// Whether this process is recorded. Finds out if nobody has.
#[inline(always)]
pub(crate) fn is_recorded() -> bool {
    STATE.load(Relaxed) == RECORDED || begin()
}

/// The number of this process; 0 for one that has none yet.
#[inline(always)]
pub(crate) fn number() -> u64 {
    // SAFETY: one of this file's, or a page that stays.
    unsafe { &*NUMBER.load(Relaxed) }.load(Relaxed)
}

/// Programs may have constructors that allocate before this one. But one that never allocates is to be known too.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    is_recorded();
}

#[cold]
#[inline(never)]
fn begin() -> bool {
    // SAFETY: the C library's; nobody changes it as long as there is one thread.
    let is_early = unsafe { environ.is_null() };
    if is_early || STATE.compare_exchange(UNKNOWN, BEGINNING, AcqRel, Relaxed).is_err() {
        return false;
    }
    let is_recorded = crate::thread::keeping_errno(|| {
        if !open() {
            return false;
        }
        stacks::prepare();
        chunks::leave_older();
        set_number();
        true
    });
    STATE.store(if is_recorded { RECORDED } else { NOT_RECORDED }, Release);
    if is_recorded {
        modules::refresh();
    }
    is_recorded
}

/// Maps the recorder's memory, if this process is to be recorded and can be.
fn open() -> bool {
    // SAFETY: the names end with a NUL, and what is returned is only read here.
    let (path, space) =
        unsafe { (libc::getenv(c"RFTRACE_RESOURCES".as_ptr()), libc::getenv(c"RFTRACE_RESOURCES_SPACE".as_ptr())) };
    if path.is_null() || space.is_null() {
        return false;
    }
    // The recorder looks whether threads are there by their numbers, which are others in another space of processes.
    let mut link = [0u8; 64];
    // SAFETY: the path ends with a NUL, and the buffer has room.
    let length = unsafe { libc::readlink(c"/proc/self/ns/pid".as_ptr(), link.as_mut_ptr().cast(), link.len() - 1) };
    // SAFETY: a variable's value ends with a NUL.
    let space = unsafe { CStr::from_ptr(space) };
    if length <= 0 || space.to_bytes() != &link[..length as usize] {
        return false;
    }
    // SAFETY: a path that ends with a NUL.
    let file = unsafe { libc::open(path, libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    // SAFETY: a new mapping, and this function's own descriptor.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(ptr::null_mut(), pool::BYTES, protection, libc::MAP_SHARED, file, 0);
        libc::close(file);
        memory
    };
    let page = memory::map(4096);
    if memory == libc::MAP_FAILED || page.is_null() {
        return false;
    }
    // SAFETY: the page that was just mapped.
    if unsafe { libc::madvise(page.cast(), 4096, libc::MADV_WIPEONFORK) } != 0 {
        return false;
    }
    if !chunks::open(memory.cast()) {
        return false;
    }
    NUMBER.store(page.cast(), Release);
    true
}

/// Gives this process a number, if it has none.
fn set_number() {
    let number = chunks::next_process();
    // SAFETY: a page that stays.
    let page = unsafe { &*NUMBER.load(Relaxed) };
    if page.compare_exchange(0, u64::from(number), AcqRel, Acquire).is_ok() {
        KNOWN.store(number, Relaxed);
        IS_UNTOLD.store(true, Release);
    }
}

/// This is a child that was forked.
pub(crate) fn forked() {
    PARENT.store(KNOWN.load(Relaxed), Relaxed);
    set_number();
}

/// Tells the recorder of this process, if it does not know.
pub(crate) fn tell(writing: &Writing) {
    if !IS_UNTOLD.swap(false, AcqRel) {
        return;
    }
    let mut path = [0u8; MAX_TEXT_BYTES];
    // SAFETY: the path ends with a NUL, and the buffer has room.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    let path = &path[..length.max(0) as usize];
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to what it is given; the other takes nothing.
    let pid = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        libc::getpid().cast_unsigned()
    };
    let nanos = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let Some(place) = writing.reserve(2 + path.len().div_ceil(8)) else { return };
    place.more(1, nanos, path.len() as u64);
    chunks::write_text(place, 2, [path, &[]]);
    place.finish(Kind::Process, chunks::ticks_before(), u64::from(pid) | u64::from(PARENT.load(Relaxed)) << 32);
}
