//! Whether this process is recorded, and what of it: found out once, at its first allocation or before.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};

use rftrace_format::resources::pool::BYTES;
use rftrace_format::resources::{DETAILED, MAX_SPECIFIED, Resource};

use crate::identity;
use crate::modules;
use crate::originals;
use crate::pool;
use crate::specifications;
use crate::stacks;
use crate::thread;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Not asked yet.
const UNKNOWN: u8 = 0;
/// A thread is about to find out.
const BEGINNING: u8 = 1;
const RECORDED: u8 = 2;
const NOT_RECORDED: u8 = 3;
/// Of each resource, by its number.
static STATES: [AtomicU8; N_RESOURCES] = [const { AtomicU8::new(UNKNOWN) }; N_RESOURCES];
const N_RESOURCES: usize = Resource::ALL.len() + MAX_SPECIFIED;

/// Whether it is recorded what this process takes of this. Finds out if nobody has.
#[inline(always)]
pub(crate) fn is_recorded(resource: Resource) -> bool {
    STATES[resource.number() as usize].load(Relaxed) == RECORDED || begin(resource)
}

/// The same of one by its number, as far as it was found out.
pub(crate) fn is_number_recorded(number: usize) -> bool {
    STATES.get(number).is_some_and(|state| state.load(Relaxed) == RECORDED)
}

/// Whether it was found out what is recorded.
pub(crate) fn is_known() -> bool {
    [RECORDED, NOT_RECORDED].contains(&STATES[0].load(Relaxed))
}

/// Whether more is recorded: stacks of releases, arguments.
static IS_DETAILED: AtomicBool = AtomicBool::new(false);

/// Whether releases have stacks, and calls for files their arguments.
#[inline(always)]
pub(crate) fn is_detailed() -> bool {
    IS_DETAILED.load(Relaxed)
}

/// Programs may have constructors that allocate before this one. But one that never allocates is to be known too.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    is_recorded(Resource::Memory);
    originals::find_all();
}

#[cold]
#[inline(never)]
fn begin(resource: Resource) -> bool {
    /// The first one says whether somebody has begun to find out.
    const FIRST: usize = 0;

    // SAFETY: the C library's; nobody changes it as long as there is one thread.
    let is_early = unsafe { environ.is_null() };
    if is_early || STATES[FIRST].compare_exchange(UNKNOWN, BEGINNING, AcqRel, Relaxed).is_err() {
        return false;
    }
    let is_recorded = thread::keeping_errno(|| {
        if !open() {
            return false;
        }
        stacks::prepare();
        specifications::open();
        pool::leave_older();
        identity::set_number(pool::next_process());
        true
    });
    let wanted = if is_recorded { pool::wanted() } else { 0 };
    IS_DETAILED.store(wanted & DETAILED != 0, Relaxed);
    for (number, place) in STATES.iter().enumerate() {
        place.store(if wanted >> number & 1 != 0 { RECORDED } else { NOT_RECORDED }, Release);
    }
    if is_recorded {
        modules::refresh();
    }
    STATES[resource.number() as usize].load(Relaxed) == RECORDED
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
        let memory = libc::mmap(ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file, 0);
        libc::close(file);
        memory
    };
    memory != libc::MAP_FAILED && identity::prepare() && pool::open(memory.cast())
}
