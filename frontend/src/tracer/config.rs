//! How to record, and how the tracer gets its buffer.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Release;
use std::sync::{Mutex, PoisonError};

use rftrace::abi::{self, InitArgs, init};

#[cfg(all(feature = "control", target_os = "linux"))]
use super::control;
#[cfg(target_os = "linux")]
use super::stream::{self, StreamOptions};
use super::{CURRENT, PROGRAM, Traced, Tracer, alone, marks, quiesce, switch};
use crate::Error;
use crate::Mode;
use crate::arch;
use crate::backend;
use crate::bank::own::{self, Bank};
#[cfg(target_os = "linux")]
use crate::bank::writer::Stream;
use crate::clock::{self, ClockPair};
use crate::filter::{AskValues, Filter};
use crate::host::{self, Known};
use crate::patch;
#[cfg(target_os = "linux")]
use crate::patch::{Ends, EntryWay};

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
    /// See [`Config::known_values`].
    known_values: Option<AskValues>,
    patched: bool,
    prefault: bool,
    bank: Option<&'static Bank>,
    #[cfg(target_os = "linux")]
    stream: Option<StreamOptions>,
    #[cfg(all(feature = "control", target_os = "linux"))]
    control: bool,
    #[cfg(target_os = "linux")]
    entry_branches: Vec<String>,
    #[cfg(target_os = "linux")]
    patchable_entries: bool,
    #[cfg(target_os = "linux")]
    library_calls: bool,
    #[cfg(target_os = "linux")]
    entry_exceptions: Vec<String>,
    #[cfg(target_os = "linux")]
    entry_way: EntryWay,
    #[cfg(target_os = "linux")]
    ends: Ends,
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

/// Bytes of the buffer of a stream that the environment asks for.
#[cfg(target_os = "linux")]
const DEFAULT_STREAM_BYTES: usize = 64 << 20;

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
            known_values: None,
            patched: false,
            prefault: true,
            bank: None,
            #[cfg(target_os = "linux")]
            stream: None,
            #[cfg(all(feature = "control", target_os = "linux"))]
            control: false,
            #[cfg(target_os = "linux")]
            entry_branches: Vec::new(),
            #[cfg(target_os = "linux")]
            patchable_entries: false,
            #[cfg(target_os = "linux")]
            library_calls: false,
            #[cfg(target_os = "linux")]
            entry_exceptions: Vec::new(),
            #[cfg(target_os = "linux")]
            entry_way: EntryWay::default(),
            #[cfg(target_os = "linux")]
            ends: Ends::default(),
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

    /// Sets the behaviour when the buffer is used up.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Where [`Tracer::save`] writes to. Created when absent; an older trace in it is replaced. One that holds something else is refused, and so is one that
    /// somebody else writes to.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets the filter from the beginning; see [`Tracer::set_filter`].
    ///
    /// The variable `RFTRACE_FILTER`, if it is set, takes its place: `RFTRACE_FILTER='include=app::*; depth=5' program`. Programs
    /// that run with other rights than their caller's (setuid) do not look at variables.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Tells the filter whom to ask what is known of functions by their debug information, see [`Filter::known_values`].
    #[doc(hidden)]
    #[must_use]
    pub fn known_values(mut self, ask: AskValues) -> Self {
        self.known_values = Some(ask);
        self
    }

    /// Sets whether call sites are patched: calls of the hooks become NOPs while recording is off, and cheaper jumps while it
    /// is on (on aarch64 the calls that they were). See [`Tracer::patched_sites`]. The environment variable `RFTRACE_PATCHED`, 1 or 0, overrides this.
    ///
    /// Switching recording on and off then takes longer, some milliseconds in large programs, and may not be done in a signal
    /// handler: it allocates memory.
    #[must_use]
    pub fn patched(mut self, patched: bool) -> Self {
        self.patched = patched;
        self
    }

    /// Functions that do not call the tracer get a branch at their beginning, and are recorded too: those of the program whose names
    /// match, or with `@` and a name or glob behind it those of such a library: `parse*`, `*`, `/^app_/`, `*@libz`. More calls choose
    /// more functions. On other processors than x86-64 and aarch64 [`EntryBranches::refusal`](crate::EntryBranches::refusal) says that none was.
    ///
    /// They get it while the program has one thread, before its `main`: this is for what is preloaded. The first choice in a
    /// program's life is the only one. See [`Tracer::entry_branches`] for what became of it.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn entry_branches(mut self, pattern: impl Into<String>) -> Self {
        self.entry_branches.push(pattern.into());
        self
    }

    /// How the ends of the functions are seen that [`entry_branches`](Self::entry_branches) names.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn ends(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Functions that [`entry_branches`](Self::entry_branches) does not mean, by their symbols as they stand in the file (`nm` prints them).
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn entry_exceptions(mut self, symbols: impl IntoIterator<Item = String>) -> Self {
        self.entry_exceptions.extend(symbols);
        self
    }

    /// Sets whether functions get a branch, and are recorded, if a compiler has left room for it at their beginning: by
    /// `-fpatchable-function-entry` (GCC, clang), `-Z patchable-function-entry` (rustc) or `-mfentry -mrecord-mcount -mnop-mcount` (GCC), in
    /// the program and in its libraries. Those with XRay's sleds (`-fxray-instrument` of clang, `-Z instrument-xray` of rustc) are recorded at
    /// these, where they begin and where they end. On aarch64 it is for `-fpatchable-function-entry` and `-Z patchable-function-entry` alone, where
    /// one NOP is room enough. The environment variable `RFTRACE_PATCHABLE`, 1 or 0, overrides this.
    ///
    /// As for [`entry_branches`](Self::entry_branches) the first choice in a program's life is the only one; on aarch64 it may come at any time.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn patchable_entries(mut self, patchable_entries: bool) -> Self {
        self.patchable_entries = patchable_entries;
        self
    }

    /// Somebody who stops all threads writes the branches, and is told them by `prepared_branches`: this program runs already. Each choice
    /// takes the place of the one before.
    #[doc(hidden)]
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn branches_from_outside(mut self) -> Self {
        self.entry_way = EntryWay::Outside;
        self
    }

    /// Sets whether calls by the program of functions of libraries are recorded, those that go through its global offset table: `malloc`,
    /// `write`. A function whose address the program uses otherwise too is left out, and so are those that return twice or ask for their
    /// caller. On other processors than x86-64 and aarch64 [`EntryBranches::refusal`](crate::EntryBranches::refusal) says that none was.
    ///
    /// As for [`entry_branches`](Self::entry_branches) the first choice in a program's life is the only one.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn library_calls(mut self, library_calls: bool) -> Self {
        self.library_calls = library_calls;
        self
    }

    /// Sets whether the buffer is backed with memory at once, so that recording does not have to wait for it. On by default, for
    /// buffers that take less than half of the free memory. Without it the buffer takes only the memory that is used.
    #[must_use]
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Writes records to the disk while the program runs, so that the trace is as long as there is room there, and no buffer fills up. A
    /// thread of its own, `rftrace-writer`, takes them out of the buffer, packed, to the folder `.recording` of the [directory](Self::directory);
    /// [`Tracer::save`] makes a trace of them. An older trace in the directory is removed at once.
    ///
    /// - The [capacity](Self::capacity_bytes) is that of the buffer, which goes round: 64 MiB are good for any program. There is no [`mode`](Self::mode).
    /// - A save ends the stream: give the tracer another buffer to record again. A [snapshot](crate::SaveOptions::keep) does not.
    /// - Where the program ends without a save, or is killed, `rftrace report` shows the records on the disk, and `rftrace recover` makes a
    ///   trace of them: all that are older than a fifth of a second, but for those in pieces of the buffer that are not full.
    /// - A child that is forked records nothing.
    /// - When the disk is full the program goes on; [`Saved::left_out`](crate::Saved::left_out) says what is missing.
    ///
    /// The variable `RFTRACE_STREAM=DIR` or `RFTRACE_STREAM=DIR,64M` does the same for a program that is not changed: with this directory, and a buffer of this
    /// size.
    ///
    /// ```no_run
    /// use rftrace_frontend::{Config, StreamOptions};
    ///
    /// let tracer = Config::new().capacity_bytes(64 << 20).directory("trace").stream(StreamOptions::new()).install()?;
    /// tracer.enable();
    /// // hours later
    /// let saved = tracer.save()?;
    /// println!("{} events, {:?}", saved.events, saved.left_out);
    /// # Ok::<(), rftrace_frontend::Error>(())
    /// ```
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn stream(mut self, options: StreamOptions) -> Self {
        self.stream = Some(options);
        self
    }

    /// Sets whether `rftrace ctl` can control this program while it runs: choose what to record, and make dumps, as for a program under
    /// `rftrace record`. With the feature `control`, on Linux. The environment variable `RFTRACE_CONTROL`, 1 or 0, overrides this.
    ///
    /// A thread, `rftrace-control`, listens at `$XDG_RUNTIME_DIR/rftrace/PID.sock`, or in `/tmp/rftrace-UID`, to this user and root, and each client has
    /// one while it talks. They have all signals blocked, and nothing of them is recorded. The first one ends when a [stream](Self::stream) is saved, and
    /// when a buffer without control takes the place of this one; the socket is gone then, and when the program exits. A child that is
    /// forked is not controlled.
    ///
    /// ```no_run
    /// use rftrace_frontend::{Config, Mode};
    ///
    /// // rftrace ctl PID on; rftrace ctl PID filter 'include=app::*'; rftrace ctl PID dump 'slow again'
    /// let tracer = Config::new().mode(Mode::Ring).directory("trace").control(true).install()?;
    /// # Ok::<(), rftrace_frontend::Error>(())
    /// ```
    #[cfg(all(feature = "control", target_os = "linux"))]
    #[must_use]
    pub fn control(mut self, control: bool) -> Self {
        self.control = control;
        self
    }

    /// Records into a bank of a recorder, which empties it: capacity and mode are the bank's. There is nothing to save. Once in the life
    /// of a program. For what is preloaded into other programs.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    #[must_use]
    pub fn bank(mut self, bank: &'static Bank) -> Self {
        self.bank = Some(bank);
        self
    }

    /// Gives the buffer to the tracer that is linked into this program. Recording is off at first.
    ///
    /// A program may do this again while recording is off, with another size and mode. The new buffer takes the place of the one
    /// before: what was not saved of that is gone, and the [`Tracer`] of that buffer only answers with [`Error::Replaced`].
    /// Its memory goes back to the system, its addresses stay taken: another thread may still be in a hook that writes there.
    ///
    /// # Errors
    ///
    /// [`Error::ShadowStack`] if the program runs with one; [`Error::Recording`] while recording is on; [`Error::Busy`] if a thread is stopped amid a hook;
    /// [`Error::AlreadyInitialized`] the second time on other systems than Linux; [`Error::BufferTooSmall`], [`Error::BufferTooLarge`] and
    /// [`Error::OutOfMemory`] for the capacity; [`Error::BadFilter`] and [`Error::NothingMatches`] for the filter.
    /// [`Error::NoStream`], and [`Error::Write`] for its folder, if what is recorded cannot go to a [stream](Self::stream).
    /// [`Error::CannotPatch`] if [`patched`](Self::patched) was asked for and no site could be patched; not if it was only
    /// `RFTRACE_PATCHED` that asked. [`Error::BadVariable`] for its value. [`Error::NoControl`] if nobody could control the program who is to.
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "there are no streams"))]
    pub fn install(mut self) -> Result<&'static Tracer, Error> {
        /// The buffer in use: where it lies, and its size.
        static BUFFER: Mutex<Option<(AtomicPtr<u8>, usize)>> = Mutex::new(None);
        patch::register_fork_handlers();
        let _at_work = host::at_work();
        let mut in_use = BUFFER.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = in_use.is_none();
        if backend::is_enabled() {
            return Err(Error::Recording);
        }
        #[cfg(target_os = "linux")]
        self.read_variable()?;
        let patched_by_variable = switch_of_variable("RFTRACE_PATCHED")?;
        #[cfg(all(feature = "control", target_os = "linux"))]
        let is_controlled = switch_of_variable("RFTRACE_CONTROL")?.unwrap_or(self.control);
        #[cfg(target_os = "linux")]
        let entries = {
            let exceptions = self.entry_exceptions.clone();
            let patterns = self.entry_branches.iter().map(String::as_str);
            let choice = patch::EntryChoice::parse(patterns, exceptions)?;
            let is_patchable = switch_of_variable("RFTRACE_PATCHABLE")?.unwrap_or(self.patchable_entries);
            choice.patchable(is_patchable).library_calls(self.library_calls).ends(self.ends)
        };
        let bytes = match self.capacity {
            Capacity::Bytes(bytes) => bytes,
            Capacity::Events(events) => abi::region_bytes(events).ok_or(Error::BufferTooLarge { records: events })?,
        };
        let minimum = backend::minimum_bytes();
        if bytes < minimum {
            return Err(Error::BufferTooSmall { bytes, minimum });
        }
        // A recorder listens itself.
        #[cfg(all(feature = "control", target_os = "linux"))]
        let control = control::begin(is_controlled && self.bank.is_none())?;
        let program = PROGRAM.get_or_init(|| Traced { known: Known::collect(), choice: Mutex::default() });
        // Whoever reads the old buffer does so first.
        let alone = alone();
        let mut choice = program.choice();
        // Before a filter chooses among them. As long as recording is off their hook does nothing.
        #[cfg(target_os = "linux")]
        patch::install_entries(entries, self.entry_way);
        // While nothing has happened yet that could not be tried again.
        let filter = self.chosen_filter()?;
        let selection = filter.as_ref().map(|filter| choice.prepare(filter, &program.known)).transpose();
        let selection =
            selection.map_err(|error| if from_variable().is_some() { in_variable(error) } else { error })?;
        // The tracer starts at a chunk's boundary. Memory from the system begins at a page's.
        let slack = abi::chunk_bytes(bytes);
        let buffer_bytes = bytes.checked_add(slack).ok_or(Error::BufferTooLarge { records: bytes / 16 })?;
        #[cfg(target_os = "linux")]
        let stream = match &self.stream {
            Some(options) if self.bank.is_none() => {
                let stream = Stream::begin(&self.directory, &options.wanted(bytes))?;
                self.bank = Some(stream.bank());
                Some(stream)
            }
            _ => None,
        };
        let given = self.bank.map(own::begin).transpose()?;
        let (given, bank, buffer_bytes) = match &given {
            Some(given) => (Some(given.buffer), given.bank, given.bytes),
            None => (None, ptr::null(), buffer_bytes),
        };
        let memory = host::reserve(buffer_bytes, given, self.prefault, is_first)?;
        let args = InitArgs {
            buffer: memory.buffer,
            buffer_bytes,
            blocks: memory.blocks,
            blocks_bytes: memory.blocks_bytes,
            left: memory.left,
            left_bytes: memory.left_bytes,
            overwriting: u8::from(self.mode == Mode::Ring || self.bank.is_some() && bank.is_null()),
            bank,
            thread_start: memory.thread_start,
            thread_start_key: memory.thread_start_key,
        };
        let was_patched = patch::counts().patched > 0;
        let give_up = |error| {
            if !was_patched {
                patch::undo();
            }
            host::discard(memory.buffer, buffer_bytes);
            Err(error)
        };
        if patched_by_variable.unwrap_or(self.patched) {
            let sites = patch::install();
            if self.patched && sites.patched == 0 && (sites.left_plain > 0 || sites.refusal.is_some()) {
                return give_up(Error::CannotPatch { sites });
            }
        } else if was_patched {
            patch::undo();
        }
        if let Err(error) = accepted(hand_over(&args), bytes) {
            return give_up(error);
        }
        if let Some((old, old_bytes)) = in_use.replace((AtomicPtr::new(memory.buffer), buffer_bytes)) {
            host::discard(old.into_inner(), old_bytes);
        }
        choice.begin();
        match (&filter, &selection) {
            (Some(filter), Some(selection)) => choice.apply(filter, selection),
            _ if choice.is_filtered() => choice.clear(),
            _ => {}
        }
        choice.forget_past();
        marks::forget(&alone);
        let tracer = Box::leak(Box::new(Tracer {
            directory: self.directory,
            first: ClockPair::now(),
            utc_offset_nanos: clock::utc_offset_nanos(),
            program,
            #[cfg(target_os = "linux")]
            stream,
        }));
        // An earlier switch-on did nothing.
        switch::disable_tracer();
        if let Some(bank) = self.bank {
            own::opened(bank, tracer.first);
        }
        CURRENT.store(ptr::from_mut(tracer), Release);
        #[cfg(all(feature = "control", target_os = "linux"))]
        control.keep();
        Ok(tracer)
    }

    /// Reads the environment's setting of streams, but for a recorder's bank.
    #[cfg(target_os = "linux")]
    fn read_variable(&mut self) -> Result<(), Error> {
        if self.bank.is_some() {
            return Ok(());
        }
        let Some((directory, size)) = stream::from_variable()? else { return Ok(()) };
        self.directory = directory;
        self.capacity = Capacity::Bytes(size.unwrap_or(DEFAULT_STREAM_BYTES));
        self.stream.get_or_insert_with(StreamOptions::new);
        Ok(())
    }

    /// The filter to begin with.
    fn chosen_filter(&self) -> Result<Option<Filter>, Error> {
        let filter = match from_variable() {
            Some(text) => Some(Filter::parse(&text).map_err(in_variable)?),
            None => self.filter.clone(),
        };
        Ok(match self.known_values {
            Some(known) => filter.map(|filter| filter.known_values(known)),
            None => filter,
        })
    }
}

/// Turns the tracer's answer to a buffer into a result.
fn accepted(status: u32, bytes: usize) -> Result<(), Error> {
    match status {
        init::OK => Ok(()),
        init::ALREADY_DONE => Err(Error::AlreadyInitialized),
        init::RECORDING => Err(Error::Recording),
        init::BUSY => Err(Error::Busy),
        init::SHADOW_STACK => Err(Error::ShadowStack),
        _ => Err(Error::BufferTooSmall { bytes, minimum: backend::minimum_bytes() }),
    }
}

/// Hands memory to the tracer, as soon as no thread is taking a chunk. Returns an [`init`] status.
fn hand_over(args: &InitArgs) -> u32 {
    arch::tell_tracer();
    loop {
        let is_quiet = quiesce();
        // SAFETY: the memory is new, zeroed and never unmapped; pthread_setspecific may be called on any thread.
        let status = unsafe { backend::initialize(args) };
        if status != init::BUSY || !is_quiet {
            return status;
        }
    }
}

/// Reads a variable of the environment that is 1 or 0.
fn switch_of_variable(name: &'static str) -> Result<Option<bool>, Error> {
    let Some(value) = host::variable(name) else { return Ok(None) };
    match value.to_str() {
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        _ => Err(Error::BadVariable { name, value: value.to_string_lossy().into_owned() }),
    }
}

/// The text of [`FILTER_VARIABLE`].
fn from_variable() -> Option<String> {
    let text = host::variable(FILTER_VARIABLE)?;
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
