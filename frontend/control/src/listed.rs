//! The list of a server's sockets. The child of a fork inherits them without a server: it closes them, so clients
//! notice the end of the parent.
//!
//! **Invariant**: sockets come and go while forks are held, if the process forks at all. So a child finds all sockets
//! in the list, and the list unlocked.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::close;

use crate::recording::Recording;

static LIST: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn list() -> MutexGuard<'static, Vec<RawFd>> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket, in the list while it is open.
pub(crate) struct Listed<T: AsRawFd> {
    /// `None` when it is closed.
    socket: Option<T>,
    descriptor: RawFd,
    recording: Arc<dyn Recording>,
}

impl<T: AsRawFd> Listed<T> {
    pub(crate) fn open(recording: &Arc<dyn Recording>, open: impl FnOnce() -> io::Result<T>) -> io::Result<Self> {
        let _held = recording.hold_forks();
        let socket = open()?;
        let descriptor = socket.as_raw_fd();
        list().push(descriptor);
        Ok(Self { socket: Some(socket), descriptor, recording: Arc::clone(recording) })
    }
}

impl<T: AsRawFd> Deref for Listed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.socket.as_ref().expect("it is there until this is dropped")
    }
}

impl<T: AsRawFd> Drop for Listed<T> {
    fn drop(&mut self) {
        let _held = self.recording.hold_forks();
        list().retain(|&descriptor| descriptor != self.descriptor);
        drop(self.socket.take());
    }
}

/// Closes the sockets of the parent. Call it in the child of a fork.
pub fn close_in_child() {
    // A fork before forks can be held may find it taken: nobody gives it back there.
    let Ok(mut list) = LIST.try_lock() else { return };
    for descriptor in list.drain(..) {
        let _ = close(descriptor);
    }
}
