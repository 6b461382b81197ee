//! All threads of a process but one, stopped, or asleep if they cannot be.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::libc::{pid_t, user_regs_struct};

use super::call;
use super::process::Process;
use super::sleepers::{self, Doubt};
use super::stop::{Stopped, wait_until_stopped};
use super::sys;

/// The longest wait for threads that cannot be stopped.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// They go on when this is dropped.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) threads: Vec<pid_t>,
    /// Threads of others in its memory: of children of a `vfork`.
    guests: Vec<pid_t>,
    /// Known registers of the sleeping threads.
    pub(crate) sleepers: Vec<user_regs_struct>,
    /// Why a thread may run, other than the excepted one and the late ones.
    doubt: Option<Doubt>,
    /// When the first one was told to stop.
    pub(crate) since: Instant,
}

impl World {
    /// Stops all threads but `except`, also those started meanwhile. `late` gets those asleep for a disk or for a child
    /// in their memory: they stop before they run.
    pub(crate) fn stop(process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<Self> {
        let mut world =
            Self { threads: Vec::new(), guests: Vec::new(), sleepers: Vec::new(), doubt: None, since: Instant::now() };
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
            if not_told.into_iter().any(sleepers::lives) {
                world.doubt = Some(Doubt::Awake);
            }
            for thread in told {
                match wait_until_stopped(thread)? {
                    Stopped::Yes => world.threads.push(thread),
                    Stopped::Late => late.push(thread),
                    Stopped::Gone => {}
                }
            }
        }
    }

    /// All threads but `except`, stopped, without exception.
    ///
    /// # Errors
    ///
    /// One cannot be, in a sentence.
    pub(crate) fn whole(process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<Self> {
        Self::wait_for(process, except, late, |world, late| {
            if !late.is_empty() {
                world.doubt = world.doubt.or(Some(Doubt::Awake));
            }
        })
    }

    /// All threads but `except`, stopped or asleep, and those of guests.
    ///
    /// # Errors
    ///
    /// One is neither, in a sentence.
    pub(crate) fn still(process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<Self> {
        Self::wait_for(process, except, late, |world, late| _ = world.settle(process, except, late))
    }

    fn wait_for(
        process: &Process,
        except: pid_t,
        late: &mut Vec<pid_t>,
        settle: impl Fn(&mut Self, &mut Vec<pid_t>),
    ) -> Result<Self> {
        let begun = Instant::now();
        loop {
            let_late_go(late);
            let mut world = Self::stop(process, except, late)?;
            settle(&mut world, late);
            let Some(doubt) = world.doubt else { return Ok(world) };
            drop(world);
            if begun.elapsed() > PATIENCE {
                bail!("cannot change the code of process {}: a thread {doubt}; try again", process.pid);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Looks where the late ones sleep, and stops guests. Returns true if no thread but `except` runs code of the
    /// process then.
    pub(crate) fn settle(&mut self, process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> bool {
        if self.doubt.is_none() && !late.is_empty() {
            self.doubt = self.find_sleepers(process, except, late).err();
        }
        self.doubt.is_none()
    }

    fn find_sleepers(&mut self, process: &Process, except: pid_t, late: &mut Vec<pid_t>) -> Result<(), Doubt> {
        let mut known: HashSet<pid_t> = self.threads.iter().chain(&*late).copied().chain([except]).collect();
        let stopped = Some(except).filter(|&thread| thread != 0).or(self.threads.first().copied());
        let Some(one) = stopped.or(late.first().copied()) else { return Ok(()) };
        loop {
            self.sleepers = late.iter().map(|&thread| sleepers::asleep(process, thread)).collect::<Result<_, _>>()?;
            // Sleeping and stopped threads make no new ones any more.
            let new = sleepers::guests(process, one, &known)?;
            if new.is_empty() {
                return Ok(());
            }
            known.extend(&new);
            let told: Vec<Result<(), Doubt>> = new.iter().map(|&guest| sleepers::tell(guest)).collect();
            for (&guest, _) in new.iter().zip(&told).filter(|(_, told)| told.is_ok()) {
                match wait_until_stopped(guest) {
                    Ok(Stopped::Yes) => self.guests.push(guest),
                    Ok(Stopped::Gone) => {}
                    Ok(Stopped::Late) | Err(_) => late.push(guest),
                }
            }
            told.into_iter().collect::<Result<(), _>>()?;
            // It may have begun its program meanwhile.
            let (guests, others) =
                self.guests.iter().partition(|&&guest| sys::has_same_memory(one, guest).unwrap_or(false));
            self.guests = guests;
            others.into_iter().for_each(|other: pid_t| let_go(other));
        }
    }

    /// True if a thread may run.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// The stopped threads.
    pub(crate) fn stopped(&self) -> impl Iterator<Item = pid_t> {
        self.threads.iter().chain(&self.guests).copied()
    }

    /// Returns the known registers of all threads.
    pub(crate) fn registers(&self) -> Result<Vec<user_regs_struct>> {
        let stopped: Result<Vec<_>> = self.stopped().map(|thread| Ok(sys::registers(thread)?)).collect();
        stopped.map(|registers| registers.into_iter().chain(self.sleepers.iter().copied()).collect())
    }
}

/// Lets a guest go. If it was killed meanwhile, its parent hears of its end after this process.
fn let_go(guest: pid_t) {
    const END: Duration = Duration::from_secs(1);

    if sys::detach(guest, 0).is_err() {
        let _ = sys::wait(guest, END);
    }
}

/// Lets threads go that have stopped after all.
pub(crate) fn let_late_go(late: &mut Vec<pid_t>) {
    late.retain(|&thread| match sys::wait(thread, Duration::ZERO) {
        Ok(None) => true,
        Ok(Some(sys::Stop::Gone)) | Err(_) => false,
        Ok(Some(sys::Stop::Signal(signal))) => sys::detach(thread, signal).is_err(),
        Ok(Some(sys::Stop::Told)) => call::begin_again(thread).and_then(|()| call::let_go(thread)).is_err(),
        Ok(Some(_)) => sys::detach(thread, 0).is_err(),
    });
}

impl Drop for World {
    fn drop(&mut self) {
        for &thread in &self.threads {
            // A killed thread is gone anyway.
            let _ = call::let_go(thread);
        }
        self.guests.iter().for_each(|&guest| let_go(guest));
    }
}
