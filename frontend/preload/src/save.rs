//! Writing what was recorded.
//!
//! Each save makes a trace directory of its own, a part, with a file that is written last. `rftrace record` makes one directory of
//! all.

use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rftrace_format::record::RECORD_BYTES;
use rftrace_format::recording::{self, Counts, Entry, Part};
use rftrace_format::setting::Settings;
use rftrace_format::store::{self, Owned};
use rftrace_format::system;
use rftrace_frontend::bank::Bank;
use rftrace_frontend::{Error, SaveOptions, Saved, Tracer};

use crate::notes;
use crate::process;
use crate::quota;
use crate::work;

/// A recording.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) settings: Settings,
    pub(crate) tracer: &'static Tracer,
    /// Where what is recorded goes, if the recorder saves it.
    pub(crate) bank: Option<&'static Bank>,
    /// Where the recorder asks: that, or one for nothing else.
    pub(crate) asked: Option<&'static Bank>,
}

impl Recording {
    /// True if the recorder knows all that this process may still report: a filter of system calls may kill for more. It sees the end by itself.
    pub(crate) fn is_told(&self) -> bool {
        self.bank.is_some() && work::is_filtered()
    }
}

/// The one of this process, once it has begun.
pub(crate) static RECORDING: OnceLock<Recording> = OnceLock::new();

/// Bytes of an entry or exit in a trace.
const BYTES_OF_EVENT: u64 = RECORD_BYTES as u64;

const NOTHING_SAVED: &str = "nothing was saved";

/// When a save comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The program ends by itself, with this exit status if it is known.
    Exit(Option<c_int>),
    /// The program is about to be killed, by this signal.
    Killed(c_int),
    /// Another program takes its place, if it can.
    Exec,
}

/// Tells the recorder what it has to know, before this process makes a filter of system calls.
pub(crate) fn before_filter() {
    if let Some(bank) = RECORDING.get().and_then(|recording| recording.bank)
        && !work::is_filtered()
        && process::is_owner()
    {
        work::alone(|| bank.describe());
    }
    work::filter();
}

/// Saves what was recorded since the last save. Recording is off then, unless what is recorded goes to a bank and the program may go on.
pub(crate) fn save(moment: Moment) {
    let Some(recording) = RECORDING.get() else { return };
    // In this order: a thread that may make no system calls may not ask who it is.
    if work::is_confined() || recording.is_told() || !process::is_owner() {
        return;
    }
    if let Some(bank) = recording.bank.filter(|bank| !bank.is_abandoned()) {
        // After a failed exec the program goes on: no end is noted for it.
        work::alone(|| match moment {
            Moment::Exec => bank.describe(),
            Moment::Exit(status) => bank.end(status.map(|status| (status & 0xff) << 8)),
            Moment::Killed(signal) => bank.end(Some(signal)),
        });
        return;
    }
    let save = || {
        let name = Entry::Part { pid: std::process::id(), nanos: process::monotonic_nanos() };
        let part = recording.settings.folder.join(name.to_string());
        if notes::is_elsewhere() {
            // The folder's path would be made anew there.
            return notes::tell(&format!("{NOTHING_SAVED}: {}", notes::elsewhere(&recording.settings.folder)));
        }
        if quota::is_used_up(&recording.settings.folder, recording.settings.most_bytes) {
            return describe(&part, None);
        }
        let single_threaded = !matches!(moment, Moment::Exit(_)) || !may_start_threads();
        let options = SaveOptions::new().directory(&part).what_fits(true).single_threaded(single_threaded);
        let result = recording.tracer.save_with(&options);
        describe(&part, Some(&result));
    };
    // Limits are not raised before an exec: the process goes on with its own.
    if moment == Moment::Exec {
        work::alone(save);
    } else {
        with_highest_limits(|| _ = work::alone(save));
    }
}

/// Writes what the buffer holds into a directory of its own, or has the recorder do so; recording goes on.
pub(crate) fn snapshot() {
    let Some(recording) = RECORDING.get().filter(|_| process::is_owner()) else { return };
    if let Some(bank) = recording.bank {
        work::alone(|| bank.snapshot());
        return;
    }
    work::alone(|| _ = own_snapshot(recording));
}

/// Writes what the buffer of this process holds into a directory of its own, and returns the name of that. This thread is at work.
pub(crate) fn own_snapshot(recording: &Recording) -> Result<String, String> {
    let name = Entry::Snapshot { pid: std::process::id(), nanos: process::monotonic_nanos() }.to_string();
    let folder = &recording.settings.folder;
    let directory = folder.join(&name);
    if notes::is_elsewhere() {
        return Err(notes::elsewhere(folder));
    }
    if quota::is_used_up(folder, recording.settings.most_bytes) {
        return Err("the recording has reached its --max-size".to_owned());
    }
    let result = recording.tracer.save_with(&SaveOptions::new().directory(&directory).keep(true));
    describe(&directory, Some(&result));
    Ok(name)
}

/// Tells of a save, or that none was made because enough was written. If that cannot be done either, `rftrace record` is told.
fn describe(part: &Path, result: Option<&Result<Saved, Error>>) {
    let folder = part.parent().unwrap_or(part);
    let (saved, problem) = match result {
        None => (recording::Saved::TooMuch, None),
        Some(Ok(saved)) => {
            let problem = saved.left_out.as_ref().map(|left_out| format!("the trace is incomplete: {left_out}"));
            (recording::Saved::Trace(counts(saved)), problem)
        }
        Some(Err(Error::NoEvents { .. })) => (recording::Saved::Trace(Counts::default()), None),
        Some(Err(error)) => (recording::Saved::Failed, Some(format!("{NOTHING_SAVED}: {}", why(error, folder)))),
    };
    let (pid, program) = (std::process::id(), process::program_nanos());
    let told = Part { pid, program, fork: process::fork(), saved, problem, status: None };
    let path = part.join(recording::PART_FILE);
    match Owned::within(part).and_then(|_| store::write(&path, told.to_string())) {
        Ok(()) => {
            if let Some(Ok(saved)) = result {
                quota::add(folder, saved.events * BYTES_OF_EVENT);
            }
        }
        Err(source) => notes::tell(&told.problem.map(|problem| problem.replace('\n', " ")).unwrap_or_else(|| {
            let error = Error::Write { path, source };
            format!("{NOTHING_SAVED}: {}", why(&error, folder))
        })),
    }
}

fn counts(saved: &Saved) -> Counts {
    Counts {
        events: saved.events,
        threads: saved.threads as u64,
        lost: saved.lost,
        full: saved.full,
        chunks_overwritten: saved.chunks_overwritten,
        untraced_threads: saved.untraced_threads.into(),
        // A record without room ends the recording: `full`.
        dropped: 0,
        too_large: false,
        cut: false,
        damaged: 0,
        unwritten: saved.left_out.is_some(),
    }
}

/// Why a save came to nothing, and what to do about it.
fn why(error: &Error, folder: &Path) -> String {
    match error {
        Error::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            notes::other_user(folder).unwrap_or_else(|| error.with_remedy())
        }
        _ => error.with_remedy(),
    }
}

/// Runs `work` with the limits of this process as high as it may set them, at its end. Puts them back: the C library still writes
/// what the program has printed.
fn with_highest_limits(work: impl FnOnce()) {
    let kinds = [libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE, libc::RLIMIT_AS, libc::RLIMIT_DATA];
    let before = kinds.map(|kind| {
        let limit = limit(kind)?;
        let highest = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: reads a limit.
        let is_raised = highest.rlim_cur != limit.rlim_cur && unsafe { libc::setrlimit(kind, &raw const highest) } == 0;
        is_raised.then_some(limit)
    });
    work();
    for (kind, limit) in kinds.into_iter().zip(before) {
        if let Some(limit) = limit {
            // SAFETY: reads a limit.
            unsafe { libc::setrlimit(kind, &raw const limit) };
        }
    }
}

fn limit(kind: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    (unsafe { libc::getrlimit(kind, &raw mut limit) } == 0).then_some(limit)
}

/// True if a limit of memory holds for this process.
pub(crate) fn is_memory_limited() -> bool {
    let is_limited = |kind| limit(kind).is_none_or(|limit| limit.rlim_cur != libc::RLIM_INFINITY);
    is_limited(libc::RLIMIT_AS) || is_limited(libc::RLIMIT_DATA)
}

/// True if a save may start threads. Not in a sandbox, which may kill for it, and not when the main thread has ended: the end
/// of a thread that is the last one for the C library ends the process. Not with limited memory: a thread that gets none
/// cannot be given up.
fn may_start_threads() -> bool {
    if is_memory_limited() {
        return false;
    }
    let status = system::read_text("/proc/self/status").unwrap_or_default();
    let is = |key: &str, value: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(key));
        found.is_some_and(|found| found.trim().starts_with(value))
    };
    is("Seccomp:", "0") && !is("State:", "Z")
}
