//! Recording of running programs: from attaching to them until their end, a signal to this process, or the end of the
//! time.
//!
//! Not here: how the tracer comes into a program and out again (`rftrace-attach`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use rftrace_attach::ResourcesWanted;
use rftrace_attach::{Attached, BankPlaces, Files, Mapped, OtherRoot, Started, State, Wanted};
use rftrace_format::passed::Passed;
use rftrace_format::resources::Resource;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use rftrace_frontend::Ends;
use rftrace_frontend::bank::{self, Described, Names, Tracer, functions_above};

use super::banks::{BankRecorder, BankRecording, NO_MEMORY, OnFull, Plan, Written};
use super::control::{Control, Spelling};
use super::dumps;
use super::entries::Told;
use super::errands::{Errand, Errands, What};
use super::output::Output;
use super::processes::{other_number, start_time};
use super::resources::{self, ResourceRecorder};
use super::specification::Plan as SpecificationPlan;
use super::sys;

/// The options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// The processes.
    pub pids: Vec<u32>,
    /// The path of the tracer's library, which is loaded into each process.
    pub library: PathBuf,
    /// The filter rules; empty to record everything.
    pub filter: String,
    /// True to record the program's calls of library functions too.
    pub has_library_calls: bool,
    /// True to begin with recording off.
    pub is_disabled: bool,
    /// The patterns of functions that get a branch at their beginning, see [`Wanted::branches`].
    pub branches: Vec<String>,
    /// The symbols of functions that get none, see [`Wanted::exceptions`].
    pub exceptions: Vec<String>,
    /// The way to see the ends of these functions, see [`Wanted::ends`].
    pub ends: Option<Ends>,
    /// The folder of the programs that get branches, see [`Wanted::within`].
    pub within: Option<PathBuf>,
    /// True to turn calls of the tracer into NOPs and jumps.
    pub is_patched: bool,
    /// The socket that answers questions about functions' values, if that is needed.
    pub types: Option<Passed>,
    /// The duration; `None` to record until this process is told to end.
    pub limit: Option<Duration>,
    /// The size of each process's bank in bytes.
    pub buffer_bytes: usize,
    /// The behaviour of threads that find the bank full.
    pub on_full: OnFull,
    /// The maximum number of bytes of records on the disk. Each process has an equal share.
    pub most_bytes: u64,
    /// True if banks are rings, which are written only at the end and for dumps.
    pub is_ring: bool,
    /// The dumps to make. Each process has an equal share of their bytes too.
    pub dumps: dumps::Options,
    /// The spelling of dump triggers, for `rftrace ctl`.
    pub spelling: Spelling,
    /// The options for resources, if they are recorded.
    pub resources: Option<Resources>,
}

/// The options for recording resources: allocations and releases.
#[derive(Clone, Debug)]
pub struct Resources {
    /// The attach options for them.
    pub wanted: ResourcesWanted,
    /// The kinds of resources.
    pub kinds: Vec<Resource>,
    /// The plan of the specified resources, from which [`ResourcesWanted::specified`] comes.
    pub plan: SpecificationPlan,
    /// True to record arguments and the stacks of releases too.
    pub is_detailed: bool,
}

/// The reason why the recording of a process ended.
#[derive(Debug)]
pub enum Reason {
    /// The time was over, or this process was told to end.
    Left,
    /// The program ended.
    Ended,
    /// The process runs another program.
    OtherProgram,
    /// Detaching from the process failed.
    NotLeft(anyhow::Error),
}

/// The result of a recording.
#[derive(Debug)]
pub struct Recorded {
    /// The records from the banks.
    pub banks: BankRecording,
    /// The outcomes of the processes, in the order of the options.
    pub processes: Vec<EndOfProcess>,
    /// The summary of the recorded resources, if they were recorded.
    pub resources: Option<resources::Recorded>,
    /// The old and the new path of a moved directory; or an error if it was deleted.
    pub followed: Result<Option<(PathBuf, PathBuf)>>,
    /// The root directories of processes in containers, held until the trace is made.
    pub roots: Vec<OtherRoot>,
}

/// The outcome for a process.
#[derive(Debug)]
pub struct EndOfProcess {
    /// The process's PID.
    pub pid: u32,
    /// The reason why its recording ended.
    pub reason: Reason,
    /// The result for functions chosen for a hook.
    pub told: Told,
    /// The number of threads that were moved into copies of functions' first instructions when those got their
    /// branches, and the time for which all threads were stopped for that.
    pub stopped: (usize, Duration),
    /// The functions for resources that a module calls around the slots that can be changed, each with this module.
    pub left_out: Vec<String>,
    /// True if the process is confined, see [`Attached::is_confined`].
    pub is_confined: bool,
}

/// Findings while a process is attended.
#[derive(Default)]
struct Seen {
    told: Told,
    stopped: (usize, Duration),
    left_out: Vec<String>,
    is_confined: bool,
}

/// An attached process, with the facts on it.
#[derive(Debug)]
pub(crate) struct Attended {
    attached: Attached,
    pid: u32,
    /// When the system started it.
    started: Option<String>,
    /// Its bank, if this process describes it.
    bank: Option<Described>,
}

impl Attended {
    /// As [`Attached::begin`].
    pub(crate) fn begin(pid: u32, wanted: &Wanted, prepare: impl FnOnce(Files) -> Result<()>) -> Result<Self> {
        let started = start_time(pid);
        let mut bank = None;
        let attached = Attached::begin(pid, wanted, |files| {
            let file = files.banks.try_clone().context(NO_MEMORY)?;
            prepare(files)?;
            Ok(places(bank.insert(Described::open(&file).context(NO_MEMORY)?)))
        })?;
        let mut this = Self { attached, pid, started, bank: None };
        if let Err(error) = bank.map_or(Ok(()), |bank| this.describe(bank, &wanted.filter)) {
            this.leave();
            return Err(error);
        }
        Ok(this)
    }

    /// As [`Attached::begin_started`]. `None` too if it was killed meanwhile.
    pub(crate) fn begin_started(
        program: &mut Started,
        pid: u32,
        wanted: &Wanted,
        banks: &BankRecorder,
    ) -> Result<Option<Self>> {
        let bank = Described::open(banks.file()).context(NO_MEMORY)?;
        let started = start_time(pid);
        let begun = Attached::begin_started(program, wanted, &banks.passed()?.path().to_string_lossy(), &places(&bank))
            .and_then(|attached| {
                let Some(attached) = attached else { return Ok(None) };
                let mut this = Self { attached, pid, started, bank: None };
                this.describe(bank, &wanted.filter)?;
                Ok(Some(this))
            });
        if start_time(pid).is_none() { Ok(None) } else { begun }
    }

    /// Writes into a bank its process and the rules in force, if the process cannot do so.
    fn describe(&mut self, bank: Described, rules: &str) -> Result<()> {
        let Self { attached, pid, .. } = self;
        let Some(mapped) = attached.mapped() else { return Ok(()) };
        let Mapped { bank: at, threads, switch, min_ticks, first_index } = mapped;
        let tracer = Tracer { bank: at, threads, switch, min_ticks, first_index };
        bank.begin(&bank::folder_of(*pid), tracer, rules)
            .with_context(|| format!("cannot describe process {pid} for its recorder"))?;
        self.bank = Some(bank);
        Ok(())
    }

    /// Returns the outcome for functions chosen for a hook. The process must still be there: names are read from its files.
    pub(crate) fn told(&self) -> Told {
        told_by(self.pid, &self.attached)
    }

    fn has_ended(&self) -> bool {
        start_time(self.pid) != self.started
    }

    /// Looks after it; `look` is called when libraries have come. Returns why it is not to be attended any more.
    fn look(&mut self, look: &mut impl FnMut(u32, &Attached)) -> Option<Reason> {
        match self.attached.look() {
            Ok(State::Ended) => return Some(Reason::Ended),
            Ok(State::OtherProgram) => return Some(Reason::OtherProgram),
            Ok(State::Changed) => look(self.pid, &self.attached),
            // After an error the next look tries again.
            Ok(State::Attached) | Err(_) => {}
        }
        None
    }

    /// True if libraries have come or gone, or the process runs another program.
    pub(crate) fn is_other(&self) -> bool {
        self.attached.is_other()
    }

    /// Looks after it by one of its threads, as [`Attached::look_by`]. Returns why it is not to be attended any more.
    pub(crate) fn look_by(&mut self, thread: u32) -> Result<Option<Reason>> {
        Ok(match self.attached.look_by(Some(thread))? {
            State::Ended => Some(Reason::Ended),
            State::OtherProgram => Some(Reason::OtherProgram),
            State::Changed | State::Attached => None,
        })
    }

    /// Has it answer the request in its bank.
    fn answer(&mut self) -> Result<()> {
        let Self { attached, bank, .. } = self;
        match bank {
            Some(bank) => {
                bank.answer(|request| obey(attached, bank, request));
                Ok(())
            }
            None => attached.answer(),
        }
    }

    /// As [`Attached::is_confined`].
    pub(crate) fn is_confined(&self) -> bool {
        self.attached.is_confined()
    }

    /// As [`Attached::left_out`].
    pub(crate) fn left_out(&self) -> &[String] {
        self.attached.left_out()
    }

    /// Leaves it.
    pub(crate) fn leave(self) -> Reason {
        let Self { attached, pid, started, bank } = self;
        let n_untraced = attached.n_untraced_threads();
        let reason = match attached.leave() {
            Ok(()) => Reason::Left,
            Err(_) if start_time(pid) != started => Reason::Ended,
            Err(error) => Reason::NotLeft(error),
        };
        if let Some(bank) = bank {
            bank.end(n_untraced);
        }
        reason
    }
}

/// The layout of a bank.
fn places(bank: &Described) -> BankPlaces {
    let bank::Places { n_bytes, chunks, bank, noticed, threads, thread_bytes, n_threads, is_ring } = bank.places();
    BankPlaces {
        n_bytes: n_bytes as u64,
        chunks: chunks.start as u64..chunks.end as u64,
        bank: bank as u64,
        noticed: noticed as u64,
        threads: threads as u64,
        thread_bytes: thread_bytes as u64,
        n_threads: n_threads as u64,
        is_ring,
    }
}

/// Totals written by all recorders, as far as each has told.
struct Sum<F> {
    parts: Vec<Written>,
    tell: F,
}

impl<F: FnMut(Written)> Sum<F> {
    fn tell(&mut self, of: usize, written: Written) {
        self.parts[of] = written;
        let n_records = self.parts.iter().map(|part| part.n_records).sum();
        let n_bytes = self.parts.iter().map(|part| part.n_bytes).sum();
        (self.tell)(Written { n_records, n_bytes });
    }
}

/// Records running programs.
///
/// It calls `begun` when it has attached to all programs; the argument is the reason why the recording cannot be
/// controlled, if so. It calls `tell` like [`BankRecorder::begin`].
///
/// # Errors
///
/// One of the processes cannot be attached to; nothing is recorded, and the others are left again.
pub fn record(
    output: &mut Output,
    options: &Options,
    begun: impl FnOnce(Option<&std::io::Error>),
    tell: impl FnMut(Written) + Send + 'static,
) -> Result<Recorded> {
    let of_resources = options.resources.as_ref();
    check_numbers(&options.pids, of_resources.is_some())?;
    if let Some((on, why)) = options.dumps.on.iter().find_map(|on| Some((on, options.dumps.refusal(on.event)?))) {
        bail!("--dump-on {}: {why}", on.text);
    }
    // First: from now on a signal ends this process in order.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let Options {
        library,
        filter,
        has_library_calls,
        is_disabled,
        branches,
        exceptions,
        ends,
        within,
        is_patched,
        types,
        mut dumps,
        ..
    } = options.clone();
    let resources = of_resources.map(|resources| resources.wanted.clone());
    let wanted = Wanted {
        library,
        filter,
        has_library_calls,
        branches,
        exceptions,
        ends,
        within,
        is_disabled,
        is_patched,
        types,
        resources,
    };
    let Options { buffer_bytes, on_full, is_ring, limit, .. } = *options;
    let n_processes = options.pids.len();
    let most_bytes = options.most_bytes / n_processes.max(1) as u64;
    dumps.most_bytes /= n_processes.max(1) as u64;
    let sum = Arc::new(Mutex::new(Sum { parts: vec![Written::default(); n_processes], tell }));
    let (mut recorders, mut attended) = (Vec::new(), Vec::new());
    let mut resources = None;
    for (of, &pid) in options.pids.iter().enumerate() {
        let sum = Arc::clone(&sum);
        let tell = move |written| sum.lock().unwrap_or_else(PoisonError::into_inner).tell(of, written);
        let plan = Plan { buffer_bytes, on_full, most_bytes, is_ring, dumps: dumps.clone(), is_sent: false };
        let prepare = |files: Files| {
            let recorder = BankRecorder::begin_in(files.banks, 1, output.work(), plan, tell)?;
            recorder.set_pid_here(pid);
            recorders.push(recorder);
            let Some((pool, wanted)) = files.resources.zip(of_resources) else { return Ok(()) };
            record_resources(&mut resources, pool, output.work(), options.most_bytes, wanted)
        };
        match Attended::begin(pid, &wanted, prepare) {
            Ok(process) => attended.push(process),
            Err(error) => {
                attended.into_iter().map(Attended::leave).for_each(drop);
                recorders.into_iter().map(BankRecorder::stop).for_each(drop);
                resources.map(ResourceRecorder::stop);
                return Err(error);
            }
        }
    }
    drop(sum);
    let roots: Vec<Option<OtherRoot>> = attended.iter().map(|process| process.attached.other_root()).collect();
    for (recorder, root) in recorders.iter().zip(&roots) {
        root.iter().for_each(|root| recorder.set_root(root.path()));
    }
    let (errands, to_do) = Errands::new();
    let control = Control::of_attached(options.pids.iter().copied().zip(&recorders), errands, options.spelling);
    begun(control.as_ref().err());
    let since = Instant::now();
    let mut found: HashMap<u32, Seen> = HashMap::new();
    let look = |pid, attached: &Attached| {
        let (left_out, is_confined) = (attached.left_out().to_vec(), attached.is_confined());
        found.insert(pid, Seen { told: told_by(pid, attached), stopped: attached.stopped(), left_out, is_confined });
    };
    let go_on = || {
        let rest = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(since.elapsed()));
        (signals.pending().next().is_none() && !rest.is_zero()).then_some(rest)
    };
    let reasons = attend(attended, look, go_on, &to_do);
    // Tells waiting senders of errands that they stay undone.
    drop(to_do);
    let followed = output.follow();
    let resources = resources.map(ResourceRecorder::stop);
    let banks = recorders.into_iter().map(BankRecorder::stop).reduce(BankRecording::with);
    if let Ok(control) = control {
        control.finish();
    }
    let banks = banks.context("no process is recorded")?;
    let processes = options.pids.iter().zip(reasons).map(|(&pid, reason)| {
        let Seen { told, stopped, left_out, is_confined } = found.remove(&pid).unwrap_or_default();
        EndOfProcess { pid, reason, told, stopped, left_out, is_confined }
    });
    let processes = processes.collect();
    Ok(Recorded { banks, processes, resources, followed, roots: roots.into_iter().flatten().collect() })
}

/// Refuses options that need the same numbers of processes and threads everywhere.
pub(crate) fn check_numbers(pids: &[u32], has_resources: bool) -> Result<()> {
    let Some((pid, own)) = pids.iter().find_map(|&pid| Some((pid, other_number(pid)?))) else { return Ok(()) };
    if has_resources {
        bail!(
            "cannot record the resources of process {pid} from here: its container numbers processes separately \
             ({pid} is {own} there); run rftrace in that container"
        );
    }
    let space = |pid: u32| fs::read_link(bank::folder_of(pid).join("ns/pid")).ok();
    if let Some(other) = pids.iter().find(|&&other| space(other) != space(pid)) {
        bail!(
            "cannot record processes {pid} and {other} together: their containers number processes separately, so two \
             may have the same number; record one after the other"
        );
    }
    Ok(())
}

/// Records a process's resources in an empty file in its memory, by the existing recorder or a new one.
pub(crate) fn record_resources(
    recorder: &mut Option<ResourceRecorder>,
    pool: File,
    work: &Path,
    most_bytes: u64,
    wanted: &Resources,
) -> Result<()> {
    let Resources { kinds, plan, is_detailed, .. } = wanted;
    match recorder {
        Some(recorder) => recorder.add(pool),
        None => {
            *recorder = Some(ResourceRecorder::begin_in(pool, work, most_bytes, kinds, plan, *is_detailed)?);
            Ok(())
        }
    }
}

/// Returns the outcome for functions chosen for a hook. The process must still be there: names are read from its files.
fn told_by(pid: u32, attached: &Attached) -> Told {
    let mut told = Told::parse(attached.told());
    told.readers.extend(attached.reader().map(str::to_owned));
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

/// Looks after processes until all have ended, or until `go_on` returns nothing; then leaves them. `go_on` is asked
/// again after the time it returns, or some milliseconds. `look` is called for each at first, and when libraries may
/// have come. Meanwhile it does the errands of others. Returns why each is not recorded any more.
pub(crate) fn attend(
    attended: Vec<Attended>,
    mut look: impl FnMut(u32, &Attached),
    mut go_on: impl FnMut() -> Option<Duration>,
    errands: &Receiver<Errand>,
) -> Vec<Reason> {
    const INTERVAL: Duration = Duration::from_millis(10);
    const LOOK: Duration = Duration::from_millis(200);

    let mut looked = Instant::now();
    attended.iter().for_each(|process| look(process.pid, &process.attached));
    let pids: Vec<u32> = attended.iter().map(|process| process.pid).collect();
    let mut processes: Vec<Result<Attended, Reason>> = attended.into_iter().map(Ok).collect();
    loop {
        let is_due = looked.elapsed() >= LOOK;
        if is_due {
            looked = Instant::now();
        }
        for it in &mut processes {
            let Ok(process) = it else { continue };
            process.attached.let_late_go();
            let ended = if process.has_ended() {
                Some(Reason::Ended)
            } else if is_due {
                process.look(&mut look)
            } else {
                None
            };
            if let Some(reason) = ended {
                *it = Err(reason);
            }
        }
        let rest = if processes.iter().any(Result::is_ok) { go_on() } else { None };
        let Some(rest) = rest else {
            return processes.into_iter().map(|it| it.map_or_else(|reason| reason, Attended::leave)).collect();
        };
        match errands.recv_timeout(rest.min(INTERVAL)) {
            Ok(errand) => {
                let its = pids.iter().position(|&pid| pid == errand.pid);
                let done = do_errand(errand.what, errand.pid, its.map(|place| &mut processes[place]));
                errand.end(done);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(rest.min(INTERVAL)),
        }
    }
}

/// Carries out a request to a process that cannot do so itself.
fn obey(attached: &mut Attached, bank: &Described, request: &str) -> Result<Vec<u8>, String> {
    let (command, argument) = request.split_once(' ').unwrap_or((request, ""));
    let told = |error: anyhow::Error| format!("{error:#}");
    match command {
        "on" | "off" => attached.switch(Some(command == "on")).map(|()| Vec::new()).map_err(told),
        "filter" => {
            let selected = attached.set_rules(argument).map_err(told)?;
            bank.tell_rules(argument, attached.mapped().map_or(0, |mapped| mapped.min_ticks));
            Ok(selected.map(|selected| selected.told()).unwrap_or_default().into_bytes())
        }
        "functions" => functions_above(argument, attached.functions().map_err(told)?),
        _ => Err("this command works only in programs linked dynamically with the GNU C library".to_owned()),
    }
}

fn do_errand(what: What, pid: u32, process: Option<&mut Result<Attended, Reason>>) -> Result<(), String> {
    let Some(it @ Ok(_)) = process else { return Err(format!("rftrace has detached from process {pid} already")) };
    let reason = match (what, it.as_mut()) {
        (What::Look, Ok(_)) => return Ok(()),
        (What::Answer, Ok(process)) => return process.answer().map_err(|error| format!("{error:#}")),
        (What::Toggle, Ok(process)) => return process.attached.switch(None).map_err(|error| format!("{error:#}")),
        _ => std::mem::replace(it, Err(Reason::Left)).map_or_else(|reason| reason, Attended::leave),
    };
    let problem = match &reason {
        Reason::NotLeft(error) => Err(format!("cannot detach from process {pid}: {error:#}")),
        Reason::Left | Reason::Ended | Reason::OtherProgram => Ok(()),
    };
    *it = Err(reason);
    problem
}

/// Ends the recorders of these processes, in order: they detach and save their records.
///
/// # Errors
///
/// A process does not exist; a recorder may not be signalled, or does not end.
pub fn take_over(pids: &[u32]) -> Result<()> {
    /// Until it has left a process with many threads. The saving of data then takes longer.
    const LEAVES_WITHIN: Duration = Duration::from_secs(30);
    const PAUSE: Duration = Duration::from_millis(5);

    for &pid in pids {
        let Some(owner) = rftrace_attach::owner(pid)? else { continue };
        let told = sys::Process::open(owner).and_then(|recorder| recorder.send(SIGINT));
        told.with_context(|| format!("cannot end rftrace (PID {owner}), which records process {pid}"))?;
        let since = Instant::now();
        // While it leaves, the process is traced by it, and cannot be looked at.
        while start_time(pid).is_some() && !matches!(rftrace_attach::owner(pid), Ok(None)) {
            if since.elapsed() > LEAVES_WITHIN {
                bail!(
                    "rftrace (PID {owner}) still records process {pid} 30 seconds after SIGINT: kill it, and try again"
                );
            }
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Detaches from a process that an earlier recorder left without detaching. Returns whether anything had to be done.
///
/// # Errors
///
/// Those of [`record`].
pub fn leave(pid: u32, library: &Path, of_resources: &Path) -> Result<bool> {
    rftrace_attach::leave(pid, library, of_resources)
}
