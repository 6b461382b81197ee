//! The choice of recorded threads, by their system ids. It holds for later threads too.
//!
//! A thread is checked at the time of the choice, if the tracer knows it by then, and at its first call.
//!
//! **Invariant**: publish a choice before checking the threads; list a thread, with its id, before checking the choice.
//! Check again after another choice meanwhile. So the last choice holds for each thread.
//!
//! Not here: the exclusion of a thread in the tracer (`rftrace_backend_exclude_thread`).

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Mutex, PoisonError};

use rftrace::abi::ThreadBlock;

use super::threads;
use crate::backend;

/// A choice of recorded threads, by their system ids (`gettid`). The id of a process is that of its main thread.
/// [`Tracer::set_threads`](crate::Tracer::set_threads) takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// The only threads to record, like Linux's [`set_ftrace_pid`](https://docs.kernel.org/trace/ftrace.html). An empty
    /// list stands for all threads.
    pub only: Vec<u32>,
    /// The threads to exclude, also from `only`, like Linux's `set_ftrace_notrace_pid`.
    pub not: Vec<u32>,
}

impl Threads {
    /// The maximum length of each list.
    pub const MOST: usize = 256;
}

/// The choice in force. All of it may be read at any time, by hooks too.
struct Choice {
    /// Odd while the lists are being written.
    generation: AtomicU64,
    only: List,
    not: List,
}

struct List {
    n_ids: AtomicU32,
    ids: [AtomicU32; Threads::MOST],
}

impl List {
    const fn empty() -> Self {
        Self { n_ids: AtomicU32::new(0), ids: [const { AtomicU32::new(0) }; Threads::MOST] }
    }

    fn set(&self, ids: &[u32]) {
        self.ids.iter().zip(ids).for_each(|(place, &id)| place.store(id, SeqCst));
        self.n_ids.store(ids.len() as u32, SeqCst);
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        self.ids.iter().take(self.n_ids.load(SeqCst) as usize).map(|id| id.load(SeqCst))
    }
}

static CHOICE: Choice = Choice { generation: AtomicU64::new(0), only: List::empty(), not: List::empty() };

/// Not 0: not all threads are recorded. The tracer's callback for new threads reads it.
pub(super) static ANY: AtomicU32 = AtomicU32::new(0);

impl Choice {
    fn is_excluded(&self, tid: u32) -> bool {
        let is_only = self.only.n_ids.load(SeqCst) == 0 || self.only.ids().any(|id| id == tid);
        !is_only || self.not.ids().any(|id| id == tid)
    }
}

/// Sets the choice of recorded threads from now on. The lists are not longer than [`Threads::MOST`].
pub(crate) fn choose(threads: &Threads) {
    static ALONE: Mutex<()> = Mutex::new(());

    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    CHOICE.generation.fetch_add(1, SeqCst);
    CHOICE.only.set(&threads.only);
    CHOICE.not.set(&threads.not);
    ANY.store(u32::from(*threads != Threads::default()), SeqCst);
    CHOICE.generation.fetch_add(1, SeqCst);
    fence(SeqCst);
    for block in backend::threads() {
        loop {
            let number = block.tid.load(SeqCst);
            if let Some(tid) = threads::system_tid(number) {
                // SAFETY: it is on the tracer's list.
                unsafe { backend::exclude_thread(block, CHOICE.is_excluded(tid)) };
            }
            // Else it is another thread's by now.
            if block.tid.load(SeqCst) == number {
                break;
            }
        }
    }
}

/// Returns the choice in force.
pub(crate) fn chosen() -> Threads {
    Threads { only: CHOICE.only.ids().collect(), not: CHOICE.not.ids().collect() }
}

/// Tells the tracer whether the calling thread, with this block, is recorded: the thread begins, or has another id than
/// before. It is not recorded meanwhile: this crate may be instrumented.
pub(super) extern "C" fn look(block: &ThreadBlock) {
    // SAFETY: the call has no conditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    loop {
        let generation = CHOICE.generation.load(SeqCst);
        // The writer of the lists looks at this thread then.
        if !generation.is_multiple_of(2) {
            return;
        }
        // SAFETY: a block of the tracer.
        unsafe { backend::exclude_thread(block, CHOICE.is_excluded(tid)) };
        fence(SeqCst);
        if CHOICE.generation.load(Acquire) == generation {
            return;
        }
    }
}

/// The same for the only thread of a forked child.
pub(crate) fn forked() {
    if ANY.load(Relaxed) != 0
        && let Some(block) = backend::own_thread()
    {
        backend::unrecorded(|| look(block));
    }
}
