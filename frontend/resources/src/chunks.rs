//! Events: a thread writes them to its own chunk, and lets go of that when it is full.
//!
//! Not here: where chunks are from (`pool`).
//!
//! **Invariant**: a place is reserved by one instruction, then written, its first word last. So events of a signal handler and of what it
//! has interrupted never share a place, and what was not written to its end has no time after that of its chunk.
//!
//! **Invariant**: while an event is being written its chunk is not let go of, by a signal handler neither.
//!
//! **Invariant**: nothing comes into a recorder's memory before it records, but what it is told of modules: what a thread had begun to write for the one before
//! would be there without its release.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

use rftrace_format::resources::pool::CHUNK_BYTES;
use rftrace_format::resources::{
    Kind, MAX_ARGUMENTS_BYTES, MAX_DETAIL_BYTES, MAX_FRAMES, MAX_TEXT_BYTES, UNIT_BYTES, Unit,
};

use crate::identity;
use crate::pool::{self, Pool};
use crate::state;
use crate::thread::{self, Thread};

/// A place for units.
#[derive(Clone, Copy)]
pub(crate) struct Place(*mut Unit);

impl Place {
    /// Writes further units, from 1 on.
    #[inline(always)]
    pub(crate) fn more(self, number: usize, low: u64, word: u64) {
        // SAFETY: a place of this thread's own, as long as was asked for.
        unsafe { self.0.add(number).write_volatile([Kind::More.word(low), word]) };
    }

    /// Writes the first unit, after which all of it counts.
    #[inline(always)]
    pub(crate) fn finish(self, kind: Kind, ticks: u64, word: u64) {
        let first = self.0.cast::<u64>();
        // SAFETY: as above.
        unsafe { first.add(1).write_volatile(word) };
        // As x86-64 stores in order anyway, this is for the compiler.
        fence(Release);
        // SAFETY: as above.
        unsafe { first.write_volatile(kind.word(ticks)) };
    }
}

/// An event that is being written. While it is, this thread's chunk is not let go of.
pub(crate) struct Writing {
    thread: &'static Thread,
    outer: usize,
    is_nested: bool,
}

impl Writing {
    /// Begins, in a process that is recorded. `sp` is where the stack is.
    #[inline(always)]
    pub(crate) fn begin(sp: usize) -> Self {
        /// An event further up, on the same stack: it was left, by a jump out of a handler.
        const NEAR: usize = 1 << 20;
        let thread = thread::current();
        let outer = thread.busy.get();
        let is_nested = outer != 0 && !(sp > outer && sp - outer < NEAR);
        thread.busy.set(sp);
        Self { thread, outer, is_nested }
    }

    /// The thread.
    #[inline(always)]
    pub(crate) fn thread(&self) -> &'static Thread {
        self.thread
    }

    /// A place for so many units.
    #[inline(always)]
    pub(crate) fn reserve(&self, units: usize) -> Option<Place> {
        loop {
            if self.thread.process.get() == identity::number() {
                let start = thread::add(&self.thread.cursor, units * UNIT_BYTES);
                if start + units * UNIT_BYTES <= self.thread.end.get() {
                    return Some(Place(start as *mut Unit));
                }
            }
            if !self.renew() {
                return None;
            }
        }
    }

    /// Sees to it that there is a chunk with room for an event.
    pub(crate) fn make_room(&self) {
        /// The largest of a call, and a stack.
        const UNITS: usize = 4 + (MAX_DETAIL_BYTES + MAX_ARGUMENTS_BYTES + 4 * MAX_FRAMES) / 8;

        let is_own = self.thread.process.get() == identity::number();
        if !is_own || self.thread.cursor.get() + UNITS * UNIT_BYTES > self.thread.end.get() {
            self.renew();
        }
    }

    /// When this thread got its chunk: an event that is older is not one of its own.
    pub(crate) fn chunk_taken(&self) -> u64 {
        pool::present().map_or(0, |pool| pool.taken(self.thread.chunk.get() as usize - 1))
    }

    /// Gets another chunk. Returns whether there is one.
    #[cold]
    #[inline(never)]
    fn renew(&self) -> bool {
        thread::keeping_errno(|| {
            let thread = self.thread;
            if identity::number() == 0 {
                if state::is_attached() {
                    // A child of what a recorder has come to, and will not leave.
                    state::switch_off();
                    return false;
                }
                let Some(pool) = pool::present() else { return false };
                identity::set_number(pool.next_process());
            }
            let Some((pool, number)) = recording() else { return false };
            let is_new = thread.process.get() != number;
            if is_new {
                // The old one is its parent's.
                thread.chunk.set(0);
                // SAFETY: the call takes nothing.
                thread.tid.set(unsafe { libc::gettid() }.cast_unsigned());
                thread.process.set(number);
            }
            let old = thread.chunk.replace(0);
            thread.end.set(0);
            thread.cursor.set(0);
            if old != 0 && !self.is_nested {
                pool.leave(old as usize - 1);
            }
            let Some(chunk) = pool.take(number as u32, thread.tid.get()) else {
                pool.lose();
                return false;
            };
            let start = pool.start(chunk);
            // In this order: a handler that comes between finds a chunk without room.
            thread.end.set(0);
            thread.cursor.set(start);
            thread.chunk.set(chunk as u32 + 1);
            thread.end.set(start + CHUNK_BYTES);
            tell(self);
            if is_new {
                tell_of_thread(self);
            }
            true
        })
    }
}

impl Drop for Writing {
    #[inline(always)]
    fn drop(&mut self) {
        self.thread.busy.set(if self.is_nested { self.outer } else { 0 });
    }
}

/// The memory of who records now, and the number of this process there. A recorder that comes has what was recorded before switched off first, and what it
/// wants switched on last.
fn recording() -> Option<(Pool, u64)> {
    loop {
        let number = identity::number();
        fence(Acquire);
        let pool = pool::present()?;
        if !state::may_write() {
            return None;
        }
        if identity::number() == number {
            return Some((pool, number));
        }
    }
}

/// Tells the recorder of this process, if it does not know.
fn tell(writing: &Writing) {
    let Some(parent) = identity::take_untold() else { return };
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
    write_text(place, 2, [path, &[]]);
    place.finish(Kind::Process, pool::ticks_before(), u64::from(pid) | u64::from(parent) << 32);
}

/// Tells the recorder of this thread.
fn tell_of_thread(writing: &Writing) {
    let mut name = [0u8; 16];
    // SAFETY: the system writes so many bytes at the most.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let Some(place) = writing.reserve(2 + name.len().div_ceil(8)) else { return };
    place.more(1, name.len() as u64, 0);
    write_text(place, 2, [name, &[]]);
    place.finish(Kind::Thread, pool::ticks_before(), thread::pointer() as u64);
}

/// Writes text behind a place's first units.
pub(crate) fn write_text(place: Place, first: usize, text: [&[u8]; 2]) {
    let mut bytes = text.into_iter().flatten().copied();
    for number in 0.. {
        let mut word = [0; 8];
        let mut is_over = true;
        for (to, from) in word.iter_mut().zip(bytes.by_ref()) {
            *to = from;
            is_over = false;
        }
        if is_over {
            return;
        }
        place.more(first + number, 0, u64::from_le_bytes(word));
    }
}
