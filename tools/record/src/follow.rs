//! Follows a program with `ptrace`: its processes, threads and signals. It stops the program for nothing else.
//!
//! Not here: the use of it (`rftrace functracer`), and recording in a running process meanwhile
//! ([`track`](crate::track)).
//!
//! **Invariant**: signals are passed on, also those of job control, except the one that the caller takes.
//! **Invariant**: a system call that was interrupted by a stop, or by a taken signal, begins again.

#![expect(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::{self, c_int, c_void, pid_t};
use rftrace_attach::Started;
use rftrace_format::system;

/// An event of a thread or process. Both are named by their system ids; a process has that of its first thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A thread or process exists.
    Created(u32),
    /// A thread has created a process, which was reported before.
    Forked(u32, u32),
    /// A thread runs another program.
    Executed(u32),
    /// A thread ends, with this status of `wait`.
    Exiting(u32, u32),
    /// A process was killed by a signal.
    Killed(u32, c_int),
    /// A thread gets a signal.
    Signal(u32, c_int),
    /// A thread that ran before goes on without being followed.
    Detached(u32),
}

/// The treatment of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The program gets it.
    PassedOn,
    /// The program does not get it.
    Taken,
}

const OPTIONS: c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    // For the borrower of a followed thread.
    | libc::PTRACE_O_TRACESYSGOOD;

/// Runs a program and follows it to the end of all its processes. It calls `started` with the program's PID before the
/// program has done anything, and `each` for all events. Returns the status of the first process, in the form of
/// shells.
///
/// # Errors
///
/// The program cannot be run, or the system does not permit following it.
pub fn follow(
    command: Command,
    started: impl FnOnce(u32),
    mut each: impl FnMut(Happened) -> Result<Fate>,
) -> Result<i32> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (child, held) = Started::begin(command).with_context(|| format!("cannot run {name} with ptrace"))?;
    let pid = child.id();
    let first = pid.cast_signed();
    // It stands at its first instruction, and may live longer than this process.
    let signals = held.into_traced();
    request(libc::PTRACE_SETOPTIONS, first, OPTIONS as usize)
        .with_context(|| format!("cannot follow {name} with ptrace"))?;
    let mut following = Following { known: BTreeSet::from([first]), first, ..Following::default() };
    started(pid);
    each(Happened::Created(pid))?;
    for signal in signals {
        send(pid, signal);
    }
    go_on(first, 0);
    while let Some((tid, status)) = wait(-1)? {
        following.handle(tid, status, &mut each)?;
    }
    Ok(following.code)
}

/// Returns the process of a thread.
#[must_use]
pub fn process_of(tid: u32) -> Option<u32> {
    let status = system::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Returns the arguments of a process, the program's name first.
#[must_use]
pub fn command_of(tid: u32) -> Option<Vec<String>> {
    let line = system::read(format!("/proc/{tid}/cmdline")).ok().filter(|line| !line.is_empty())?;
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    Some(line.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Running processes that are followed for some time.
#[derive(Debug)]
pub struct Running(Following);

impl Running {
    /// Starts to follow processes, but not their later children.
    ///
    /// # Errors
    ///
    /// The system does not permit following one of them, or it has ended.
    pub fn begin(pids: &[u32], mut each: impl FnMut(Happened) -> Result<Fate>) -> Result<Self> {
        let mut following = Following { processes: pids.iter().copied().collect(), ..Following::default() };
        for &pid in pids {
            seize(pid.cast_signed()).with_context(|| format!("cannot follow process {pid} with ptrace"))?;
            following.known.insert(pid.cast_signed());
            each(Happened::Created(pid))?;
            // Also those begun meanwhile. A followed thread's children are followed, and report themselves.
            loop {
                let others = threads(pid).into_iter().filter(|&tid| seize(tid).is_ok());
                let new: Vec<pid_t> = others.filter(|&tid| following.known.insert(tid)).collect();
                if new.is_empty() {
                    break;
                }
                for tid in new {
                    each(Happened::Created(tid.cast_unsigned()))?;
                }
            }
        }
        Ok(Self(following))
    }

    /// Handles the events since the last call. Returns whether any of the processes is alive.
    ///
    /// # Errors
    ///
    /// Those of `each`, and of the system.
    pub fn take(&mut self, mut each: impl FnMut(Happened) -> Result<Fate>) -> Result<bool> {
        while let Some((tid, status)) = wait_with(-1, libc::WNOHANG)? {
            self.0.handle(tid, status, &mut each)?;
        }
        Ok(!self.0.known.is_empty())
    }

    /// Stops threads of a process, one after another, until `work` succeeds with one of them.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take).
    pub fn stop_some(
        &mut self,
        pid: u32,
        mut each: impl FnMut(Happened) -> Result<Fate>,
        mut work: impl FnMut(u32) -> bool,
    ) -> Result<()> {
        /// The longest wait for a thread asleep for a disk.
        const PATIENCE: Duration = Duration::from_millis(50);

        for tid in threads(pid) {
            if !self.0.known.contains(&tid) || request(libc::PTRACE_INTERRUPT, tid, 0).is_err() {
                continue;
            }
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE && self.0.known.contains(&tid) {
                match wait_with(tid, libc::WNOHANG)? {
                    None => thread::sleep(PAUSE),
                    Some((_, status)) if is_told_to_stop(status) => {
                        begin_again(tid)?;
                        let is_done = work(tid.cast_unsigned());
                        go_on(tid, 0);
                        if is_done {
                            return Ok(());
                        }
                        break;
                    }
                    Some((_, status)) => self.0.handle(tid, status, &mut each)?,
                }
            }
        }
        Ok(())
    }

    /// Stops following the processes.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take).
    pub fn leave(mut self, mut each: impl FnMut(Happened) -> Result<Fate>) -> Result<()> {
        /// The system lets the unstopped ones go when this process ends.
        const PATIENCE: Duration = Duration::from_secs(2);

        let (begun, mut told) = (Instant::now(), BTreeSet::new());
        while !self.0.known.is_empty() && begun.elapsed() < PATIENCE {
            for &tid in self.0.known.iter().filter(|&&tid| told.insert(tid)) {
                let _ = request(libc::PTRACE_INTERRUPT, tid, 0);
            }
            let Some((tid, status)) = wait_with(-1, libc::WNOHANG)? else {
                thread::sleep(PAUSE);
                continue;
            };
            let has_stopped = libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_STOP;
            if has_stopped && self.0.known.remove(&tid) {
                begin_again(tid)?;
                let_go(tid);
                each(Happened::Detached(tid.cast_unsigned()))?;
            } else {
                self.0.handle(tid, status, &mut each)?;
            }
        }
        Ok(())
    }
}

/// Between two looks.
const PAUSE: Duration = Duration::from_micros(100);

/// The threads of a process.
fn threads(pid: u32) -> Vec<pid_t> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// True if a thread has stopped because this process has told it to, and not by job control.
fn is_told_to_stop(status: c_int) -> bool {
    libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_STOP && libc::WSTOPSIG(status) == libc::SIGTRAP
}

/// Followed threads and processes.
#[derive(Debug, Default)]
struct Following {
    known: BTreeSet<pid_t>,
    /// The processes that ran already; empty for a started program: it is followed as a whole.
    processes: BTreeSet<u32>,
    /// Those begun by them and not reported yet.
    let_go: BTreeSet<pid_t>,
    /// The started process.
    first: pid_t,
    code: i32,
}

impl Following {
    fn handle(&mut self, tid: pid_t, status: c_int, each: &mut impl FnMut(Happened) -> Result<Fate>) -> Result<()> {
        let number = tid.cast_unsigned();
        if !libc::WIFSTOPPED(status) {
            self.known.remove(&tid);
            if libc::WIFSIGNALED(status) {
                each(Happened::Killed(number, libc::WTERMSIG(status)))?;
            }
            if tid == self.first {
                self.code =
                    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
            }
            return Ok(());
        }
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let child = message(tid) as pid_t;
                if !self.known.contains(&child)
                    && !self.let_go.contains(&child)
                    && let Some((_, status)) = wait(child)?
                {
                    self.handle(child, status, each)?;
                }
                let is_process = || process_of(child.cast_unsigned()) == Some(child.cast_unsigned());
                if self.let_go.remove(&child) || is_process() {
                    each(Happened::Forked(number, child.cast_unsigned()))?;
                }
                go_on(tid, 0);
            }
            libc::PTRACE_EVENT_EXEC => {
                // All other threads are gone, and the calling one has the number of the first.
                let before = message(tid) as pid_t;
                if before != tid {
                    self.known.remove(&before);
                }
                self.known.insert(tid);
                each(Happened::Executed(number))?;
                go_on(tid, 0);
            }
            libc::PTRACE_EVENT_EXIT => {
                each(Happened::Exiting(number, message(tid) as u32))?;
                go_on(tid, 0);
            }
            libc::PTRACE_EVENT_STOP if !self.known.contains(&tid) && !self.is_followed(tid) => {
                self.let_go.insert(tid);
                let_go(tid);
            }
            libc::PTRACE_EVENT_STOP if self.known.insert(tid) => {
                each(Happened::Created(number))?;
                go_on(tid, 0);
            }
            // It goes on when it is told to, not by us.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                let _ = request(libc::PTRACE_LISTEN, tid, 0);
            }
            libc::PTRACE_EVENT_STOP => {
                begin_again(tid)?;
                go_on(tid, 0);
            }
            _ => match each(Happened::Signal(number, signal))? {
                Fate::PassedOn => go_on(tid, signal),
                Fate::Taken => {
                    begin_again(tid)?;
                    go_on(tid, 0);
                }
            },
        }
        Ok(())
    }

    /// True if a new thread belongs to a followed process.
    fn is_followed(&self, tid: pid_t) -> bool {
        self.processes.is_empty()
            || process_of(tid.cast_unsigned()).is_some_and(|process| self.processes.contains(&process))
    }
}

/// Waits for a thread, or for any followed one. `None` if there is none.
fn wait(tid: pid_t) -> Result<Option<(pid_t, c_int)>> {
    wait_with(tid, 0)
}

/// The same, or `None` if nothing has happened and the options are not to wait.
fn wait_with(tid: pid_t, options: c_int) -> Result<Option<(pid_t, c_int)>> {
    loop {
        let mut status = 0;
        // SAFETY: the status is writable.
        let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | options) };
        match found {
            0 => return Ok(None),
            1.. => return Ok(Some((found, status))),
            _ => {}
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Ok(None),
            _ => return Err(error).context("cannot wait for the program"),
        }
    }
}

/// Lets a thread go on, with a signal or without (0). It may be gone.
fn go_on(tid: pid_t, signal: c_int) {
    let _ = request(libc::PTRACE_CONT, tid, signal as usize);
}

/// Follows a stopped thread no more. It may be gone.
fn let_go(tid: pid_t) {
    let _ = request(libc::PTRACE_DETACH, tid, 0);
}

/// Has a system call interrupted by a stop begin again. The thread may be gone.
fn begin_again(tid: pid_t) -> Result<()> {
    match rftrace_attach::begin_again(tid) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(error).context("cannot read registers with ptrace")
        }
        _ => Ok(()),
    }
}

fn seize(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, OPTIONS as usize)
}

fn request(what: libc::c_uint, tid: pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of these requests reads or writes memory of this process.
    let result = unsafe { libc::ptrace(what, tid, std::ptr::null_mut::<c_void>(), data as *mut c_void) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the system's message on an event.
fn message(tid: pid_t) -> u64 {
    let mut message: libc::c_ulong = 0;
    // SAFETY: it is written to the number.
    unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, std::ptr::null_mut::<c_void>(), &raw mut message) };
    message
}

/// Sends a signal to a process.
pub fn send(pid: u32, signal: c_int) {
    crate::sys::send(pid, signal);
}
