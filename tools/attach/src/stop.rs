//! How a thread is told to stop, and what comes before it does.

use std::io;
use std::time::{Duration, Instant};

use nix::libc::pid_t;

use super::call;
use super::status::{CLOCKS, Status, bit};
use super::sys::{self, Stop};

/// How long a thread that waits for a processor may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one that sleeps for a disk may take.
const STOP: Duration = Duration::from_millis(50);

/// How a thread was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Yes,
    /// It sleeps in the system, where nothing wakes it, and stops before it runs any code of its own. It is to be let go then.
    Late,
    Gone,
}

/// Stops a thread that is traced. Signals that come first go on to it. A system call that this interrupts begins again, also where a clock
/// of processor time struck while the thread stopped.
pub(crate) fn stop(thread: pid_t) -> io::Result<Stopped> {
    if sys::interrupt(thread).is_err() { Ok(Stopped::Gone) } else { wait_until_stopped(thread) }
}

/// As [`stop`], of a thread that was told to. One that is only waiting for a processor, however long, is waited for: until it has stopped
/// it may run.
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
            // For a disk, or for a child of its in its memory (`vfork`), where no signal wakes it.
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
