//! The API of tracing.
//!
//! - `config`: the buffer; `switch`: recording on and off, and the guard; `stream`: a recorder in the program.
//! - `save`: writing a trace; `dump`: the same during the recording; `at_exit`: at the end of programs without a save.
//! - `control`: the listener of `rftrace ctl`; `commands`: its commands; `marks`: events of the program; `cost`: the
//!   time of a hook.
//!
//! Not here: the functions of 0.3 (`compat`), and the files (`decode`, `uftrace`).

use std::cell::Cell;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::EntryBranches;
use crate::Error;
use crate::PatchedSites;
use crate::backend;
use crate::clock::ClockPair;
use crate::decode::{self, Task};
use crate::filter::control::Choice;
use crate::filter::{Filter, Function, Selected};
#[cfg(target_os = "linux")]
use crate::host::linux::chosen::{self, Threads};
use crate::host::program::Program;
use crate::host::{self, AtWork, Known};
use crate::patch;

#[cfg(target_os = "linux")]
mod at_exit;
mod commands;
mod config;
#[cfg(all(feature = "control", target_os = "linux"))]
mod control;
mod cost;
mod dump;
mod marks;
mod save;
#[cfg(target_os = "linux")]
mod stream;
pub(crate) mod switch;

pub use config::Config;
pub use marks::mark;
pub use save::{SaveOptions, Saved};
#[cfg(target_os = "linux")]
pub use stream::StreamOptions;
pub use switch::Recorder;

/// The tracer of the buffer in use; null for none.
static CURRENT: AtomicPtr<Tracer> = AtomicPtr::new(ptr::null_mut());

/// The state shared by all buffers of this program.
static PROGRAM: OnceLock<Traced> = OnceLock::new();

/// Exclusive use of the buffer: nobody else reads or replaces it, or forks, while this lives.
#[derive(Debug)]
#[must_use = "others may go on when this is dropped"]
struct Alone {
    _using: MutexGuard<'static, ()>,
    // Dropped last: a forking thread finds the lock free.
    _at_work: AtWork,
}

thread_local! {
    /// True in the thread with [`Alone`].
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}

/// Waits for exclusive use.
fn alone() -> Alone {
    static USING: Mutex<()> = Mutex::new(());
    let _at_work = host::at_work();
    let _using = USING.lock().unwrap_or_else(PoisonError::into_inner);
    IS_ALONE.set(true);
    Alone { _using, _at_work }
}

/// The traced program.
#[derive(Debug)]
struct Traced {
    known: Known,
    choice: Mutex<Choice>,
}

impl Traced {
    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the facts about the program, with this name on systems that do not report one.
    fn described(&self, binary_name: &str) -> Program {
        let program = host::program(&self.known, binary_name);
        #[cfg(target_os = "linux")]
        let program = program.with_hooked(patch::hooked_functions);
        program
    }
}

/// The tracer of this program with the buffer from [`Config::install`].
///
/// After another `install` on Linux, the old `Tracer` is inert: [`enable`](Self::enable) and [`disable`](Self::disable)
/// do nothing, [`statistics`](Self::statistics) returns zeros, and functions that return a `Result` fail with
/// [`Error::Replaced`].
#[derive(Debug)]
pub struct Tracer {
    directory: PathBuf,
    first: ClockPair,
    /// Unix time minus the clock of the pairs.
    utc_offset_nanos: Option<i64>,
    program: &'static Traced,
    /// True if a recorder has the program record.
    is_recorded: bool,
    /// The writer of the stream, if records go to the disk.
    #[cfg(target_os = "linux")]
    stream: Option<crate::bank::writer::Stream>,
    #[cfg(target_os = "linux")]
    at_exit: Option<AtExit>,
    /// Records before this moment are in a trace, even if the buffer still has them.
    saved_until: AtomicU64,
}

/// The save of a buffer at exit.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct AtExit {
    /// The installing process: a fork has no directory of its own.
    pid: u32,
    /// Absolute: the program may change its working directory.
    directory: PathBuf,
    /// The program began without a filter of system calls.
    was_free: bool,
}

/// The state of the buffer, for [`Tracer::statistics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// True while recording is on.
    pub recording: bool,
    /// The number of entries and exits in the buffer since the last save; in a [stream](Config::stream), the number
    /// written to the disk.
    pub events: u64,
    /// The number of threads with events in the buffer; in a stream, the number of all traced threads.
    pub threads: usize,
    /// The number of chunks in the buffer.
    pub chunks: usize,
    /// The number of chunks with events; 0 in a stream.
    pub chunks_used: usize,
    /// True in stop mode if recording stopped because the buffer is used up.
    pub full: bool,
    /// In ring mode, the number of chunks overwritten since the last save.
    pub chunks_overwritten: u64,
    /// The number of unrecorded calls since the last save: nested too deeply, or, in ring mode, made while threads were
    /// using every chunk. In a stream, the number of calls and returns without room in the buffer.
    pub lost: u64,
    /// The number of untraced threads since the program began, such as those beyond 8192 at the same time.
    pub untraced_threads: u32,
}

impl Tracer {
    /// Returns the tracer of the last [`Config::install`], or `None` if there was none.
    #[must_use]
    pub fn get() -> Option<&'static Self> {
        // SAFETY: null, or a tracer that is never freed.
        unsafe { CURRENT.load(Acquire).as_ref() }
    }

    /// Returns true if its buffer is the one in use. Recording may be on: nothing of this is recorded.
    #[inline(always)]
    fn is_current(&self) -> bool {
        backend::unrecorded(|| ptr::eq(CURRENT.load(Acquire), self))
    }

    /// Starts recording, on all threads. It does nothing when the buffer is used up.
    #[inline(always)]
    pub fn enable(&self) {
        if self.is_current() {
            switch::enable();
        }
    }

    /// Stops recording, on all threads. In the trace, open functions end at this moment.
    #[inline(always)]
    pub fn disable(&self) {
        if self.is_current() {
            switch::disable();
        }
    }

    /// Returns true while recording is on.
    #[inline(always)]
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.is_current() && backend::is_enabled()
    }

    /// Records until the returned guard is dropped.
    ///
    /// Guards may be nested and live on several threads. The last one stops recording, unless [`enable`](Self::enable)
    /// started it. [`disable`](Self::disable) and a save stop it at once.
    ///
    /// Keep the guard in a variable: `let _ = tracer.record();` drops it at once, and records nothing.
    #[inline(always)]
    #[must_use = "recording ends when the guard is dropped: keep it, `let _recording = tracer.record();`"]
    pub fn record(&self) -> Recorder {
        Recorder::new(self.is_current())
    }

    /// Replaces the filter, also while recording is on. From now on only calls that pass `filter` are recorded.
    ///
    /// The filter applies to a call at its beginning, so an open function stays in the trace.
    ///
    /// Functions of libraries loaded later are recorded unless the filter includes only some functions; set the filter
    /// again to choose among them. [Patched](Config::patched) call sites of excluded functions stay NOPs.
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
    /// [`Error::BadFilter`], [`Error::NothingMatches`] or [`Error::Replaced`]. The previous filter stays in force.
    #[inline(always)]
    pub fn set_filter(&self, filter: &Filter) -> Result<Selected, Error> {
        backend::unrecorded(|| {
            let _at_work = host::at_work();
            let mut choice = self.program.choice();
            if !self.is_current() {
                return Err(Error::Replaced);
            }
            choice.set(filter, &self.program.known)
        })
    }

    /// Returns, for each of the [optional rules](Filter::optional_rules) of the filter in force, whether it matches
    /// anything. For the preloaded library of a recorder.
    #[doc(hidden)]
    pub fn rules_in_effect(&self) -> Vec<bool> {
        backend::unrecorded(|| self.program.choice().in_effect())
    }

    /// Applies the filter in force to the modules loaded now. For the preloaded library of a recorder.
    #[doc(hidden)]
    pub fn refresh_filter(&self) {
        backend::unrecorded(|| {
            let _at_work = host::at_work();
            let mut choice = self.program.choice();
            if self.is_current() {
                choice.refresh(&self.program.known);
            }
        });
    }

    /// Returns true if a filter is in force. For the preloaded library of a recorder.
    #[doc(hidden)]
    pub fn is_filtered(&self) -> bool {
        backend::unrecorded(|| self.program.choice().is_filtered())
    }

    /// Removes the filter: from now on every call is recorded.
    ///
    /// Like [`set_filter`](Self::set_filter), this changes code if call sites are patched.
    #[inline(always)]
    pub fn clear_filter(&self) {
        backend::unrecorded(|| {
            let _at_work = host::at_work();
            let mut choice = self.program.choice();
            if self.is_current() {
                choice.clear();
            }
        });
    }

    /// Returns the functions that can be recorded, by address: those of the program and its libraries that call a hook.
    /// The list is empty on systems without this information (Hermit).
    #[inline(always)]
    #[must_use]
    pub fn functions(&self) -> Vec<Function> {
        backend::unrecorded(|| {
            let _at_work = host::at_work();
            self.program.choice().functions(&self.program.known)
        })
    }

    /// Chooses the recorded threads by their system ids (`gettid`). The choice holds for running threads, later threads
    /// and forked ones.
    ///
    /// Open functions of an excluded thread stay open in the trace until the thread is included again or recording
    /// ends. Neither their returns nor their calls are recorded.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyThreads`] if a list names more than [`Threads::MOST`]. The previous choice stays in force.
    #[cfg(target_os = "linux")]
    #[inline(always)]
    pub fn set_threads(&self, threads: &Threads) -> Result<(), Error> {
        backend::unrecorded(|| {
            let _at_work = host::at_work();
            let n_threads = threads.only.len().max(threads.not.len());
            if n_threads > Threads::MOST {
                return Err(Error::TooManyThreads { n_threads });
            }
            chosen::choose(threads);
            Ok(())
        })
    }

    /// Returns the present choice of threads.
    #[cfg(target_os = "linux")]
    #[inline(always)]
    #[must_use]
    pub fn threads(&self) -> Threads {
        backend::unrecorded(chosen::chosen)
    }

    /// Gives up the calling thread's work in this tracer, because the thread has left the stack of that work for ever.
    /// Forks no longer wait for it; a further save would wait for ever. For libraries preloaded into other programs.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn abandon() {
        host::linux::abandon();
        patch::abandon();
    }

    /// Returns the state of the buffer. While recording is on, the numbers change as you read them.
    #[inline(always)]
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        backend::unrecorded(|| {
            if !self.is_current() {
                return Statistics::default();
            }
            #[cfg(target_os = "linux")]
            if let Some(stream) = &self.stream {
                return stream_statistics(stream);
            }
            statistics()
        })
    }

    /// Returns the result of patching call sites ([`Config::patched`]). All counts are 0 without patching.
    #[inline(always)]
    #[must_use]
    pub fn patched_sites(&self) -> PatchedSites {
        backend::unrecorded(patch::counts)
    }

    /// Returns the result of [`Config::entry_branches`] and [`Config::library_calls`].
    #[cfg(target_os = "linux")]
    #[inline(always)]
    #[must_use]
    pub fn entry_branches(&self) -> EntryBranches {
        backend::unrecorded(patch::entries)
    }

    /// Patches all call sites that can be patched: of libraries opened since recording last started, and, after
    /// [`unpatch`](Self::unpatch), of all modules. Returns the result.
    #[inline(always)]
    pub fn patch(&self) -> PatchedSites {
        backend::unrecorded(patch::install)
    }

    /// Restores all patched call sites. They stay as compiled until [`patch`](Self::patch), and their calls are still
    /// recorded.
    #[inline(always)]
    pub fn unpatch(&self) {
        backend::unrecorded(patch::undo);
    }
}

/// Waits until no thread is taking a chunk. Recording must be off. Returns true on success.
fn quiesce() -> bool {
    /// Threads need microseconds for it, unless they are stopped.
    const LIMIT: Duration = Duration::from_secs(1);

    let deadline = Instant::now() + LIMIT;
    backend::quiesce(|| {
        thread::yield_now();
        Instant::now() < deadline
    })
}

/// The tasks of this program.
fn tasks() -> Vec<Task<'static>> {
    // First of all: recording is off, but the threads go on, and what returns is not known any more.
    let open = backend::open_by_thread();
    decode::tasks(backend::chunks(), open)
}

/// Counts the records of a stream, not those of the buffer, as its writer empties it.
#[cfg(target_os = "linux")]
fn stream_statistics(stream: &crate::bank::writer::Stream) -> Statistics {
    let control = backend::control();
    // SAFETY: null, or what the tracer was given, which stays mapped.
    let bank = unsafe { control.bank.load(Acquire).as_ref() };
    Statistics {
        recording: backend::is_enabled(),
        events: stream.n_written(),
        threads: control.next_tid.load(Relaxed).saturating_sub(1) as usize,
        chunks: control.n_chunks.load(Relaxed),
        lost: bank.map_or(0, |bank| bank.n_lost.load(Relaxed)),
        untraced_threads: control.n_untraced_threads.load(Relaxed),
        ..Statistics::default()
    }
}

/// Counts the records in the buffer.
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
