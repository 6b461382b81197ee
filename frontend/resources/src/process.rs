//! The decision to record this process, and which resources: made once, at its first allocation or before; or by a recorder that attaches
//! to a running program (`attach`).

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use rftrace_format::resources::Resource;
use rftrace_format::resources::pool::BYTES;

use crate::identity;
use crate::layers;
use crate::memory;
use crate::modules;
use crate::originals;
use crate::pool::{self, Pool};
use crate::specifications;
use crate::stacks;
use crate::state::{BEGINNING, LAYERED, RECORDED, STATES, UNKNOWN};
pub(crate) use crate::state::{
    attach, confine, generation, is_confined, is_detailed, is_known, is_number_recorded, set_layered, set_wanted,
    switch_off,
};
use crate::thread;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// True if this resource of the process is recorded. Finds out if nobody has.
#[inline(always)]
pub(crate) fn is_recorded(resource: Resource) -> bool {
    STATES[resource.number() as usize].load(Relaxed) == RECORDED || begin(resource)
}

/// Programs may have constructors that allocate before this one. But one that never allocates is to be known too.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    is_recorded(Resource::Memory);
    // Where this library came later nobody calls it by the names of its functions, and what is the next one after it is not defined.
    if has_path() {
        originals::find_all();
        if IS_UNTRACED.load(Relaxed) {
            memory::leave_file();
        }
    }
}

/// True if this process is recorded, and nobody traces it, as far as known.
static IS_UNTRACED: AtomicBool = AtomicBool::new(false);

/// True if the system reports no debugger for this process. To be called where no file is recorded.
fn is_untraced() -> bool {
    const UNTRACED: &[u8] = b"\nTracerPid:\t0\n";
    let mut text = [0u8; 1024];
    // SAFETY: a path that ends with a NUL, this function's own descriptor, and a buffer with so much room.
    let length = unsafe {
        let file = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length
    };
    let text = &text[..usize::try_from(length).unwrap_or(0)];
    text.windows(UNTRACED.len()).any(|window| window == UNTRACED)
}

/// True if this process is to be recorded from its beginning.
fn has_path() -> bool {
    // SAFETY: the name ends with a NUL, and what is returned is not read.
    !unsafe { libc::getenv(PATH.as_ptr()) }.is_null()
}

/// The variable with the path of the recorder's memory.
const PATH: &CStr = c"RFTRACE_RESOURCES";

#[cold]
#[inline(never)]
fn begin(resource: Resource) -> bool {
    /// The first one says whether somebody has begun to find out.
    const FIRST: usize = 0;

    if STATES[resource.number() as usize].load(Relaxed) == LAYERED {
        return !thread::current().is_stopped.get() && !layers::is_within(thread::stack_pointer());
    }
    // SAFETY: the C library's; nobody changes it as long as there is one thread.
    let is_early = unsafe { environ.is_null() };
    if is_early || STATES[FIRST].compare_exchange(UNKNOWN, BEGINNING, AcqRel, Relaxed).is_err() {
        return false;
    }
    let pool = thread::keeping_errno(|| {
        let pool = open()?;
        // SAFETY: the names end with a NUL.
        let (way, table) = unsafe {
            (libc::getenv(c"RFTRACE_RESOURCES_BACKTRACES".as_ptr()), libc::getenv(c"RFTRACE_RESOURCES_TABLE".as_ptr()))
        };
        // SAFETY: null, or a variable's value, which ends with a NUL; nobody changes it as long as there is one thread.
        let [way, table] = [way, table].map(|text| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }));
        stacks::prepare(way.and_then(|way| way.to_bytes().first().copied()), None);
        if let Some(table) = table {
            specifications::open(table);
        }
        IS_UNTRACED.store(is_untraced(), Relaxed);
        pool.leave_older();
        identity::set_number(pool.next_process());
        Some(pool)
    });
    set_wanted(pool.map_or(0, Pool::wanted));
    if pool.is_some() {
        modules::refresh();
    }
    STATES[resource.number() as usize].load(Relaxed) == RECORDED
}

/// Maps the recorder's memory, if this process is to be recorded and can be.
fn open() -> Option<Pool> {
    // SAFETY: the names end with a NUL, and what is returned is only read here.
    let (path, space) = unsafe { (libc::getenv(PATH.as_ptr()), libc::getenv(c"RFTRACE_RESOURCES_SPACE".as_ptr())) };
    if path.is_null() || space.is_null() {
        return None;
    }
    // The recorder looks whether threads are there by their numbers, which are others in another space of processes.
    let mut link = [0u8; 64];
    // SAFETY: the path ends with a NUL, and the buffer has room.
    let length = unsafe { libc::readlink(c"/proc/self/ns/pid".as_ptr(), link.as_mut_ptr().cast(), link.len() - 1) };
    // SAFETY: a variable's value ends with a NUL.
    let space = unsafe { CStr::from_ptr(space) };
    if length <= 0 || space.to_bytes() != &link[..length as usize] {
        return None;
    }
    // SAFETY: as above.
    map(unsafe { CStr::from_ptr(path) })
}

/// Maps the recorder's memory. `None`: it is not there.
pub(crate) fn map(path: &CStr) -> Option<Pool> {
    // SAFETY: a path that ends with a NUL.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: a new mapping, and this function's own descriptor.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // Leftovers of an earlier recorder have private memory there, without a use.
        let place = pool::place();
        let flags = libc::MAP_SHARED | if place.is_null() { 0 } else { libc::MAP_FIXED };
        let memory = libc::mmap(place.cast(), BYTES, protection, flags, file, 0);
        libc::close(file);
        memory
    };
    let is_there = memory != libc::MAP_FAILED && identity::prepare();
    is_there.then(|| pool::open(memory.cast())).flatten()
}
