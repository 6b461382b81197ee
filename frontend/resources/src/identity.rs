//! Which process this is: its number in the recording, and that of its parent.
//!
//! Not here: whether it is recorded (`process`).

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64};

use rftrace_format::resources::MAX_TEXT_BYTES;

use crate::memory;
use crate::state;

/// The number of this process; 0 in the child of a fork, as the system clears the page there.
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_NUMBER).cast_mut());
static NO_NUMBER: AtomicU64 = AtomicU64::new(0);
/// The number that the recorder was told of last: in a child that of its parent, until the recorder was told of the child. 0: of none.
static TOLD: AtomicU64 = AtomicU64::new(0);
/// Its number for the system.
static PID: AtomicI32 = AtomicI32::new(0);

/// Makes the page for the number. Returns whether there is one.
pub(crate) fn prepare() -> bool {
    const BYTES: usize = 4096;

    if !ptr::eq(NUMBER.load(Relaxed), &raw const NO_NUMBER) {
        return true;
    }
    let page = memory::map(BYTES);
    if page.is_null() {
        return false;
    }
    // SAFETY: the page that was just mapped.
    if unsafe { libc::madvise(page.cast(), BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return false;
    }
    NUMBER.store(page.cast(), Release);
    true
}

/// The number of this process, and in the upper half the generation; 0 for one that has none yet.
#[inline(always)]
pub(crate) fn number() -> u64 {
    page().load(Relaxed)
}

fn page() -> &'static AtomicU64 {
    // SAFETY: one of this file's, or a page that stays.
    unsafe { &*NUMBER.load(Relaxed) }
}

/// True if this memory is this process's own, and not that of a parent that waits for it after `vfork`, as far as the system may be asked.
pub(crate) fn is_own_memory() -> bool {
    // SAFETY: the call takes nothing.
    number() == 0 || state::is_confined() || PID.load(Relaxed) == unsafe { libc::getpid() }
}

/// Runs this with the path of the program that this process runs. It is in memory of its own, not on the program's stack: `None` if there is none.
pub(crate) fn with_path<T>(work: impl FnOnce(&[u8]) -> T) -> Option<T> {
    memory::lent(MAX_TEXT_BYTES, |path| {
        // SAFETY: the name ends with a NUL, and the buffer has room.
        let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
        work(&path[..length.max(0) as usize])
    })
}

/// Gives this process a number, if it has none. Its parent is the one that the recorder was told of before.
pub(crate) fn set_number(number: u32) {
    if !state::is_confined() {
        // SAFETY: the call takes nothing.
        PID.store(unsafe { libc::getpid() }, Relaxed);
    }
    let _ = page().compare_exchange(0, u64::from(number), AcqRel, Acquire);
}

/// Gives this process another number, for a recorder that has come to it. Chunks of earlier ones are not those of this one: so the
/// generation is a part of it.
pub(crate) fn set_number_of(generation: u32, number: u32) {
    // SAFETY: the call takes nothing.
    PID.store(unsafe { libc::getpid() }, Relaxed);
    TOLD.store(0, Relaxed);
    page().store(u64::from(number) | u64::from(generation) << 32, Release);
}

/// The number that the recorder was told of before, if it is to be told of this process.
pub(crate) fn untold() -> Option<u64> {
    let told = TOLD.load(Relaxed);
    (told != number()).then_some(told)
}

/// Says that the recorder was told of this number, after that one.
pub(crate) fn set_told(before: u64, number: u64) {
    let _ = TOLD.compare_exchange(before, number, Relaxed, Relaxed);
}
