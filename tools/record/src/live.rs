//! Live observation of a running program without a trace: from attaching to it until its end, or until the observer
//! stops.
//!
//! Not here: how the tracer comes into the program and out again (`rftrace-attach`), reading its bank
//! (`rftrace_frontend::bank`), and the use of the records (the caller's [`Watch`]).

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

/// The options of an observation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The process.
    pub pid: u32,
    /// The path of the tracer's library, which is loaded into the process.
    pub library: PathBuf,
    /// The filter rules; empty to record everything.
    pub filter: String,
    /// True to record the program's calls of library functions too.
    pub has_library_calls: bool,
    /// The patterns of functions that get a branch at their beginning, see [`Wanted::branches`].
    pub branches: Vec<String>,
    /// The size of the bank in bytes.
    pub buffer_bytes: usize,
    /// The behaviour of threads that find the bank full.
    pub on_full: OnFull,
    /// The time between two looks.
    pub every: Duration,
}

/// The receiver of records, on a thread of its own.
pub trait Watch: Take + Send + 'static {
    /// Handles a moment: all records before `at` were passed on. The first moment is the beginning.
    fn look(&mut self, at: Moment, live: &Live);
}

/// Passes the records of a process to `to`, until the process ends or `is_over` returns true. It calls `begun` after
/// attaching. Returns `to`, and the reason of the end.
///
/// # Errors
///
/// The process cannot be attached to; nothing is recorded.
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
    let live = live.context("the process has no recording buffer")?;
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

/// Returns the processor time of this process so far.
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
            // Missed looks are not made up for.
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
