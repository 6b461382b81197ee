//! Events: a thread writes them to its own chunk, and lets go of that when it is full.
//!
//! Not here: where chunks are from (`pool`).
//!
//! **Invariant**: a place is reserved by one instruction, then written, its first word last. So events of a signal handler and of what it
//! has interrupted never share a place, and what was not written to its end is nothing: chunks are empty at first.
//!
//! **Invariant**: of a chunk that was let go of all is written in the end, but places that were left by a jump out of a signal handler: the recorder waits for
//! the first, as one who is interrupted may write there after its chunk was let go of by the handler.
//!
//! **Invariant**: nothing comes into a recorder's memory before it records, but what it is told of modules: what a thread had begun to write for the one before
//! would be there without its release.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, fence};

use rftrace_format::resources::pool::CHUNK_BYTES;
use rftrace_format::resources::{Kind, UNIT_BYTES, Unit, short};

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
        self.finish_as([kind.word(ticks), word]);
    }

    #[inline(always)]
    fn finish_as(self, unit: Unit) {
        let first = self.0.cast::<u64>();
        // SAFETY: as above.
        unsafe { first.add(1).write_volatile(unit[1]) };
        // As x86-64 stores in order anyway, this is for the compiler.
        fence(Release);
        // SAFETY: as above.
        unsafe { first.write_volatile(unit[0]) };
    }

    /// When the thread got the chunk that this is in, of the present recorder's. By now a signal handler may have got it another one.
    #[inline(always)]
    fn taken(self) -> Option<u64> {
        let pool = pool::present()?;
        Some(pool.taken(pool.chunk_at(self.0 as usize)?))
    }
}

/// Where a thread's next unit goes, in one word, so that one instruction reserves a place in whichever chunk the thread has: above, the page in which the chunk
/// begins; below, how many bytes of it were reserved, or wanted.
#[derive(Clone, Copy)]
struct Cursor(usize);

const PAGE_BITS: u32 = 12;
const OFFSET_BITS: u32 = 29;

impl Cursor {
    /// That of no chunk: without room. A thread that has had none yet belongs to no process.
    const NONE: Self = Self(CHUNK_BYTES);

    fn of(start: usize) -> Self {
        Self(start >> PAGE_BITS << OFFSET_BITS)
    }

    /// Where the chunk begins; 0 of none.
    #[inline(always)]
    fn start(self) -> usize {
        self.0 >> OFFSET_BITS << PAGE_BITS
    }

    #[inline(always)]
    fn offset(self) -> usize {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }

    /// Writes that nothing comes from here on: the recorder waits for all of a chunk.
    fn fill(self) {
        for offset in (self.offset()..CHUNK_BYTES).step_by(UNIT_BYTES) {
            Place((self.start() + offset) as *mut Unit).finish(Kind::Nothing, 0, 0);
        }
    }

    /// Lets go of the chunk, if it is one.
    fn leave(self, pool: Pool) {
        if let Some(chunk) = pool.chunk_at(self.start()) {
            self.fill();
            pool.leave(chunk);
        }
    }
}

/// True if this thread's chunk, if it has one, is this process's.
#[inline(always)]
fn is_own(thread: &Thread) -> bool {
    let number = identity::number();
    thread.process.get() == number && number != 0
}

/// A place for so many units, in a process that is recorded.
#[inline(always)]
pub(crate) fn reserve(thread: &Thread, units: usize) -> Option<Place> {
    let bytes = units * UNIT_BYTES;
    loop {
        let cursor = Cursor(thread::add(&thread.cursor, bytes));
        // Behind that: a signal handler may have made another process.
        if is_own(thread) {
            if cursor.offset() + bytes <= CHUNK_BYTES {
                return Some(Place((cursor.start() + cursor.offset()) as *mut Unit));
            }
            cursor.fill();
        }
        if !renew(thread) {
            return None;
        }
    }
}

/// Writes that memory was given out: in one unit, if that has room for it.
#[inline(always)]
pub(crate) fn write_allocation(thread: &Thread, kind: Kind, address: u64, bytes: u64, stack: u32) {
    let Some(unit) = short::of(kind, address, bytes, stack) else {
        return write_long_allocation(thread, kind, address, bytes, stack);
    };
    let Some(place) = reserve(thread, 1) else { return };
    // Where another recorder has come by now, nobody reads what is in this place.
    let Some(taken) = place.taken() else { return };
    match short::at(unit, pool::ticks_after().wrapping_sub(taken)) {
        Some(unit) => place.finish_as(unit),
        None => {
            place.finish(Kind::Nothing, 0, 0);
            write_long_allocation(thread, kind, address, bytes, stack);
        }
    }
}

#[cold]
#[inline(never)]
fn write_long_allocation(thread: &Thread, kind: Kind, address: u64, bytes: u64, stack: u32) {
    if let Some(place) = reserve(thread, 2) {
        place.more(1, bytes, u64::from(stack));
        place.finish(kind, pool::ticks_after(), address);
    }
}

/// Gets this thread a chunk, if it has none: so the recorder knows of it.
pub(crate) fn prepare() {
    let thread = thread::current();
    if !is_own(thread) {
        renew(thread);
    }
}

/// Gets another chunk. Returns whether there is one.
///
/// A signal handler may do the same between any two steps: what it leaves is as right as what there was.
#[cold]
#[inline(never)]
fn renew(thread: &Thread) -> bool {
    thread::keeping_errno(|| {
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
        match put_away(thread, number) {
            Some(old) => old.leave(pool),
            // The chunk that there was is a parent's, or was another recorder's.
            None => {
                thread.tid.set(thread::number());
                thread.process.set(number);
            }
        }
        let Some(chunk) = pool.take(number as u32, thread.tid.get()) else {
            pool.lose();
            return false;
        };
        // Gives back a chunk that a handler has taken meanwhile.
        exchange(thread, Cursor::of(pool.start(chunk))).leave(pool);
        tell(thread, number);
        true
    })
}

/// Takes the thread's chunk away, so that there is no room in it for anybody. `None` if it is not the present process's.
fn put_away(thread: &Thread, number: u64) -> Option<Cursor> {
    loop {
        let cursor = thread.cursor.get();
        let is_own = thread.process.get() == number;
        // Where a handler has come between there is another one.
        if shared(thread).compare_exchange(cursor, Cursor::NONE.0, Relaxed, Relaxed).is_ok() {
            return is_own.then_some(Cursor(cursor));
        }
    }
}

fn exchange(thread: &Thread, new: Cursor) -> Cursor {
    Cursor(shared(thread).swap(new.0, Relaxed))
}

/// The cursor, as what a signal handler of the thread may change.
fn shared(thread: &Thread) -> &AtomicUsize {
    // SAFETY: the thread's own, and changed by single instructions.
    unsafe { AtomicUsize::from_ptr(thread.cursor.as_ptr()) }
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

/// Tells the recorder of this process and thread, if it does not know. Who is interrupted then is not sure to come back: so it knows as soon as it was told.
fn tell(thread: &Thread, number: u64) {
    if let Some(before) = identity::untold()
        && tell_of_process(thread, before as u32)
    {
        identity::set_told(before, number);
    }
    if thread.told.get() != number && tell_of_thread(thread) {
        thread.told.set(number);
    }
}

fn tell_of_process(thread: &Thread, parent: u32) -> bool {
    if state::is_confined() {
        // The child of a fork: it has one thread, which has its number, and its path is that of its parent.
        return tell_of_process_at(thread, thread.tid.get(), parent, 0, &[]);
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to what it is given; the other takes nothing.
    let pid = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        libc::getpid().cast_unsigned()
    };
    let nanos = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    identity::with_path(|path| tell_of_process_at(thread, pid, parent, nanos, path)) == Some(true)
}

fn tell_of_process_at(thread: &Thread, pid: u32, parent: u32, nanos: u64, path: &[u8]) -> bool {
    let Some(place) = reserve(thread, 2 + path.len().div_ceil(8)) else { return false };
    place.more(1, nanos, path.len() as u64);
    write_text(place, 2, [path, &[]]);
    place.finish(Kind::Process, pool::ticks_before(), u64::from(pid) | u64::from(parent) << 32);
    true
}

fn tell_of_thread(thread: &Thread) -> bool {
    let mut name = [0u8; 16];
    if !state::is_confined() {
        // SAFETY: the system writes so many bytes at the most.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let Some(place) = reserve(thread, 2 + name.len().div_ceil(8)) else { return false };
    place.more(1, name.len() as u64, 0);
    write_text(place, 2, [name, &[]]);
    place.finish(Kind::Thread, pool::ticks_before(), thread::pointer() as u64);
    true
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
