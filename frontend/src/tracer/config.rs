//! The options of a recording, and the hand-over of the buffer to the tracer.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Mutex, PoisonError};

use rftrace::abi::{self, InitArgs, init};

#[cfg(target_os = "linux")]
use super::AtExit;
#[cfg(all(feature = "control", target_os = "linux"))]
use super::control;
#[cfg(target_os = "linux")]
use super::stream::{self, StreamOptions};
use super::{CURRENT, PROGRAM, Traced, Tracer, alone, marks, quiesce, switch};
use crate::Error;
use crate::Mode;
use crate::arch;
use crate::backend;
#[cfg(target_os = "linux")]
use crate::bank::child;
use crate::bank::client::{self, Bank};
#[cfg(target_os = "linux")]
use crate::bank::writer::Stream;
use crate::clock::{self, ClockPair};
use crate::filter::{AskValues, Filter};
use crate::host::{self, Known};
use crate::patch;
#[cfg(target_os = "linux")]
use crate::patch::{Ends, EntryWay};

/// The options of a recording. [`install`](Config::install) gives the tracer its buffer.
///
/// ```no_run
/// use rftrace_frontend::{Config, Mode};
///
/// let tracer = Config::new().capacity_events(1_000_000).mode(Mode::Ring).directory("trace").install()?;
/// {
///     let _recording = tracer.record();
///     // the traced work
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
    discard_unsaved: bool,
    save_at_exit: bool,
    is_recorded: bool,
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

/// The variable with the filter for unchanged programs.
const FILTER_VARIABLE: &str = "RFTRACE_FILTER";

/// The number of events in the default buffer.
const DEFAULT_EVENTS: usize = 1_000_000;

/// The default size of a stream's buffer in bytes, for `RFTRACE_STREAM`.
#[cfg(target_os = "linux")]
const DEFAULT_STREAM_BYTES: usize = 64 << 20;

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// Sets the defaults: a buffer for a million events (16 MB), [`Mode::Stop`], the directory `trace`, no filter.
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
            discard_unsaved: false,
            save_at_exit: true,
            is_recorded: false,
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

    /// Sets the size of the buffer to at least `events` entries and exits, 16 bytes each.
    ///
    /// Each thread fills its own chunks of 512 bytes to 64 KiB, so many threads use up the buffer a little earlier.
    #[must_use]
    pub fn capacity_events(mut self, events: usize) -> Self {
        self.capacity = Capacity::Events(events);
        self
    }

    /// Sets the size of the buffer in bytes.
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

    /// Sets the directory for [`Tracer::save`].
    ///
    /// The save creates it if it is absent, and replaces an older trace in it. It refuses a directory with other
    /// contents, and a directory in use by another process.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets whether a program that has not saved its events saves them at its exit, to the
    /// [directory](Self::directory), with one line on stderr. On by default, on Linux.
    ///
    /// The save comes after a return from `main`, also by a panic, or after `exit`, behind the `atexit` functions. A
    /// program that ends by a signal, by `abort` or by `_exit` loses its unsaved events.
    ///
    /// A directory to which the program has saved itself stays as it is. Nothing is saved in a forked child, or in a
    /// program with a filter of system calls (seccomp) of its own.
    #[must_use]
    pub fn save_at_exit(mut self, save_at_exit: bool) -> Self {
        self.save_at_exit = save_at_exit;
        self
    }

    /// Sets whether [`install`](Self::install) may discard unsaved events of the old buffer. Otherwise it fails with
    /// [`Error::Unsaved`].
    #[must_use]
    pub fn discard_unsaved(mut self, discard_unsaved: bool) -> Self {
        self.discard_unsaved = discard_unsaved;
        self
    }

    /// Sets the filter from the beginning; see [`Tracer::set_filter`].
    ///
    /// The environment variable `RFTRACE_FILTER`, if it is set, replaces this filter:
    /// `RFTRACE_FILTER='include=app::*; depth=5' program`. A program with other rights than its caller (setuid) ignores
    /// variables.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets the source of facts from debug information for the filter, see [`Filter::known_values`].
    #[doc(hidden)]
    #[must_use]
    pub fn known_values(mut self, ask: AskValues) -> Self {
        self.known_values = Some(ask);
        self
    }

    /// Sets whether call sites are patched: calls of the hooks become NOPs while recording is off, and cheap jumps
    /// while it is on (calls, as compiled, on aarch64). See [`Tracer::patched_sites`]. The environment variable
    /// `RFTRACE_PATCHED`, 1 or 0, overrides this.
    ///
    /// Starting and stopping then takes longer, some milliseconds in large programs. Never do it in a signal handler,
    /// as it allocates memory.
    #[must_use]
    pub fn patched(mut self, patched: bool) -> Self {
        self.patched = patched;
        self
    }

    /// Records functions without a hook: each gets a branch at its beginning.
    ///
    /// `pattern` matches names of functions of the program: `parse*`, `*`, `/^app_/`. With `@` and a name or glob of a
    /// library it matches functions of that library: `*@libz`. Further calls add patterns.
    ///
    /// The branches are written before `main`, while the program has one thread, so this is for preloaded libraries.
    ///
    /// The first choice in a program's life is the only one. [`Tracer::entry_branches`] returns the result. On
    /// processors other than x86-64 and aarch64 there are no branches: see
    /// [`EntryBranches::refusal`](crate::EntryBranches::refusal).
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn entry_branches(mut self, pattern: impl Into<String>) -> Self {
        self.entry_branches.push(pattern.into());
        self
    }

    /// Sets how the tracer notices the end of a function chosen by [`entry_branches`](Self::entry_branches).
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn ends(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Excludes functions from [`entry_branches`](Self::entry_branches), by their symbols in the file, as `nm` prints
    /// them.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn entry_exceptions(mut self, symbols: impl IntoIterator<Item = String>) -> Self {
        self.entry_exceptions.extend(symbols);
        self
    }

    /// Sets whether functions with room for a branch at their beginning are recorded, in the program and its libraries.
    ///
    /// Compilers leave the room on x86-64 with `-fpatchable-function-entry` (GCC, clang), `-Z patchable-function-entry`
    /// (rustc) and `-mfentry -mrecord-mcount -mnop-mcount` (GCC).
    ///
    /// Functions with XRay's sleds (`-fxray-instrument` of clang, `-Z instrument-xray` of rustc) get a branch at their
    /// beginning and at each end. On aarch64 only `-fpatchable-function-entry` and `-Z patchable-function-entry` count;
    /// one NOP is enough.
    ///
    /// The environment variable `RFTRACE_PATCHABLE`, 1 or 0, overrides this.
    ///
    /// As for [`entry_branches`](Self::entry_branches), the first choice in a program's life is the only one. On
    /// aarch64 the choice may come at any time.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn patchable_entries(mut self, patchable_entries: bool) -> Self {
        self.patchable_entries = patchable_entries;
        self
    }

    /// Leaves the writing of branches to an outside process, during a stop of all threads of this running program.
    /// `prepared_branches` returns the branches. Each choice replaces the one before.
    #[doc(hidden)]
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn branches_from_outside(mut self) -> Self {
        self.entry_way = EntryWay::Outside;
        self
    }

    /// Sets whether calls of library functions (`malloc`, `write`) through the program's global offset table are
    /// recorded.
    ///
    /// A function is left out if the program uses its address for more than calls, if it returns twice, or if it asks
    /// for its caller.
    ///
    /// As for [`entry_branches`](Self::entry_branches), the first choice in a program's life is the only one. On
    /// processors other than x86-64 and aarch64 no calls are recorded: see
    /// [`EntryBranches::refusal`](crate::EntryBranches::refusal).
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn library_calls(mut self, library_calls: bool) -> Self {
        self.library_calls = library_calls;
        self
    }

    /// Sets whether the system backs the whole buffer with memory at once, so that recording never waits for a page.
    ///
    /// On by default, for buffers of less than half of the free memory. Without it the buffer takes only the memory in
    /// use.
    #[must_use]
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Writes records to the disk while the program runs. The length of the trace is limited by the disk, not by the
    /// buffer.
    ///
    /// A thread, `rftrace-writer`, takes records out of the buffer and writes them, packed, to the folder `.recording`
    /// in the [directory](Self::directory). [`Tracer::save`] makes the trace of them. `install` removes an older trace
    /// in the directory at once.
    ///
    /// - [`capacity_bytes`](Self::capacity_bytes) sets the size of the buffer, which is used again and again: 64 MiB
    ///   suit any program. [`mode`](Self::mode) has no effect.
    /// - A save ends the stream. Install another buffer to record again. A [snapshot](crate::SaveOptions::keep) does
    ///   not end it.
    /// - If the program is killed, `rftrace report` shows the records on the disk, and `rftrace recover` makes a trace
    ///   of them. Records of the last fifth of a second may be missing, and records in partly filled chunks.
    /// - A forked child records nothing.
    /// - When the disk is full the program goes on; [`Saved::left_out`](crate::Saved::left_out) describes the missing
    ///   part.
    ///
    /// The environment variable `RFTRACE_STREAM=DIR` or `RFTRACE_STREAM=DIR,64M` does the same for an unchanged
    /// program, with this directory and this size of the buffer.
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

    /// Sets whether `rftrace ctl` can control this running program: choose functions, start and stop recording, save
    /// dumps. On Linux, with the feature `control`. The environment variable `RFTRACE_CONTROL`, 1 or 0, overrides this.
    ///
    /// A thread, `rftrace-control`, listens at the socket `PID.sock` in `$XDG_RUNTIME_DIR/rftrace` or
    /// `/tmp/rftrace-UID`, for this user and root. Each client has a thread while it is connected. These threads block
    /// all signals, and none of their calls is recorded.
    ///
    /// The listener ends, and its socket disappears, when a [stream](Self::stream) is saved, when a buffer without
    /// control replaces this one, and when the program exits. A forked child has no listener.
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

    /// Sets that a recorder has the program record: it tells of losses, and has options of its own against them. For libraries preloaded
    /// into other programs.
    #[doc(hidden)]
    #[must_use]
    pub fn recorded(mut self, is_recorded: bool) -> Self {
        self.is_recorded = is_recorded;
        self
    }

    /// Records into the bank of a recorder. The recorder empties the bank and sets its size. Capacity and mode have no
    /// effect, and this program saves nothing. Once in the life of a program. For libraries preloaded into other
    /// programs.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    #[must_use]
    pub fn bank(mut self, bank: &'static Bank) -> Self {
        self.bank = Some(bank);
        self
    }

    /// Gives the buffer to the tracer in this program. Recording is off at first.
    ///
    /// On Linux a program may install another buffer while recording is off and all events are saved, with another size
    /// and mode. The [`Tracer`] of the old buffer answers with [`Error::Replaced`].
    ///
    /// The old buffer's memory goes back to the system. Its addresses stay reserved, as a thread may still be in a hook
    /// that writes there.
    ///
    /// # Errors
    ///
    /// - [`Error::ShadowStack`] if the calling thread has a shadow stack.
    /// - [`Error::Recording`] while recording is on, [`Error::Busy`] if a thread is stopped inside a hook,
    ///   [`Error::AlreadyInitialized`] for a second buffer on systems other than Linux.
    /// - [`Error::Unsaved`] for [unsaved events](Self::discard_unsaved).
    /// - [`Error::BufferTooSmall`], [`Error::BufferTooLarge`] and [`Error::OutOfMemory`] for the capacity.
    /// - [`Error::BadFilter`] and [`Error::NothingMatches`] for the filter, [`Error::BadVariable`] for an environment
    ///   variable.
    /// - [`Error::NoStream`], and [`Error::Write`] for its folder, if the [stream](Self::stream) cannot begin.
    /// - [`Error::CannotPatch`] if [`patched`](Self::patched) is set and no site could be patched; not if only
    ///   `RFTRACE_PATCHED` asked for it.
    /// - [`Error::NoControl`] if the socket for `rftrace ctl` cannot be created.
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
        #[cfg(target_os = "linux")]
        let is_for_recorder = self.bank.is_some();
        #[cfg(target_os = "linux")]
        if let Some(before) = Tracer::get().filter(|_| !self.discard_unsaved && !is_for_recorder) {
            let events = before.unsaved(&alone);
            if events > 0 {
                return Err(Error::Unsaved { events });
            }
        }
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
        let given = self.bank.map(client::begin).transpose()?;
        let (given, bank, buffer_bytes) = match &given {
            Some(given) => (Some(given.buffer), given.bank, given.bytes),
            None => (None, ptr::null(), buffer_bytes),
        };
        let memory = host::reserve(buffer_bytes, given, self.prefault, is_first)?;
        #[cfg(target_os = "linux")]
        child::register_handlers();
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
        #[cfg(target_os = "linux")]
        let at_exit = (self.save_at_exit && !is_for_recorder).then(|| AtExit::new(&self.directory));
        let tracer = Box::leak(Box::new(Tracer {
            directory: self.directory,
            first: ClockPair::now(),
            utc_offset_nanos: clock::utc_offset_nanos(),
            program,
            is_recorded: self.is_recorded,
            #[cfg(target_os = "linux")]
            stream,
            #[cfg(target_os = "linux")]
            at_exit,
            saved_until: AtomicU64::new(0),
        }));
        // An earlier switch-on did nothing.
        switch::disable_tracer();
        if let Some(bank) = self.bank {
            client::opened(bank, tracer.first);
        }
        CURRENT.store(ptr::from_mut(tracer), Release);
        #[cfg(all(feature = "control", target_os = "linux"))]
        control.keep();
        Ok(tracer)
    }

    /// Reads the environment's setting of streams, except with a recorder's bank.
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

    /// Returns the filter at the beginning.
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

/// Hands memory to the tracer as soon as no thread is taking a chunk. Returns an [`init`] status.
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

/// Reads an environment variable with the value 1 or 0.
fn switch_of_variable(name: &'static str) -> Result<Option<bool>, Error> {
    let Some(value) = host::variable(name) else { return Ok(None) };
    match value.to_str() {
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        _ => Err(Error::BadVariable { name, value: value.to_string_lossy().into_owned() }),
    }
}

/// Returns the text of [`FILTER_VARIABLE`].
fn from_variable() -> Option<String> {
    let text = host::variable(FILTER_VARIABLE)?;
    Some(text.to_string_lossy().into_owned()).filter(|text| !text.trim().is_empty())
}

/// Returns the error of a rule, with the name of its variable.
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
