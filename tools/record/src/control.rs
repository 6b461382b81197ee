//! What `rftrace ctl` has a recorder do, while programs run.
//!
//! Not here: who asks, and what the words mean (`rftrace-control`); how a process is asked (`rftrace_frontend::bank`).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_control::server::Server;
use rftrace_control::{Facts, Function, Recording, Text, Trigger, Watched};
use rftrace_frontend::bank::{Answer, Asked, MOST_ANSWER_BYTES, Names, NotAsked};

use super::access::Access;
use super::banks::BankRecorder;
use super::dumps::{DumpControl, DumpOn, Event};
use super::pipe::{Pipe, What};
use super::processes::{n_threads, start_time};
use super::run::is_in_mask;
use super::sys::Process;

/// Listens as long as it lives.
#[derive(Debug)]
pub struct Control {
    server: Server,
}

impl Control {
    /// Listens to who wants to control the recording; `work` is the folder that is recorded to.
    ///
    /// # Errors
    ///
    /// There can be no socket.
    pub fn begin(work: &Path, banks: &BankRecorder, spelling: Spelling) -> std::io::Result<Self> {
        let recorded = Recorded {
            banks: banks.access(),
            dumps: banks.dumps(),
            spelling,
            asked: OneByOne::default(),
            stopped: Mutex::default(),
            snapshots: Mutex::default(),
        };
        Ok(Self { server: Server::begin(work, Arc::new(recorded))? })
    }

    /// The recording is over.
    pub fn finish(self) {
        self.server.finish();
    }
}

/// How it is written what dumps are made on.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// Reads it.
    pub read: fn(&str) -> Result<DumpOn, String>,
    /// By which value of the key `watch` a process looks for it, if it has to, under a number.
    pub watch: fn(usize, &DumpOn) -> Option<String>,
}

/// What is recorded into banks.
struct Recorded {
    banks: Access,
    dumps: DumpControl,
    spelling: Spelling,
    asked: OneByOne,
    /// Processes whose recording has ended for good.
    stopped: Mutex<HashSet<u32>>,
    /// Dumps that were made by `snapshot`, and of which processes.
    snapshots: Mutex<Vec<(u32, PathBuf)>>,
}

/// The processes that are being asked. A process has room for one request and its answer, and the next request takes the place of both: so who
/// asks a process waits until whoever has asked it before has read the answer.
#[derive(Default)]
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

/// How long a process may take until it begins with what it is asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may be at it.
const WORK: Duration = Duration::from_secs(60);
/// How long it may take until it has a handler, after it has begun.
const BEGINNING: Duration = Duration::from_secs(1);

const OVER: &str = "the recording has ended";

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorded {
    fn trigger(&self, number: usize, on: &DumpOn) -> Trigger {
        let watched = match (on.event, (self.spelling.watch)(number, on)) {
            (_, Some(watch)) => Watched::Calls(watch),
            (Event::Panic | Event::Throw, None) => Watched::Raised,
            (_, None) => Watched::ByRecorder,
        };
        Trigger { number, text: on.text.clone(), watched }
    }

    fn request(&self, pid: u32, request: &str) -> Result<Vec<u8>, String> {
        let _alone = self.asked.begin(pid);
        let asked = self.send(pid, request)?;
        let (since, mut pause) = (Instant::now(), Duration::from_micros(50));
        loop {
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
            match self.banks.with(move |banks| banks.answer(&asked)).unwrap_or(Answer::Ended) {
                Answer::Done(bytes) => return Ok(bytes),
                Answer::Refused(problem) => return Err(problem),
                Answer::Ended => return Err(format!("process {pid} has ended")),
                Answer::Begun if since.elapsed() < WORK => {}
                Answer::Begun => {
                    return Err(format!("process {pid} is at it for a minute: it is not known what becomes of it"));
                }
                Answer::Waiting if since.elapsed() < PATIENCE => {}
                Answer::Waiting => {
                    if self.banks.with(move |banks| banks.take_back(&asked)).unwrap_or(true) {
                        return Err(format!("{}; nothing was changed", why_no_answer(pid, asked.signal)));
                    }
                }
            }
        }
    }

    /// Asks. Waits for a process that has just begun, or is about to become another program.
    fn send(&self, pid: u32, request: &str) -> Result<Asked, String> {
        const PAUSE: Duration = Duration::from_millis(5);

        let since = Instant::now();
        loop {
            let text = request.to_owned();
            let asked = self.banks.with(move |banks| banks.ask(pid, &text, |signal| send_to(pid, signal)));
            let patience = match asked.ok_or(OVER)? {
                Ok(asked) => return Ok(asked),
                Err(NotAsked::NoHandler) if since.elapsed() < BEGINNING => true,
                Err(NotAsked::Exec | NotAsked::Busy) => since.elapsed() < PATIENCE,
                Err(NotAsked::NoHandler) => {
                    return Err(format!(
                        "process {pid} takes no requests: it has a handler of its own for the signal, or was recorded with \
                         --signal-control none; another one is chosen by that option"
                    ));
                }
                Err(NotAsked::NoProcess) => return Err(format!("process {pid} has ended")),
                Err(NotAsked::TooLong) => return Err("this is longer than 16 KiB".to_owned()),
                Err(NotAsked::Signal(error)) => return Err(format!("process {pid} cannot be asked: {error}")),
            };
            if !patience {
                return Err(format!("process {pid} is about to run another program, or at something else"));
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Sends a process a signal, once: if one waits already it will look for all that is there.
fn send_to(pid: u32, signal: u32) -> std::io::Result<()> {
    let process = Process::open(pid)?;
    if is_in_mask(&pid.to_string(), "ShdPnd:", signal.cast_signed()) {
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
    let tasks: Vec<String> = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect();
    let state = |task: &String, letters: &[&str]| {
        let state = task.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_some_and(|state| letters.iter().any(|letter| state.trim().starts_with(letter)))
    };
    if !tasks.is_empty() && tasks.iter().all(|task| state(task, &["T", "t"])) {
        return format!("process {pid} is stopped, and did not answer within 2 seconds");
    }
    let blocks = |task: &String| {
        let mask = task.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigBlk:")?.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
    };
    if !tasks.is_empty() && tasks.iter().all(|task| blocks(task) || state(task, &["Z", "X"])) {
        return format!(
            "all threads of process {pid} block signal {signal}, by which it is asked (--signal-control of `rftrace record` chooses \
             another one)"
        );
    }
    format!("process {pid} did not answer within 2 seconds")
}

impl Recording for Recorded {
    fn recorder(&self) -> u32 {
        std::process::id()
    }

    fn processes(&self) -> Vec<u32> {
        let mut processes = self.banks.with(|banks| banks.processes()).unwrap_or_default();
        processes.retain(|&pid| start_time(pid).is_some());
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    fn facts(&self, pid: u32) -> Option<Facts> {
        let (state, written) = self.banks.with(move |banks| Some((banks.state(pid)?, banks.written())))??;
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = command.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let command = words.collect::<Vec<_>>().join(" ").replace(char::is_control, "?");
        Some(Facts {
            command: command.trim_end().to_owned(),
            n_threads: n_threads(pid).unwrap_or(0),
            buffer_bytes: state.buffer_bytes as u64,
            is_ring: state.is_ring,
            n_chunks: state.n_chunks as u64,
            n_chunks_used: state.n_used as u64,
            n_overwritten: state.n_overwritten,
            n_dropped: state.n_dropped,
            n_records: written.n_records,
            n_bytes: written.n_bytes,
        })
    }

    fn has_thread(&self, pid: u32, id: u32) -> bool {
        Path::new(&format!("/proc/{pid}/task/{id}")).exists()
    }

    fn is_on(&self, pid: u32) -> Option<bool> {
        self.banks.with(move |banks| banks.is_on(pid)).flatten()
    }

    fn rules(&self, pid: u32) -> Option<String> {
        self.banks.with(move |banks| banks.rules(pid)).flatten()
    }

    fn ask(&self, pid: u32, request: &str) -> Result<String, String> {
        if request == "on" && lock(&self.stopped).contains(&pid) {
            return Err(format!("the recording of process {pid} was stopped, which is for good"));
        }
        self.request(pid, request).map(|answer| String::from_utf8_lossy(&answer).into_owned())
    }

    fn functions(&self, pid: u32) -> Result<Vec<Function>, String> {
        const IS_RECORDED: u64 = 1 << 63;

        let mut names = Names::of_process(pid);
        let mut functions = Vec::new();
        let mut above = 0;
        loop {
            let words = self.request(pid, &format!("functions {above:x}"))?;
            for &word in words.as_chunks().0 {
                let word = u64::from_le_bytes(word);
                let address = word & !IS_RECORDED;
                above = above.max(address);
                functions.push(Function {
                    name: names.name(address).unwrap_or_else(|| format!("<{address:x}>")),
                    module: names.module(address).unwrap_or_else(|| "?".to_owned()),
                    is_recorded: word & IS_RECORDED != 0,
                });
            }
            if words.len() < MOST_ANSWER_BYTES {
                return Ok(functions);
            }
        }
    }

    fn pipe(&self, pid: Option<u32>, goes_on: bool) -> Result<Text, String> {
        let what = if goes_on { What::FromNow } else { What::Now };
        Ok(Box::new(Pipe::begin(&self.banks, pid, what).ok_or(OVER)?))
    }

    fn mark(&self, pid: u32, text: &str) -> Result<String, String> {
        let text = text.replace(char::is_control, " ");
        if text.trim().is_empty() {
            return Err("a mark is a text".to_owned());
        }
        match self.banks.with(move |banks| banks.mark(pid, &text)) {
            Some(true) => Ok(String::new()),
            Some(false) => Err(format!("process {pid} has ended, or has 65536 marks")),
            None => Err(OVER.to_owned()),
        }
    }

    fn flush(&self, pid: u32) -> Result<String, String> {
        match self.banks.with(move |banks| banks.flush(pid).map(|is_there| (is_there, banks.written()))) {
            Some(Ok((true, written))) => {
                Ok(format!("{} calls and returns are on the disk, {} bytes\n", written.n_records, written.n_bytes))
            }
            Some(Ok((false, _))) => Err(format!("process {pid} has ended")),
            Some(Err(error)) => Err(format!("what was recorded of process {pid} cannot be written: {error}")),
            None => Err(OVER.to_owned()),
        }
    }

    fn stop(&self, pid: u32) -> Result<String, String> {
        self.ask(pid, "off")?;
        lock(&self.stopped).insert(pid);
        let flushed = self.flush(pid)?;
        Ok(format!("the recording of process {pid} has ended; its trace is made when the program ends\n{flushed}"))
    }

    fn triggers(&self) -> Vec<Trigger> {
        self.dumps.list().into_iter().map(|(number, on)| self.trigger(number, &on)).collect()
    }

    fn add_trigger(&self, spec: &str) -> Result<Trigger, String> {
        let on = (self.spelling.read)(spec)?;
        let is_ring = self.banks.with(|banks| banks.is_ring()).ok_or(OVER)?;
        match on.event {
            _ if !is_ring => return Err("dumps on events are of rings: `rftrace record --ring`".to_owned()),
            Event::Signal(signal) if signal != self.dumps.signal() => {
                return Err(
                    "the signal that asks for dumps is chosen when the program starts (--signal-snapshot)".to_owned()
                );
            }
            _ => {}
        }
        let number = self.dumps.add(on.clone());
        Ok(self.trigger(number, &on))
    }

    fn remove_trigger(&self, number: usize) {
        self.dumps.remove(number);
    }

    fn forget_snapshots(&self, pid: u32) -> usize {
        let mut snapshots = lock(&self.snapshots);
        let own = snapshots.extract_if(.., |(of, _)| *of == pid);
        own.filter(|(_, place)| fs::remove_dir_all(place).is_ok()).count()
    }

    fn dump(&self, pid: u32, reason: &str) -> Result<String, String> {
        let is_snapshot = reason == "snapshot";
        let reason = reason.replace(char::is_control, " ");
        match self.dumps.dump(pid, &reason).recv_timeout(WORK) {
            Ok(Ok(place)) => {
                let told = format!("a dump of process {pid} lies in {}\n", place.display());
                if is_snapshot {
                    lock(&self.snapshots).push((pid, place));
                }
                Ok(told)
            }
            Ok(Err(problem)) => Err(format!("no dump of process {pid} was made: {problem}")),
            Err(RecvTimeoutError::Timeout) => Ok(format!("a dump of process {pid} is being made\n")),
            Err(RecvTimeoutError::Disconnected) => Err(OVER.to_owned()),
        }
    }
}
