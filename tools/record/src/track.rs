//! Recording of resources alone in running programs, followed with `ptrace` meanwhile.
//!
//! Not here: the use of it (`rftrace functracer`).
//!
//! **Invariant**: this thread follows all threads, and it alone borrows them: a thread can have one tracer only.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rftrace_attach::{Files, Wanted};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use super::attach::{Attended, Reason, Resources, check_numbers, record_resources};
use super::banks::{BankRecorder, OnFull, Plan};
use super::dumps;
use super::follow::{Fate, Happened, Running};
use super::resources::{Recorded, ResourceRecorder};

/// The options of the recording.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The processes.
    pub pids: &'a [u32],
    /// The path of the tracer's library.
    pub library: PathBuf,
    /// The options for recording resources.
    pub resources: Resources,
    /// The working folder.
    pub work: &'a Path,
    /// The maximum number of bytes in it.
    pub most_bytes: u64,
}

/// The outcome of the recording.
#[derive(Debug)]
pub struct Tracked {
    /// The summary.
    pub recorded: Recorded,
    /// The reason for each process's end.
    pub ends: Vec<(u32, Reason)>,
    /// The functions that modules call in other ways than through slots, see
    /// [`EndOfProcess`](super::attach::EndOfProcess).
    pub left_out: Vec<String>,
    /// The error, such as one of `each`, if there was any.
    pub result: Result<()>,
}

/// Events beside those of the processes.
#[derive(Debug)]
struct Signals {
    is_over: Arc<AtomicBool>,
    is_switched: Arc<AtomicBool>,
    wakes: UnixStream,
}

impl Signals {
    fn new() -> Result<Self> {
        let (wakes, wake) = UnixStream::pair()?;
        let [is_over, is_switched] = [Arc::<AtomicBool>::default(), Arc::default()];
        for signal in [SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1] {
            match signal {
                SIGCHLD => {}
                SIGUSR1 => drop(flag::register(signal, Arc::clone(&is_switched))?),
                _ => drop(flag::register(signal, Arc::clone(&is_over))?),
            }
            low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { is_over, is_switched, wakes })
    }

    /// Waits until something happens, so long at the most.
    fn wait(&mut self, limit: Duration) -> Result<()> {
        self.wakes.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        match self.wakes.read(&mut [0; 64]) {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Follows processes and records their resources, until all have ended or this process is told to end (SIGINT, SIGTERM,
/// SIGHUP). It calls `begun` as soon as all of them are recorded, and `each` for every event; a SIGUSR1 to this process
/// is an event too.
///
/// # Errors
///
/// One of the processes cannot be attached to; nothing is recorded, and the others are left again.
pub fn track(
    options: &Options<'_>,
    begun: impl FnOnce(&ResourceRecorder),
    mut each: impl FnMut(&ResourceRecorder, Happened) -> Result<Fate>,
) -> Result<Tracked> {
    // First: from now on a signal ends this process in order.
    let mut signals = Signals::new().context("cannot handle signals")?;
    let (attended, banks, recorder) = attach(options)?;
    let mut processes: Vec<Process> = attended.into_iter().map(Ok).collect();
    begun(&recorder);
    let result = follow(options.pids, &mut signals, &mut processes, |happened| each(&recorder, happened));
    let left_out = processes.iter().flatten().flat_map(|process| process.left_out().to_vec()).collect();
    let ends = processes.into_iter().map(|process| process.map_or_else(|reason| reason, Attended::leave));
    let ends = options.pids.iter().copied().zip(ends).collect();
    banks.into_iter().map(BankRecorder::stop).for_each(drop);
    Ok(Tracked { recorded: recorder.stop(), ends, left_out, result })
}

/// A process, or why it is not recorded any more.
type Process = Result<Attended, Reason>;

/// Attaches to all.
fn attach(options: &Options<'_>) -> Result<(Vec<Attended>, Vec<BankRecorder>, ResourceRecorder)> {
    let Options { pids, library, resources, work, most_bytes } = options;
    check_numbers(pids, true)?;
    let wanted = Wanted {
        library: library.clone(),
        // The program may call the tracer; its calls are not wanted.
        filter: "exclude=*".to_owned(),
        resources: Some(resources.wanted.clone()),
        ..Wanted::default()
    };
    /// The size of a bank for calls, although none are recorded.
    const BANK_BYTES: usize = 64 << 10;

    let (mut attended, mut banks, mut recorder) = (Vec::new(), Vec::new(), None);
    for &pid in *pids {
        let dumps = dumps::Options::default();
        let plan = Plan {
            buffer_bytes: BANK_BYTES,
            on_full: OnFull::Drop,
            most_bytes: 0,
            is_ring: false,
            dumps,
            is_sent: false,
        };
        let prepare = |files: Files| {
            banks.push(BankRecorder::begin_in(files.banks, 1, work, plan, |_| ())?);
            let pool = files.resources.context("the process has no memory for resources")?;
            record_resources(&mut recorder, pool, work, *most_bytes, resources)
        };
        match Attended::begin(pid, &wanted, prepare) {
            Ok(process) => attended.push(process),
            Err(error) => {
                attended.into_iter().map(Attended::leave).for_each(drop);
                banks.into_iter().map(BankRecorder::stop).for_each(drop);
                recorder.map(ResourceRecorder::stop);
                return Err(error);
            }
        }
    }
    Ok((attended, banks, recorder.context("no process is recorded")?))
}

/// Follows them, and looks after their new libraries.
fn follow(
    pids: &[u32],
    signals: &mut Signals,
    processes: &mut [Process],
    mut each: impl FnMut(Happened) -> Result<Fate>,
) -> Result<()> {
    /// Between two looks.
    const LOOK: Duration = Duration::from_millis(200);

    let mut executed = Vec::new();
    let mut each = |happened| {
        if let Happened::Executed(tid) = happened {
            executed.push(tid);
        }
        each(happened)
    };
    let mut running = Running::begin(pids, &mut each)?;
    let mut looked = Instant::now();
    while running.take(&mut each)? && !signals.is_over.load(Relaxed) {
        if signals.is_switched.swap(false, Relaxed) {
            each(Happened::Signal(std::process::id(), SIGUSR1))?;
        }
        if looked.elapsed() >= LOOK {
            for (&pid, process) in pids.iter().zip(&mut *processes) {
                let Ok(attended) = process else { continue };
                let mut ended = None;
                if attended.is_other() {
                    running.stop_some(pid, &mut each, |thread| match attended.look_by(thread) {
                        Ok(reason) => {
                            ended = reason;
                            true
                        }
                        // By another thread, or later.
                        Err(_) => false,
                    })?;
                }
                if let Some(reason) = ended {
                    *process = Err(reason);
                }
            }
            looked = Instant::now();
        }
        signals.wait(LOOK.saturating_sub(looked.elapsed()))?;
    }
    running.leave(&mut each)?;
    for (pid, process) in pids.iter().zip(processes) {
        if executed.contains(pid) {
            *process = Err(Reason::OtherProgram);
        }
    }
    Ok(())
}
