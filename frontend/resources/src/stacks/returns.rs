//! Return addresses that the tracer has replaced by that of its trampoline, where the program's calls are recorded too: they are in the
//! thread's return stack.

use std::cell::Cell;
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use rftrace::abi::{ADDRESS_SHIFT, RETURN_STACK_ENTRIES, ReturnEntry, TRAMPOLINES_BYTES, ThreadBlock, UNHOOKED, kind};
use rftrace_format::resources::MAX_FRAMES;

/// The address of the trampolines, divided by their bytes; where there are none, what no address has.
static TRAMPOLINES: AtomicUsize = AtomicUsize::new(NOWHERE);
const NOWHERE: usize = usize::MAX;
/// The tracer's function for the state of the calling thread; null without a tracer.
static THREAD: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// The tracer's functions in a program that ran before: those that tell where its trampolines are, and of the calling thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracer {
    /// `rftrace_backend_trampoline`
    pub(crate) trampoline: usize,
    /// `rftrace_backend_thread`
    pub(crate) thread: usize,
}

/// Takes the tracer, or looks for it: by its names, where this program was started with it.
pub(super) fn prepare(tracer: Option<Tracer>) {
    let Some(Tracer { trampoline, thread }) =
        tracer.or_else(by_names).filter(|tracer| tracer.trampoline != 0 && tracer.thread != 0)
    else {
        return;
    };
    // SAFETY: the tracer's function with this name is one like this.
    let trampoline = unsafe { transmute::<usize, extern "C" fn() -> usize>(trampoline) };
    TRAMPOLINES.store(trampoline() / TRAMPOLINES_BYTES, Relaxed);
    THREAD.store(thread as *mut (), Relaxed);
}

fn by_names() -> Option<Tracer> {
    let names = [c"rftrace_backend_trampoline", c"rftrace_backend_thread"];
    // SAFETY: the names end with a NUL.
    let address = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    let [trampoline, thread] = began_with_tracer().then(|| names.map(address))?;
    Some(Tracer { trampoline, thread })
}

/// True if this program was started with a tracer. Without one its names are not looked for: the dynamic linker's error message takes memory.
pub(super) fn began_with_tracer() -> bool {
    // SAFETY: the name ends with a NUL, and it is only looked whether the variable is there.
    unsafe { !libc::getenv(c"RFTRACE_RECORD".as_ptr()).is_null() }
}

/// An open call.
pub(super) struct Call {
    /// An address in the function, or that of the slot through which it was called.
    pub(super) function: u64,
    /// Where it returns to, or the address of a trampoline.
    returns_to: usize,
}

impl Call {
    /// A key that distinguishes it from other calls.
    #[inline(always)]
    pub(super) fn key(&self) -> u64 {
        self.function ^ (self.returns_to as u64).rotate_left(32)
    }

    /// Where it returns to; 0 where it was called by a jump, from another one of which that is known.
    pub(super) fn caller(&self) -> u64 {
        if is_trampoline(self.returns_to) { 0 } else { self.returns_to as u64 }
    }
}

/// The open calls of this thread that the tracer knows.
pub(super) struct Returns {
    /// The outermost first.
    entries: &'static [ReturnEntry],
    /// Which was asked for last.
    last: Cell<usize>,
}

impl Returns {
    /// Those of this thread.
    #[inline(always)]
    pub(super) fn of_thread() -> Self {
        let thread = THREAD.load(Relaxed);
        let entries = if thread.is_null() { &[] } else { entries(thread) };
        Self { entries, last: Cell::new(entries.len()) }
    }

    /// Has `take` look at the calls in which the stack has come to `sp`, the innermost first, as many as a stack has frames. Those below were left
    /// by a jump, which the tracer has not seen yet. Returns how many there are.
    #[inline(always)]
    pub(super) fn calls(&self, sp: usize, mut take: impl FnMut(Call)) -> usize {
        let mut rest = self.entries;
        while let [outer @ .., entry] = rest
            && entry.frame.load(Acquire) <= sp
        {
            rest = outer;
        }
        let mut n_calls = 0;
        for entry in rest.iter().rev() {
            let (frame, word) = (entry.frame.load(Acquire), entry.exit_word.load(Relaxed));
            // Half-written, another thread's, or over.
            if frame == 0 || frame as u64 & 1 | word & kind::LEFT != 0 {
                continue;
            }
            take(Call { function: word >> ADDRESS_SHIFT, returns_to: entry.parent_ip.load(Relaxed) & !UNHOOKED });
            n_calls += 1;
            if n_calls == MAX_FRAMES {
                break;
            }
        }
        n_calls
    }

    /// The word at this place of the stack before the tracer replaced it: `word` itself if it did not. `None` if unknown.
    #[inline(always)]
    pub(super) fn original(&self, slot: usize, word: u64) -> Option<u64> {
        if is_trampoline(word as usize) { self.replaced(slot).map(|address| address as u64) } else { Some(word) }
    }

    fn replaced(&self, slot: usize) -> Option<usize> {
        let last = self.last.get();
        let near = [last.wrapping_sub(1), last.wrapping_add(1), last];
        let is_there =
            |&number: &usize| self.entries.get(number).is_some_and(|entry| entry.frame.load(Acquire) == slot);
        let innermost = near.into_iter().find(is_there).or_else(|| self.search(slot))?;
        self.last.set(innermost);
        // A call by a jump has the address of the trampoline that was there: the next one further out has the same place.
        let same = |entry: &&ReturnEntry| entry.frame.load(Acquire) == slot;
        let chain = self.entries[..=innermost].iter().rev().take_while(same);
        let mut addresses = chain.map(|entry| entry.parent_ip.load(Relaxed) & !UNHOOKED);
        addresses.find(|&address| !is_trampoline(address))
    }

    /// The innermost call with this place.
    #[cold]
    fn search(&self, slot: usize) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.frame.load(Acquire) == slot)
    }
}

#[inline(always)]
fn is_trampoline(address: usize) -> bool {
    address / TRAMPOLINES_BYTES == TRAMPOLINES.load(Relaxed)
}

fn entries(thread: *mut ()) -> &'static [ReturnEntry] {
    // SAFETY: the tracer's function with this name is one like this.
    let thread = unsafe { transmute::<*mut (), extern "C" fn() -> *const ThreadBlock>(thread) };
    let block = thread();
    if block as usize <= 1 {
        return &[];
    }
    // SAFETY: blocks stay mapped, and consist of atomics.
    let block = unsafe { &*block };
    let base = block.base.load(Relaxed);
    let n_entries = (block.sp.load(Relaxed) as usize).saturating_sub(base as usize) / size_of::<ReturnEntry>();
    // SAFETY: so many are in the block, behind the sentinel.
    unsafe { slice::from_raw_parts(base, n_entries.min(RETURN_STACK_ENTRIES)) }
}
