//! Requests of a recorder to a process, one at a time: by a signal or, in an attached process without rftrace's
//! handler, by a borrowed thread.
//!
//! Not here: the kinds of requests (`control`), and their form in a bank (`rftrace_frontend::bank`).

use std::collections::HashSet;
use std::fs;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_format::system;
use rftrace_frontend::bank::{Answer, Asked, NotAsked};

use super::access::Access;
use super::errands::{Errands, What};
use super::processes::start_time;
use super::run::is_in_mask;
use super::sys::Process;

/// Asks processes.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    one_by_one: OneByOne,
    /// Queue to the thread that borrows threads of the process, if the process is asked that way.
    pub(crate) errands: Option<Errands>,
}

/// The processes being asked. A process has room for one request and its answer, and the next request takes the place
/// of both. So each asker waits until the one before has read its answer.
#[derive(Debug, Default)]
struct OneByOne {
    pids: Mutex<HashSet<u32>>,
    has_changed: Condvar,
}

/// As long as it lives nobody else asks this process.
struct Alone<'a> {
    among: &'a OneByOne,
    pid: u32,
}

impl OneByOne {
    fn begin(&self, pid: u32) -> Alone<'_> {
        let is_asked = |pids: &mut HashSet<u32>| pids.contains(&pid);
        let mut pids = self.has_changed.wait_while(lock(&self.pids), is_asked).unwrap_or_else(PoisonError::into_inner);
        pids.insert(pid);
        Alone { among: self, pid }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        lock(&self.among.pids).remove(&self.pid);
        self.among.has_changed.notify_all();
    }
}

/// The longest time until a process begins with a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time for the request itself.
pub(crate) const WORK: Duration = Duration::from_secs(60);
/// How long it may take until it has a handler, after it has begun.
const BEGINNING: Duration = Duration::from_secs(1);

pub(crate) const OVER: &str = "the recording has ended";

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asker {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The error of the process, or the reason why it was not asked.
    pub(crate) fn ask(&self, banks: &Access, pid: u32, request: &str) -> Result<Vec<u8>, String> {
        let _alone = self.one_by_one.begin(pid);
        let asked = self.send(banks, pid, request)?;
        if let Some(errands) = &self.errands {
            let done = errands.run(pid, What::Answer).unwrap_or_else(|| Err(OVER.to_owned()));
            if let Err(problem) = done {
                let is_taken_back = banks.with(move |banks| banks.take_back(&asked)).unwrap_or(true);
                let what = if is_taken_back { "nothing was changed" } else { "the command may still take effect" };
                return Err(format!("{problem}; {what}"));
            }
        }
        let (since, mut pause) = (Instant::now(), Duration::from_micros(50));
        loop {
            match banks.with(move |banks| banks.answer(&asked)).unwrap_or(Answer::Ended) {
                Answer::Done(bytes) => return Ok(bytes),
                Answer::Refused(problem) => return Err(problem),
                Answer::Ended => return Err(format!("process {pid} has ended")),
                Answer::Begun if since.elapsed() < WORK => {}
                Answer::Begun => {
                    return Err(format!(
                        "process {pid} has worked on the command for a minute; the command may still take effect"
                    ));
                }
                Answer::Waiting if since.elapsed() < PATIENCE => {}
                Answer::Waiting => {
                    if banks.with(move |banks| banks.take_back(&asked)).unwrap_or(true) {
                        return Err(format!("{}; nothing was changed", why_no_answer(pid, asked.signal)));
                    }
                }
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// Asks. Waits for a process just begun, or about to become another program.
    fn send(&self, banks: &Access, pid: u32, request: &str) -> Result<Asked, String> {
        const PAUSE: Duration = Duration::from_millis(5);

        let has_handler = self.errands.is_none();
        let since = Instant::now();
        loop {
            let text = request.to_owned();
            let asked = banks.with(move |banks| match has_handler {
                true => banks.ask(pid, &text, |signal| send_to(pid, signal)),
                false => banks.ask_of_thread(pid, &text),
            });
            let patience = match asked.ok_or(OVER)? {
                Ok(asked) => return Ok(asked),
                Err(NotAsked::NoHandler) if since.elapsed() < BEGINNING => true,
                Err(NotAsked::Exec | NotAsked::Busy) => since.elapsed() < PATIENCE,
                Err(NotAsked::NoHandler) => {
                    return Err(format!(
                        "process {pid} takes no commands: it handles the control signal itself, or was recorded with \
                         --signal-control none; choose another signal with that option"
                    ));
                }
                Err(NotAsked::NoProcess) => return Err(format!("process {pid} has ended")),
                Err(NotAsked::TooLong) => return Err("the command is longer than 16 KiB: shorten it".to_owned()),
                Err(NotAsked::Signal(error)) => return Err(format!("cannot send a command to process {pid}: {error}")),
            };
            if !patience {
                return Err(format!(
                    "process {pid} is starting another program, or is busy with another command: try again"
                ));
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Sends a process a signal, once: a waiting one leads it to all requests anyway.
fn send_to(pid: u32, signal: u32) -> std::io::Result<()> {
    let process = Process::open(pid)?;
    if is_in_mask(&pid.to_string(), "ShdPnd:", signal.cast_signed()) {
        return Ok(());
    }
    // If no thread may be traced, as a debugger is there or the system does not allow it, a wait may end by the signal.
    #[cfg(attaching)]
    if rftrace_attach::send_unseen(pid, signal.cast_signed()).is_ok() {
        return Ok(());
    }
    process.send(signal.cast_signed())
}

/// Why a process does not answer.
fn why_no_answer(pid: u32, signal: u32) -> String {
    if start_time(pid).is_none() {
        return format!("process {pid} has ended");
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tasks: Vec<String> = tasks.filter_map(|task| system::read_text(task.path().join("status")).ok()).collect();
    let state = |task: &String, letters: &[&str]| {
        let state = task.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_some_and(|state| letters.iter().any(|letter| state.trim().starts_with(letter)))
    };
    if !tasks.is_empty() && tasks.iter().all(|task| state(task, &["T", "t"])) {
        return format!("process {pid} is stopped and did not answer within 2 seconds: continue it first");
    }
    let blocks = |task: &String| {
        let mask = task.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigBlk:")?.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
    };
    if !tasks.is_empty() && tasks.iter().all(|task| blocks(task) || state(task, &["Z", "X"])) {
        return format!(
            "all threads of process {pid} block signal {signal}, the control signal: choose another one with `rftrace \
             record --signal-control`"
        );
    }
    format!("process {pid} did not answer within 2 seconds")
}
