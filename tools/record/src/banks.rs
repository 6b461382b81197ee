//! Banks while a program runs: one thread takes full chunks, and copies rings when a dump is due. At the end the
//! records of each process become a part, as if the process had saved them.
//!
//! Not here: the form and the emptying of a bank (`rftrace_frontend::bank`), and the choice of dumps (`dumps`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::passed::Passed;
use rftrace_format::record::RECORD_BYTES;
use rftrace_format::recording::{ABOUT, Entry, Fork, JOINED, PART_FILE, Part, RECEIVED, SPOOL, Saved};
use rftrace_format::store::Owned;
pub use rftrace_frontend::bank::Written;
use rftrace_frontend::bank::{self, About, Banks, Collected, Extent, Life, Options, SHORTEST_PAUSE, Symbols};

use super::access::{Access, Job};
use super::dumps::{self, Decision, DumpControl, NotThere};
use super::inherited;
use super::output::entries;
use super::pipe::{Pipe, What};
use super::processes::{start_time, status_of_zombie};
use super::run::Ended;
pub use super::save::OnFull;
use super::save::{discard, missing, save_to};
use super::snapshots::{AtEnd, Maker, SavedSnapshots, save_snapshots};
use super::sys;

/// The size of banks, and the use of their records.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The size of each process's bank in bytes.
    pub buffer_bytes: usize,
    /// The behaviour of threads that find no room.
    pub on_full: OnFull,
    /// The maximum number of bytes of written records, by their size in memory.
    pub most_bytes: u64,
    /// True if banks are rings, which are written only at the end and for dumps.
    pub is_ring: bool,
    /// The dumps to make.
    pub dumps: dumps::Options,
    /// True if the recording is sent to another machine.
    pub is_sent: bool,
}

/// Address space for all banks: as many processes as have room there can be recorded at the same time.
const ADDRESS_BYTES: usize = 128 << 30;
/// More processes than these are not.
const MOST_PROCESSES: usize = 1024;

/// Between two looks at a ring, for dumps.
const RING_PAUSE: Duration = Duration::from_millis(4);

/// Between two questions whether a process lives.
const LOOK: Duration = Duration::from_millis(4);

/// A recorder that empties the banks of all recorded processes.
#[derive(Debug)]
pub struct BankRecorder {
    /// Other processes open it by its number here.
    file: File,
    on_full: OnFull,
    is_over: Arc<AtomicBool>,
    living: Arc<Mutex<Vec<u32>>>,
    dumps: DumpControl,
    thread: JoinHandle<Vec<AtEnd>>,
    /// Makes directories of snapshots, so the other thread need not wait.
    snapshots: JoinHandle<SavedSnapshots>,
    jobs: Access,
    /// The folder of spools.
    work: PathBuf,
}

/// The recording from the banks.
#[derive(Debug)]
pub struct BankRecording {
    collected: Vec<AtEnd>,
    on_full: OnFull,
    dumps: DumpControl,
    /// The paths of dumps, by their numbers.
    places: HashMap<u64, PathBuf>,
    /// The functions of modules, if they are not this machine's.
    symbols: Symbols,
    /// Parts that could not be read, each with the reason. They stay as they are.
    unread: Vec<String>,
}

impl BankRecorder {
    /// Makes the banks and begins to empty them. Spools are written to `work`. It calls `tell` repeatedly with the
    /// amount written, and drops it after the last records.
    ///
    /// # Errors
    ///
    /// The system has no memory or no thread for it.
    pub fn begin(work: &Path, plan: Plan, tell: impl FnMut(Written) + Send + 'static) -> Result<Self> {
        let n_slots = (ADDRESS_BYTES / plan.buffer_bytes.max(64 << 20)).clamp(8, MOST_PROCESSES);
        Self::begin_in(memory()?, n_slots, work, plan, tell)
    }

    /// Makes a recorder like [`begin`](Self::begin), for one process alone.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub fn begin_for_one(work: &Path, plan: Plan, tell: impl FnMut(Written) + Send + 'static) -> Result<Self> {
        Self::begin_in(memory()?, 1, work, plan, tell)
    }

    /// Makes banks without room, only for requests to processes that keep their own records.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub fn for_requests(work: &Path) -> Result<Self> {
        let dumps = dumps::Options::default();
        let plan =
            Plan { buffer_bytes: 0, on_full: OnFull::Drop, most_bytes: 0, is_ring: false, dumps, is_sent: false };
        Self::begin_in(memory()?, MOST_PROCESSES, work, plan, |_| ())
    }

    /// As [`begin`](Self::begin), with `n_slots` banks in empty memory made by a process to be recorded.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Self::begin).
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
        let mut options = Options {
            buffer_bytes,
            n_slots,
            patience: on_full.patience(),
            most_bytes,
            is_ring,
            dumped_bytes: dumps.most_bytes,
        };
        // The program maps all of it, beside its own memory.
        let fits = |file: &File| {
            inherited::address_space().is_none_or(|most| file.metadata().is_ok_and(|meta| meta.len() <= most / 2))
        };
        let mut banks = loop {
            match Banks::new(file.try_clone().context(NO_MEMORY)?, work, options) {
                Ok(banks) if options.n_slots == 1 || fits(&file) => break banks,
                Err(error) if options.n_slots == 1 => return Err(error).context(NO_MEMORY),
                // Address space is limited (ulimit -v).
                _ => options.n_slots = (options.n_slots / 4).max(1),
            }
        };
        // A process may have made it and not let others seal it.
        let _ = banks.seal();
        if is_sent {
            banks.describe_for_others();
        }
        let (is_over, living) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<u32>>>::default());
        let (told, seen) = (Arc::clone(&is_over), Arc::clone(&living));
        let (to, snapshots) = mpsc::channel();
        let dumps = DumpControl::new(dumps);
        let maker = Maker::new(dumps.clone(), to);
        let (jobs, to_do) = mpsc::channel();
        let jobs = Access::new(jobs);
        let empty = move || empty((banks, maker), is_ring, &told, &seen, &to_do, tell);
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let work = work.to_owned();
        let dir = work.clone();
        let snapshots = thread("snapshots").spawn(move || save_snapshots(&snapshots, &dir, on_full));
        let snapshots = snapshots.context(NO_THREAD)?;
        let thread = thread("banks").spawn(empty).context(NO_THREAD)?;
        Ok(Self { file, on_full, is_over, living, dumps, thread, snapshots, jobs, work })
    }

    /// Returns the file of the banks for recorded processes. It is valid while this process lives.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.file).context("cannot share the recording buffers with the program")
    }

    /// Their file.
    #[cfg(attaching)]
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns a handle that makes dumps while the program runs.
    #[must_use]
    pub fn dumps(&self) -> DumpControl {
        self.dumps.clone()
    }

    /// Returns the living processes that record into a bank, as far as they are known.
    #[must_use]
    pub fn living(&self) -> Vec<u32> {
        let mut living = self.living.lock().unwrap_or_else(PoisonError::into_inner).clone();
        living.retain(|&pid| start_time(pid).is_some());
        living
    }

    /// Returns the calls of all processes as text, from the first one on.
    pub fn pipe(&self) -> Option<Pipe> {
        Pipe::begin(&self.jobs, None, What::All)
    }

    /// Writes no records to the disk from now on: they are only shown.
    pub fn keep_nothing(&self) {
        self.jobs.with(|banks| banks.keep_nothing());
    }

    /// Has the files of its processes' modules be looked for in another root directory.
    #[cfg(attaching)]
    pub(crate) fn set_root(&self, root: PathBuf) {
        self.jobs.with(|banks| banks.set_root(root));
    }

    /// As [`Banks::set_pid_here`].
    #[cfg(attaching)]
    pub(crate) fn set_pid_here(&self, pid: u32) {
        self.jobs.with(move |banks| banks.set_pid_here(pid));
    }

    /// The folder of spools.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// The way to the banks, for others.
    pub(crate) fn access(&self) -> Access {
        self.jobs.clone()
    }

    /// Takes the remaining records, and waits until all snapshots are written.
    #[must_use]
    pub fn stop(self) -> BankRecording {
        self.is_over.store(true, Relaxed);
        let mut collected = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let snapshots = self.snapshots.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        collected.extend(snapshots.of_deaths);
        let symbols = Symbols::default();
        let (on_full, dumps, places, unread) = (self.on_full, self.dumps, snapshots.places, Vec::new());
        BankRecording { collected, on_full, dumps, places, symbols, unread }
    }
}

pub(crate) const NO_THREAD: &str = "cannot start a recorder thread";
pub(crate) const NO_MEMORY: &str = "no memory for the recording buffers (use a smaller --buffer, or raise ulimit -v \
    and ulimit -f)";

/// Empty memory for other processes to map.
fn memory() -> Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    Ok(File::from(memfd_create("rftrace-banks", flags).context(NO_MEMORY)?))
}

/// Empties the banks, or makes dumps of them, until the end of the recording.
fn empty(
    (mut banks, mut maker): (Banks, Maker),
    is_ring: bool,
    is_over: &AtomicBool,
    living: &Mutex<Vec<u32>>,
    jobs: &Receiver<Job>,
    mut tell: impl FnMut(Written),
) -> Vec<AtEnd> {
    sys::rise_above_others();
    let mut known = Processes::default();
    let mut pause = SHORTEST_PAUSE;
    let mut ended = Vec::new();
    while !is_over.load(Relaxed) {
        known.seen.clear();
        let fill = banks.poll(|pid| known.life(pid, LOOK));
        known.forget_others();
        maker.make(&mut banks, Some(&known.living()));
        let over = banks.ended();
        ended.extend(maker.make_of_deaths(&mut banks, over));
        living.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&known.living());
        tell(banks.written());
        pause = if is_ring { RING_PAUSE } else { fill.next_pause(pause) };
        wait(pause, jobs, &mut banks);
    }
    maker.make(&mut banks, None);
    maker.control.dumps().end();
    let rest = banks.finish_all(|pid| known.life(pid, Duration::ZERO));
    ended.extend(rest.into_iter().map(|collected| AtEnd { collected, is_decided: false }));
    ended
}

/// Does the jobs of others, until it is time for the next look.
fn wait(pause: Duration, jobs: &Receiver<Job>, banks: &mut Banks) {
    let next = Instant::now() + pause;
    loop {
        match jobs.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(job) => job(banks),
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

/// The processes with a bank.
#[derive(Debug, Default)]
struct Processes {
    known: HashMap<u32, Process>,
    seen: Vec<u32>,
}

#[derive(Debug)]
struct Process {
    /// When the system started it; `None` if it had ended at the first look.
    started: Option<String>,
    /// When the system was last asked.
    asked: Instant,
    /// The process itself, which tells its status once it has ended.
    file: Option<sys::Process>,
    life: Life,
}

impl Processes {
    /// Tells whether a process goes on, by the system's answer within `patience`. A process never seen under this
    /// number is over.
    fn life(&mut self, pid: u32, patience: Duration) -> Life {
        self.seen.push(pid);
        let new = || {
            // Before the look: it is the process that the look finds, or has ended.
            let file = sys::Process::open(pid).ok();
            let started = start_time(pid);
            let life = if started.is_none() { Life::Over(status(pid, file.as_ref())) } else { Life::Running };
            Process { started, asked: Instant::now(), file, life }
        };
        let process = self.known.entry(pid).or_insert_with(new);
        if process.life == Life::Running && process.asked.elapsed() >= patience {
            process.asked = Instant::now();
            if start_time(pid) != process.started {
                process.life = Life::Over(status(pid, process.file.as_ref()));
            }
        }
        process.life
    }

    /// Forgets those not asked for, and ended ones: the system may give their numbers to others.
    fn forget_others(&mut self) {
        let Self { known, seen } = self;
        known.retain(|pid, process| seen.contains(pid) && !process.life.is_over());
    }

    fn living(&self) -> Vec<u32> {
        self.known.keys().copied().collect()
    }
}

/// The status of a process's end, whether its parent has waited for it, has not, or does so meanwhile.
fn status(pid: u32, file: Option<&sys::Process>) -> Option<i32> {
    let of_file = || file?.status();
    of_file().or_else(|| status_of_zombie(pid)).or_else(of_file)
}

impl BankRecording {
    /// Returns the recording left by a recorder in a folder, or written so far; `None` without one. Damage costs only
    /// the process concerned.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub(crate) fn of(work: &Path, extent: Extent) -> Result<Option<Self>> {
        let banks = Self::read(work, extent)?;
        Ok((!banks.collected.is_empty() || !banks.unread.is_empty()).then_some(banks))
    }

    /// The same, which may be empty.
    ///
    /// # Errors
    ///
    /// Those of [`of`](Self::of).
    pub(crate) fn read(work: &Path, extent: Extent) -> Result<Self> {
        let extent = if work.join(RECEIVED).exists() { Extent::Received } else { extent };
        let spools = bank::spools(work).with_context(|| format!("cannot read {}", work.display()))?;
        let recover = |spool: PathBuf| {
            let collected = Collected::read(&spool, extent);
            collected.with_context(|| format!("cannot read the recording in {}", spool.display()))
        };
        let symbols = if extent == Extent::Received { Symbols::received(work) } else { Ok(Symbols::default()) };
        let symbols = symbols.with_context(|| format!("cannot read {}", work.display()))?;
        let (mut collected, mut unread) = (Vec::new(), Vec::new());
        if extent == Extent::All {
            unread = missing_spools(work, &spools)?;
        };
        for spool in spools {
            match recover(spool) {
                Ok(it) => collected.push(AtEnd { collected: it, is_decided: true }),
                Err(error) => {
                    unread.push(format!("{error:#}; the trace lacks its records, and the file stays in place"))
                }
            }
        }
        let dumps = DumpControl::new(dumps::Options::default());
        let (on_full, places) = (OnFull::Wait, HashMap::new());
        Ok(Self { collected, on_full, dumps, places, symbols, unread })
    }

    /// Returns the parts that could not be read, each with the reason.
    pub(crate) fn unread(&self) -> &[String] {
        &self.unread
    }

    /// Adds the records from another recorder's banks.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.collected.extend(other.collected);
        let not_there = other.dumps.dumps().not_there();
        self.dumps.dumps().add_not_there(not_there);
        self
    }

    /// True if not all records could be written.
    pub(crate) fn is_cut(&self) -> bool {
        self.all().any(|it| it.failed.is_some())
    }

    /// The losses of processes, each with the reason.
    pub(crate) fn losses(&self) -> impl Iterator<Item = String> {
        let loss = |it: &Collected| Some(format!("process {}: {}", it.pid, missing(it, self.on_full)?));
        self.all().filter_map(loss)
    }

    /// Makes parts of it elsewhere: of the records, and of all else in the folder with them. The folder stays as it is.
    ///
    /// # Errors
    ///
    /// Something cannot be read or written.
    pub(crate) fn put_elsewhere(self, work: &Path, other: &Path) -> Result<()> {
        self.copy(other)?;
        for path in entries(work)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let to = other.join(name);
            match Entry::of(name) {
                _ if name.starts_with(SPOOL) || name == JOINED => {}
                Some(Entry::Recorder { .. } | Entry::Process { .. } | Entry::Fork { .. }) => {}
                // Such as one of a killed recorder.
                Some(Entry::Part { .. }) if to.exists() || self.has_part(&path) => {}
                // Its place will be another one.
                Some(Entry::Snapshot { .. }) => {
                    Owned::within(&to).with_context(|| format!("cannot make the directory {}", to.display()))?;
                    for file in entries(&path)? {
                        copy(&file, &to.join(file.file_name().unwrap_or_default()))?;
                    }
                }
                _ if path.is_dir() => {
                    symlink(&path, &to).with_context(|| format!("cannot link {}", path.display()))?;
                }
                _ => copy(&path, &to)?,
            }
        }
        Ok(())
    }

    /// True if it has the recording of the part in a folder.
    fn has_part(&self, folder: &Path) -> bool {
        let told = opener::read(&folder.join(PART_FILE), MOST_TEXT).ok();
        told.and_then(|told| Part::parse(&told)).is_some_and(|part| self.has(&part))
    }

    /// The number of processes with records in a folder and without a part.
    pub(crate) fn n_left_in(work: &Path) -> usize {
        bank::spools(work).map_or(0, |spools| spools.len())
    }

    /// The size in bytes of a trace of it, about.
    pub(crate) fn bytes_in_trace(&self) -> u64 {
        self.all().map(|it| it.n_records.saturating_mul(RECORD_BYTES as u64)).fold(0, u64::saturating_add)
    }

    /// Its size in bytes as it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.all().filter_map(|it| it.spool().metadata().ok()).map(|meta| meta.len()).sum()
    }

    /// True if it has the recording of a part.
    pub(crate) fn has(&self, part: &Part) -> bool {
        let fork = |it: &Collected| it.fork.map(|(parent, nanos)| Fork { parent, nanos });
        self.all().any(|it| (it.own_pid, it.program_nanos, fork(it)) == (part.pid, part.program, part.fork))
    }

    /// Removes parts made of the same records by a killed recorder: their spools are still there, so they are made
    /// anew. A part whose file of facts is damaged stays: its records may be of another program of the process.
    fn remove_parts(&self, work: &Path) -> Result<()> {
        for path in entries(work)? {
            let Some(Entry::Part { pid, .. }) = path.file_name().and_then(|name| Entry::of(name.to_str()?)) else {
                continue;
            };
            let is_made_anew = match opener::read(&path.join(PART_FILE), MOST_TEXT) {
                Err(error) if error.kind() == ErrorKind::NotFound => self.all().any(|it| it.pid == pid),
                told => told.ok().and_then(|told| Part::parse(&told)).is_some_and(|part| self.has(&part)),
            };
            if is_made_anew {
                fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Calls and returns in it.
    pub(crate) fn n_records(&self) -> u64 {
        self.all().map(|it| it.n_records).fold(0, u64::saturating_add)
    }

    /// Makes a part of each process's records in another folder, and leaves them as they are.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn copy(&self, parts: &Path) -> Result<()> {
        let mut symbols = self.symbols.clone();
        for collected in self.all() {
            let entry = Entry::Part { pid: collected.pid, nanos: collected.ended_nanos() };
            save_to(&parts.join(entry.to_string()), collected, None, self.on_full, &mut symbols)?;
        }
        Ok(())
    }

    /// Keeps the records as they are, with the facts for a later trace. Returns the losses.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn keep(&mut self) -> Result<Vec<String>> {
        let mut symbols = Symbols::default();
        let mut problems = Vec::new();
        for AtEnd { collected, .. } in &mut self.collected {
            let problem = missing(collected, self.on_full);
            collected.keep(&mut symbols, problem.clone()).map_err(|error| anyhow!("{}", error.with_remedy()))?;
            problems.extend(problem.map(|problem| format!("process {}: {problem}", collected.pid)));
        }
        Ok(problems)
    }

    fn all(&self) -> impl Iterator<Item = &Collected> {
        self.collected.iter().map(|at_end| &at_end.collected)
    }

    /// Makes a part of each process's records, and a dump of the program if one is made for its end; it has `ended`.
    /// Returns the missing dumps.
    ///
    /// # Errors
    ///
    /// Something cannot be written.
    pub(crate) fn save(mut self, work: &Path, ended: Option<&Ended>) -> Result<NotThere> {
        let nanos = self.all().filter(|it| ended.is_some_and(|ended| ended.pid == it.pid));
        // The last end, if several programs ran in the process.
        let last_nanos = nanos.map(Collected::ended_nanos).max();
        self.remove_parts(work)?;
        let mut symbols = self.symbols;
        for AtEnd { collected, is_decided } in self.collected {
            let (pid, nanos) = (collected.pid, collected.ended_nanos());
            let ended = ended.filter(|ended| ended.pid == pid && Some(nanos) == last_nanos);
            let due = self.dumps.dumps().of_end(pid, collected.death, ended).filter(|_| !is_decided);
            let decided = due.map(|due| (self.dumps.dumps().decide(&due), due));
            if let Some((Decision::InPlaceOf(other), due)) = decided {
                let directory = work.join(Entry::Snapshot { pid, nanos }.to_string());
                save_to(&directory, &collected, Some(&due.dump.reason), self.on_full, &mut Symbols::default())?;
                if let Some(other) = other {
                    self.dumps.dumps().removed(other);
                    if let Some(place) = self.places.remove(&other.id) {
                        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
                    }
                }
            }
            save(collected, self.on_full, work, &mut symbols)?;
        }
        Ok(self.dumps.dumps().not_there())
    }
}

/// Missing spools, known by the files on their content and without a part.
fn missing_spools(work: &Path, spools: &[PathBuf]) -> Result<Vec<String>> {
    let all = entries(work)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let has_part = |pid: u32| {
        all.iter().any(|path| matches!(Entry::of(&name(path)), Some(Entry::Part { pid: of, .. }) if of == pid))
    };
    let is_missing = |spool: &PathBuf| {
        let pid = name(spool).strip_prefix(SPOOL).and_then(|rest| rest.split('-').next()?.parse().ok());
        !spools.contains(spool)
            && pid.is_some_and(|pid| !has_part(pid))
            && About::read(spool).is_ok_and(|about| about.spool_bytes() > 0)
    };
    let told = all.iter().filter(|path| path.extension() == Some(ABOUT.as_ref())).map(|path| path.with_extension(""));
    let missing = told.filter(is_missing);
    Ok(missing.map(|spool| format!("{} is missing: the records of its process are lost", spool.display())).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to).map(drop);
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn save(collected: Collected, on_full: OnFull, work: &Path, symbols: &mut Symbols) -> Result<()> {
    let part = work.join(Entry::Part { pid: collected.pid, nanos: collected.ended_nanos() }.to_string());
    let told = save_to(&part, &collected, None, on_full, symbols)?;
    // Damaged records stay where they are.
    discard(collected, matches!(told.saved, Saved::Trace(counts) if counts.damaged == 0))
}
