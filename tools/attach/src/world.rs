//! All threads of a process but one, stopped.

use std::collections::HashSet;

use anyhow::Result;
use nix::libc::{pid_t, user_regs_struct};

use super::borrowed::{Stopped, wait_until_stopped};
use super::process::Process;
use super::sys;

/// They go on when this is dropped.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) threads: Vec<pid_t>,
}

impl World {
    /// Stops all threads but `except`, also those that are started meanwhile. `late` get those that sleep for a disk or for a
    /// child of theirs in their memory: they stop before they run.
    pub(crate) fn stop(process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<Self> {
        let mut world = Self { threads: Vec::new() };
        let mut known = HashSet::from([except]);
        known.extend(late.iter().copied());
        loop {
            let new: Vec<pid_t> = process.threads()?.into_iter().filter(|&thread| known.insert(thread)).collect();
            if new.is_empty() {
                return Ok(world);
            }
            // All are told before one is waited for.
            let told: Vec<pid_t> = new
                .into_iter()
                .filter(|&thread| sys::seize(thread).and_then(|()| sys::interrupt(thread)).is_ok())
                .collect();
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

impl Drop for World {
    fn drop(&mut self) {
        for &thread in &self.threads {
            // One that was killed meanwhile is none any more.
            let _ = sys::detach(thread, 0);
        }
    }
}
