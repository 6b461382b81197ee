//! Where a stack begins, and how far it can be read.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use super::returns::{self, Returns};
use crate::state;
use crate::thread::{self, Thread};

unsafe extern "C" {
    /// Where the stack of the first thread ends; the dynamic linker's.
    static __libc_stack_end: usize;
}

/// Where the tracer keeps the lowest byte of the stack that it works on, and where that ends; null without one. No thread was made with it.
static WORK_STACK: AtomicPtr<[AtomicPtr<u8>; 2]> = AtomicPtr::new(ptr::null_mut());

/// Looks for that, where this program was started with a tracer.
pub(super) fn prepare() {
    if !returns::began_with_tracer() {
        return;
    }
    // SAFETY: the name ends with a NUL.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rftrace_work_stack".as_ptr()) };
    WORK_STACK.store(place.cast(), Relaxed);
}

/// Where the tracer's own stack ends, if `sp` is in it.
fn work_stack_end(sp: usize) -> Option<usize> {
    // SAFETY: null, or a variable of the tracer's library, which stays.
    let [low, end] = unsafe { WORK_STACK.load(Relaxed).as_ref() }?.each_ref().map(|place| place.load(Relaxed) as usize);
    (low..end).contains(&sp).then_some(end)
}

/// The registers of a function at its first instruction.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// Where its return address is.
    pub(crate) sp: usize,
    pub(crate) bp: usize,
}

/// The readable part of the stack.
pub(super) struct Stack {
    low: usize,
    end: usize,
    /// So many bytes from `low` on may a word begin at.
    readable: usize,
    /// Where the last two words begin.
    last_pair: usize,
    returns: Returns,
}

impl Stack {
    /// This thread's, from there on.
    #[inline(always)]
    pub(super) fn from(thread: &Thread, sp: usize) -> Self {
        let end = stack_end(thread, sp);
        let readable = (end - sp).saturating_sub(7);
        Self { low: sp, end, readable, last_pair: end.saturating_sub(16), returns: Returns::of_thread() }
    }

    /// The word there; of return addresses only those that the tracer has not replaced.
    #[inline(always)]
    pub(super) fn read(&self, address: u64) -> Result<u64, ()> {
        let word = self.word(address).ok_or(())?;
        self.returns.original(address as usize, word).ok_or(())
    }

    /// The two words of a frame with a frame pointer: the caller's, and the return address.
    #[inline(always)]
    pub(super) fn frame(&self, pointer: u64) -> Option<[u64; 2]> {
        let place = pointer as usize;
        if place < self.low || place > self.last_pair || !place.is_multiple_of(8) {
            return None;
        }
        // SAFETY: within this thread's stack.
        let [next, back] = unsafe { (place as *const [u64; 2]).read() };
        Some([next, self.returns.original(place + 8, back)?])
    }

    /// The return address there, and the word so many words below it.
    #[inline(always)]
    pub(super) fn with_lower(&self, slot: u64, below: u64) -> Option<[u64; 2]> {
        let [address, lower] = self.words([slot, slot.wrapping_sub(8 * below)])?;
        Some([self.returns.original(slot as usize, address)?, lower])
    }

    /// The words in two places, if both can be read.
    #[inline(always)]
    fn words(&self, [one, other]: [u64; 2]) -> Option<[u64; 2]> {
        Some([self.word(one)?, self.word(other)?])
    }

    /// True if this is the return address there.
    #[inline(always)]
    pub(super) fn has(&self, slot: u64, address: u64) -> bool {
        self.word(slot)
            .is_some_and(|word| word == address || self.returns.original(slot as usize, word) == Some(address))
    }

    #[inline(always)]
    fn word(&self, address: u64) -> Option<u64> {
        let place = address as usize;
        let is_there = place.wrapping_sub(self.low) < self.readable;
        // SAFETY: within this thread's stack.
        is_there.then(|| unsafe { (place as *const u64).read_unaligned() })
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.low..self.end).contains(&(address as usize))
    }
}

/// Up to where this thread's stack can be read from `sp` on.
pub(crate) fn readable_end(sp: usize) -> usize {
    stack_end(thread::current(), sp)
}

/// True if a jump has left the work that this thread began with the stack at `outer`. Known from the work it begins at `sp`: that is not
/// further down, in the thread's own stack. On a possibly different stack, or with a handler running somewhere else, nothing is known.
#[cold]
pub(super) fn is_left(thread: &Thread, outer: usize, sp: usize) -> bool {
    let end = stack_end(thread, sp);
    let is_own = end == first_end() || end == thread::pointer();
    outer != 0 && outer <= sp && is_own && stack_end(thread, outer) == end && !is_on_other_stack()
}

/// True if a handler runs on an alternate signal stack of the program, or may do so.
fn is_on_other_stack() -> bool {
    if state::is_confined() {
        return true;
    }
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: only tells of that stack.
    thread::keeping_errno(|| unsafe {
        libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) != 0 || stack.assume_init().ss_flags & libc::SS_ONSTACK != 0
    })
}

/// Where the first thread's stack ends.
#[inline(always)]
fn first_end() -> usize {
    // SAFETY: a variable of the dynamic linker.
    unsafe { __libc_stack_end | 0xfff }
}

#[inline(always)]
fn stack_end(thread: &Thread, sp: usize) -> usize {
    /// The system leaves at least twice as much free below the end of the first thread's stack.
    const FIRST: usize = 64 << 20;

    let first = first_end();
    if sp < first && first - sp < FIRST {
        return first;
    }
    let pointer = thread::pointer();
    let low = thread.stack_low.get();
    if low != 0 && (low..pointer).contains(&sp) { pointer } else { look_at_stack(thread, sp) }
}

/// Looks how far a stack can be read: up to the storage of the thread, where the C library has made it; the tracer's own up to its end; else the page of `sp`.
#[cold]
#[inline(never)]
fn look_at_stack(thread: &Thread, sp: usize) -> usize {
    const PAGE: usize = 4096;
    const AT_ONCE: usize = 32;
    /// A stack that is deeper when it is first seen is not looked at.
    const MOST: usize = 4096;

    if let Some(end) = work_stack_end(sp) {
        return end;
    }
    let pointer = thread::pointer();
    let start = sp & !(PAGE - 1);
    let low = thread.stack_low.get();
    if state::is_confined() {
        // The page of `sp` can be read, and what is known may begin behind it.
        let is_known = low == start + PAGE;
        if is_known {
            thread.stack_low.set(start);
        }
        return if is_known { pointer } else { start + PAGE };
    }
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
