//! Looking at what a program that runs records, at once and without a trace: from attaching to it until its end, or until that is over.
//!
//! Not here: how the tracer comes into the program and out again (`rftrace-attach`), how its bank is read (`rftrace_frontend::bank`), and
//! what becomes of the records (who gives a [`Watch`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use rftrace_attach::{Files, Wanted};
use rftrace_frontend::bank::SHORTEST_PAUSE;
pub use rftrace_frontend::bank::{Live, Moment, Names, Take};

use super::attach::{Attended, Reason, attend};
use super::banks::{NO_MEMORY, NO_THREAD, OnFull};
use super::errands::Errands;
use super::sys;

/// How to look.
#[derive(Clone, Debug)]
pub struct Options {
    /// The process.
    pub pid: u32,
    /// The file of the library that is loaded.
    pub library: PathBuf,
    /// Rules of what is recorded; empty for everything.
    pub filter: String,
    /// True to record the program's calls of library functions too.
    pub has_library_calls: bool,
    /// Which functions get a branch at their beginning, as of [`Wanted::branches`].
    pub branches: Vec<String>,
    /// Bytes of the bank.
    pub buffer_bytes: usize,
    /// Behaviour of threads that find it full.
    pub on_full: OnFull,
    /// From one look to the next.
    pub every: Duration,
}

/// Takes what is recorded, on a thread of its own.
pub trait Watch: Take + Send + 'static {
    /// All that was recorded before a moment was taken: that of the beginning, then one after the other.
    fn look(&mut self, at: Moment, live: &Live);
}

/// Has `to` take what a process records, until that has ended or `is_over` says so. `begun` is called when it is attached to. Returns what
/// has taken it, and why it has ended.
///
/// # Errors
///
/// Nothing is recorded: the process cannot be attached to.
pub fn run<W: Watch>(
    options: &Options,
    to: W,
    begun: impl FnOnce(),
    mut is_over: impl FnMut() -> bool,
) -> Result<(W, Reason)> {
    let Options { pid, buffer_bytes, on_full, every, .. } = *options;
    let Options { library, filter, has_library_calls, branches, .. } = options.clone();
    let wanted = Wanted { library, filter, has_library_calls, branches, ..Wanted::default() };
    let mut live = None;
    let process = Attended::begin(pid, &wanted, |files: Files| {
        let mut bank = Live::new(files.banks, buffer_bytes, on_full.patience()).context(NO_MEMORY)?;
        bank.set_pid_here(pid);
        live = Some(bank);
        Ok(())
    })?;
    let live = live.context("the process has no bank")?;
    let has_ended = Arc::<AtomicBool>::default();
    let told = Arc::clone(&has_ended);
    let reading = thread::Builder::new().name("bank".to_owned()).spawn(move || read(live, to, every, &told));
    let reading = match reading.context(NO_THREAD) {
        Ok(reading) => reading,
        Err(error) => {
            process.leave();
            return Err(error);
        }
    };
    begun();
    let (_nobody, errands) = Errands::new();
    let mut reasons = attend(vec![process], |_, _| (), || (!is_over()).then_some(Duration::MAX), &errands);
    has_ended.store(true, Relaxed);
    let to = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok((to, reasons.remove(0)))
}

/// Processor time that this process took so far.
#[must_use]
pub fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Reads the bank until nobody writes to it any more.
fn read<W: Watch>(mut live: Live, mut to: W, every: Duration, has_ended: &AtomicBool) -> W {
    sys::rise_above_others();
    let at = live.look(&mut to);
    to.look(at, &live);
    let mut pause = SHORTEST_PAUSE;
    let mut due = Instant::now() + every;
    while !has_ended.load(Relaxed) {
        let now = Instant::now();
        if now >= due {
            let at = live.look(&mut to);
            to.look(at, &live);
            // Looks that were missed are not made up for.
            due = (due + every).max(now);
        } else {
            pause = live.poll(&mut to).next_pause(pause);
        }
        thread::sleep(pause.min(due.saturating_duration_since(Instant::now())));
    }
    let at = live.finish(&mut to);
    to.look(at, &live);
    to
}
