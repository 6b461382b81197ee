//! How this library works: one thread at a time, with all signals blocked, on a stack of its own. The program's may be used up,
//! or small. What runs out of memory is given up, by leaving that stack: the program goes on.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_frontend::Tracer;

use crate::arch::{go_back, switch};
use crate::notes;

/// The thread that is at work, or that forks; 0 for none.
static WORKER: AtomicU32 = AtomicU32::new(0);
/// The lowest byte of the stack for the work, and where it ends. The library for `--resources` looks there, so that it can read what is on it.
#[unsafe(export_name = "rftrace_work_stack")]
static STACK: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
pub(crate) const STACK_BYTES: usize = 1 << 20;
/// Where the worker's own stack waits; null while it is on that.
static WAITING: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Something was given up: locks may be held, and what they guard half done.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// This process has made a filter of system calls.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The signals that were blocked before this thread began to fork, if it has taken [`WORKER`] for that.
    static FORK_MASK: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
    /// This thread may make no system calls any more.
    static IS_CONFINED: Cell<bool> = const { Cell::new(false) };
}

/// Takes memory for the stack, of so many bytes; null if there is none.
pub(crate) fn prepare(stack: *mut u8) {
    let end = if stack.is_null() { stack } else { stack.wrapping_add(STACK_BYTES) };
    for (place, address) in STACK.iter().zip([stack, end]) {
        place.store(address, Relaxed);
    }
    // A panic is the end of what is at work, and nothing to be told to the program's users.
    std::panic::set_hook(Box::new(|_| {}));
}

/// Where that stack is.
pub(crate) fn stack() -> [usize; 2] {
    [0, 1].map(|place| STACK[place].load(Relaxed) as usize)
}

/// Nothing more is done on this thread: it may make no system calls any more.
pub(crate) fn confine_thread() {
    IS_CONFINED.set(true);
}

/// This process is about to make a filter of system calls, which may kill it for those that it does not make itself.
pub(crate) fn filter() {
    IS_FILTERED.store(true, Relaxed);
}

/// True after [`filter`].
pub(crate) fn is_filtered() -> bool {
    IS_FILTERED.load(Relaxed)
}

/// True if this thread is at work.
pub(crate) fn is_at_work() -> bool {
    let worker = WORKER.load(Relaxed);
    // SAFETY: the call takes nothing.
    worker != 0 && worker == unsafe { libc::gettid() }.cast_unsigned()
}

/// True after [`confine_thread`].
pub(crate) fn is_confined() -> bool {
    IS_CONFINED.get()
}

/// Runs `work`, unless this thread is at work already: then it was interrupted by its own fault. Waits for other threads.
/// Returns whether it came to its end.
pub(crate) fn alone(work: impl FnOnce()) -> bool {
    if is_confined() {
        return false;
    }
    let Some(before) = take() else { return false };
    let had_signal = is_pending(libc::SIGXFSZ);
    let is_done = !IS_BROKEN.load(Relaxed) && on_own_stack(work);
    if !is_done {
        IS_BROKEN.store(true, Relaxed);
        notes::tell("cannot save the records: out of memory; raise ulimit -v");
    }
    // A file grew to its limit (RLIMIT_FSIZE): that is told by an error too, and not to the program.
    if !had_signal && is_pending(libc::SIGXFSZ) {
        take_signal(libc::SIGXFSZ);
    }
    // In this order: a signal that has waited finds nobody at work.
    WORKER.store(0, Release);
    set_mask(&before);
    is_done
}

/// Makes this thread the worker, with all signals blocked. Returns which were blocked before; `None` if it is that already, or
/// waits for too long.
fn take() -> Option<libc::sigset_t> {
    /// Longer than any work takes.
    const LIMIT: Duration = Duration::from_secs(60);

    // SAFETY: the call takes nothing.
    let me = unsafe { libc::gettid() }.cast_unsigned();
    let deadline = Instant::now() + LIMIT;
    loop {
        let before = block_signals();
        let Err(other) = WORKER.compare_exchange(0, me, Acquire, Relaxed) else { return Some(before) };
        set_mask(&before);
        if other == me || Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// This thread is about to fork: as long as it is, none is at work, and it gets no signals. So the child finds nothing half done.
pub(crate) fn fork_begins() {
    if is_confined() {
        return;
    }
    if let Some(before) = take() {
        FORK_MASK.set(Some(before));
    }
}

/// It has forked; this is the parent, or the child.
pub(crate) fn fork_ends() {
    if let Some(before) = FORK_MASK.take() {
        WORKER.store(0, Release);
        set_mask(&before);
    }
}

/// If this thread is at work it leaves that for ever, and [`alone`] returns.
pub(crate) fn give_up() {
    let waiting = WAITING.load(Relaxed);
    // SAFETY: the call takes nothing.
    if waiting.is_null() || WORKER.load(Relaxed) != unsafe { libc::gettid() }.cast_unsigned() {
        return;
    }
    Tracer::abandon();
    // SAFETY: this thread is on the stack for the work, so its own one waits there. What lies on the left stack is never used
    // again: nothing borrows it, as other threads help only where memory is not limited.
    unsafe { go_back(waiting) }
}

/// Runs `work` on the stack for it, or the present one if there is none. Returns whether it came to its end.
fn on_own_stack<F: FnOnce()>(work: F) -> bool {
    extern "C" fn run<F: FnOnce()>(work: *mut c_void) -> bool {
        // SAFETY: what `on_own_stack` passed, once.
        let work = unsafe { &mut *work.cast::<Option<F>>() }.take();
        catch_unwind(AssertUnwindSafe(|| work.map(|work| work()))).is_ok()
    }
    let mut work = Some(work);
    let work = (&raw mut work).cast();
    let end = STACK[1].load(Relaxed);
    if end.is_null() {
        return run::<F>(work);
    }
    // SAFETY: the stack is large, aligned to a page, and this thread's alone.
    let is_done = unsafe { switch(run::<F>, work, end, WAITING.as_ptr()) };
    WAITING.store(ptr::null_mut(), Relaxed);
    is_done
}

/// Blocks all signals for this thread. Returns which were blocked.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are writable, and filled by the calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: reads a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// True if a blocked signal waits.
fn is_pending(signal: c_int) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set is filled by the first call, if it succeeds.
    unsafe { libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), signal) == 1 }
}

/// Drops a signal that waits, however often it came; 0 for none. All are blocked: this is at work.
pub(crate) fn drop_signal(signal: c_int) {
    while signal != 0 && is_pending(signal) {
        take_signal(signal);
    }
}

/// Takes a signal that waits.
fn take_signal(signal: c_int) {
    let mut set = MaybeUninit::uninit();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set is filled by the first two calls.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &raw const at_once);
    }
}
