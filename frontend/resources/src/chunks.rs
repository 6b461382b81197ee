//! Where events are written to: chunks of memory that the recorder owns. A thread writes to its own chunk, and lets go of it when it is
//! full.
//!
//! Not here: who empties chunks (`rftrace-record`), and when a process begins (`process`).
//!
//! **Invariant**: a place is reserved by one instruction, then written, its first word last. So events of a signal handler and of what it
//! has interrupted never share a place, and what was not written to its end has no time after that of its chunk.
//!
//! **Invariant**: while an event is being written its chunk is not let go of, by a signal handler neither.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

use rftrace_format::resources::{Kind, UNIT_BYTES, Unit, pool};

use crate::process;
use crate::thread::{self, Thread};

/// The memory; null without one.
static POOL: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// The ticks from which times are counted.
static BASE: AtomicU64 = AtomicU64::new(0);
/// Where the last free chunk was found.
static HINT: AtomicUsize = AtomicUsize::new(0);
/// There was no chunk: no thread waits for one any more.
static IS_SHORT: AtomicU32 = AtomicU32::new(0);

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

/// Numbers in the memory.
fn number_32(at: usize) -> &'static AtomicU32 {
    // SAFETY: within the memory, which is aligned to a page and stays. To be called only where there is one.
    unsafe { &*POOL.load(Relaxed).add(at).cast() }
}

fn number_64(at: usize) -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { &*POOL.load(Relaxed).add(at).cast() }
}

/// Takes the recorder's memory. Returns whether it is one.
pub(crate) fn open(memory: *mut u8) -> bool {
    POOL.store(memory, Relaxed);
    let is_one = number_64(pool::MAGIC_AT).load(Acquire) == pool::MAGIC;
    if is_one {
        BASE.store(number_64(pool::BASE_AT).load(Relaxed), Relaxed);
    } else {
        POOL.store(ptr::null_mut(), Relaxed);
    }
    is_one
}

/// A number for a process, from 1 on.
pub(crate) fn next_process() -> u32 {
    number_32(pool::PROCESSES_AT).fetch_add(1, Relaxed).wrapping_add(1).max(1)
}

/// Now, for something that has been done: after what it has waited for.
#[inline(always)]
pub(crate) fn ticks_after() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { _mm_lfence() };
    ticks_before()
}

/// Now, for something that is going to be done.
#[inline(always)]
pub(crate) fn ticks_before() -> u64 {
    // SAFETY: there is such a counter.
    unsafe { _rdtsc() }.wrapping_sub(BASE.load(Relaxed)) & rftrace_format::resources::LOW
}

/// An event that is being written. While it is, this thread's chunk is not let go of.
pub(crate) struct Writing {
    thread: &'static Thread,
    outer: usize,
    is_nested: bool,
}

impl Writing {
    /// Begins, if this process is recorded. `sp` is where the stack is.
    #[inline(always)]
    pub(crate) fn begin(sp: usize) -> Option<Self> {
        if !process::is_recorded() {
            return None;
        }
        /// An event further up, on the same stack: it was left, by a jump out of a handler.
        const NEAR: usize = 1 << 20;
        let thread = thread::current();
        let outer = thread.busy.get();
        let is_nested = outer != 0 && !(sp > outer && sp - outer < NEAR);
        thread.busy.set(sp);
        Some(Self { thread, outer, is_nested })
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
            if self.thread.process.get() == process::number() {
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

    /// Gets another chunk. Returns whether there is one.
    #[cold]
    #[inline(never)]
    fn renew(&self) -> bool {
        thread::keeping_errno(|| {
            let thread = self.thread;
            if process::number() == 0 {
                process::forked();
            }
            let number = process::number();
            if thread.process.get() != number {
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
                number_32(pool::STATES_AT + 4 * (old as usize - 1)).store(pool::FULL, Release);
            }
            let Some(chunk) = take(number as u32, thread.tid.get()) else {
                number_64(pool::LOST_AT).fetch_add(1, Relaxed);
                return false;
            };
            let start = POOL.load(Relaxed) as usize + pool::CHUNKS_AT + chunk * pool::CHUNK_BYTES;
            // In this order: a handler that comes between finds a chunk without room.
            thread.end.set(0);
            thread.cursor.set(start);
            thread.chunk.set(chunk as u32 + 1);
            thread.end.set(start + pool::CHUNK_BYTES);
            process::tell(self);
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

/// Takes a chunk, after waiting for the recorder if that is at work.
fn take(process: u32, tid: u32) -> Option<usize> {
    /// So often the thread sleeps while the recorder does nothing, for so long.
    const PATIENCE: u32 = 10_000;
    const PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };

    if number_32(pool::OVER_AT).load(Relaxed) != 0 {
        return None;
    }
    let (mut beats, mut waited) = (number_32(pool::BEATS_AT).load(Relaxed), 0);
    loop {
        let first = HINT.load(Relaxed);
        let mut any_full = false;
        for step in 0..pool::CHUNKS {
            let chunk = (first + step) % pool::CHUNKS;
            let state = number_32(pool::STATES_AT + 4 * chunk);
            match state.load(Relaxed) {
                pool::FREE if state.compare_exchange(pool::FREE, pool::TAKEN, AcqRel, Relaxed).is_ok() => {
                    HINT.store(if step > pool::CHUNKS / 2 { 0 } else { chunk }, Relaxed);
                    IS_SHORT.store(0, Relaxed);
                    let head = pool::HEADS_AT + pool::HEAD_BYTES * chunk;
                    number_32(head + 8).store(process, Relaxed);
                    number_32(head + 12).store(tid, Relaxed);
                    number_64(head).store(ticks_before(), Release);
                    return Some(chunk);
                }
                pool::FULL => any_full = true,
                _ => {}
            }
        }
        // Where all chunks are other threads' nobody empties one.
        if !any_full || IS_SHORT.load(Relaxed) != 0 {
            return None;
        }
        let pause = PAUSE;
        // SAFETY: reads the time, and writes nothing.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, ptr::null::<libc::timespec>()) };
        let now = number_32(pool::BEATS_AT).load(Relaxed);
        waited = if now == beats { waited + 1 } else { 0 };
        beats = now;
        if waited > PATIENCE {
            IS_SHORT.store(1, Relaxed);
            return None;
        }
    }
}

/// Lets go of the chunks of the program that this process has run before.
pub(crate) fn leave_older() {
    // SAFETY: the call takes nothing.
    let me = unsafe { libc::gettid() }.cast_unsigned();
    for chunk in 0..pool::CHUNKS {
        let state = number_32(pool::STATES_AT + 4 * chunk);
        let tid = number_32(pool::HEADS_AT + pool::HEAD_BYTES * chunk + 12);
        if state.load(Acquire) == pool::TAKEN && tid.load(Relaxed) == me {
            state.store(pool::FULL, Release);
        }
    }
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
