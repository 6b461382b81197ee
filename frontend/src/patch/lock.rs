//! The lock for changes of sites.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::thread;
use std::time::Duration;

/// The only one.
pub(super) static LOCK: Lock = Lock { owner: AtomicI32::new(0) };

/// A lock with an owner. A signal handler does not wait for ever for a lock of its own thread, and the child of a fork
/// can let it go.
#[derive(Debug)]
pub(super) struct Lock {
    /// The owner's thread id, 0 for none.
    owner: AtomicI32,
}

/// True if the lock was taken; false if this thread had it already.
#[derive(Debug)]
#[must_use = "the lock stays taken until it is released"]
pub(crate) struct Held(bool);

impl Lock {
    pub(super) fn take(&self) -> Held {
        const PAUSE: Duration = Duration::from_micros(100);
        let this = thread_id();
        if self.owner.load(Relaxed) == this {
            return Held(false);
        }
        while self.owner.compare_exchange(0, this, Acquire, Relaxed).is_err() {
            thread::sleep(PAUSE);
        }
        Held(true)
    }

    /// The lock if this thread has it.
    pub(super) fn of_this_thread(&self) -> Held {
        Held(self.owner.load(Relaxed) == thread_id())
    }
}

impl Held {
    /// True if the lock was taken.
    pub(super) fn is_new(&self) -> bool {
        self.0
    }

    /// Lets the lock go. This runs while recording is on, as [`has_switches`](super::control::has_switches).
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.0 {
            // SAFETY: a store to the lock's word, which this thread owns. Stores are seen in order on this architecture.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!(
                    "mov dword ptr [{owner}], 0",
                    owner = in(reg) &raw const LOCK.owner,
                    options(nostack, preserves_flags),
                );
            }
            // SAFETY: a store to the lock's word, which this thread owns, seen after all that was before.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                std::arch::asm!(
                    "stlr wzr, [{owner}]",
                    owner = in(reg) &raw const LOCK.owner,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

/// The system's number of this thread, never 0. Not std's, for this may run in a signal handler.
fn thread_id() -> i32 {
    // SAFETY: no memory is passed. Thread numbers have 22 bits.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Makes fork wait for the lock: in the child nobody would be there to let it go. Call it before the registration of
/// handlers that wait for threads which may take this lock: the handler registered first waits last.
pub(crate) fn register_fork_handlers() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    /// True if the forking thread took the lock for the fork, and not for more.
    static FORKING: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn before() {
        let held = LOCK.take();
        FORKING.store(held.0, Relaxed);
    }
    unsafe extern "C" fn after_in_parent() {
        Held(FORKING.load(Relaxed)).release();
    }
    unsafe extern "C" fn after_in_child() {
        if FORKING.load(Relaxed) {
            LOCK.owner.store(0, Relaxed);
        } else {
            // A handler forked while its thread had the lock: that goes on in the child, where it has another id.
            LOCK.owner.store(thread_id(), Relaxed);
        }
    }
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handlers are made for this.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}
