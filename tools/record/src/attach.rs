//! Recording a program that runs: from attaching to it until its end, a signal to this process, or the end of the time.
//!
//! Not here: how the tracer comes into the program and out again (`rftrace-attach`).

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rftrace_attach::{Attached, State, Wanted};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use rftrace_frontend::bank::Names;

use super::banks::{BankRecorder, BankRecording, OnFull, Plan, Written};
use super::dumps;
use super::entries::Told;
use super::output::Output;
use super::processes::start_time;

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The process.
    pub pid: u32,
    /// The file of the library that is loaded.
    pub library: PathBuf,
    /// Rules of what is recorded; empty for everything.
    pub filter: String,
    /// Whether calls of the program of functions of libraries are recorded too.
    pub has_library_calls: bool,
    /// Which functions get a branch at their beginning, as of [`Wanted::branches`].
    pub branches: Vec<String>,
    /// Whether calls of the tracer become NOPs and jumps.
    pub is_patched: bool,
    /// How long; `None` until this process is told to end.
    pub limit: Option<Duration>,
    /// Bytes of the bank.
    pub buffer_bytes: usize,
    /// What threads do that find it full.
    pub on_full: OnFull,
    /// Bytes that may be written.
    pub most_bytes: u64,
}

/// Why recording has ended.
#[derive(Debug)]
pub enum Reason {
    /// The time was over, or this process was told to.
    Left,
    /// The program has ended.
    Ended,
    /// The process runs another program.
    OtherProgram,
    /// The process could not be left as it should be.
    NotLeft(anyhow::Error),
}

/// What was recorded.
#[derive(Debug)]
pub struct Recorded {
    /// What was in the bank.
    pub banks: BankRecording,
    /// Why it has ended.
    pub reason: Reason,
    /// What became of functions that were to have a hook.
    pub told: Told,
    /// How many threads went on in the copies of functions' first instructions when those got their branches, and for how long all threads
    /// were stopped for that.
    pub stopped: (usize, Duration),
}

/// Records. `begun` is called when the program is attached to, `tell` as by [`BankRecorder::begin`].
///
/// # Errors
///
/// Nothing is recorded: the process cannot be attached to.
pub fn record(
    output: &Output,
    options: &Options,
    begun: impl FnOnce(),
    tell: impl FnMut(Written) + Send + 'static,
) -> Result<Recorded> {
    // First: who ends this process ends it in order.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let started = start_time(options.pid);
    let Options { library, filter, has_library_calls, branches, is_patched, .. } = options.clone();
    let wanted = Wanted { library, filter, has_library_calls, branches, is_patched };
    let mut banks = None;
    let attached = Attached::begin(options.pid, &wanted, |file| {
        let Options { buffer_bytes, on_full, most_bytes, .. } = *options;
        let plan = Plan {
            buffer_bytes,
            on_full,
            most_bytes,
            is_ring: false,
            dumps: dumps::Options::default(),
            is_sent: false,
        };
        banks = Some(BankRecorder::begin_in(file, 1, output.work(), plan, tell)?);
        Ok(())
    })?;
    let banks = banks.context("the process has no bank")?;
    begun();
    let since = Instant::now();
    let (mut told, mut stopped) = (Told::default(), (0, Duration::ZERO));
    let look = |attached: &Attached| {
        told = told_by(options.pid, attached);
        stopped = attached.stopped();
    };
    let reason = attend(attached, options.pid, started.as_deref(), look, || {
        let rest = options.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(since.elapsed()));
        (signals.pending().next().is_none() && !rest.is_zero()).then_some(rest)
    });
    Ok(Recorded { banks: banks.stop(), reason, told, stopped })
}

/// What became of functions that were to have a hook. While the process is there: names are read from its files.
fn told_by(pid: u32, attached: &Attached) -> Told {
    let mut told = Told::parse(attached.told());
    let without_branch = attached.without_branch();
    if !without_branch.is_empty() {
        let mut names = Names::of_process(pid);
        told.leave_out(without_branch.iter().map(|&(address, reason)| {
            let name = names.name(address).unwrap_or_else(|| "?".to_owned());
            format!("[memory]\t{address:#x}\t{name}\t{reason}")
        }));
    }
    told
}

/// Looks after a process that was `started` then, until it has ended, or until `go_on` returns nothing; then leaves it. `go_on` is asked
/// again after what it returns, or some milliseconds. `look` is called at first, and when libraries may have come.
pub(crate) fn attend(
    mut attached: Attached,
    pid: u32,
    started: Option<&str>,
    mut look: impl FnMut(&Attached),
    mut go_on: impl FnMut() -> Option<Duration>,
) -> Reason {
    const INTERVAL: Duration = Duration::from_millis(10);
    const LOOK: Duration = Duration::from_millis(200);

    let mut looked = Instant::now();
    look(&attached);
    loop {
        let has_ended = || start_time(pid).as_deref() != started;
        if has_ended() {
            return Reason::Ended;
        }
        let Some(rest) = go_on() else {
            return match attached.leave() {
                Ok(()) => Reason::Left,
                Err(_) if has_ended() => Reason::Ended,
                Err(error) => Reason::NotLeft(error),
            };
        };
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            match attached.look() {
                Ok(State::Ended) => return Reason::Ended,
                Ok(State::OtherProgram) => return Reason::OtherProgram,
                Ok(State::Changed) => look(&attached),
                // What could not be done now is tried again.
                Ok(State::Attached) | Err(_) => {}
            }
        }
        thread::sleep(rest.min(INTERVAL));
    }
}

/// Leaves a process that an earlier recorder has left in the middle of it. Returns whether there was anything to leave.
///
/// # Errors
///
/// As of [`record`].
pub fn leave(pid: u32, library: &std::path::Path) -> Result<bool> {
    rftrace_attach::leave(pid, library)
}
