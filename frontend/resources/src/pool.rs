//! Memory of the recorder, cut into chunks.
//!
//! Not here: what is written to a chunk (`chunks`), and who empties it (`rftrace-record`).

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::hint;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use rftrace_format::resources::{LOW, pool};

use crate::state;

/// The memory; null without one.
static POOL: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// The ticks from which times are counted.
static BASE: AtomicU64 = AtomicU64::new(0);
/// The C library's own variable that is not zero where it has begun no other thread (glibc 2.32); without one a variable that is zero.
static HAS_ONE_THREAD: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::from_ref(&NOT_KNOWN).cast_mut());
static NOT_KNOWN: AtomicU8 = AtomicU8::new(0);
/// There was no chunk: no thread waits for one any more.
static IS_SHORT: AtomicU32 = AtomicU32::new(0);

/// Takes the recorder's memory, if it is one.
pub(crate) fn open(memory: *mut u8) -> Option<Pool> {
    let pool = Pool(memory);
    let is_one = pool.number_64(pool::MAGIC_AT).load(Acquire) == pool::MAGIC;
    if is_one {
        BASE.store(pool.number_64(pool::BASE_AT).load(Relaxed), Relaxed);
        IS_SHORT.store(0, Relaxed);
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        if !found.is_null() {
            HAS_ONE_THREAD.store(found.cast(), Relaxed);
        }
    }
    POOL.store(if is_one { memory } else { ptr::null_mut() }, Release);
    is_one.then_some(pool)
}

/// Puts private memory in the place of the recorder's: a thread may be about to write there.
pub(crate) fn close() -> bool {
    let memory = POOL.load(Relaxed);
    if memory.is_null() {
        return true;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: in place of this module's own mapping; whoever still refers to it finds memory that is nobody's.
    unsafe { libc::mmap(memory.cast(), pool::BYTES, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Where it is, or was when it was [closed](close); null if there was none.
pub(crate) fn place() -> *mut u8 {
    POOL.load(Relaxed)
}

/// The memory that there is now.
#[inline(always)]
pub(crate) fn present() -> Option<Pool> {
    let memory = POOL.load(Acquire);
    (!memory.is_null()).then_some(Pool(memory))
}

/// Now, for something that has been done: after what it has waited for. A thread that is alone waits for no other one.
#[inline(always)]
pub(crate) fn ticks_after() -> u64 {
    // SAFETY: a byte of the C library, or of this module.
    let has_one_thread = unsafe { &*HAS_ONE_THREAD.load(Relaxed) }.load(Relaxed) != 0;
    if !has_one_thread {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_lfence() };
    }
    ticks_before()
}

/// Now, for something that is going to be done.
#[inline(always)]
pub(crate) fn ticks_before() -> u64 {
    // SAFETY: there is such a counter.
    unsafe { _rdtsc() }.wrapping_sub(BASE.load(Relaxed)) & LOW
}

/// A recorder's memory. It stays, also when there is another recorder's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool(*mut u8);

impl Pool {
    /// Numbers in the memory.
    #[inline(always)]
    fn number_32(self, at: usize) -> &'static AtomicU32 {
        // SAFETY: within the memory, which is aligned to a page and stays.
        unsafe { &*self.0.add(at).cast() }
    }

    #[inline(always)]
    fn number_64(self, at: usize) -> &'static AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.0.add(at).cast() }
    }

    /// A number for a process, from 1 on.
    pub(crate) fn next_process(self) -> u32 {
        self.number_32(pool::PROCESSES_AT).fetch_add(1, Relaxed).wrapping_add(1).max(1)
    }

    /// Lets a chunk go.
    pub(crate) fn leave(self, chunk: usize) {
        self.number_32(pool::STATES_AT + 4 * chunk).store(pool::LEFT, Release);
    }

    /// Where a chunk is.
    #[inline(always)]
    pub(crate) fn start(self, chunk: usize) -> usize {
        self.0 as usize + pool::CHUNKS_AT + chunk * pool::CHUNK_BYTES
    }

    /// The chunk that this is in, if it is in one.
    #[inline(always)]
    pub(crate) fn chunk_at(self, place: usize) -> Option<usize> {
        let chunk = place.checked_sub(self.start(0))? / pool::CHUNK_BYTES;
        (chunk < pool::CHUNKS).then_some(chunk)
    }

    /// When a chunk was taken.
    #[inline(always)]
    pub(crate) fn taken(self, chunk: usize) -> u64 {
        self.number_64(pool::HEADS_AT + pool::HEAD_BYTES * chunk).load(Relaxed)
    }

    /// The resources that the recorder wants, a bit for each.
    pub(crate) fn wanted(self) -> u32 {
        self.number_32(pool::WANTED_AT).load(Relaxed)
    }

    /// An event is lost.
    pub(crate) fn lose(self) {
        self.number_64(pool::LOST_AT).fetch_add(1, Relaxed);
    }

    /// Leaves the recorder a processor for a moment. Where that takes a system call too many the thread only waits.
    fn give_way() {
        const PAUSE_NANOS: i64 = 100_000;
        /// Each takes 15 to 50 ns.
        const TURNS: usize = 3000;

        if state::is_confined() {
            (0..TURNS).for_each(|_| hint::spin_loop());
            return;
        }

        let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NANOS };
        // SAFETY: reads the time, and writes nothing.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, ptr::null::<libc::timespec>()) };
    }

    /// Takes a chunk, after waiting for the recorder if that is at work.
    pub(crate) fn take(self, process: u32, tid: u32) -> Option<usize> {
        /// So often the thread sleeps while the recorder does nothing.
        const PATIENCE: u32 = 10_000;
        /// Where more chunks wait the threads may have left the recorder no processor: then each gives way to it, once for a chunk.
        const AT_EASE: usize = 32;

        if self.number_32(pool::OVER_AT).load(Relaxed) != 0 {
            return None;
        }
        let (mut beats, mut waited) = (self.number_32(pool::BEATS_AT).load(Relaxed), 0);
        loop {
            let mut n_waiting = 0;
            // The first one that is free: as long as the recorder keeps up, little of the memory is ever touched.
            for chunk in 0..pool::CHUNKS {
                let state = self.number_32(pool::STATES_AT + 4 * chunk);
                match state.load(Relaxed) {
                    pool::FREE if state.compare_exchange(pool::FREE, pool::TAKEN, AcqRel, Relaxed).is_ok() => {
                        IS_SHORT.store(0, Relaxed);
                        let head = pool::HEADS_AT + pool::HEAD_BYTES * chunk;
                        self.number_32(head + 8).store(process, Relaxed);
                        self.number_32(head + 12).store(tid, Relaxed);
                        self.number_64(head).store(ticks_before(), Release);
                        if n_waiting > AT_EASE {
                            Self::give_way();
                        }
                        return Some(chunk);
                    }
                    pool::FULL | pool::LEFT => n_waiting += 1,
                    _ => {}
                }
            }
            // Where all chunks are other threads' nobody empties one.
            if n_waiting == 0 || IS_SHORT.load(Relaxed) != 0 {
                return None;
            }
            Self::give_way();
            let now = self.number_32(pool::BEATS_AT).load(Relaxed);
            waited = if now == beats { waited + 1 } else { 0 };
            beats = now;
            if waited > PATIENCE {
                IS_SHORT.store(1, Relaxed);
                return None;
            }
        }
    }

    /// Lets go of the chunks of the program that this process has run before, to which nobody writes any more.
    pub(crate) fn leave_older(self) {
        // SAFETY: the call takes nothing.
        let me = unsafe { libc::gettid() }.cast_unsigned();
        for chunk in 0..pool::CHUNKS {
            let state = self.number_32(pool::STATES_AT + 4 * chunk);
            let tid = self.number_32(pool::HEADS_AT + pool::HEAD_BYTES * chunk + 12);
            let now = state.load(Acquire);
            // The recorder may change it meanwhile.
            if [pool::TAKEN, pool::LEFT, pool::HELD].contains(&now) && tid.load(Relaxed) == me {
                let _ = state.compare_exchange(now, pool::FULL, Release, Relaxed);
            }
        }
    }
}
