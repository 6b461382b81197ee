//! Tasks for attached processes. Only the thread that is attached to them may do these.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

/// A request about a process.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) pid: u32,
    pub(crate) what: What,
    done: SyncSender<Result<(), String>>,
}

/// Kinds of errands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Answer its request.
    Answer,
    /// Switch recording on if it is off, and off if it is on.
    Toggle,
    /// Detach from it.
    Leave,
    /// Look whether it has ended.
    Look,
}

impl Errand {
    /// It is done, or why it is not.
    pub(crate) fn end(self, done: Result<(), String>) {
        // The sender of the errand may have gone.
        let _ = self.done.send(done);
    }
}

/// Has something done.
#[derive(Clone, Debug)]
pub(crate) struct Errands(Sender<Errand>);

impl Errands {
    /// Returns the sender, and the receiver for the thread with the errands.
    pub(crate) fn new() -> (Self, Receiver<Errand>) {
        let (to, errands) = mpsc::channel();
        (Self(to), errands)
    }

    /// Has it done. `None` if processes are not attended any more.
    pub(crate) fn run(&self, pid: u32, what: What) -> Option<Result<(), String>> {
        let (done, is_done) = mpsc::sync_channel(1);
        self.0.send(Errand { pid, what, done }).ok()?;
        is_done.recv().ok()
    }
}
