//! Who has called: the return addresses on the stack. Each stack gets a number, and is written once.

use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, MustNotAllocateDuringUnwind, Unwinder};
use rftrace_format::resources::{Kind, MAX_FRAMES};

use crate::chunks::Writing;
use crate::memory;
use crate::modules;
use crate::pool;
use crate::thread::{self, Thread};

/// The registers of a function at its first instruction.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// Where its return address is.
    pub(crate) sp: usize,
    pub(crate) bp: usize,
}

/// How stacks are found.
const NONE: u8 = 0;
const FRAME_POINTERS: u8 = 1;
const UNWIND_INFORMATION: u8 = 2;
static WAY: AtomicU8 = AtomicU8::new(NONE);

/// The hashes of the stacks that have a number, which is the place plus one. A power of two.
static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
const PLACES: usize = 1 << 20;
/// So many places are tried for a stack.
const TRIES: usize = 64;

/// What an unwinder remembers: rules by code address, and the stack that it has walked last.
struct Cache {
    rules: CacheX86_64<MustNotAllocateDuringUnwind>,
    last: Walk,
}

/// A stack that was walked to its end.
struct Walk {
    n_frames: usize,
    frames: [Step; MAX_FRAMES],
}

/// A frame of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    /// Where the return address is, what it is, and the frame pointer behind it.
    slot: u64,
    address: u64,
    bp: u64,
}

impl Walk {
    const NONE: Self = Self { n_frames: 0, frames: [Step { slot: 0, address: 0, bp: 0 }; MAX_FRAMES] };

    /// Takes the place of what was walked before: new frames, and the rest of the old ones from `tail` on, whose addresses are added to
    /// `addresses`. Returns how many frames there are. Only what was walked to its end is remembered.
    #[inline(always)]
    fn replace(
        &mut self,
        steps: &[Step],
        tail: Option<usize>,
        is_whole: bool,
        addresses: &mut [u64; MAX_FRAMES],
    ) -> usize {
        let first = tail.unwrap_or(self.n_frames);
        let n_frames = (steps.len() + self.n_frames - first).min(MAX_FRAMES);
        let n_old = n_frames - steps.len();
        for (address, step) in addresses[steps.len()..n_frames].iter_mut().zip(&self.frames[first..]) {
            *address = step.address;
        }
        if is_whole && first + n_old == self.n_frames {
            if first != steps.len() {
                self.frames.copy_within(first..first + n_old, steps.len());
            }
            self.frames[..steps.len()].copy_from_slice(steps);
            self.n_frames = n_frames;
        } else {
            self.n_frames = 0;
        }
        n_frames
    }

    /// From which frame on it is still so: all return addresses are where they were.
    #[inline(always)]
    fn unchanged(&self, stack: Stack) -> usize {
        let is_so = |step: &Step| stack.read(step.slot) == Ok(step.address);
        self.n_frames - self.frames[..self.n_frames].iter().rev().take_while(|step| is_so(step)).count()
    }
}

/// What unwinders remember. Each is one thread's for as long as that unwinds.
static CACHES: [Shared; N_CACHES] =
    [const { Shared { is_taken: AtomicBool::new(false), cache: AtomicPtr::new(ptr::null_mut()) } }; N_CACHES];
const N_CACHES: usize = 64;
static NEXT_CACHE: AtomicUsize = AtomicUsize::new(1);

#[repr(align(64))]
struct Shared {
    is_taken: AtomicBool,
    cache: AtomicPtr<Cache>,
}

unsafe extern "C" {
    /// Where the stack of the first thread ends; the dynamic linker's.
    static __libc_stack_end: usize;
}

/// Reads how stacks are to be found.
pub(crate) fn prepare() {
    // SAFETY: the name ends with a NUL, and what is returned is only read here.
    let way = unsafe {
        let way = libc::getenv(c"RFTRACE_RESOURCES_BACKTRACES".as_ptr());
        if way.is_null() { 0 } else { *way.cast::<u8>() }
    };
    let table = memory::map(PLACES * size_of::<AtomicU64>());
    TABLE.store(table.cast(), Release);
    let way = match way {
        _ if table.is_null() => NONE,
        b'n' => NONE,
        b'f' => FRAME_POINTERS,
        _ => UNWIND_INFORMATION,
    };
    WAY.store(way, Relaxed);
    if way == UNWIND_INFORMATION && memory::reserve(8 * (size_of::<Cache>() + (64 << 10))) {
        // Threads that begin at the same time find some.
        for shared in &CACHES[1..8] {
            let cache = Box::new(Cache { rules: CacheX86_64::new_in(), last: Walk::NONE });
            shared.cache.store(Box::into_raw(cache), Relaxed);
        }
    }
    // What goes wrong in an unwinder is nothing that the program's users should see.
    std::panic::set_hook(Box::new(|_| {}));
}

/// The number of the present stack; 0 for none.
#[inline(always)]
pub(crate) fn number(writing: &Writing, registers: Registers) -> u32 {
    if WAY.load(Relaxed) == NONE { 0 } else { find(writing, registers) }
}

fn find(writing: &Writing, registers: Registers) -> u32 {
    let mut frames = [0; MAX_FRAMES];
    let n_frames = walk(writing.thread(), registers, &mut frames);
    let hash = hash(&frames[..n_frames]);
    let (place, is_new) = place(hash);
    if is_new { add(writing, registers, frames, n_frames) } else { place }
}

fn hash(frames: &[u64]) -> u64 {
    let mut hash = frames.len() as u64 + 1;
    for frame in frames {
        hash = (hash ^ frame).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash.max(1)
}

/// The number of the stack with this hash, and whether it is not there yet; 0 if there is no room for it.
#[inline(always)]
fn place(hash: u64) -> (u32, bool) {
    let table = TABLE.load(Relaxed);
    for step in 0..TRIES {
        let place = ((hash >> 20) as usize + step) % PLACES;
        // SAFETY: within the table, which stays.
        match unsafe { &*table.add(place) }.load(Relaxed) {
            0 => return (place as u32 + 1, true),
            other if other == hash => return (place as u32 + 1, false),
            _ => {}
        }
    }
    (0, false)
}

/// Writes a stack that was not seen before.
#[cold]
#[inline(never)]
fn add(writing: &Writing, registers: Registers, mut frames: [u64; MAX_FRAMES], mut n_frames: usize) -> u32 {
    let is_known = modules::known().is_some_and(|known| known.has_all(&frames[..n_frames]));
    if !is_known && modules::refresh() {
        n_frames = walk(writing.thread(), registers, &mut frames);
    }
    let frames = &frames[..n_frames];
    let hash = hash(frames);
    loop {
        let (number, is_new) = place(hash);
        if !is_new {
            return number;
        }
        // SAFETY: within the table, which stays.
        let place = unsafe { &*TABLE.load(Relaxed).add(number as usize - 1) };
        if place.compare_exchange(0, hash, AcqRel, Relaxed).is_err() {
            continue;
        }
        let Some(units) = writing.reserve(1 + n_frames.div_ceil(2)) else { return 0 };
        for (number, pair) in frames.chunks(2).enumerate() {
            units.more(1 + number, pair[0], pair.get(1).copied().unwrap_or(0));
        }
        units.finish(Kind::Stack, pool::ticks_before(), u64::from(number) | (n_frames as u64) << 48);
        return number;
    }
}

/// Finds the return addresses from that of the function on. Returns how many.
#[inline(always)]
fn walk(thread: &Thread, registers: Registers, frames: &mut [u64; MAX_FRAMES]) -> usize {
    let stack = Stack { low: registers.sp, end: stack_end(thread, registers.sp) };
    match WAY.load(Relaxed) {
        UNWIND_INFORMATION if modules::is_ready() => by_unwind_information(thread, stack, registers, frames),
        _ => by_frame_pointers(stack, registers, frames),
    }
}

/// What may be read of the stack.
#[derive(Clone, Copy)]
struct Stack {
    low: usize,
    end: usize,
}

impl Stack {
    #[inline(always)]
    fn read(self, address: u64) -> Result<u64, ()> {
        let place = address as usize;
        if place < self.low || place >= self.end - 7 {
            return Err(());
        }
        // SAFETY: within this thread's stack.
        Ok(unsafe { (place as *const u64).read_unaligned() })
    }
}

fn by_frame_pointers(stack: Stack, registers: Registers, frames: &mut [u64; MAX_FRAMES]) -> usize {
    let Ok(first) = stack.read(registers.sp as u64) else { return 0 };
    frames[0] = first;
    let (mut n_frames, mut at, mut below) = (1, registers.bp as u64, registers.sp as u64);
    while n_frames < MAX_FRAMES && at > below && at.is_multiple_of(8) {
        let (Ok(next), Ok(back)) = (stack.read(at), stack.read(at + 8)) else { break };
        if back < 4096 {
            break;
        }
        frames[n_frames] = back;
        n_frames += 1;
        (below, at) = (at, next);
    }
    n_frames
}

fn by_unwind_information(thread: &Thread, stack: Stack, registers: Registers, frames: &mut [u64; MAX_FRAMES]) -> usize {
    let (Some(shared), Some(known)) = (take_cache(thread), modules::known()) else {
        return by_frame_pointers(stack, registers, frames);
    };
    // SAFETY: this thread has taken it.
    let cache = unsafe { &mut *shared.cache.load(Relaxed) };
    let Cache { rules, last } = cache;
    let unchanged = last.unchanged(stack);
    let (mut n_frames, mut old, mut tail) = (0, unchanged, None);
    let mut steps = [MaybeUninit::<Step>::uninit(); MAX_FRAMES];
    let mut is_whole = false;
    let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Ok(first) = stack.read(registers.sp as u64) else { return };
        let mut state = UnwindRegsX86_64::new(first, registers.sp as u64 + 8, registers.bp as u64);
        let mut next = Some(first);
        let mut read = |address| stack.read(address);
        while let Some(address) = next.and_then(FrameAddress::from_return_address) {
            // Behind a signal handler the unwinder goes wrong.
            if (stack.low..stack.end).contains(&(address.address() as usize)) {
                break;
            }
            let step = Step { slot: state.sp().wrapping_sub(8), address: address.address(), bp: state.bp() };
            while old < last.n_frames && last.frames[old].slot < step.slot {
                old += 1;
            }
            // The same state in the same frame: the way from here is that of the last time.
            if old < last.n_frames && last.frames[old] == step {
                tail = Some(old);
                is_whole = true;
                return;
            }
            steps[n_frames].write(step);
            frames[n_frames] = step.address;
            n_frames += 1;
            if n_frames == MAX_FRAMES {
                return;
            }
            next = known.unwinder.unwind_frame(address, &mut state, rules, &mut read).ok().flatten();
        }
        is_whole = true;
    }));
    // SAFETY: so many were written.
    let steps = unsafe { slice::from_raw_parts(steps.as_ptr().cast::<Step>(), n_frames) };
    n_frames = last.replace(steps, tail, is_whole && walked.is_ok(), frames);
    shared.is_taken.store(false, Release);
    if walked.is_err() {
        // A flaw of the unwinder: it is not asked again.
        WAY.store(FRAME_POINTERS, Relaxed);
    }
    n_frames
}

/// Takes a cache that nobody uses.
#[inline(always)]
fn take_cache(thread: &Thread) -> Option<&'static Shared> {
    let shared = &CACHES[thread.cache.get() % N_CACHES];
    if thread.cache.get() != 0 && !shared.is_taken.swap(true, Acquire) {
        return Some(shared);
    }
    take_other_cache(thread)
}

#[cold]
#[inline(never)]
fn take_other_cache(thread: &Thread) -> Option<&'static Shared> {
    let first = NEXT_CACHE.fetch_add(1, Relaxed);
    let mut free = (first..first + N_CACHES).filter(|place| place % N_CACHES != 0);
    let place = free.find(|place| !CACHES[place % N_CACHES].is_taken.swap(true, Acquire))?;
    let shared = &CACHES[place % N_CACHES];
    if shared.cache.load(Relaxed).is_null() {
        let made = modules::alone(|| {
            memory::reserve(2 * size_of::<Cache>() + (256 << 10))
                .then(|| Box::new(Cache { rules: CacheX86_64::new_in(), last: Walk::NONE }))
        });
        let Some(cache) = made else {
            shared.is_taken.store(false, Release);
            return None;
        };
        shared.cache.store(Box::into_raw(cache), Relaxed);
    }
    thread.cache.set(place);
    Some(shared)
}

/// The same of this thread.
pub(crate) fn readable_end(sp: usize) -> usize {
    stack_end(thread::current(), sp)
}

/// Up to where the stack can be read from `sp` on.
#[inline(always)]
fn stack_end(thread: &Thread, sp: usize) -> usize {
    /// The system leaves at least twice as much free below the end of the first thread's stack.
    const FIRST: usize = 64 << 20;

    // SAFETY: a variable of the dynamic linker.
    let first = unsafe { __libc_stack_end } | 0xfff;
    if sp < first && first - sp < FIRST {
        return first;
    }
    let pointer = thread::pointer();
    let low = thread.stack_low.get();
    if low != 0 && (low..pointer).contains(&sp) { pointer } else { look_at_stack(thread, sp) }
}

/// Looks how far a stack can be read: up to the storage of the thread, where the C library has made it; else the page of `sp`.
#[cold]
#[inline(never)]
fn look_at_stack(thread: &Thread, sp: usize) -> usize {
    const PAGE: usize = 4096;
    const AT_ONCE: usize = 64;
    /// A stack that is deeper when it is first seen is not looked at.
    const MOST: usize = 4096;

    let pointer = thread::pointer();
    let start = sp & !(PAGE - 1);
    let low = thread.stack_low.get();
    // From the new lowest page to what is known already.
    let end = if (start..pointer).contains(&low) { low } else { pointer };
    if start >= end || end - start > MOST * PAGE {
        return start + PAGE;
    }
    let mut next = start;
    while next < end {
        let mut bytes = [0u8; AT_ONCE];
        let n_pages = (end - next).div_ceil(PAGE).min(AT_ONCE);
        let pages: [libc::iovec; AT_ONCE] =
            std::array::from_fn(|number| libc::iovec { iov_base: (next + number * PAGE) as *mut _, iov_len: 1 });
        let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: n_pages };
        // SAFETY: the system writes only to the buffer, and tells what of the program cannot be read.
        let read = thread::keeping_errno(|| unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const to, 1, pages.as_ptr(), n_pages as u64, 0)
        });
        if read != n_pages as isize {
            return start + PAGE;
        }
        next += n_pages * PAGE;
    }
    thread.stack_low.set(start);
    pointer
}
