//! Running the program.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _, stderr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::c_int;
use nix::sys::signal::Signal;
use rftrace_format::info::Usage;
use rftrace_format::recording::Entry;
use rftrace_format::store;
use rftrace_format::system;
use signal_hook::consts::{FORBIDDEN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Signals, SignalsInfo};

use crate::inherited;
use crate::kernel::KernelRecorder;
use crate::preload::Preload;

use super::processes::start_time;
use super::sys;

/// Parses the name of a signal, with or without `SIG`, or its number. `none` is 0.
pub fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper.clone() } else { format!("SIG{upper}") };
    if upper == "NONE" {
        return Ok(0);
    }
    let by_name = full.parse::<Signal>().ok().map(|signal| signal as i32).or_else(|| real_time_signal(&full));
    let signal = by_name.or_else(|| upper.parse().ok().filter(|number| (1..=64).contains(number)));
    match signal {
        None => Err("no such signal; use one such as USR1 or RTMIN+7, or none".to_owned()),
        Some(9 | 19) => Err("no program can handle this signal; choose another".to_owned()),
        Some(32 | 33) => Err("the C library uses this signal; choose another".to_owned()),
        Some(signal) => Ok(signal),
    }
}

/// A real-time signal by its name: `SIGRTMIN+7`, `SIGRTMAX-3`. The C library keeps the first two for itself.
fn real_time_signal(name: &str) -> Option<i32> {
    const FIRST: i32 = 34;
    const LAST: i32 = 64;

    let number = match (name.strip_prefix("SIGRTMIN"), name.strip_prefix("SIGRTMAX")) {
        (Some(""), _) => FIRST,
        (_, Some("")) => LAST,
        (Some(above), _) => FIRST + above.strip_prefix('+')?.parse::<u8>().ok()? as i32,
        (_, Some(below)) => LAST - below.strip_prefix('-')?.parse::<u8>().ok()? as i32,
        (None, None) => return None,
    };
    (FIRST..=LAST).contains(&number).then_some(number)
}

/// The signals that end a program.
const ENDING: [c_int; 4] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];

/// Returns the signals that would end this process now, and that it may handle.
pub fn ending_signals() -> impl Iterator<Item = c_int> {
    ENDING.into_iter().filter(|&signal| !is_in_mask("self", "SigIgn:", signal))
}

/// A way in which the tracer comes into a program.
pub trait Way {
    /// The result of the run, for messages at the end.
    type End;

    /// Runs the program. Returns its PID. Calls `is_there` with the PID as soon as there is a process, which may wait
    /// for its beginning.
    ///
    /// # Errors
    ///
    /// The program cannot be run.
    fn begin(&mut self, command: Command, is_there: &mut dyn FnMut(u32)) -> Result<u32>;

    /// Returns this process's own handler for a signal that is meant for the library. The handler returns whether it
    /// does anything.
    fn answer(&self) -> Option<Box<dyn Fn(u32, c_int) -> bool + Send>>;

    /// Waits until the program has ended. The program stays a zombie.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn wait_for_end(&mut self, pid: u32) -> io::Result<()>;

    /// Waits for the other processes. `living` returns those that have not ended.
    fn finish(self, living: &dyn Fn() -> Vec<u32>) -> Self::End;
}

/// The way with preloaded libraries and environment variables for them.
#[derive(Debug)]
pub struct Preloaded<'a> {
    /// The libraries.
    pub libraries: Vec<Preload>,
    /// The environment variables for them.
    pub variables: &'a [(&'static str, OsString)],
    /// The folder in which recorded processes have their entries.
    pub work: &'a Path,
}

impl Way for Preloaded<'_> {
    type End = ();

    fn begin(&mut self, mut command: Command, is_there: &mut dyn FnMut(u32)) -> Result<u32> {
        let mut preloaded: Vec<OsString> = self.libraries.iter().map(|library| library.path().into()).collect();
        preloaded.extend(env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()));
        command.env("LD_PRELOAD", preloaded.join(OsStr::new(":")));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let name = Path::new(command.get_program()).to_owned();
        let pid = command.spawn().with_context(|| format!("cannot run {}", name.display()))?.id();
        is_there(pid);
        Ok(pid)
    }

    fn answer(&self) -> Option<Box<dyn Fn(u32, c_int) -> bool + Send>> {
        None
    }

    fn wait_for_end(&mut self, pid: u32) -> io::Result<()> {
        sys::wait_for_end(pid)
    }

    fn finish(self, living: &dyn Fn() -> Vec<u32>) {
        if !wait_for_others(self.work, living) {
            self.libraries.into_iter().for_each(Preload::keep);
        }
    }
}

/// Runs the program and waits until it and all recorded processes have ended.
///
/// `kernel` records the program in the kernel. `living` returns the living threads and processes that write to memory
/// of this process. Signals go on to the program: those that would end it, and `for_library`, which the library
/// handles.
pub fn run<W: Way>(
    program: &Path,
    command: &[OsString],
    mut way: W,
    for_library: [c_int; 3],
    kernel: Option<&KernelRecorder>,
    living: &dyn Fn() -> Vec<u32>,
) -> Result<(Ended, W::End)> {
    let mut child = Command::new(program);
    child.arg0(&command[0]).args(&command[1..]);

    // From here on this process outlives the signals of the terminal: the program decides their meaning.
    let ending = ENDING;
    let others = [SIGUSR1, SIGUSR2].into_iter().chain(for_library);
    let handled = ending.into_iter().chain(others).filter(|&signal| signal != 0 && !FORBIDDEN.contains(&signal));
    let signals = handle(handled)?;
    let handle = signals.handle();
    if let Some(kernel) = kernel {
        kernel.follow(&mut child)?;
    }
    inherited::hand_on(&mut child);
    let started = Instant::now();
    let answer = way.answer();
    let forward = move |pid| {
        let mut signals = signals;
        for origin in &mut signals {
            // The program gets the terminal's signals too.
            if origin.process.is_none() {
                continue;
            }
            let is_own = for_library.contains(&origin.signal) && !has_place_for(pid, origin.signal);
            if is_own && answer.as_ref().is_some_and(|answer| answer(pid, origin.signal)) {
                continue;
            }
            let is_known = for_library.contains(&origin.signal) && is_handled(pid, origin.signal);
            if is_known || ending.contains(&origin.signal) {
                sys::send(pid, origin.signal);
            } else {
                let _ = writeln!(
                    stderr(),
                    "rftrace: signal {} is not passed on: the program does not handle it",
                    origin.signal
                );
            }
        }
    };
    let (mut forward, mut forwarder) = (Some(forward), None);
    let mut is_there = |pid| forwarder = forward.take().map(|forward| thread::spawn(move || forward(pid)));
    let begun = way.begin(child, &mut is_there);
    if begun.is_err() {
        handle.close();
    }
    let pid = begun?;
    let lost = || format!("cannot wait for the end of {}", program.display());
    // As long as it is not reaped no other process gets its id.
    way.wait_for_end(pid).with_context(lost)?;
    handle.close();
    let _ = forwarder.map(thread::JoinHandle::join);
    let (status, usage) = sys::reap(pid).with_context(lost)?;
    let end = way.finish(living);
    IS_ALONE.store(true, SeqCst);
    Ok((Ended { pid, status, elapsed: started.elapsed(), usage: usage.into() }, end))
}

/// Runs a command to its end. Signals that would end this process go on to it; it gets the terminal's too.
///
/// # Errors
///
/// The command cannot be run.
pub fn pass_on(command: &mut Command) -> Result<ExitStatus> {
    let mut signals = handle(ENDING.into_iter())?;
    let handle = signals.handle();
    let cannot = format!("cannot run {}", command.get_program().display());
    let mut child = command.spawn().with_context(|| cannot.clone())?;
    let pid = child.id();
    let forwarder = thread::spawn(move || {
        let sent = signals.forever().filter(|origin| origin.process.is_some());
        sent.for_each(|origin| sys::send(pid, origin.signal));
    });
    // As long as it is not reaped no other process gets its id.
    sys::wait_for_end(pid).with_context(|| cannot.clone())?;
    handle.close();
    let _ = forwarder.join();
    let status = child.wait().context(cannot)?;
    IS_ALONE.store(true, SeqCst);
    Ok(status)
}

/// False while a child decides what signals mean. After its end SIGTERM ends this process.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// Handles signals for a child, except those that this process ignores (`nohup`).
fn handle(signals: impl Iterator<Item = c_int>) -> Result<SignalsInfo<WithOrigin>> {
    static FIRST: Once = Once::new();

    let is_heard = |signal: &c_int| !is_in_mask("self", "SigIgn:", *signal);
    IS_ALONE.store(false, SeqCst);
    FIRST.call_once(|| {
        let _ = is_heard(&SIGTERM).then(|| flag::register_conditional_default(SIGTERM, &IS_ALONE));
    });
    SignalsInfo::new(signals.filter(is_heard)).context("cannot handle signals")
}

/// True if the program, or the library in it, handles a signal. If it has just been started, waits a little until it does.
fn is_handled(pid: u32, signal: c_int) -> bool {
    const START: Duration = Duration::from_secs(1);

    let since = Instant::now();
    loop {
        if has_place_for(pid, signal) {
            return true;
        }
        if since.elapsed() > START {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// True if a process does not end by a signal, as it handles, ignores or blocks it.
fn has_place_for(pid: u32, signal: c_int) -> bool {
    let process = pid.to_string();
    ["SigCgt:", "SigIgn:", "SigBlk:"].iter().any(|mask| is_in_mask(&process, mask, signal))
}

/// The end of a program.
#[derive(Debug)]
pub struct Ended {
    /// The process's PID.
    pub pid: u32,
    /// The exit status of the program.
    pub status: ExitStatus,
    /// The duration of the run.
    pub elapsed: Duration,
    /// The resource usage of the program.
    pub usage: Usage,
}

impl Ended {
    /// Returns the exit status for the shell.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// True if a signal is in one of the system's masks for a process: ignored (as after nohup), handled, blocked.
pub(crate) fn is_in_mask(process: &str, mask: &str, signal: c_int) -> bool {
    let status = system::read(format!("/proc/{process}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(mask)?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// Waits for processes that outlive the program, such as daemons: they have something to save. A signal ends the wait.
/// Returns true if all have ended.
fn wait_for_others(work: &Path, others: &dyn Fn() -> Vec<u32>) -> bool {
    const INTERVAL: Duration = Duration::from_millis(20);
    /// A child's longest time from the fork until it reports itself. After a failed fork it never does.
    const FORK: Duration = Duration::from_secs(1);

    let since = Instant::now();
    let mut signals = None;
    let mut alone_since = None;
    let mut said = false;
    loop {
        let names = names(work);
        let mut living = living_of(&names, of_process);
        // They may have no way to tell of themselves in the folder.
        living.extend(others());
        living.sort_unstable();
        living.dedup();
        if living.is_empty() {
            let since = *alone_since.get_or_insert_with(Instant::now);
            let is_forking = names.iter().any(|name| matches!(entry(name), Some(Entry::Fork { .. })));
            // A process may have told of itself, gone on to another one and ended while it was looked.
            let is_over = if is_forking { since.elapsed() > FORK } else { names == self::names(work) };
            if is_over {
                return true;
            }
        } else {
            alone_since = None;
        }
        if !said && !living.is_empty() && since.elapsed() > Duration::from_secs(1) {
            let pids: Vec<String> = living.iter().map(u32::to_string).collect();
            let _ = writeln!(
                stderr(),
                "rftrace: waiting for the end of {} (kill it, or press Ctrl-C to go on without it)",
                pids.join(", ")
            );
            said = true;
        }
        if signals.is_none() {
            signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).ok();
        }
        if signals.as_mut().is_none_or(|signals| signals.pending().next().is_some()) {
            return false;
        }
        thread::sleep(if living.is_empty() { Duration::from_millis(1) } else { INTERVAL });
    }
}

/// The living recorded processes.
pub(crate) fn living(work: &Path) -> Vec<u32> {
    living_of(&names(work), of_process)
}

/// Tells readers of the folder that this process records there.
pub(crate) fn register(work: &Path) -> std::io::Result<()> {
    store::write(&work.join(mark()), "")
}

/// Returns the name of the recorder's entry in the working folder.
#[must_use]
pub fn mark() -> String {
    let pid = std::process::id();
    let started = start_time(pid).unwrap_or_default();
    Entry::Recorder { pid, started: &started }.to_string()
}

/// Lists the names in the folder.
fn names(work: &Path) -> BTreeSet<OsString> {
    fs::read_dir(work).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

fn entry(name: &OsString) -> Option<Entry<'_>> {
    Entry::of(name.to_str()?)
}

fn of_process(entry: Entry<'_>) -> Option<(u32, &str)> {
    match entry {
        Entry::Process { pid, started } => Some((pid, started)),
        _ => None,
    }
}

/// The living processes behind files: those with the id and the start time that `process` takes of a file.
fn living_of(names: &BTreeSet<OsString>, process: fn(Entry<'_>) -> Option<(u32, &str)>) -> Vec<u32> {
    let is_living = |name| {
        let (pid, started) = process(entry(name)?)?;
        (start_time(pid)? == started).then_some(pid)
    };
    names.iter().filter_map(is_living).collect()
}
