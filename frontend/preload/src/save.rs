//! Writing what was recorded.
//!
//! Each save makes a trace directory of its own, `part-<pid>-<nanoseconds>`, with a file `part.txt` that is written last.
//! `rftrace record` makes one directory of all.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use rftrace_frontend::{Error, Saved, Tracer};

use crate::process;
use crate::settings::Settings;

/// A recording.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) settings: Settings,
    pub(crate) tracer: &'static Tracer,
}

/// The one of this process, once it has begun.
pub(crate) static RECORDING: OnceLock<Recording> = OnceLock::new();

/// The thread that saves; 0 for none.
static SAVING: AtomicU32 = AtomicU32::new(0);

/// When a save comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The program ends by itself.
    Exit,
    /// The program is about to be killed.
    Killed,
    /// Another program takes its place, if it can.
    Exec,
}

/// Saves what was recorded since the last save. Recording is off then.
pub(crate) fn save(moment: Moment) {
    let Some(recording) = RECORDING.get() else { return };
    if !process::is_owner() {
        return;
    }
    alone(|| {
        let name = format!("part-{}-{}", std::process::id(), process::monotonic_nanos());
        let part = recording.settings.folder.join(name);
        let result = if moment == Moment::Exit && may_start_threads() {
            recording.tracer.save_to(&part)
        } else {
            recording.tracer.save_alone(&part)
        };
        describe(&part, &result);
    });
}

/// Writes what the buffer holds into a directory of its own; recording goes on.
pub(crate) fn snapshot() {
    let Some(recording) = RECORDING.get().filter(|_| process::is_owner()) else { return };
    alone(|| {
        let name = format!("snapshot-{}-{}", std::process::id(), process::monotonic_nanos());
        let directory = recording.settings.folder.join(name);
        let result = recording.tracer.snapshot(&directory);
        describe(&directory, &result);
    });
}

/// Runs `work` unless this thread is saving already: then it was interrupted by its own fault. Waits for other threads.
fn alone(work: impl FnOnce()) {
    /// Longer than any save takes that is going on.
    const LIMIT: Duration = Duration::from_secs(60);

    // SAFETY: the call takes nothing.
    let me = unsafe { libc::gettid() }.cast_unsigned();
    let deadline = Instant::now() + LIMIT;
    while let Err(other) = SAVING.compare_exchange(0, me, Acquire, Relaxed) {
        if other == me || Instant::now() > deadline {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    with_signals_blocked(work);
    SAVING.store(0, Release);
}

/// The child of a fork has only one thread, which does not save.
pub(crate) fn forked() {
    SAVING.store(0, Release);
}

/// Writes `part.txt`. If that cannot be done nobody can be told.
fn describe(part: &Path, result: &Result<Saved, Error>) {
    let mut text = format!("pid={}\nprogram={}\n", std::process::id(), process::program_nanos());
    // Writing to a String does not fail.
    if let Some(fork) = process::fork() {
        let _ = writeln!(text, "ppid={}\nforked_nanos={}", fork.parent, fork.nanos);
    }
    let _ = match result {
        Ok(saved) => writeln!(
            text,
            "events={}\nthreads={}\nlost={}\nfull={}\nchunks_overwritten={}\nuntraced_threads={}",
            saved.events,
            saved.threads,
            saved.lost,
            u8::from(saved.full),
            saved.chunks_overwritten,
            saved.untraced_threads
        ),
        Err(Error::NoEvents { .. }) => writeln!(text, "events=0"),
        Err(error) => writeln!(text, "error={}", error.to_string().replace('\n', " ")),
    };
    let _ = fs::create_dir_all(part);
    let _ = fs::write(part.join("part.txt"), text);
}

/// Whether a save may start threads. Not in a sandbox, which may kill for it, and not when the main thread has ended: the end
/// of a thread that is the last one for the C library ends the process.
fn may_start_threads() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is = |key: &str, value: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(key));
        found.is_some_and(|found| found.trim().starts_with(value))
    };
    is("Seccomp:", "0") && !is("State:", "Z")
}

/// Runs `work` while no signal handler runs on this thread.
pub(crate) fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are writable; the second is filled by the call that is given it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: the set is what was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}
