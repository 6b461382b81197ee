//! Telling a thread to stop, and the events before it does.

use std::io;
use std::time::{Duration, Instant};

use nix::libc::pid_t;

use super::call;
use super::status::{CLOCKS, Status, bit};
use super::sys::{self, Stop};

/// The longest wait for a thread without a processor.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait for a thread asleep for a disk.
const STOP: Duration = Duration::from_millis(50);

/// The result of telling a thread to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Yes,
    /// It sleeps in the system, and nothing wakes it; it stops before it runs any code of its own. It is to be let go
    /// then.
    Late,
    Gone,
}

/// Stops a traced thread. Signals that come first go on to it. An interrupted system call begins again, also if a clock
/// of processor time struck while the thread stopped.
pub(crate) fn stop(thread: pid_t) -> io::Result<Stopped> {
    if sys::interrupt(thread).is_err() { Ok(Stopped::Gone) } else { wait_until_stopped(thread) }
}

/// As [`stop`], for a thread already told to. A thread that only waits for a processor, however long, is waited for: it
/// may run until it has stopped.
pub(crate) fn wait_until_stopped(thread: pid_t) -> io::Result<Stopped> {
    let begun = Instant::now();
    loop {
        match sys::wait(thread, STOP)? {
            Some(Stop::Told) => break,
            Some(Stop::Gone) => return Ok(Stopped::Gone),
            Some(Stop::Signal(signal)) => {
                if bit(signal) & CLOCKS != 0 {
                    call::begin_again_after_handler(thread)?;
                }
                sys::go_on(thread, signal)?;
            }
            Some(Stop::SystemCall | Stop::Event) => sys::go_on(thread, 0)?,
            // For a disk, or for a child in its memory (`vfork`): no signal wakes it.
            None if Status::of(thread).is_some_and(|status| status.state == 'D') => return Ok(Stopped::Late),
            None if begun.elapsed() > PATIENCE => {
                let problem = format!("cannot stop thread {thread}: it has had no processor for a minute; try again");
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            None => {}
        }
    }
    call::begin_again(thread)?;
    Ok(Stopped::Yes)
}
