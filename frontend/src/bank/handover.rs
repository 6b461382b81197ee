//! Handover between recorder and processes through a slot: the slot itself, full chunks, requests. `tests/model` runs
//! this file under shuttle, so its atomics are `core`'s.
//!
//! Not here: the places of all parts (`file`), the use of the chunks (`collect`, `dump`), texts and signals of requests
//! (`request`).

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

use rftrace::abi::{ChunkHeader, chunk_state, lease};

use crate::backend::Chunk;

/// States of a slot.
pub(crate) mod slot_state {
    /// Nobody's; all is zero.
    pub(crate) const FREE: u32 = 0;
    /// A process prepares it.
    pub(crate) const TAKEN: u32 = 1;
    /// A process is recorded there, or was.
    pub(crate) const IN_USE: u32 = 2;
}

/// Takes a slot for a process, by its state. Returns true if it was free.
pub(crate) fn take_slot(state: &AtomicU32) -> bool {
    state.load(Relaxed) == slot_state::FREE
        && state.compare_exchange(slot_state::FREE, slot_state::TAKEN, AcqRel, Relaxed).is_ok()
}

/// Returns true if the recorder has to take the records of a chunk with this lease: it is full, or, at the end
/// (`is_last`), not empty. `has_waited` returns true if hooks have had time enough to write into the chunk with an
/// index.
pub(crate) fn is_to_be_taken(
    chunk: &Chunk<'_>,
    lease: u64,
    is_last: bool,
    has_waited: impl FnOnce(u64) -> bool,
) -> bool {
    let is_to_be_taken = match lease::state(lease) {
        chunk_state::FREE => false,
        chunk_state::FULL => true,
        chunk_state::WAITING if !is_last => {
            let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
            has_waited(lease::index(lease)) || chunk.records.iter().all(|record| record.read(taken_tsc).is_some())
        }
        _ => is_last,
    };
    is_to_be_taken && chunk.header.tid.load(Relaxed) != 0
}

/// Gives a chunk back after its records were taken, if its lease is unchanged.
pub(crate) fn make_free(header: &ChunkHeader, lease: u64) {
    // The next taker stores its TID after everything else.
    header.tid.store(0, Relaxed);
    let free = lease::new(lease::index(lease), chunk_state::FREE);
    let _ = header.lease.compare_exchange(lease, free, AcqRel, Relaxed);
}

/// Makes a requested copy, of the moment in `wanted`. A request for another moment meanwhile stays.
pub(crate) fn copy_if_wanted(wanted: &AtomicU64, copy: impl FnOnce(u64)) {
    let moment = wanted.load(Acquire);
    if moment != 0 {
        copy(moment);
        let _ = wanted.compare_exchange(moment, 0, AcqRel, Relaxed);
    }
}

/// Requests of a recorder to a process, and whether it may send them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Requests {
    /// The number of the last request, and one of [`request_phase`] in its low two bits.
    pub(crate) state: AtomicU64,
    /// Bytes of the request.
    pub(crate) asked_bytes: AtomicU32,
    /// Bytes of the answer.
    pub(crate) answer_bytes: AtomicU32,
    /// Not 0: it says why nothing was done.
    pub(crate) is_error: AtomicU32,
    /// Bytes of the rules in force.
    pub(crate) rules_bytes: AtomicU32,
    /// The signal for requests; 0 without a handler for it.
    pub(crate) signal: AtomicU32,
    /// Not 0: the recorder is about to send the signal.
    pub(crate) is_sending: AtomicU32,
    /// The time of an imminent exec of another program, by CLOCK_MONOTONIC; 0 for never.
    pub(crate) exec_nanos: AtomicU64,
    /// The address of its [`Switch`](rftrace::abi::Switch) in the process.
    pub(crate) switch_at: AtomicU64,
}

/// Phases of a request.
pub(crate) mod request_phase {
    /// The bits of the phase.
    pub(crate) const MASK: u64 = 3;
    /// There is none, or it was taken back.
    pub(crate) const NONE: u64 = 0;
    /// The process is to look for it.
    pub(crate) const ASKED: u64 = 1;
    /// It is at it.
    pub(crate) const BEGUN: u64 = 2;
    /// The answer is there.
    pub(crate) const ANSWERED: u64 = 3;
    /// Step from one request's number to the next.
    pub(crate) const ONE: u64 = 4;
}

/// The reason for an unsent signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// Another program is about to take the process over.
    Exec,
    /// It has no handler.
    NoHandler,
}

/// The process's side.
impl Requests {
    /// The child of a fork goes on with its parent's handler, switch and rules.
    pub(crate) fn inherit(&self, parent: &Self) {
        self.switch_at.store(parent.switch_at.load(Relaxed), Relaxed);
        self.rules_bytes.store(parent.rules_bytes.load(Relaxed), Relaxed);
        self.signal.store(parent.signal.load(Relaxed), Relaxed);
    }

    /// Begins to answer a request. Returns its number. `None`: there is none, it was taken back, or another thread answers it.
    pub(crate) fn begin(&self) -> Option<u64> {
        let state = self.state.load(Acquire);
        let number = state & !request_phase::MASK;
        let is_begun = state & request_phase::MASK == request_phase::ASKED
            && self.state.compare_exchange(state, number | request_phase::BEGUN, AcqRel, Relaxed).is_ok();
        is_begun.then_some(number)
    }

    /// Ends the answer to a [begun](Self::begin) request.
    pub(crate) fn finish(&self, number: u64, n_bytes: usize, is_error: bool) {
        self.answer_bytes.store(n_bytes as u32, Relaxed);
        self.is_error.store(is_error.into(), Relaxed);
        self.state.store(number | request_phase::ANSWERED, Release);
    }

    /// Another program is about to take the process over (since a time), or the signal means something else for good (`None`). No signal is sent any
    /// more once [`is_sending`](Self::is_sending) was 0.
    pub(crate) fn refuse(&self, exec_nanos: Option<u64>) {
        match exec_nanos {
            Some(nanos) => self.exec_nanos.store(nanos, SeqCst),
            None => self.signal.store(0, SeqCst),
        }
    }
}

/// The recorder's side.
impl Requests {
    /// True if a request is not answered.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.state.load(Acquire) & request_phase::MASK, request_phase::ASKED | request_phase::BEGUN)
    }

    /// Makes the written request. Returns its number.
    pub(crate) fn ask(&self, n_bytes: usize) -> u64 {
        self.asked_bytes.store(n_bytes as u32, Relaxed);
        let number = (self.state.load(Relaxed) & !request_phase::MASK).wrapping_add(request_phase::ONE);
        self.state.store(number | request_phase::ASKED, Release);
        number
    }

    /// Returns the phase of a request. `None`: it is not the last one.
    pub(crate) fn phase(&self, number: u64) -> Option<u64> {
        let state = self.state.load(Acquire);
        (state & !request_phase::MASK == number).then_some(state & request_phase::MASK)
    }

    /// Takes back a request before its beginning. Returns true on success.
    pub(crate) fn take_back(&self, number: u64) -> bool {
        let (before, after) = (number | request_phase::ASKED, number | request_phase::NONE);
        self.state.compare_exchange(before, after, AcqRel, Relaxed).is_ok()
    }

    /// Calls `send` with the process's signal, if it has a handler for it. `is_exec` returns true if an exec announced
    /// at a time is still to come.
    pub(crate) fn send<T>(&self, is_exec: impl FnOnce(u64) -> bool, send: impl FnOnce(u32) -> T) -> Result<T, Unsent> {
        // In this order: a process before an exec looks at this after it has announced the exec.
        self.is_sending.store(1, SeqCst);
        let exec_nanos = self.exec_nanos.load(SeqCst);
        let sent = if exec_nanos != 0 && is_exec(exec_nanos) {
            Err(Unsent::Exec)
        } else {
            match self.signal.load(SeqCst) {
                0 => Err(Unsent::NoHandler),
                signal => Ok(send(signal)),
            }
        };
        self.is_sending.store(0, SeqCst);
        sent
    }
}
