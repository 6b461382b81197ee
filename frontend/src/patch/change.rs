//! A site that can be patched: its state, its next state, and the steps of the change between.
//!
//! Not here: the bytes of each state (`code`), and the passes that take all sites through these steps together (`engine`).

use std::io;
use std::slice;

use super::code::{Bytes, MAX_BYTES, Shape, Step};
use super::outcome::PlainReason;
use super::poke::{Barrier, Writer, crosses_line};
use super::states::State;

/// The changed kinds of sites; the others stay as compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) calls: bool,
    pub(super) entries: bool,
}

/// Target state of those sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// As compiled.
    Plain,
    /// NOPs.
    Off,
    /// The chosen ones jump, the others are NOPs.
    On,
}

/// A site that can be patched.
pub(super) struct Patch {
    pub(super) address: usize,
    pub(super) shape: Shape,
    pub(super) is_chosen: bool,
    /// Present state; `None` if somebody else changed it.
    pub(super) state: Option<State>,
    /// State after this pass; `None` if it stays as it is.
    pub(super) next: Option<State>,
    /// State before an unfinished change, for its undo.
    pub(super) before: Option<State>,
    /// The reason for a state other than the requested one.
    pub(super) reason: Option<PlainReason>,
}

/// Goal and means of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    pub(super) goal: Goal,
    pub(super) kinds: Kinds,
    pub(super) barrier: Barrier,
    pub(super) is_alone: bool,
}

impl Patch {
    pub(super) fn new(address: usize, shape: Shape) -> Self {
        Self { address, shape, is_chosen: true, state: Some(State::Plain), next: None, before: None, reason: None }
    }

    /// Reads the site and decides its next state.
    ///
    /// # Safety
    ///
    /// Its module is loaded.
    pub(super) unsafe fn look(&mut self, means: Means) {
        // SAFETY: by this function's contract; as many bytes as the site has. Nobody else writes to them, unless it is a
        // debugger, which stops all threads for it.
        let bytes = unsafe { slice::from_raw_parts(self.address as *const u8, self.shape.form.len()) };
        (self.state, self.next, self.reason) = (self.shape.state(&padded(bytes)), None, None);
        let Some(state) = self.state else {
            self.reason = Some(PlainReason::Changed);
            return;
        };
        let is_changed = if self.shape.form.is_entry() { means.kinds.entries } else { means.kinds.calls };
        let wanted = match means.goal {
            _ if !is_changed => State::Plain,
            Goal::Plain => State::Plain,
            Goal::On if self.is_chosen => State::On,
            Goal::On | Goal::Off => State::Off,
        };
        // As compiled and on may be the same.
        if state == wanted || self.shape.bytes(state) == self.shape.bytes(wanted) {
            self.state = Some(wanted);
            return;
        }
        if !means.is_alone && means.barrier == Barrier::Missing {
            self.reason = Some(PlainReason::NoBarrier);
            return;
        }
        self.next = Some(wanted);
        if self.shape.form.takes_two_bytes(state, wanted) && crosses_line(self.address) && !means.is_alone {
            self.avoid_two_bytes();
        }
    }

    /// Two bytes cannot be changed at once: leaves the site as compiled, or makes a call of its own of it.
    fn avoid_two_bytes(&mut self) {
        self.next = match self.next {
            Some(State::Plain) if self.state != Some(State::Thunk) => Some(State::Thunk),
            _ => None,
        };
        if self.state == Some(State::Plain) {
            self.reason = Some(PlainReason::TwoBytes);
        }
    }

    /// The pages cannot be made writable; there may be a file to write to them.
    pub(super) fn go_by_file(&mut self, is_open: bool, means: Means) {
        let (Some(state), Some(next)) = (self.state, self.next) else { return };
        if !is_open {
            self.next = None;
            self.reason = Some(PlainReason::NotWritable);
        } else if self.shape.form.takes_two_bytes(state, next) && !means.is_alone {
            self.avoid_two_bytes();
        }
    }

    /// Does one step.
    ///
    /// # Safety
    ///
    /// The module is loaded, the writer can write to it, the steps before were done and seen by all threads.
    pub(super) unsafe fn write(&mut self, step: Step, writer: Writer<'_>) -> io::Result<()> {
        let (Some(state), Some(next)) = (self.state, self.next) else { return Ok(()) };
        // SAFETY: by this function's contract.
        unsafe { self.shape.write(step, self.address, (state, next), writer) }
    }

    /// The system has refused a step.
    pub(super) fn stop(&mut self, step: Step, reason: PlainReason) {
        if !step.is_first() {
            self.before = self.state.filter(|&state| state != State::Between);
            self.state = Some(State::Between);
        }
        (self.next, self.reason) = (None, Some(reason));
    }

    /// Ends a change after a step that other threads may not have seen: the next step cannot follow. Before the operand
    /// has changed the opcode may go back; later the site stays as it is until there is a barrier again.
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write).
    pub(super) unsafe fn stop_unseen(&mut self, step: Step, writer: Writer<'_>) {
        let (Some(state), Some(_)) = (self.state, self.next) else { return };
        // SAFETY: by this function's contract.
        let is_back = step.is_first() && unsafe { self.shape.go_back(self.address, state, writer) }.is_ok();
        if !is_back {
            self.state = Some(State::Between);
        }
        (self.next, self.reason) = (None, Some(PlainReason::NoBarrier));
    }
}

pub(super) fn padded(bytes: &[u8]) -> Bytes {
    let mut padded = [0; MAX_BYTES];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    padded
}
