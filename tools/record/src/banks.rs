//! Banks while a program runs: one thread takes what is full, and copies rings when a dump is due. At the end each process's becomes a
//! part, as if the process had saved it.
//!
//! Not here: what a bank is and how it is emptied (`rftrace_frontend::bank`), and which dumps are due (`dumps`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Write as _, stderr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::files::GAPS;
use rftrace_format::gaps;
use rftrace_format::record::RECORD_BYTES;
use rftrace_format::recording::{Counts, Entry, Fork, PART_FILE, Part, RECEIVED, Saved};
use rftrace_frontend::Error;
pub use rftrace_frontend::bank::Written;
use rftrace_frontend::bank::{self, Banks, Collected, Extent, Options, SHORTEST_PAUSE, SavedBank, Symbols};

use super::access::{Access, Job};
use super::dumps::{self, Due, Dumps};
use super::pipe::{Pipe, What};
use super::processes::start_time;
use super::run::Ended;
use super::sys;

/// What threads do that find no room in their bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// They wait for the recorder, as long as that is at work.
    Wait,
    /// They go on, and what they call is not recorded.
    Drop,
}

/// How banks are made, and what becomes of what is in them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of each process's.
    pub buffer_bytes: usize,
    /// What threads do without room.
    pub on_full: OnFull,
    /// Bytes of records that are written, in memory.
    pub most_bytes: u64,
    /// They are rings, which are written at the end alone, and for dumps.
    pub is_ring: bool,
    /// When those are made.
    pub dumps: dumps::Options,
    /// What is recorded is sent to another machine.
    pub is_sent: bool,
}

/// How long a thread waits for a recorder that does nothing, as one that was stopped.
const PATIENCE: Duration = Duration::from_secs(1);

impl OnFull {
    /// How long a thread waits for a recorder that does nothing.
    pub(crate) fn patience(self) -> Duration {
        if self == Self::Wait { PATIENCE } else { Duration::ZERO }
    }
}

/// Address space for all banks: as many processes as have room there can be recorded at the same time.
const ADDRESS_BYTES: usize = 32 << 30;

/// Between two looks at a ring, for dumps.
const RING_PAUSE: Duration = Duration::from_millis(4);

/// Between two looks whether anything is recorded in a ring.
const QUIET_LOOK: Duration = Duration::from_millis(50);

/// Between two questions whether a process lives.
const LOOK: Duration = Duration::from_millis(4);

/// Empties the banks of all recorded processes.
#[derive(Debug)]
pub struct BankRecorder {
    /// Other processes open it by its number here.
    file: File,
    on_full: OnFull,
    is_over: Arc<AtomicBool>,
    living: Arc<Mutex<Vec<u32>>>,
    thread: JoinHandle<(Vec<Collected>, Dumps)>,
    /// Makes directories of snapshots, so that the other one need not wait.
    snapshots: JoinHandle<()>,
    jobs: Access,
}

/// What was in the banks.
#[derive(Debug)]
pub struct BankRecording {
    collected: Vec<Collected>,
    on_full: OnFull,
    dumps: Dumps,
    /// The functions of modules, where those of this machine are not meant.
    symbols: Symbols,
}

impl BankRecorder {
    /// Makes banks, and begins. Spools are written to `work`. `tell` is called again and again with what they hold, and dropped when the last has been taken.
    ///
    /// # Errors
    ///
    /// There is no memory or no thread for it.
    pub fn begin(work: &Path, plan: Plan, tell: impl FnMut(Written) + Send + 'static) -> Result<Self> {
        let n_slots = (ADDRESS_BYTES / plan.buffer_bytes.max(64 << 20)).clamp(8, 256);
        Self::begin_in(memory()?, n_slots, work, plan, tell)
    }

    /// As [`begin`](Self::begin), with `n_slots` banks in empty memory, which a process that is to be recorded has made.
    ///
    /// # Errors
    ///
    /// As of that.
    pub(crate) fn begin_in(
        file: File,
        n_slots: usize,
        work: &Path,
        plan: Plan,
        tell: impl FnMut(Written) + Send + 'static,
    ) -> Result<Self> {
        let Plan { buffer_bytes, on_full, most_bytes, is_ring, dumps, is_sent } = plan;
        // A limit on the size of files is an error then, not the end.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
        let mut options = Options { buffer_bytes, n_slots, patience: on_full.patience(), most_bytes, is_ring };
        let mut banks = loop {
            match Banks::new(file.try_clone().context(NO_MEMORY)?, work, options) {
                Ok(banks) => break banks,
                // Address space is limited (ulimit -v).
                Err(_) if options.n_slots > 1 => options.n_slots /= 4,
                Err(error) => return Err(error).context(NO_MEMORY),
            }
        };
        if is_sent {
            banks.keep_all_that_is_known();
        }
        let (is_over, living) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<u32>>>::default());
        let (told, seen) = (Arc::clone(&is_over), Arc::clone(&living));
        let (to, snapshots) = mpsc::channel();
        let signal = Dumps::reason_of_signal(&dumps);
        let dumps = Dumps::new(dumps);
        let (jobs, to_do) = mpsc::channel();
        let jobs = Access::new(jobs);
        let empty = move || empty((banks, dumps), is_ring, &told, &seen, (&to, &to_do), tell);
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let work = work.to_owned();
        let snapshots = thread("snapshots").spawn(move || save_snapshots(&snapshots, &work, on_full, &signal));
        let snapshots = snapshots.context(NO_THREAD)?;
        let thread = thread("banks").spawn(empty).context(NO_THREAD)?;
        Ok(Self { file, on_full, is_over, living, thread, snapshots, jobs })
    }

    /// Where recorded processes find them, as long as this one lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The processes that record into a bank and have not ended, as far as they are known.
    #[must_use]
    pub fn living(&self) -> Vec<u32> {
        let mut living = self.living.lock().unwrap_or_else(PoisonError::into_inner).clone();
        living.retain(|&pid| start_time(pid).is_some());
        living
    }

    /// The calls of all processes as text, from the first one on.
    pub fn pipe(&self) -> Option<Pipe> {
        Pipe::begin(&self.jobs, None, What::All)
    }

    /// Nothing is written: what is recorded is only shown.
    pub fn keep_nothing(&self) {
        self.jobs.with(|banks, _| banks.keep_nothing());
    }

    /// The way to the banks, for others.
    pub(crate) fn access(&self) -> Access {
        self.jobs.clone()
    }

    /// Takes what is left, and waits until all snapshots are written.
    #[must_use]
    pub fn stop(self) -> BankRecording {
        self.is_over.store(true, Relaxed);
        let (collected, dumps) = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.snapshots.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        BankRecording { collected, on_full: self.on_full, dumps, symbols: Symbols::default() }
    }
}

pub(crate) const NO_THREAD: &str = "no thread for what is recorded";
pub(crate) const NO_MEMORY: &str = "no memory for banks (is what ulimit -v or ulimit -f permits too little?)";

/// Empty memory that other processes can map.
fn memory() -> Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    Ok(File::from(memfd_create("rftrace-banks", flags).context(NO_MEMORY)?))
}

/// Empties the banks, or makes dumps of them, until that is over.
fn empty(
    (mut banks, mut dumps): (Banks, Dumps),
    is_ring: bool,
    is_over: &AtomicBool,
    living: &Mutex<Vec<u32>>,
    (snapshots, jobs): (&Sender<Collected>, &Receiver<Job>),
    mut tell: impl FnMut(Written),
) -> (Vec<Collected>, Dumps) {
    sys::rise_above_others();
    let mut known = Processes::default();
    let mut pause = SHORTEST_PAUSE;
    let mut looked = Instant::now();
    while !is_over.load(Relaxed) {
        known.seen.clear();
        let fill = banks.poll(|pid| known.is_over(pid));
        known.forget_others();
        if is_ring {
            dump_what_is_due(&mut banks, &mut dumps, &known.living(), &mut looked);
        }
        for snapshot in banks.snapshots() {
            // Its receiver is there as long as this is.
            let _ = snapshots.send(snapshot);
        }
        living.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&known.living());
        tell(banks.written());
        pause = if is_ring { RING_PAUSE } else { fill.next_pause(pause) };
        wait(pause, jobs, &mut banks, &mut dumps);
    }
    if is_ring {
        dump_what_is_due(&mut banks, &mut dumps, &[], &mut looked);
        for snapshot in banks.snapshots() {
            let _ = snapshots.send(snapshot);
        }
    }
    (banks.finish_all(), dumps)
}

/// Does what others want, until it is time for the next look.
fn wait(pause: Duration, jobs: &Receiver<Job>, banks: &mut Banks, dumps: &mut Dumps) {
    let next = Instant::now() + pause;
    loop {
        match jobs.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(job) => job(banks, dumps),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                return thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }
        if Instant::now() >= next {
            return;
        }
    }
}

/// Makes the dumps that are due. It was `looked` whether anything is recorded.
fn dump_what_is_due(banks: &mut Banks, dumps: &mut Dumps, living: &[u32], looked: &mut Instant) {
    let mut quiet = Vec::new();
    if dumps.asks_for_quiet() && looked.elapsed() >= QUIET_LOOK {
        *looked = Instant::now();
        quiet = banks.quiet_for();
    }
    let notices = banks.notices();
    let mut all: Vec<Due> = notices.iter().filter_map(|notice| dumps.due_by(Instant::now(), notice)).collect();
    all.extend(dumps.due(Instant::now(), living, &quiet));
    for due in all {
        if dumps.take() {
            banks.dump(due.pid, &due.reason, due.tsc);
        }
    }
}

/// The processes that have a bank.
#[derive(Debug, Default)]
struct Processes {
    known: HashMap<u32, Process>,
    seen: Vec<u32>,
}

#[derive(Debug)]
struct Process {
    /// When the system started it; `None` for one that had ended when it was first looked for.
    started: Option<String>,
    /// When the system was last asked.
    asked: Instant,
    is_over: bool,
}

impl Processes {
    /// Whether a process has ended, or was never there under this number.
    fn is_over(&mut self, pid: u32) -> bool {
        self.seen.push(pid);
        let new = || {
            let started = start_time(pid);
            Process { is_over: started.is_none(), started, asked: Instant::now() }
        };
        let process = self.known.entry(pid).or_insert_with(new);
        if !process.is_over && process.asked.elapsed() >= LOOK {
            process.asked = Instant::now();
            process.is_over = start_time(pid) != process.started;
        }
        process.is_over
    }

    /// Forgets those that were not asked for, and those that have ended: the system may give their numbers to others.
    fn forget_others(&mut self) {
        let Self { known, seen } = self;
        known.retain(|pid, process| seen.contains(pid) && !process.is_over);
    }

    fn living(&self) -> Vec<u32> {
        self.known.keys().copied().collect()
    }
}

impl BankRecording {
    /// What a recorder has left in a folder, or has written so far, if there is anything.
    ///
    /// # Errors
    ///
    /// Something cannot be read.
    pub(crate) fn of(work: &Path, extent: Extent) -> Result<Option<Self>> {
        let is_received = work.join(RECEIVED).exists();
        let spools = bank::spools(work).with_context(|| format!("cannot read {}", work.display()))?;
        let recover = |spool: PathBuf| {
            let collected = if is_received {
                Banks::collected_elsewhere(&spool)
            } else {
                Banks::recover(memory()?, &spool, extent)
            };
            collected.with_context(|| format!("cannot read what was recorded in {}", spool.display()))
        };
        let symbols = if is_received { Symbols::received(work) } else { Ok(Symbols::default()) };
        let symbols = symbols.with_context(|| format!("cannot read {}", work.display()))?;
        let collected: Vec<Collected> = spools.into_iter().map(recover).collect::<Result<_>>()?;
        let dumps = Dumps::new(dumps::Options::default());
        Ok((!collected.is_empty()).then_some(Self { collected, on_full: OnFull::Wait, dumps, symbols }))
    }

    /// How many processes have records in a folder that no part was made of.
    pub(crate) fn n_left_in(work: &Path) -> usize {
        bank::spools(work).map_or(0, |spools| spools.len())
    }

    /// Bytes that a trace of it takes, about.
    pub(crate) fn bytes_in_trace(&self) -> u64 {
        self.collected.iter().map(|it| it.n_records.saturating_mul(RECORD_BYTES as u64)).fold(0, u64::saturating_add)
    }

    /// Bytes that it takes as it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.collected.iter().filter_map(|it| it.spool().metadata().ok()).map(|meta| meta.len()).sum()
    }

    /// Whether it has what a part is made of.
    pub(crate) fn has(&self, part: &Part) -> bool {
        let fork = |it: &Collected| it.fork.map(|(parent, nanos)| Fork { parent, nanos });
        self.collected.iter().any(|it| (it.pid, it.program_nanos, fork(it)) == (part.pid, part.program, part.fork))
    }

    /// Calls and returns in it.
    pub(crate) fn n_records(&self) -> u64 {
        self.collected.iter().map(|it| it.n_records).fold(0, u64::saturating_add)
    }

    /// Makes a part of each process's records in another folder, and leaves them as they are.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn copy(&self, parts: &Path) -> Result<()> {
        let mut symbols = self.symbols.clone();
        for collected in &self.collected {
            let entry = Entry::Part { pid: collected.pid, nanos: collected.ended_nanos() };
            save_to(&parts.join(entry.to_string()), collected, None, self.on_full, &mut symbols)?;
        }
        Ok(())
    }

    /// Keeps the records as they are, with what a trace is made of later. Returns what was not recorded.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn keep(&self) -> Result<Vec<String>> {
        let mut symbols = Symbols::default();
        let mut problems = Vec::new();
        for collected in &self.collected {
            let problem = missing(collected, self.on_full);
            collected.keep(&mut symbols, problem.as_deref()).map_err(|error| anyhow!("{}", error.with_remedy()))?;
            problems.extend(problem.map(|problem| format!("process {}: {problem}", collected.pid)));
        }
        Ok(problems)
    }

    /// Makes a part of each process's records, and a dump of those whose end one is made for; the program has `ended`. Returns how many
    /// dumps were not made, as there were enough.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn save(mut self, work: &Path, ended: Option<&Ended>) -> Result<usize> {
        let mut symbols = self.symbols;
        let nanos = self.collected.iter().filter(|it| ended.is_some_and(|ended| ended.pid == it.pid));
        // Of several programs that ran in it.
        let last_nanos = nanos.map(Collected::ended_nanos).max();
        for collected in self.collected {
            let (pid, nanos) = (collected.pid, collected.ended_nanos());
            let ended = ended.filter(|ended| ended.pid == pid && Some(nanos) == last_nanos);
            if let Some(reason) = self.dumps.reason_of_end(collected.death, ended)
                && self.dumps.take()
            {
                let directory = work.join(Entry::Snapshot { pid, nanos }.to_string());
                save_to(&directory, &collected, Some(&reason), self.on_full, &mut Symbols::default())?;
            }
            save(collected, self.on_full, work, &mut symbols)?;
        }
        Ok(self.dumps.n_more())
    }
}

/// Makes a directory of each snapshot that comes; those without a reason were asked for by a signal. What cannot be one is told.
fn save_snapshots(snapshots: &Receiver<Collected>, work: &Path, on_full: OnFull, signal: &str) {
    for collected in snapshots {
        let (pid, nanos) = (collected.pid, collected.ended_nanos());
        let directory = work.join(Entry::Snapshot { pid, nanos }.to_string());
        // Each is a trace of its own, with all symbols.
        let reason = collected.reason.as_deref().unwrap_or(signal);
        let saved = save_to(&directory, &collected, Some(reason), on_full, &mut Symbols::default());
        if let Err(error) = saved.and_then(|is_saved| discard(collected, is_saved)) {
            let _ = writeln!(stderr(), "rftrace: a snapshot of process {pid} is missing: {error:#}");
        }
    }
}

fn save(collected: Collected, on_full: OnFull, work: &Path, symbols: &mut Symbols) -> Result<()> {
    let part = work.join(Entry::Part { pid: collected.pid, nanos: collected.ended_nanos() }.to_string());
    let is_saved = save_to(&part, &collected, None, on_full, symbols)?;
    discard(collected, is_saved)
}

/// Removes what a directory was made of, if it was.
fn discard(collected: Collected, is_saved: bool) -> Result<()> {
    if is_saved {
        collected.discard().context("cannot remove what the trace was made of")?;
    }
    Ok(())
}

/// Makes a directory of what was collected, with a file that tells of it. That of a dump says why it was made. Returns whether all is
/// there.
fn save_to(
    part: &Path,
    collected: &Collected,
    reason: Option<&str>,
    on_full: OnFull,
    symbols: &mut Symbols,
) -> Result<bool> {
    let result = collected.write_directory(part, symbols);
    let mut problems = Vec::new();
    let saved = match &result {
        Ok(SavedBank { left_out: Some(left_out), .. }) => {
            // A part of it would take the place of all.
            let _ = fs::remove_dir_all(part);
            problems.push(format!("nothing was saved yet, `rftrace recover` does it when there is room: {left_out}"));
            Saved::Failed
        }
        Ok(saved) => {
            if saved.damaged_chunks > 0 {
                problems.push(format!("{} pieces of its bank were overwritten by the program", saved.damaged_chunks));
            }
            Saved::Trace(Counts {
                events: saved.events,
                threads: saved.threads as u64,
                lost: saved.lost,
                full: false,
                chunks_overwritten: collected.n_overwritten,
                untraced_threads: saved.untraced_threads.into(),
                dropped: collected.n_dropped,
                cut: !collected.is_over(),
            })
        }
        Err(Error::NoEvents { .. }) => Saved::Trace(Counts::default()),
        Err(error) => {
            problems.push(format!("nothing was saved: {}", error.with_remedy()));
            Saved::Failed
        }
    };
    problems.extend(missing(collected, on_full));
    let told = Part {
        pid: collected.pid,
        program: collected.program_nanos,
        fork: collected.fork.map(|(parent, nanos)| Fork { parent, nanos }),
        saved,
        problem: (!problems.is_empty()).then(|| problems.join("; ").replace('\n', " ")),
    };
    let path = part.join(PART_FILE);
    fs::create_dir_all(part)
        .and_then(|()| fs::write(&path, told.to_string()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    if let Some(reason) = reason.filter(|_| result.is_ok()) {
        let path = part.join(GAPS);
        let file = File::options().append(true).open(&path);
        file.and_then(|mut file| file.write_all(gaps::dump_line(reason).as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(matches!(told.saved, Saved::Trace(_)))
}

/// What of a process was not recorded, and why.
fn missing(collected: &Collected, on_full: OnFull) -> Option<String> {
    if collected.problem.is_some() {
        return collected.problem.clone();
    }
    let n_dropped = collected.n_dropped;
    let why = match &collected.failed {
        Some(error) => format!("{} could not be written: {error}", collected.spool().display()),
        None if collected.is_too_large => "the trace has its --max-size then".to_owned(),
        None if n_dropped > 0 && on_full == OnFull::Wait => {
            "the recorder did not get to its bank for a second".to_owned()
        }
        None if n_dropped > 0 => {
            "its bank was full: --buffer makes it larger, --on-full wait has the program wait".to_owned()
        }
        None => return None,
    };
    let what = if n_dropped > 0 {
        format!("{n_dropped} calls and returns were not recorded")
    } else {
        "not all was saved".to_owned()
    };
    Some(format!("{what}, as {why}"))
}
