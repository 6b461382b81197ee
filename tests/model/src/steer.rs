//! Decisions of a test in the tracer's stead: the running thread, and interruptions between two steps.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread;

thread_local! {
    static AT_POINT: Cell<Option<fn(usize)>> = const { Cell::new(None) };
    static FAILURE: RefCell<Option<Sender<thread::Result<()>>>> = const { RefCell::new(None) };
    static IDENTITY: Cell<Option<fn() -> usize>> = const { Cell::new(None) };
}

/// Has `action` called on this thread before each atomic operation of the tracer, with the address operated on.
pub fn at_each_point(action: Option<fn(usize)>) {
    AT_POINT.set(action);
}

/// An atomic operation on `address` is about to happen.
#[inline]
pub fn point(address: usize) {
    if let Some(action) = AT_POINT.get() {
        action(address);
    }
}

/// Several simulated threads share this thread of the system: `who` numbers the one that runs, from 0.
pub fn set_identity(who: Option<fn() -> usize>) {
    IDENTITY.set(who);
}

/// The number of the thread that runs.
pub(crate) fn identity() -> usize {
    IDENTITY.get().map_or(0, |who| who())
}

/// Runs `work` on a thread of its own, where [`fail`] may be called from inside the tracer.
///
/// # Panics
///
/// If `work` does, or with what [`fail`] was told.
pub fn try_out(work: impl FnOnce() + Send + 'static) {
    let (result, outcome) = channel();
    thread::spawn(move || {
        FAILURE.set(Some(result.clone()));
        let _ = result.send(catch_unwind(AssertUnwindSafe(work)));
    });
    if let Err(panic) = outcome.recv().expect("the thread tells how it ended") {
        resume_unwind(panic);
    }
}

/// Ends what [`try_out`] runs. No panic may pass the tracer's functions, so this thread stays where it is for ever.
///
/// # Panics
///
/// Elsewhere.
pub fn fail(message: String) -> ! {
    match FAILURE.take() {
        Some(result) => {
            let _ = result.send(Err(Box::new(message)));
            loop {
                thread::park();
            }
        }
        None => panic!("{message}"),
    }
}
