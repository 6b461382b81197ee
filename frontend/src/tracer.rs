//! The API with a configuration, a tracer and a guard.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rftrace::abi::{self, InitArgs, init};

use crate::Error;
use crate::Mode;
use crate::PatchedSites;
use crate::backend;
use crate::choice::Choice;
use crate::clock::{self, Clock, ClockPair};
use crate::decode::{self, Task};
use crate::filter::{Filter, Function, Selected};
use crate::host::{self, Known};
use crate::patched::{self, patch};
use crate::uftrace::directory::{self, Recording, Totals};

/// How to record. See [`Config::install`].
///
/// ```no_run
/// use rftrace_frontend::{Config, Mode};
///
/// let tracer = Config::new().capacity_events(1_000_000).mode(Mode::Ring).directory("trace").install()?;
/// {
///     let _recording = tracer.record();
///     // work that is traced
/// }
/// let saved = tracer.save()?;
/// println!("{} events of {} threads", saved.events, saved.threads);
/// # Ok::<(), rftrace_frontend::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    capacity: Capacity,
    mode: Mode,
    directory: PathBuf,
    filter: Option<Filter>,
    patched: bool,
    prefault: bool,
}

#[derive(Clone, Copy, Debug)]
enum Capacity {
    Events(usize),
    Bytes(usize),
}

/// The variable with the filter for programs that cannot be changed.
const FILTER_VARIABLE: &str = "RFTRACE_FILTER";

/// Events that the default buffer holds.
const DEFAULT_EVENTS: usize = 1_000_000;

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// A million events (16 MB), stop mode, the directory `trace`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capacity: Capacity::Events(DEFAULT_EVENTS),
            mode: Mode::Stop,
            directory: PathBuf::from("trace"),
            filter: None,
            patched: false,
            prefault: true,
        }
    }

    /// The buffer holds at least `events` entries and exits; each takes 16 bytes.
    ///
    /// Threads fill pieces of it (512 bytes to 64 KiB), so with many threads it is used up a little earlier.
    #[must_use]
    pub fn capacity_events(mut self, events: usize) -> Self {
        self.capacity = Capacity::Events(events);
        self
    }

    /// The buffer takes `bytes` bytes.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: usize) -> Self {
        self.capacity = Capacity::Bytes(bytes);
        self
    }

    /// What happens when the buffer is used up.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Where [`Tracer::save`] writes to. Created when absent; an older trace in it is replaced.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// What is recorded, from the beginning; see [`Tracer::set_filter`].
    ///
    /// The variable `RFTRACE_FILTER`, if it is set, takes its place: `RFTRACE_FILTER='include=app::*; depth=5' program`.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Whether call sites are patched: calls of the hooks become NOPs while recording is off, and cheaper jumps while it
    /// is on. See [`Tracer::patched_sites`]. The environment variable `RFTRACE_PATCHED`, 1 or 0, overrides this.
    ///
    /// Switching recording on and off then takes longer, some milliseconds in large programs, and may not be done in a signal
    /// handler: it allocates memory.
    #[must_use]
    pub fn patched(mut self, patched: bool) -> Self {
        self.patched = patched;
        self
    }

    /// Whether the buffer is backed with memory at once, so that recording does not have to wait for it. On by default, for
    /// buffers that take less than half of what is free. Without it the buffer takes the memory that is used.
    #[must_use]
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Gives the buffer to the tracer that is linked into this program. Recording is off at first.
    ///
    /// This works once in the life of a program: the buffer stays in use until its end.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyInitialized`] the second time; [`Error::BufferTooSmall`], [`Error::BufferTooLarge`] and
    /// [`Error::OutOfMemory`] for the capacity; [`Error::BadFilter`] and [`Error::NothingMatches`] for the filter.
    /// [`Error::CannotPatch`] if [`patched`](Self::patched) was asked for and no site could be patched; not if it was only
    /// `RFTRACE_PATCHED` that asked. [`Error::BadVariable`] for its value.
    pub fn install(self) -> Result<&'static Tracer, Error> {
        static INSTALLING: Mutex<()> = Mutex::new(());
        let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        if TRACER.get().is_some() {
            return Err(Error::AlreadyInitialized);
        }
        let patched_by_variable = patched_by_variable()?;
        let bytes = match self.capacity {
            Capacity::Bytes(bytes) => bytes,
            Capacity::Events(events) => abi::region_bytes(events).ok_or(Error::BufferTooLarge { records: events })?,
        };
        let minimum = backend::minimum_bytes();
        if bytes < minimum {
            return Err(Error::BufferTooSmall { bytes, minimum });
        }
        let known = Known::collect();
        let mut choice = Choice::default();
        // While nothing has happened yet that could not be tried again.
        let filter = self.chosen_filter()?;
        let selection = filter.as_ref().map(|filter| choice.prepare(filter, &known)).transpose();
        let selection =
            selection.map_err(|error| if from_variable().is_some() { in_variable(error) } else { error })?;
        // The tracer starts at a chunk's boundary. Memory from the system begins at a page's.
        let slack = abi::chunk_bytes(bytes);
        let buffer_bytes = bytes.checked_add(slack).ok_or(Error::BufferTooLarge { records: bytes / 16 })?;
        let memory = host::reserve(buffer_bytes, self.prefault)?;
        let args = InitArgs {
            buffer: memory.buffer,
            buffer_bytes,
            blocks: memory.blocks,
            blocks_bytes: memory.blocks_bytes,
            left: memory.left,
            left_bytes: memory.left_bytes,
            overwriting: u8::from(self.mode == Mode::Ring),
            thread_start: memory.thread_start,
            thread_start_key: memory.thread_start_key,
        };
        if patched_by_variable.unwrap_or(self.patched) {
            let sites = patch::install();
            if self.patched && sites.patched == 0 && (sites.left_plain > 0 || sites.refusal.is_some()) {
                patch::undo();
                return Err(Error::CannotPatch { sites });
            }
        }
        // SAFETY: the memory is new, zeroed and never given back; pthread_setspecific may be called on any thread.
        let status = unsafe { backend::initialize(&args) };
        accepted(status, bytes).inspect_err(|_| patch::undo())?;
        if let (Some(filter), Some(selection)) = (&filter, &selection) {
            choice.apply(filter, selection);
        }
        Ok(TRACER.get_or_init(|| Tracer {
            directory: self.directory,
            first: ClockPair::now(),
            utc_offset_nanos: clock::utc_offset_nanos(),
            known,
            choice: Mutex::new(choice),
            dumping: Mutex::new(()),
        }))
    }

    /// The filter to begin with.
    fn chosen_filter(&self) -> Result<Option<Filter>, Error> {
        match from_variable() {
            Some(text) => Filter::parse(&text).map(Some).map_err(in_variable),
            None => Ok(self.filter.clone()),
        }
    }
}

/// What the tracer's answer to the memory that it was given means.
fn accepted(status: u32, bytes: usize) -> Result<(), Error> {
    match status {
        init::OK => Ok(()),
        init::ALREADY_DONE => Err(Error::AlreadyInitialized),
        _ => Err(Error::BufferTooSmall { bytes, minimum: backend::minimum_bytes() }),
    }
}

/// What the environment says of patching.
fn patched_by_variable() -> Result<Option<bool>, Error> {
    const NAME: &str = "RFTRACE_PATCHED";

    let Some(value) = std::env::var_os(NAME) else { return Ok(None) };
    match value.to_str() {
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        _ => Err(Error::BadVariable { name: NAME, value: value.to_string_lossy().into_owned() }),
    }
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// The tracer of this program, after [`Config::install`] has given it a buffer.
#[derive(Debug)]
pub struct Tracer {
    directory: PathBuf,
    first: ClockPair,
    /// Unix time minus the clock of the pairs.
    utc_offset_nanos: Option<i64>,
    known: Known,
    choice: Mutex<Choice>,
    /// Held by whoever reads the buffer.
    dumping: Mutex<()>,
}

/// What was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The directory.
    pub directory: PathBuf,
    /// Entries and exits in it.
    pub events: u64,
    /// Threads that have events.
    pub threads: usize,
    /// Calls that were not recorded because they were nested too deeply. The trace shows where.
    pub lost: u64,
    /// Whether the processor's time stamp counter runs at a constant rate. If not (or unknown), times are not exact.
    pub invariant_tsc: Option<bool>,
    /// Stop mode: the buffer was used up, and recording stopped.
    pub full: bool,
    /// Ring mode: pieces of the buffer whose events were overwritten.
    pub chunks_overwritten: u64,
    /// Threads, since the program began, that were not traced because too many lived at the same time.
    pub untraced_threads: u32,
}

/// The state of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Whether recording is on.
    pub recording: bool,
    /// Entries and exits in the buffer, since the last save.
    pub events: u64,
    /// Threads that have events in the buffer.
    pub threads: usize,
    /// Pieces that the buffer is cut into.
    pub chunks: usize,
    /// Pieces that hold events.
    pub chunks_used: usize,
    /// Stop mode: the buffer is used up, and recording stopped.
    pub full: bool,
    /// Ring mode: pieces whose events were overwritten since the last save.
    pub chunks_overwritten: u64,
    /// Calls since the last save that were not recorded because they were nested too deeply or, in ring mode, because
    /// every piece was in use by a thread.
    pub lost: u64,
    /// Threads, since the program began, that were not traced because too many lived at the same time.
    pub untraced_threads: u32,
}

/// Records as long as it lives. Made by [`Tracer::record`].
#[derive(Debug)]
#[must_use = "recording ends when the guard is dropped"]
pub struct Recorder {
    was_on: bool,
}

impl Drop for Recorder {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.was_on {
            patched::disable();
        }
    }
}

impl Tracer {
    /// The tracer, if [`Config::install`] was called.
    #[must_use]
    pub fn get() -> Option<&'static Self> {
        TRACER.get()
    }

    /// Starts recording, in all threads. Does nothing when the buffer is used up.
    #[inline(always)]
    pub fn enable(&self) {
        patched::enable();
    }

    /// Stops recording, in all threads. Functions that are open then end, in the trace, at this moment.
    #[inline(always)]
    pub fn disable(&self) {
        patched::disable();
    }

    /// Whether recording is on.
    #[inline(always)]
    #[must_use]
    pub fn is_recording(&self) -> bool {
        backend::is_enabled()
    }

    /// Records until the guard is dropped. Guards may be nested.
    #[inline(always)]
    pub fn record(&self) -> Recorder {
        let was_on = backend::is_enabled();
        patched::enable();
        Recorder { was_on }
    }

    /// Records only what `filter` lets pass, from now on, also while recording is on. It takes the place of the one before.
    ///
    /// Calls are filtered when they begin: a function that is open stays in the trace. Functions of libraries that are
    /// loaded later are recorded unless the filter includes only some functions; set it again to choose among them.
    /// Where call sites are [patched](Config::patched), those of functions that are not recorded stay NOPs.
    ///
    /// ```no_run
    /// use rftrace_frontend::{Config, Filter};
    ///
    /// let tracer = Config::new().install()?;
    /// let selected = tracer.set_filter(&Filter::new().include("app::*").exclude("*::fmt"))?;
    /// println!("{} of {} functions are recorded", selected.n_recorded, selected.n_functions);
    /// # Ok::<(), rftrace_frontend::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] or [`Error::NothingMatches`]; the filter before stays in force.
    #[inline(always)]
    pub fn set_filter(&self, filter: &Filter) -> Result<Selected, Error> {
        backend::unrecorded(|| self.choice().set(filter, &self.known))
    }

    /// Records everything from now on.
    ///
    /// Like [`set_filter`](Self::set_filter), this changes code if call sites are patched.
    #[inline(always)]
    pub fn clear_filter(&self) {
        backend::unrecorded(|| self.choice().clear());
    }

    /// The functions that can be recorded, by address: those of the program and its libraries that call a hook. The list is
    /// empty where they are not known (on Hermit).
    #[inline(always)]
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        backend::unrecorded(|| self.choice().functions(&self.known))
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops recording, writes what was recorded to the configured directory and empties the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] or [`Error::Write`]. What was recorded is kept then.
    #[inline(always)]
    pub fn save(&self) -> Result<Saved, Error> {
        patched::disable();
        self.write_directory(&self.directory, &program_name(), Then::Empty, directory::all_processors())
    }

    /// Like [`save`](Self::save), to another directory.
    ///
    /// # Errors
    ///
    /// As those of [`save`](Self::save).
    #[inline(always)]
    pub fn save_to(&self, directory: impl AsRef<Path>) -> Result<Saved, Error> {
        patched::disable();
        self.write_directory(directory.as_ref(), &program_name(), Then::Empty, directory::all_processors())
    }

    /// Like [`save_to`](Self::save_to), with no thread but the calling one: for a process that is about to be killed, or that
    /// may not start threads. Call sites that are [patched](Config::patched) stay switched on.
    ///
    /// This allocates memory. A signal handler may call it only if what it has interrupted does not hold the allocator's lock.
    ///
    /// # Errors
    ///
    /// As those of [`save`](Self::save).
    #[inline(always)]
    pub fn save_alone(&self, directory: impl AsRef<Path>) -> Result<Saved, Error> {
        backend::disable();
        self.write_directory(directory.as_ref(), &program_name(), Then::Empty, 1)
    }

    /// Writes what the buffer holds to a directory and goes on: recording pauses, nothing is given up.
    ///
    /// Functions that return during the pause end, in later traces, when it began.
    ///
    /// # Errors
    ///
    /// As those of [`save`](Self::save).
    #[inline(always)]
    pub fn snapshot(&self, directory: impl AsRef<Path>) -> Result<Saved, Error> {
        let was_on = backend::is_enabled();
        backend::disable();
        let saved = self.write_directory(directory.as_ref(), &program_name(), Then::Keep, directory::all_processors());
        if was_on {
            backend::enable();
        }
        saved
    }

    /// The state of the buffer. While recording is on the numbers are those of a moment that is passing.
    #[inline(always)]
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        backend::unrecorded(statistics)
    }

    /// Like [`save_to`](Self::save_to); `binary_name` names the program where the system cannot tell its path.
    ///
    /// # Errors
    ///
    /// As those of [`save`](Self::save).
    #[inline(always)]
    pub fn save_named(&self, directory: impl AsRef<Path>, binary_name: &str) -> Result<Saved, Error> {
        patched::disable();
        self.write_directory(directory.as_ref(), binary_name, Then::Empty, directory::all_processors())
    }

    /// Stops recording, writes only the records to a file and empties the buffer. See [`dump_trace`](crate::dump_trace)
    /// for the format.
    ///
    /// # Errors
    ///
    /// As those of [`save`](Self::save).
    #[inline(always)]
    pub fn save_records(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        patched::disable();
        self.read(Then::Empty, 1, |recording| directory::write_raw(recording, path.as_ref())).map(drop)
    }

    /// What became of the call sites, if they are patched; see [`Config::patched`]. All 0 if they are not.
    #[inline(always)]
    #[must_use]
    pub fn patched_sites(&self) -> PatchedSites {
        backend::unrecorded(patch::counts)
    }

    /// Patches all call sites that can be patched: those of libraries that were opened since recording was last switched
    /// on, whose calls are recorded as calls until then, and all of them after [`unpatch`](Self::unpatch).
    #[inline(always)]
    pub fn patch(&self) -> PatchedSites {
        backend::unrecorded(patch::install)
    }

    /// Makes all patched call sites what they were. They stay so until [`patch`](Self::patch): what is recorded is
    /// recorded by calls.
    #[inline(always)]
    pub fn unpatch(&self) {
        backend::unrecorded(patch::undo);
    }

    fn write_directory(
        &self,
        directory: &Path,
        binary_name: &str,
        then: Then,
        n_writers: usize,
    ) -> Result<Saved, Error> {
        let mut saved = None;
        self.read(then, n_writers, |recording| {
            let totals = directory::write(recording, directory, &host::program(&self.known, binary_name))?;
            let control = backend::control();
            saved = Some(Saved {
                directory: directory.to_owned(),
                events: totals.n_events,
                threads: totals.n_threads,
                lost: totals.n_lost,
                invariant_tsc: totals.invariant_tsc,
                full: control.full.load(Relaxed) != 0,
                chunks_overwritten: control.shared.n_overwritten.load(Relaxed),
                untraced_threads: control.n_untraced_threads.load(Relaxed),
            });
            Ok(totals)
        })?;
        saved.ok_or(Error::NoEvents { hook_called: true })
    }

    /// Passes what the buffer holds to `write`. Recording must be off.
    fn read(
        &self,
        then: Then,
        n_writers: usize,
        write: impl FnOnce(&Recording<'_>) -> Result<Totals, Error>,
    ) -> Result<Totals, Error> {
        let _alone = self.dumping.lock().unwrap_or_else(PoisonError::into_inner);
        quiesce();
        let control = backend::control();
        let start_tsc = control.cycle_start_tsc.load(Relaxed);
        let tasks = tasks();
        if start_tsc == 0 || !tasks.iter().any(|task| task.has_record_since(start_tsc)) {
            // A filter may have kept every call from being seen.
            let hook_called = control.next_tid.load(Relaxed) > 1 || self.choice().is_filtered();
            return Err(Error::NoEvents { hook_called });
        }
        let last = ClockPair::now();
        let rate = host::exact_rate();
        let totals = write(&Recording {
            tasks: &tasks,
            start_tsc,
            stop_tsc: control.stop_tsc.load(Relaxed),
            clock: rate.map_or_else(|| Clock::between(self.first, last), |(hz, _)| Clock::at_rate(self.first, hz)),
            pairs: [self.first, last],
            unix_nanos: self.utc_offset_nanos.and_then(|offset| self.first.nanos.checked_add_signed(offset)),
            minima: &self.choice().minima(),
            tsc_hz_source: rate.map_or("measured", |(_, source)| source.name()),
            n_writers,
        })?;
        if then == Then::Empty {
            backend::reset();
            self.choice().forget_past();
        }
        Ok(totals)
    }
}

/// What happens to the buffer when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Empty,
    Keep,
}

/// Waits until no thread is taking a chunk. Recording must be off.
fn quiesce() {
    /// They need microseconds, unless they are stopped.
    const LIMIT: Duration = Duration::from_secs(1);

    let deadline = Instant::now() + LIMIT;
    backend::quiesce(|| {
        thread::yield_now();
        Instant::now() < deadline
    });
}

/// The tasks of this program.
fn tasks() -> Vec<Task<'static>> {
    // First of all: recording is off, but the threads go on, and what returns is not known any more.
    let open = backend::open_by_thread();
    decode::tasks(backend::chunks(), open)
}

/// Counts what the buffer holds.
fn statistics() -> Statistics {
    let control = backend::control();
    let start_tsc = control.cycle_start_tsc.load(Relaxed);
    let mut counted = Statistics {
        recording: backend::is_enabled(),
        chunks: control.n_chunks.load(Relaxed),
        full: control.full.load(Relaxed) != 0,
        chunks_overwritten: control.shared.n_overwritten.load(Relaxed),
        untraced_threads: control.n_untraced_threads.load(Relaxed),
        lost: control.n_lost_no_chunk.load(Relaxed),
        ..Statistics::default()
    };
    if start_tsc == 0 {
        return counted;
    }
    counted.chunks_used = backend::chunks().count();
    for task in tasks() {
        let (events, lost) = task.count_since(start_tsc);
        counted.events += events;
        counted.lost += lost;
        counted.threads += usize::from(events > 0);
    }
    counted
}

/// The text of [`FILTER_VARIABLE`].
fn from_variable() -> Option<String> {
    let text = std::env::var_os(FILTER_VARIABLE)?;
    Some(text.to_string_lossy().into_owned()).filter(|text| !text.trim().is_empty())
}

/// The error of a rule, with the variable that it is from.
fn in_variable(error: Error) -> Error {
    let named = |text| format!("{FILTER_VARIABLE}: {text}");
    match error {
        Error::BadFilter { place, problem } => Error::BadFilter { place: named(place), problem },
        Error::NothingMatches { rule, untraced, similar } => {
            Error::NothingMatches { rule: named(rule), untraced, similar }
        }
        error => error,
    }
}

/// The program's name, for systems that cannot tell its path.
fn program_name() -> String {
    std::env::args_os()
        .next()
        .and_then(|path| Some(Path::new(&path).file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "program".to_owned())
}
