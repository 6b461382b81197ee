//! Saving: the contents of the buffer become a directory, or a file of records.

use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::Ordering::Relaxed;
#[cfg(target_os = "linux")]
use std::sync::{Mutex, PoisonError};

use rftrace_format::gaps::Gaps;

#[cfg(target_os = "linux")]
use super::CURRENT;
use super::{Alone, Tracer, alone, marks, quiesce, switch, tasks};
use crate::backend;
#[cfg(target_os = "linux")]
use crate::bank::{
    save::{SavedBank, Writing},
    writer::Stream,
};
use crate::clock::{self, ClockPair};
use crate::decode::{Minima, Task};
use crate::error::{Error, NoEventsCause};
#[cfg(target_os = "linux")]
use crate::filter::own;
use crate::host;
use crate::uftrace::directory::{self, Recording, Totals};
use crate::uftrace::raw;

/// The options of a save, for [`Tracer::save_with`].
///
/// ```no_run
/// use rftrace_frontend::{Config, SaveOptions};
///
/// let tracer = Config::new().install()?;
/// tracer.enable();
/// // The program finds a problem: save the last events to a directory of their own, and go on recording.
/// let saved = tracer.save_with(&SaveOptions::new().directory("problem").keep(true))?;
/// println!("{} events are in {}", saved.events, saved.path.display());
/// # Ok::<(), rftrace_frontend::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "these are only options"]
pub struct SaveOptions<'a> {
    path: Option<&'a Path>,
    binary_name: Option<&'a str>,
    records_only: bool,
    keep: bool,
    single_threaded: bool,
    what_fits: bool,
}

impl<'a> SaveOptions<'a> {
    /// Saves to the [configured directory](crate::Config::directory), with several threads, completely or not at all.
    /// The save stops recording and empties the buffer.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            path: None,
            binary_name: None,
            records_only: false,
            keep: false,
            single_threaded: false,
            what_fits: false,
        }
    }

    /// Saves to this directory. Creates it if it is absent, and replaces an older trace in it.
    #[inline(always)]
    pub fn directory(self, directory: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { path: Some(backend::unrecorded(|| directory.as_ref())), records_only: false, ..self }
    }

    /// Saves only the records, to this file, in the format of [`dump_trace`](crate::dump_trace).
    #[inline(always)]
    pub fn records_only(self, file: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { path: Some(backend::unrecorded(|| file.as_ref())), records_only: true, ..self }
    }

    /// Sets the program's name in the trace, for systems that do not report its path (Hermit). The default is the name
    /// in the program's arguments.
    #[inline(always)]
    pub fn binary_name(self, binary_name: &'a str) -> Self {
        Self { binary_name: Some(binary_name), ..self }
    }

    /// Takes a snapshot: recording pauses during the save, then goes on, and the buffer keeps its records.
    ///
    /// In later traces, a function that returns during the pause ends at the beginning of the pause.
    #[inline(always)]
    pub fn keep(self, keep: bool) -> Self {
        Self { keep, ..self }
    }

    /// Saves on the calling thread alone: for a process shortly before a kill, or one that may not start threads.
    /// [Patched call sites](crate::Config::patched) stay switched on.
    ///
    /// A save allocates memory. A signal handler may save only if the interrupted code does not hold the allocator's
    /// lock.
    #[inline(always)]
    pub fn single_threaded(self, single_threaded: bool) -> Self {
        Self { single_threaded, ..self }
    }

    /// Leaves out unwritable parts of the trace; [`Saved::left_out`] gives the reason. This is for the last save of a
    /// program, before it ends or calls `exec`.
    ///
    /// A thread whose file does not fit ends early. A module may lack its names; `rftrace symbols` adds them. [Patched
    /// call sites](crate::Config::patched) stay switched on. [Records](Self::records_only) are written completely or
    /// not at all.
    #[inline(always)]
    pub fn what_fits(self, what_fits: bool) -> Self {
        Self { what_fits, ..self }
    }
}

/// The result of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The path of the directory, or of the file of records.
    pub path: PathBuf,
    /// The number of entries and exits in the trace.
    pub events: u64,
    /// The number of threads with events.
    pub threads: usize,
    /// The number of calls beyond the deepest recorded level of 1023. The trace shows their places.
    pub lost: u64,
    /// True if the processor's time stamp counter runs at a constant rate. With false or `None` (unknown), times are
    /// not exact.
    pub invariant_tsc: Option<bool>,
    /// True in stop mode if the buffer was used up, so that recording stopped early.
    pub full: bool,
    /// In ring mode, the number of chunks of the buffer whose events were overwritten.
    pub chunks_overwritten: u64,
    /// The number of untraced threads since the program began, such as those beyond 8192 at the same time.
    pub untraced_threads: u32,
    /// In a [stream](crate::Config::stream), the number of calls and returns without room in the buffer.
    pub dropped: u64,
    /// The reason why a part is missing, and the remedy; for [`SaveOptions::what_fits`] and for streams. `None` for a
    /// complete trace.
    pub left_out: Option<String>,
}

impl Saved {
    /// Returns the reason why events are missing at the end, with the remedy; `None` if none are.
    pub fn loss(&self) -> Option<&str> {
        const FULL: &str = "the buffer was full, so later calls are lost; enlarge it (Config::capacity_events; C: max_event_count), keep \
                            the last calls (Mode::Ring; C: overwriting), or write to the disk (Config::stream; C: rftrace_init_stream)";

        self.left_out.as_deref().or(self.full.then_some(FULL))
    }
}

impl Tracer {
    /// Stops recording, writes the trace to the [configured directory](crate::Config::directory) and empties the
    /// buffer.
    ///
    /// # Errors
    ///
    /// The errors of [`save_with`](Self::save_with).
    #[inline(always)]
    pub fn save(&self) -> Result<Saved, Error> {
        self.save_with(&SaveOptions::new())
    }

    /// Writes the trace with these options.
    ///
    /// # Errors
    ///
    /// - [`Error::NoEvents`] if the buffer holds no events.
    /// - [`Error::Write`] if a file could not be written; with [`what_fits`](SaveOptions::what_fits), if not even the
    ///   beginning could be written. The buffer keeps the records.
    /// - [`Error::Replaced`] if a later [`Config::install`](crate::Config::install) gave the tracer another buffer.
    /// - [`Error::NoStream`] for [records only](SaveOptions::records_only) of a stream, or if the stream has ended.
    #[inline(always)]
    pub fn save_with(&self, options: &SaveOptions<'_>) -> Result<Saved, Error> {
        if options.keep {
            // First, for another snapshot may be at work, which has recording pause.
            let alone = backend::unrecorded(alone);
            let write = || self.write(&alone, options);
            let saved = if self.is_current() { switch::paused(write) } else { write() };
            backend::unrecorded(|| drop(alone));
            return saved;
        }
        if !options.single_threaded && !options.what_fits {
            self.disable();
        } else if self.is_current() {
            switch::disable_tracer();
        }
        self.write(&alone(), options)
    }

    /// Writes the contents of the buffer. Recording must be off.
    pub(super) fn write(&self, alone: &Alone, options: &SaveOptions<'_>) -> Result<Saved, Error> {
        #[cfg(target_os = "linux")]
        if let Some(stream) = &self.stream {
            return self.write_stream(stream, options);
        }
        if !self.is_current() {
            return Err(Error::Replaced);
        }
        quiesce();
        let control = backend::control();
        let start_tsc = control.cycle_start_tsc.load(Relaxed);
        let tasks = tasks();
        if start_tsc == 0 || !tasks.iter().any(|task| task.has_record_since(start_tsc)) {
            return Err(self.nothing());
        }
        let gaps = self.gaps();
        let path = options.path.unwrap_or(&self.directory);
        let totals = {
            let minima = &self.program.choice().minima();
            let recording = Recording {
                stop_tsc: control.stop_tsc.load(Relaxed),
                n_writers: if options.single_threaded { 1 } else { directory::most_writers() },
                what_fits: options.what_fits,
                gaps,
                marks: marks::all(alone),
                ..self.recording(&tasks, start_tsc, minima)
            };
            if options.records_only {
                raw::write(&recording, path)
            } else {
                let name = options.binary_name.map_or_else(program_name, str::to_owned);
                directory::write(&recording, path, &self.program.described(&name))
            }
        };
        // All records may be of this crate itself.
        let totals =
            totals.map_err(|error| if matches!(error, Error::NoEvents { .. }) { self.nothing() } else { error })?;
        self.note_saved(path);
        if !options.keep {
            backend::reset();
            self.program.choice().forget_past();
            marks::forget(alone);
        }
        Ok(saved(path, totals, gaps))
    }

    /// Notes that all records until now are in a trace. Recording is off or pauses.
    pub(super) fn note_saved(&self, path: &Path) {
        self.saved_until.store(ClockPair::now().tsc, Relaxed);
        #[cfg(target_os = "linux")]
        if path == self.directory {
            note_saved(path);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = path;
    }

    /// Returns the reason for an empty buffer: the most certain cause first.
    pub(super) fn nothing(&self) -> Error {
        let control = backend::control();
        let is_filtered = self.program.choice().is_filtered();
        let was_called = control.next_tid.load(Relaxed) > 1;
        let has_hooks = was_called || !self.functions().is_empty();
        let cause = match control.cycle_start_tsc.load(Relaxed) {
            _ if host::HAS_NAMES && !has_hooks => NoEventsCause::NoHooks,
            0 => NoEventsCause::NeverOn,
            _ if is_filtered => NoEventsCause::Filtered,
            _ if switch::guard_is_gone() => NoEventsCause::GuardGone,
            _ if has_hooks => NoEventsCause::NoCalls,
            _ => NoEventsCause::Unknown,
        };
        Error::NoEvents { cause }
    }

    /// Returns the records from a moment until now, for one thread to write.
    pub(super) fn recording<'a>(&self, tasks: &'a [Task<'a>], start_tsc: u64, minima: &'a Minima) -> Recording<'a> {
        let last = ClockPair::now();
        let rate = clock::exact_rate();
        Recording {
            tasks,
            start_tsc,
            stop_tsc: last.tsc,
            is_cut: false,
            marks: Vec::new(),
            clock: rate.map_or_else(|| self.first.clock_to(last), |(hz, _)| self.first.clock_at_rate(hz)),
            pairs: [self.first, last],
            unix_nanos: self.utc_offset_nanos.and_then(|offset| self.first.nanos.checked_add_signed(offset)),
            minima,
            tsc_hz_source: rate.map_or("measured", |(_, source)| source.name()).into(),
            gaps: self.gaps(),
            n_writers: 1,
            what_fits: false,
            done: None,
        }
    }
}

impl Tracer {
    /// Counts the gaps of the recording.
    fn gaps(&self) -> Gaps {
        let control = backend::control();
        Gaps {
            full: u64::from(control.full.load(Relaxed) != 0),
            overwritten: control.shared.n_overwritten.load(Relaxed),
            untraced_threads: control.n_untraced_threads.load(Relaxed).into(),
            library: !self.is_recorded,
            ..Gaps::default()
        }
    }
}

/// The unsaved events.
#[cfg(target_os = "linux")]
impl Tracer {
    /// Returns true if recording was on since the last save.
    pub(super) fn was_enabled(&self) -> bool {
        self.is_current() && backend::control().cycle_start_tsc.load(Relaxed) != 0
    }

    /// Counts the events in no trace yet, if the program has any. Recording must be off.
    pub(super) fn unsaved(&self, alone: &Alone) -> u64 {
        let n_unsaved = self.n_unsaved(alone);
        let is_shown = || {
            let hidden = own::functions(&self.program.described(&program_name()));
            let start_tsc = self.unsaved_since();
            tasks().iter().any(|task| task.has_visible_since(start_tsc, &|address| own::contains(&hidden, address)))
        };
        if n_unsaved > 0 && (self.stream.is_some() || is_shown()) { n_unsaved } else { 0 }
    }

    /// Returns the beginning of the unsaved events.
    fn unsaved_since(&self) -> u64 {
        backend::control().cycle_start_tsc.load(Relaxed).max(self.saved_until.load(Relaxed))
    }

    /// Counts the events in no trace yet, with this crate's own. Recording must be off.
    pub(super) fn n_unsaved(&self, _alone: &Alone) -> u64 {
        if !self.was_enabled() {
            return 0;
        }
        let start_tsc = self.unsaved_since();
        quiesce();
        let written = match &self.stream {
            Some(stream) if !stream.is_own() => return 0,
            Some(stream) => stream.n_written(),
            None => 0,
        };
        written + tasks().iter().map(|task| task.count_since(start_tsc).0).sum::<u64>()
    }
}

/// Saves of a stream, with its records on the disk.
#[cfg(target_os = "linux")]
impl Tracer {
    fn write_stream(&self, stream: &Stream, options: &SaveOptions<'_>) -> Result<Saved, Error> {
        if options.records_only {
            let problem = "cannot save a stream as records only; save it as a directory".to_owned();
            return Err(Error::NoStream { problem });
        }
        let minima = self.program.choice().minima();
        let n_writers = if options.single_threaded { 1 } else { directory::most_writers() };
        let writing = Writing { minima: Some(&minima), what_fits: options.what_fits, n_writers };
        let path = options.path.unwrap_or(&self.directory);
        let (saved, dropped, left_out) = if options.keep {
            let (saved, dropped) = stream.snapshot(path, writing, None)?;
            (saved, dropped, None)
        } else {
            quiesce();
            let result = stream.save(path, writing);
            // Whatever became of it nothing is recorded any more.
            let own = std::ptr::from_ref(self).cast_mut();
            if CURRENT.compare_exchange(own, std::ptr::null_mut(), AcqRel, Relaxed).is_ok() {
                #[cfg(feature = "control")]
                super::control::end();
            }
            result?
        };
        self.note_saved(path);
        Ok(saved_stream(path, saved, dropped, left_out))
    }
}

/// Returns the outcome of saving a stream.
#[cfg(target_os = "linux")]
pub(super) fn saved_stream(path: &Path, saved: SavedBank, dropped: u64, left_out: Option<String>) -> Saved {
    Saved {
        path: path.to_owned(),
        events: saved.events,
        threads: saved.threads,
        lost: saved.lost,
        invariant_tsc: Some(clock::tsc::is_invariant()),
        full: false,
        chunks_overwritten: 0,
        untraced_threads: saved.untraced_threads,
        dropped,
        left_out: saved.left_out.or(left_out),
    }
}

pub(super) fn saved(path: &Path, totals: Totals, gaps: Gaps) -> Saved {
    Saved {
        path: path.to_owned(),
        events: totals.n_events,
        threads: totals.n_threads,
        lost: totals.n_lost,
        invariant_tsc: totals.invariant_tsc,
        full: gaps.full > 0,
        chunks_overwritten: gaps.overwritten,
        untraced_threads: u32::try_from(gaps.untraced_threads).unwrap_or(u32::MAX),
        dropped: 0,
        left_out: totals.left_out.map(|error| error.with_remedy()),
    }
}

/// The configured directories with saves of the program's own: a save at exit leaves these alone.
#[cfg(target_os = "linux")]
static SAVED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Notes that the program has saved to `directory` itself.
#[cfg(target_os = "linux")]
fn note_saved(directory: &Path) {
    let directory = absolute(directory);
    let mut saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner);
    if !saved.contains(&directory) {
        saved.push(directory);
    }
}

/// Returns true if the program has saved to `directory` itself.
#[cfg(target_os = "linux")]
pub(super) fn has_saved_to(directory: &PathBuf) -> bool {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner).contains(directory)
}

#[cfg(target_os = "linux")]
pub(super) fn absolute(directory: &Path) -> PathBuf {
    std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned())
}

/// Returns the program's name, for systems that do not report its path.
pub(super) fn program_name() -> String {
    std::env::args_os()
        .next()
        .and_then(|path| Some(Path::new(&path).file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "program".to_owned())
}
