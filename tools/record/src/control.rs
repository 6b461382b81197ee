//! A recorder's answers to the commands of `rftrace ctl`, while programs run.
//!
//! Not here: the client and the commands (`rftrace-control`), and requests to a process (`ask`).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};

use rftrace_control::server::{Place, Server};
use rftrace_control::{BufferKind, Facts, Function, Recording, Text, Trigger, Watched, command_line};
use rftrace_format::text::Shown;
use rftrace_frontend::bank::{MOST_ANSWER_BYTES, Names};

use super::access::Access;
use super::ask::{Asker, OVER, WORK, lock};
use super::banks::BankRecorder;
use super::dumps::{DumpControl, DumpOn, Event};
#[cfg(attaching)]
use super::errands::Errands;
use super::errands::What;
use super::own_buffers::{self, State};
use super::pipe::{self, Pipe};
use super::processes::{n_threads, start_time, threads};
use super::rfs;

/// A listener for `rftrace ctl`, active while it lives.
#[derive(Debug)]
pub struct Control {
    server: Server,
    is_given_up: Arc<AtomicBool>,
}

impl Control {
    /// Starts to listen for the recording in the folder `work`.
    ///
    /// # Errors
    ///
    /// The socket cannot be created.
    pub fn begin(work: &Path, banks: &BankRecorder, spelling: Spelling) -> std::io::Result<Self> {
        Self::serve(Place::Of(work), Recorded::new(vec![Recorder::new(banks, None)], spelling))
    }

    /// Starts to listen for processes that keep their records in buffers of their own, of this size in bytes. These
    /// banks serve only requests.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    pub fn of_own_buffers(
        work: &Path,
        requests: &BankRecorder,
        buffer_bytes: usize,
        spelling: Spelling,
    ) -> std::io::Result<Self> {
        let mut recorded = Recorded::new(vec![Recorder::new(requests, None)], spelling);
        recorded.own = Some(OwnBuffers { bytes: buffer_bytes as u64, work: work.to_owned() });
        Self::serve(Place::Of(work), recorded)
    }

    /// The same for attached processes, each with a recorder of its own. Their environment tells nobody the address.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Self::begin).
    #[cfg(attaching)]
    pub(crate) fn of_attached<'a>(
        banks: impl Iterator<Item = (u32, &'a BankRecorder)>,
        errands: Errands,
        spelling: Spelling,
    ) -> std::io::Result<Self> {
        let recorders = banks.map(|(pid, banks)| Recorder::new(banks, Some(pid))).collect();
        let mut recorded = Recorded::new(recorders, spelling);
        recorded.asker.errands = Some(errands);
        Self::serve(Place::OfUser, recorded)
    }

    fn serve(at: Place<'_>, recorded: Recorded) -> std::io::Result<Self> {
        let is_given_up = Arc::clone(&recorded.is_given_up);
        Ok(Self { server: Server::begin(at, Arc::new(recorded))?, is_given_up })
    }

    /// Ends the listener at the end of the recording.
    pub fn finish(self) {
        self.server.finish();
        self.is_given_up.store(true, Relaxed);
    }
}

/// The spelling of dump triggers.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// Parses a trigger.
    pub read: fn(&str) -> Result<DumpOn, String>,
    /// Returns the value of the filter key `watch` by which a process notices the trigger with this number, if a
    /// process has to.
    pub watch: fn(usize, &DumpOn) -> Option<String>,
}

/// Banks, of all recorded processes or of one attached process.
struct Recorder {
    banks: Access,
    dumps: DumpControl,
    /// The folder of spools.
    work: PathBuf,
    pid: Option<u32>,
}

impl Recorder {
    fn new(banks: &BankRecorder, pid: Option<u32>) -> Self {
        Self { banks: banks.access(), dumps: banks.dumps(), work: banks.work().to_owned(), pid }
    }
}

/// Buffers kept by the processes themselves.
struct OwnBuffers {
    /// Bytes of each.
    bytes: u64,
    /// The folder in which they save it.
    work: PathBuf,
}

/// The recording under control.
struct Recorded {
    /// At least one.
    recorders: Vec<Recorder>,
    spelling: Spelling,
    asker: Asker,
    /// If it is not in the banks.
    own: Option<OwnBuffers>,
    /// Processes whose recording has ended for good.
    stopped: Mutex<HashSet<u32>>,
    /// Held while it changes the triggers of dumps.
    changing: Mutex<()>,
    /// Dumps made by `snapshot`, and their processes.
    snapshots: Mutex<Vec<(u32, PathBuf)>>,
    /// The recording is over, and its files may be gone.
    is_given_up: Arc<AtomicBool>,
}

impl Recorded {
    fn new(recorders: Vec<Recorder>, spelling: Spelling) -> Self {
        Self {
            recorders,
            spelling,
            asker: Asker::default(),
            own: None,
            stopped: Mutex::default(),
            changing: Mutex::default(),
            snapshots: Mutex::default(),
            is_given_up: Arc::default(),
        }
    }

    /// The recorder of a process.
    fn of(&self, pid: u32) -> &Recorder {
        let is_its = |recorder: &&Recorder| recorder.pid.is_none_or(|own| own == pid);
        self.recorders.iter().find(is_its).unwrap_or(&self.recorders[0])
    }

    /// The recorder of a process, or of all if there is only one.
    fn of_all(&self, pid: Option<u32>) -> Result<&Recorder, String> {
        match (pid, self.recorders.as_slice()) {
            (Some(pid), _) => Ok(self.of(pid)),
            (None, [one]) => Ok(one),
            // Each has its own pace, so their records together are in no order.
            (None, _) => Err("several processes are recorded: name one of them, as in `rftrace ctl PID`".to_owned()),
        }
    }

    fn request(&self, pid: u32, request: &str) -> Result<Vec<u8>, String> {
        self.asker.ask(&self.of(pid).banks, pid, request)
    }

    fn request_text(&self, pid: u32, request: &str) -> Result<String, String> {
        self.request(pid, request).map(|answer| String::from_utf8_lossy(&answer).into_owned())
    }

    /// Refuses requests that need a recorder with the records.
    fn check_banks(&self, what: &str) -> Result<(), String> {
        match self.own {
            Some(_) => {
                Err(format!("{what}: with --stop the program keeps its records until it ends; record without --stop"))
            }
            None => Ok(()),
        }
    }

    /// Changes the triggers of dumps, for all recorders alike: each has a list, with the same numbers. Returns the
    /// first one's answer.
    fn change_triggers<T>(&self, change: impl Fn(&DumpControl) -> T) -> T {
        let _one_at_a_time = lock(&self.changing);
        let (first, others) = self.recorders.split_at(1);
        others.iter().for_each(|other| drop(change(&other.dumps)));
        change(&first[0].dumps)
    }

    fn trigger(&self, number: usize, on: &DumpOn) -> Trigger {
        let watched = match (on.event, (self.spelling.watch)(number, on)) {
            (_, Some(watch)) => Watched::Calls(watch),
            (Event::Panic | Event::Throw, None) => Watched::Raised,
            (_, None) => Watched::ByRecorder,
        };
        Trigger { number, text: on.text.clone(), watched }
    }
}

impl Recording for Recorded {
    fn recorder(&self) -> u32 {
        std::process::id()
    }

    fn processes(&self) -> Vec<u32> {
        let of = |recorder: &Recorder| recorder.banks.with(|banks| banks.processes()).unwrap_or_default();
        let mut processes: Vec<u32> = self.recorders.iter().flat_map(of).collect();
        // Detached processes go on without the tracer.
        let is_left = |pid: &u32| self.asker.errands.is_some() && lock(&self.stopped).contains(pid);
        processes.retain(|&pid| start_time(pid).is_some() && !is_left(&pid));
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    fn facts(&self, pid: u32) -> Result<Facts, String> {
        let state = self.of(pid).banks.with(move |banks| banks.state(pid)).ok_or(OVER)?;
        let state = state.ok_or_else(|| format!("process {pid} has ended"))?;
        let written = self.recorders.iter().filter_map(|recorder| recorder.banks.with(|banks| banks.written()));
        let written: Vec<_> = written.collect();
        let facts = Facts {
            command: command_line(pid),
            n_threads: n_threads(pid).unwrap_or(0),
            buffer_bytes: state.buffer_bytes as u64,
            kind: if state.is_ring { BufferKind::Ring } else { BufferKind::Stream },
            n_chunks: state.n_chunks as u64,
            n_chunks_used: state.n_used as u64,
            n_overwritten: state.n_overwritten,
            n_dropped: state.n_dropped,
            n_records: written.iter().map(|written| written.n_records).sum(),
            n_bytes: written.iter().map(|written| written.n_bytes).sum(),
        };
        let Some(own) = &self.own else { return Ok(facts) };
        let State { n_chunks, n_chunks_used, n_records, is_full } = State::read(&self.request_text(pid, "state")?)?;
        let kind = BufferKind::Own { is_full };
        Ok(Facts { buffer_bytes: own.bytes, kind, n_chunks, n_chunks_used, n_records, n_bytes: 0, ..facts })
    }

    fn has_thread(&self, pid: u32, id: u32) -> bool {
        threads(pid).contains(&id)
    }

    fn is_on(&self, pid: u32) -> Option<bool> {
        self.of(pid).banks.with(move |banks| banks.is_on(pid)).flatten()
    }

    fn rules(&self, pid: u32) -> Option<String> {
        self.of(pid).banks.with(move |banks| banks.rules(pid)).flatten()
    }

    fn ask(&self, pid: u32, request: &str) -> Result<String, String> {
        if request == "on" && lock(&self.stopped).contains(&pid) {
            return Err(format!(
                "cannot switch recording on: `rftrace ctl` has stopped the recording of process {pid} for good"
            ));
        }
        self.request_text(pid, request)
    }

    fn functions(&self, pid: u32) -> Result<Vec<Function>, String> {
        const IS_RECORDED: u64 = 1 << 63;

        let shown = |name: String| Shown::new(&name).to_string();
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
                    name: names.name(address).map_or_else(|| format!("<{address:x}>"), shown),
                    module: names.module(address).map_or_else(|| "?".to_owned(), |(file, _)| shown(file)),
                    is_recorded: word & IS_RECORDED != 0,
                });
            }
            if words.len() < MOST_ANSWER_BYTES {
                return Ok(functions);
            }
        }
    }

    fn pipe(&self, pid: Option<u32>, goes_on: bool) -> Result<Text, String> {
        self.check_banks("cannot show calls as they come")?;
        let what = if goes_on { pipe::What::FromNow } else { pipe::What::Now };
        Ok(Box::new(Pipe::begin(&self.of_all(pid)?.banks, pid, what).ok_or(OVER)?))
    }

    fn stream(&self, pid: Option<u32>) -> Result<Text, String> {
        self.check_banks("cannot stream the recording")?;
        let Recorder { banks, work, .. } = self.of_all(pid)?;
        let looked = banks.with(|banks| {
            let refused = match (banks.is_ring(), banks.is_nothing_kept()) {
                (true, _) => Some("cannot stream a ring: make a trace of it with `rftrace ctl PID dump`"),
                (_, true) => Some("cannot stream the recording: `rftrace live` keeps no records; use `rftrace record`"),
                (false, false) => None,
            };
            if refused.is_none() {
                banks.describe_for_others();
            }
            (refused, banks.root().map(Path::to_owned))
        });
        let (refused, root) = looked.ok_or(OVER)?;
        if let Some(refused) = refused {
            return Err(refused.to_owned());
        }
        let is_given_up = Arc::clone(&self.is_given_up);
        let source = rfs::Source { banks: banks.clone(), work: work.clone(), root, is_given_up };
        Ok(Box::new(rfs::begin(source, pid)?))
    }

    fn mark(&self, pid: u32, text: &str) -> Result<String, String> {
        let text = text.replace(char::is_control, " ");
        if text.trim().is_empty() {
            return Err("a mark needs a text".to_owned());
        }
        if self.own.is_some() {
            return self.request_text(pid, &format!("mark {text}"));
        }
        match self.of(pid).banks.with(move |banks| banks.mark(pid, &text)) {
            Some(true) => Ok(String::new()),
            Some(false) => {
                Err(format!("cannot set a mark: process {pid} has ended, or has 65536 marks already, the maximum"))
            }
            None => Err(OVER.to_owned()),
        }
    }

    fn flush(&self, pid: u32) -> Result<String, String> {
        self.check_banks("cannot write records to the disk")?;
        match self.of(pid).banks.with(move |banks| banks.flush(pid).map(|is_there| (is_there, banks.written()))) {
            Some(Ok((true, written))) => {
                Ok(format!("{} calls and returns are on the disk, {} bytes\n", written.n_records, written.n_bytes))
            }
            Some(Ok((false, _))) => Err(format!("process {pid} has ended")),
            Some(Err(error)) => Err(format!("cannot write the records of process {pid}: {error}")),
            None => Err(OVER.to_owned()),
        }
    }

    fn stop(&self, pid: u32) -> Result<String, String> {
        if let Some(errands) = &self.asker.errands {
            errands.run(pid, What::Leave).ok_or(OVER)??;
            lock(&self.stopped).insert(pid);
            return Ok(format!(
                "process {pid} goes on without the tracer; rftrace makes the trace after it has detached from all \
                 processes\n"
            ));
        }
        self.ask(pid, "off")?;
        lock(&self.stopped).insert(pid);
        let flushed = if self.own.is_none() { self.flush(pid)? } else { String::new() };
        Ok(format!(
            "the recording of process {pid} has ended; rftrace makes its trace when the program ends\n{flushed}"
        ))
    }

    fn triggers(&self) -> Vec<Trigger> {
        self.recorders[0].dumps.list().into_iter().map(|(number, on)| self.trigger(number, &on)).collect()
    }

    fn add_trigger(&self, spec: &str) -> Result<Trigger, String> {
        let on = (self.spelling.read)(spec)?;
        let Recorder { banks, dumps, .. } = &self.recorders[0];
        let is_ring = banks.with(|banks| banks.is_ring()).ok_or(OVER)?;
        let is_other_signal = matches!(on.event, Event::Signal(signal) if signal != dumps.signal());
        if !is_ring {
            return Err("dump triggers need a ring: record with `rftrace record --ring`".to_owned());
        }
        if let Some(why) = dumps.refusal(on.event) {
            return Err(why.to_owned());
        }
        if is_other_signal {
            return Err("cannot change the snapshot signal of a running program: choose it with `rftrace record \
                --signal-snapshot`"
                .to_owned());
        }
        let number = self.change_triggers(|dumps| dumps.add(on.clone()));
        Ok(self.trigger(number, &on))
    }

    fn remove_trigger(&self, number: usize) {
        self.change_triggers(|dumps| dumps.remove(number));
    }

    fn forget_snapshots(&self, pid: u32) -> usize {
        let mut snapshots = lock(&self.snapshots);
        let own = snapshots.extract_if(.., |(of, _)| *of == pid);
        own.filter(|(_, place)| fs::remove_dir_all(place).is_ok()).count()
    }

    fn dump(&self, pid: u32, reason: &str) -> Result<String, String> {
        let is_snapshot = reason == "snapshot";
        let reason = reason.replace(char::is_control, " ");
        let place = match &self.own {
            Some(own) => own_buffers::publish(&own.work, pid, &self.request_text(pid, "snapshot")?, &reason)?,
            None => match self.of(pid).dumps.dump(pid, &reason).recv_timeout(WORK) {
                Ok(Ok(place)) => place,
                Ok(Err(problem)) => return Err(format!("cannot make a dump of process {pid}: {problem}")),
                Err(RecvTimeoutError::Timeout) => {
                    return Ok(format!(
                        "the dump of process {pid} takes longer than a minute; rftrace goes on with it\n"
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(OVER.to_owned()),
            },
        };
        let told = format!("a dump of process {pid} lies in {}\n", place.display());
        if is_snapshot {
            lock(&self.snapshots).push((pid, place));
        }
        Ok(told)
    }
}
