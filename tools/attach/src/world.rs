//! All threads of a process but one, stopped.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::libc::{pid_t, user_regs_struct};

use super::call;
use super::process::Process;
use super::status::Status;
use super::stop::{Stopped, wait_until_stopped};
use super::sys;

/// They go on when this is dropped.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) threads: Vec<pid_t>,
    /// Whether there is no thread that lives and was not stopped, but the excepted one and those that are late.
    pub(crate) is_whole: bool,
    /// When the first one was told to stop.
    pub(crate) since: Instant,
}

impl World {
    /// Stops all threads but `except`, also those that are started meanwhile. `late` get those that sleep for a disk or for a
    /// child of theirs in their memory: they stop before they run.
    pub(crate) fn stop(process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<Self> {
        let mut world = Self { threads: Vec::new(), is_whole: true, since: Instant::now() };
        let mut known = HashSet::from([except]);
        known.extend(late.iter().copied());
        loop {
            let new: Vec<pid_t> = process.threads()?.into_iter().filter(|&thread| known.insert(thread)).collect();
            if new.is_empty() {
                return Ok(world);
            }
            // All are told before one is waited for.
            let (told, not_told): (Vec<pid_t>, Vec<pid_t>) =
                new.into_iter().partition(|&thread| sys::seize(thread).and_then(|()| sys::interrupt(thread)).is_ok());
            world.is_whole &= !not_told.into_iter().any(lives);
            for thread in told {
                match wait_until_stopped(thread)? {
                    Stopped::Yes => world.threads.push(thread),
                    Stopped::Late => late.push(thread),
                    Stopped::Gone => {}
                }
            }
        }
    }

    /// Their registers.
    pub(crate) fn registers(&self) -> Result<Vec<user_regs_struct>> {
        self.threads.iter().map(|&thread| Ok(sys::registers(thread)?)).collect()
    }
}

/// Whether a thread may run code of its program still.
fn lives(thread: pid_t) -> bool {
    Status::of(thread).is_some_and(|status| !"ZX".contains(status.state))
}

/// Lets threads go that have stopped after all.
pub(crate) fn let_late_go(late: &mut Vec<pid_t>) {
    late.retain(|&thread| match sys::wait(thread, Duration::ZERO) {
        Ok(None) => true,
        Ok(Some(sys::Stop::Gone)) | Err(_) => false,
        Ok(Some(sys::Stop::Signal(signal))) => sys::detach(thread, signal).is_err(),
        Ok(Some(sys::Stop::Told)) => call::begin_again(thread).and_then(|()| sys::detach(thread, 0)).is_err(),
        Ok(Some(_)) => sys::detach(thread, 0).is_err(),
    });
}

impl Drop for World {
    fn drop(&mut self) {
        for &thread in &self.threads {
            // One that was killed meanwhile is none any more.
            let _ = sys::detach(thread, 0);
        }
    }
}
