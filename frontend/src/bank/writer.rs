//! A bank of this program's own, and a thread that empties it: only the disk limits the trace.
//!
//! The thread `rftrace-writer` does the work of a recorder in another process, with all signals blocked, and none of
//! its calls is recorded. Its files lie where `rftrace record` puts its own, so the tools show them meanwhile, and
//! recover them if the program does not save.
//!
//! Not here: the emptying of a bank (`collect`), and the program's description in it (`client`).

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rftrace_format::recording::{Entry, FOLDER};
use rftrace_format::store::{self, Owned};

use super::client::Bank;
use super::collect::{Banks, Options};
use super::collected::{Collected, Dump, Life};
use super::pace::SHORTEST_PAUSE;
use super::save::{SavedBank, Symbols, Writing};
use crate::backend;
use crate::error::{Error, NoEventsCause};
use crate::uftrace::directory;

/// Options for writing records while the program runs.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Bytes of the bank.
    pub(crate) buffer_bytes: usize,
    /// The maximum number of bytes of written records, in their size in memory.
    pub(crate) most_bytes: u64,
    /// The maximum wait of a thread for an inactive writer.
    pub(crate) patience: Duration,
}

/// The stream of this program.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Its process.
    pid: u32,
    bank: &'static Bank,
    work: PathBuf,
    written: Arc<Progress>,
    state: Mutex<State>,
}

/// Amount written so far.
#[derive(Debug, Default)]
struct Progress {
    n_records: AtomicU64,
    n_bytes: AtomicU64,
}

#[derive(Debug)]
enum State {
    Running(Writer),
    /// It has ended; its records are in no trace yet.
    Over(Box<Option<Collected>>),
    Saved,
}

/// The thread.
#[derive(Debug)]
struct Writer {
    /// Dropped when it is to end.
    orders: Sender<()>,
    snapshots: Receiver<Collected>,
    thread: JoinHandle<Vec<Collected>>,
}

impl Stream {
    /// Makes the bank, a folder in `directory` for the records, and the thread. The thread waits until the tracer takes
    /// the bank.
    pub(crate) fn begin(directory: &Path, wanted: &Wanted) -> Result<Self, Error> {
        // The program may change its working directory.
        let work = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()).join(FOLDER);
        // Not longer than that: forked children would own it, too. From then on the folder names the recording process.
        let owned = directory::prepare(directory)?;
        prepare(&work)?;
        drop(owned);
        let no_memory = |source| Error::OutOfMemory { bytes: wanted.buffer_bytes, source };
        let file = memory().map_err(no_memory)?;
        let options = Options {
            buffer_bytes: wanted.buffer_bytes,
            n_slots: 1,
            patience: wanted.patience,
            most_bytes: wanted.most_bytes,
            is_ring: false,
            dumped_bytes: 0,
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let banks = file.try_clone().and_then(|file| Banks::new(file, &work, options)).map_err(no_memory)?;
        let bank = Bank::open_alone(&path).map_err(no_memory)?;
        let written = Arc::<Progress>::default();
        let (orders, waiting) = mpsc::channel();
        let (to, snapshots) = mpsc::channel();
        let (begun, has_begun) = mpsc::sync_channel(0);
        let told = Arc::clone(&written);
        let run = move || {
            backend::unrecorded(|| {
                // Nothing is recorded before.
                let _ = begun.send(());
                empty(banks, &waiting, &to, &told)
            })
        };
        let thread = without_signals(|| thread::Builder::new().name("rftrace-writer".to_owned()).spawn(run));
        let thread = thread
            .map_err(|error| Error::NoStream { problem: format!("cannot start the thread for the stream: {error}") })?;
        let _ = has_begun.recv();
        let state = Mutex::new(State::Running(Writer { orders, snapshots, thread }));
        Ok(Self { pid: std::process::id(), bank, work, written, state })
    }

    pub(crate) fn bank(&self) -> &'static Bank {
        self.bank
    }

    /// Returns the number of calls and returns on the disk, or soon there.
    pub(crate) fn n_written(&self) -> u64 {
        self.written.n_records.load(Relaxed)
    }

    /// Returns their bytes on the disk.
    #[cfg(feature = "control")]
    pub(crate) fn n_bytes(&self) -> u64 {
        self.written.n_bytes.load(Relaxed)
    }

    /// Makes a directory of the records until now, with the reason in it, if there is one.
    pub(crate) fn snapshot(
        &self,
        directory: &Path,
        writing: Writing<'_>,
        dump: Option<Dump>,
    ) -> Result<(SavedBank, u64), Error> {
        /// The maximum time for a copy of the records that are not on the disk yet.
        const PATIENCE: Duration = Duration::from_secs(5);

        self.check_process()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Running(writer) = &*state else { return Err(saved_before()) };
        // Of one that came too late.
        writer.snapshots.try_iter().for_each(|late| drop(late.discard()));
        self.bank.snapshot();
        let collected = writer.snapshots.recv_timeout(PATIENCE);
        let collected = collected.map_err(|_| Error::NoStream {
            problem: "cannot make a dump: the disk is full, or the stream has reached its size limit".to_owned(),
        })?;
        let collected = Collected { dump, ..collected };
        let saved = collected.write_as(directory, &mut Symbols::default(), writing);
        let n_dropped = collected.n_dropped;
        let _ = collected.discard();
        saved.map(|saved| (saved, n_dropped))
    }

    /// Ends the stream, if it has not ended yet, and makes a directory of it. Recording is off, and nobody takes a
    /// chunk. Returns also the number of lost calls and returns, and the reason.
    pub(crate) fn save(
        &self,
        directory: &Path,
        writing: Writing<'_>,
    ) -> Result<(SavedBank, u64, Option<String>), Error> {
        self.check_process()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Running(_))
            && let State::Running(writer) = std::mem::replace(&mut *state, State::Saved)
        {
            self.bank.end(None);
            drop(writer.orders);
            let mut collected = writer.thread.join().unwrap_or_default();
            // Where it cannot be hidden it is nobody's, and stays.
            let _ = self.bank.leave();
            *state = State::Over(Box::new(collected.pop()));
        }
        let State::Over(collected) = &*state else { return Err(saved_before()) };
        let Some(collected) = &**collected else { return Err(Error::NoEvents { cause: NoEventsCause::Unknown }) };
        let saved = collected.write_as(directory, &mut Symbols::default(), writing).map_err(|error| match error {
            Error::NoEvents { .. } => why_not_all(collected).map_or(error, |problem| Error::NoStream { problem }),
            error => error,
        })?;
        let found = (saved, collected.n_dropped, why_not_all(collected));
        *state = State::Saved;
        let _ = fs::remove_dir_all(&self.work);
        Ok(found)
    }

    /// Returns true in its own process.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Refuses a forked child, which records nothing.
    fn check_process(&self) -> Result<(), Error> {
        if self.is_own() {
            return Ok(());
        }
        let problem =
            "a forked process has no stream, so its calls are not in a trace; start a program of its own to record them".to_owned();
        Err(Error::NoStream { problem })
    }
}

fn saved_before() -> Error {
    let problem = "the first save has ended the stream; give the tracer another buffer (install) to record again";
    Error::NoStream { problem: problem.to_owned() }
}

/// Returns the reason for missing calls, if any are missing.
fn why_not_all(collected: &Collected) -> Option<String> {
    let why = match &collected.failed {
        Some(error) => format!("cannot write {}: {error}", collected.shown_spool().display()),
        None if collected.is_too_large => "the stream has reached its size limit".to_owned(),
        None if collected.n_dropped > 0 => "the buffer was full; give the tracer a larger one".to_owned(),
        None if collected.n_untold > 0 => {
            return Some(format!(
                "the trace lacks {} marks and unloaded libraries: they came too fast",
                collected.n_untold
            ));
        }
        None => return None,
    };
    // Those of a chunk that could not be written are not counted.
    let number = if collected.n_dropped == 0 { String::new() } else { format!("{} ", collected.n_dropped) };
    Some(format!("the trace lacks {number}calls and returns: {why}"))
}

/// Empties the bank until the end of orders, then takes the rest.
fn empty(mut banks: Banks, orders: &Receiver<()>, to: &Sender<Collected>, progress: &Progress) -> Vec<Collected> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let fill = banks.poll(|_| Life::Running);
        let written = banks.written();
        progress.n_records.store(written.n_records, Relaxed);
        progress.n_bytes.store(written.n_bytes, Relaxed);
        for snapshot in banks.snapshots() {
            let _ = to.send(snapshot);
        }
        pause = fill.next_pause(pause);
        if orders.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return banks.finish_all(|_| Life::Running);
        }
    }
}

/// Makes the folder anew, and names the recording process there.
fn prepare(work: &Path) -> Result<(), Error> {
    let failed = |source| Error::Write { path: work.to_owned(), source };
    match fs::remove_dir_all(work) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let owned = Owned::within(work).map_err(failed)?;
    let pid = std::process::id();
    let started = store::start_time(pid).unwrap_or_default();
    owned.create(Entry::Recorder { pid, started: &started }.to_string()).map(drop).map_err(failed)
}

/// Returns empty memory for several mappings.
fn memory() -> io::Result<File> {
    // SAFETY: the name is terminated; a new descriptor is returned, or -1.
    let number = unsafe { libc::memfd_create(c"rftrace-bank".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just made, and is nobody else's.
    Ok(unsafe { File::from_raw_fd(number) })
}

/// Starts a thread with all signals blocked.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are written before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: what the first call has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}
