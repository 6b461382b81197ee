//! A signal to one thread of a process without ending the thread's waits. A handler makes the system end `poll`,
//! `epoll_wait`, `nanosleep` and others with `EINTR`, even with `SA_RESTART` (signal(7)). So the thread is traced until
//! the signal is delivered, and its call is changed into one that begins again after the handler.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::libc::{c_int, pid_t};

use super::call;
use super::status::{Status, bit, threads};
use super::sys::{self, Stop};

/// Sends a process a signal it handles, to a thread whose waits do not end by it. Returns when the thread has got the
/// signal, or a little later.
///
/// # Errors
///
/// No signal was sent: no thread may be traced, or each of them blocks the signal or waits for the system.
pub fn send_unseen(process: u32, signal: c_int) -> io::Result<()> {
    /// A thread without a processor gets the signal later, and nobody waits for that.
    const PATIENCE: Duration = Duration::from_millis(50);

    let process = process.cast_signed();
    let known = threads(process)?.into_iter().filter_map(|thread| Some((thread, Status::of(thread)?)));
    let mut known: Vec<_> = known.filter(|(_, status)| status.takes(signal) && "RS".contains(status.state)).collect();
    // A computing thread has no wait that would begin anew with its whole time.
    known.sort_by_key(|(_, status)| status.state != 'R');
    let (to, sent) = mpsc::channel();
    // The system takes requests only from the thread that has begun to trace.
    thread::Builder::new().name("signal".to_owned()).spawn(move || {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for (thread, _) in known {
            result = send_to(process, thread, signal);
            if result.is_ok() {
                break;
            }
        }
        // The caller may wait no more.
        let _ = to.send(result);
    })?;
    sent.recv_timeout(PATIENCE).unwrap_or(Ok(()))
}

/// Sends a thread a signal, and waits until it has it.
fn send_to(process: pid_t, thread: pid_t, signal: c_int) -> io::Result<()> {
    /// Between two looks whether the signal still waits.
    const BETWEEN: Duration = Duration::from_millis(20);

    sys::seize(thread)?;
    sys::send(process, thread, signal);
    let waits = || Status::of(thread).is_some_and(|status| status.next() & bit(signal) != 0);
    loop {
        match sys::wait(thread, BETWEEN)? {
            Some(Stop::Signal(other)) if other == signal => {
                call::begin_again_after_handler(thread)?;
                return sys::detach(thread, signal);
            }
            // A signal of the program's own comes first, and ends whatever it ends.
            Some(Stop::Signal(other)) => sys::go_on(thread, other)?,
            Some(Stop::Told) => {
                call::begin_again(thread)?;
                return sys::detach(thread, 0);
            }
            Some(Stop::SystemCall | Stop::Event) => sys::go_on(thread, 0)?,
            Some(Stop::Gone) => return Ok(()),
            // It has had no processor yet. It is not left before it has stopped, as it would see its wait end then.
            None if waits() => {}
            // It has taken the signal by `sigwaitinfo`, or has blocked it: it may be told to stop without.
            None => _ = sys::interrupt(thread),
        }
    }
}
