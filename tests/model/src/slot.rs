//! The actions of a recorder and a process on a slot, by the frontend's own code.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::handover::{self, request_phase, slot_state};
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// A slot in which all is zero.
#[derive(Debug)]
pub struct Slot {
    state: AtomicU32,
    snapshot_tsc: AtomicU64,
    requests: handover::Requests,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is not the last one.
    Gone,
    /// The process has not begun.
    Waiting,
    /// The process is at it.
    Begun,
    /// So many bytes were answered.
    Answered(u32),
}

impl Default for Slot {
    fn default() -> Self {
        let requests = handover::Requests {
            state: AtomicU64::new(0),
            asked_bytes: AtomicU32::new(0),
            answer_bytes: AtomicU32::new(0),
            is_error: AtomicU32::new(0),
            rules_bytes: AtomicU32::new(0),
            signal: AtomicU32::new(0),
            is_sending: AtomicU32::new(0),
            exec_nanos: AtomicU64::new(0),
            switch_at: AtomicU64::new(0),
        };
        Self { state: AtomicU32::new(slot_state::FREE), snapshot_tsc: AtomicU64::new(0), requests }
    }
}

/// The process's side.
impl Slot {
    /// Takes it if it is free.
    pub fn take(&self) -> bool {
        handover::take_slot(&self.state)
    }

    /// Wants a copy of a moment.
    pub fn want_copy(&self, moment: u64) {
        self.snapshot_tsc.store(moment, SeqCst);
    }

    /// True until the copy is made.
    pub fn is_copy_wanted(&self) -> bool {
        self.snapshot_tsc.load(SeqCst) != 0
    }

    /// Requests come with this signal.
    pub fn set_signal(&self, signal: u32) {
        self.requests.signal.store(signal, SeqCst);
    }

    /// No signal is to come any more, for another program does, or (`None`) for good.
    pub fn refuse(&self, exec_nanos: Option<u64>) {
        self.requests.refuse(exec_nanos);
    }

    /// True if a signal may still come.
    pub fn is_sending(&self) -> bool {
        self.requests.is_sending.load(SeqCst) != 0
    }

    /// Begins to answer: the number of a request, and its bytes.
    pub fn begin(&self) -> Option<(u64, u32)> {
        let number = self.requests.begin()?;
        Some((number, self.requests.asked_bytes.load(Relaxed)))
    }

    /// Has answered so many bytes.
    pub fn finish(&self, number: u64, n_bytes: u32) {
        self.requests.finish(number, n_bytes as usize, false);
    }
}

/// The recorder's side.
impl Slot {
    /// Makes the copy that is wanted.
    pub fn copy_if_wanted(&self, copy: impl FnOnce(u64)) {
        handover::copy_if_wanted(&self.snapshot_tsc, copy);
    }

    /// Asks so many bytes, unless a request is not answered. Returns the request's number.
    pub fn ask(&self, n_bytes: u32) -> Option<u64> {
        (!self.requests.is_busy()).then(|| self.requests.ask(n_bytes as usize))
    }

    /// Takes a request back. Returns whether it was not begun.
    pub fn take_back(&self, number: u64) -> bool {
        self.requests.take_back(number)
    }

    /// Returns the state of a request.
    pub fn phase(&self, number: u64) -> Phase {
        match self.requests.phase(number) {
            None => Phase::Gone,
            Some(request_phase::ANSWERED) => Phase::Answered(self.requests.answer_bytes.load(Relaxed)),
            Some(request_phase::BEGUN) => Phase::Begun,
            Some(_) => Phase::Waiting,
        }
    }

    /// Has `send` send the signal, if one may come.
    pub fn send(&self, send: impl FnOnce(u32)) -> bool {
        self.requests.send(|_| true, send).is_ok()
    }
}
