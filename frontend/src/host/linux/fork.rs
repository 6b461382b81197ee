//! A fork waits for threads at work in this crate: in the child nobody would release their locks, of this crate or of the libraries
//! below.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::Duration;

/// In the low half, how many times threads are at work, each nested work counted; in the high half, the number of
/// threads that fork or wait for it. New work waits for forks: otherwise repeated work of threads could delay a fork
/// for ever.
static AT_WORK: AtomicU64 = AtomicU64::new(0);
const FORK: u64 = 1 << 32;
const PAUSE: Duration = Duration::from_micros(100);

thread_local! {
    /// The number of times this thread is at work, as work may be nested.
    static OWN: Cell<u64> = const { Cell::new(0) };
    /// True in the forking thread. A signal handler may come between.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is at work as long as this lives.
#[derive(Debug)]
#[must_use = "the work ends when this is dropped"]
pub(crate) struct AtWork(());

/// Begins to work. May be nested.
pub(crate) fn at_work() -> AtWork {
    let may_go_on = OWN.get() > 0 || FORKS.get();
    while AT_WORK.fetch_update(Acquire, Relaxed, |n| (n < FORK || may_go_on).then_some(n + 1)).is_err() {
        thread::sleep(PAUSE);
    }
    OWN.set(OWN.get() + 1);
    AtWork(())
}

/// Returns true if this thread is.
pub(crate) fn is_at_work() -> bool {
    OWN.get() > 0
}

impl Drop for AtWork {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        AT_WORK.fetch_sub(1, Release);
    }
}

/// Gives up this thread's work, which will never go on.
pub(crate) fn abandon() {
    AT_WORK.fetch_sub(OWN.replace(0), Release);
}

/// From now on forks wait. To be called once.
pub(crate) fn register_handlers() {
    unsafe extern "C" fn before() {
        FORKS.set(true);
        AT_WORK.fetch_add(FORK, Relaxed);
        // A signal handler may fork while its own thread is at work, which goes on in the child.
        while AT_WORK.load(Acquire) % FORK != OWN.get() {
            thread::sleep(PAUSE);
        }
    }
    unsafe extern "C" fn after_in_parent() {
        FORKS.set(false);
        AT_WORK.fetch_sub(FORK, Release);
    }
    unsafe extern "C" fn after_in_child() {
        FORKS.set(false);
        AT_WORK.store(OWN.get(), Release);
    }
    // SAFETY: the handlers are made for this: one before, and one behind the fork in parent and child.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}
