//! Inherited settings that would disturb the recorder: it removes them for itself, and restores them for the recorded
//! program.
//!
//! They are ignored or blocked signals, soft limits, and libraries that a caller has preloaded.

#![expect(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use nix::libc::{self, c_int};
use rftrace_format::recording;

/// Variable with the `LD_PRELOAD` of the program, while this process does without.
const PRELOADED: &str = "RFTRACE_PRELOADED_BEFORE";

/// A limit in the way of a recorder.
struct Limit {
    which: libc::__rlimit_resource_t,
    /// With less there is no recording.
    least: u64,
    /// The limited resource, and the shell's name of the limit.
    what: &'static str,
}

const LIMITS: [Limit; 5] = [
    Limit { which: libc::RLIMIT_NOFILE, least: 64, what: "open files (ulimit -n)" },
    Limit { which: libc::RLIMIT_FSIZE, least: 64 << 20, what: "bytes in a file (ulimit -f)" },
    Limit { which: libc::RLIMIT_AS, least: 512 << 20, what: "bytes of address space (ulimit -v)" },
    Limit { which: libc::RLIMIT_DATA, least: 512 << 20, what: "bytes of data (ulimit -d)" },
    Limit { which: libc::RLIMIT_CPU, least: 1, what: "seconds of processor time (ulimit -t)" },
];

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// The signals ignored when the process began, a bit each. Rust's runtime ignores SIGPIPE before `main`.
static IGNORED: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_signals;

extern "C" fn look_at_signals() {
    let ignored = SIGNALS.filter(|&signal| is_ignored(signal)).fold(0, |all, signal| all | bit(signal));
    IGNORED.store(ignored, Relaxed);
}

/// All of them.
const SIGNALS: RangeInclusive<c_int> = 1..=64;

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

#[derive(Clone, Copy)]
struct Inherited {
    /// A bit for each signal.
    ignored: u64,
    blocked: libc::sigset_t,
    blocks_any: bool,
    limits: [libc::rlimit; LIMITS.len()],
    raised: [bool; LIMITS.len()],
}

/// Removes the settings. Call it before anything else: it may start this program again, without preloaded libraries.
///
/// # Errors
///
/// The program cannot be started again, or a limit leaves too little for a recording.
pub fn put_aside() -> Result<()> {
    begin_without_preloaded()?;
    let before = INHERITED.get_or_init(Inherited::take).limits;
    for (Limit { which, least, what }, before) in LIMITS.iter().zip(before) {
        let own = limit(*which).rlim_cur;
        // The program shares these with its recorder.
        let most = if [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(which) { own.min(before.rlim_cur) } else { own };
        if most < *least {
            bail!("the limit of {most} {what} is too low for a recording: raise it to {least} or more");
        }
    }
    Ok(())
}

/// Restores all removed settings for the program that `command` runs.
pub fn hand_on(command: &mut Command) {
    if let Some(&inherited) = INHERITED.get().filter(|inherited| inherited.matters()) {
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(move || inherited.restore()) };
    }
}

/// Returns the limit of the program's address space in bytes, if there is one.
#[must_use]
pub fn address_space() -> Option<u64> {
    let place = LIMITS.iter().position(|limit| limit.which == libc::RLIMIT_AS)?;
    let limit = INHERITED.get()?.limits[place].rlim_cur;
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

impl Inherited {
    fn take() -> Self {
        let ignored = IGNORED.load(Relaxed);
        if ignored & bit(libc::SIGCHLD) != 0 {
            // Ends of children would not be told.
            set_action(libc::SIGCHLD, libc::SIG_DFL);
        }
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are writable; `sigemptyset` fills the one to be read.
        let blocked = unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), blocked.as_mut_ptr());
            blocked.assume_init()
        };
        // SAFETY: the set is readable.
        let blocks_any =
            SIGNALS.into_iter().any(|signal| unsafe { libc::sigismember(&raw const blocked, signal) } == 1);
        let limits = LIMITS.map(|one| limit(one.which));
        let mut raised = [false; LIMITS.len()];
        for ((Limit { which, .. }, now), raised) in LIMITS.iter().zip(limits).zip(&mut raised) {
            *raised = raise(*which, now);
        }
        if limit(libc::RLIMIT_FSIZE).rlim_cur != libc::RLIM_INFINITY {
            // A file that becomes too large is an error then, with its name. A handler ends with the program's `exec`.
            set_action(libc::SIGXFSZ, nothing as *const () as libc::sighandler_t);
        }
        Self { ignored, blocked, blocks_any, limits, raised }
    }

    /// True if the program would not have all this by itself.
    fn matters(&self) -> bool {
        self.ignored != 0 || self.blocks_any || self.raised.contains(&true)
    }

    /// In the process about to become the program.
    fn restore(&self) -> io::Result<()> {
        for signal in SIGNALS.filter(|&signal| self.ignored & bit(signal) != 0) {
            set_action(signal, libc::SIG_IGN);
        }
        for ((Limit { which, .. }, limit), raised) in LIMITS.iter().zip(&self.limits).zip(self.raised) {
            // SAFETY: the limit is readable.
            if raised && unsafe { libc::setrlimit(*which, limit) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: the set is readable.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, ptr::null_mut()) };
        Ok(())
    }
}

extern "C" fn nothing(_: c_int) {}

fn limit(which: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it is writable.
    unsafe { libc::getrlimit(which, &raw mut limit) };
    limit
}

/// Returns the highest number of open files, as high as this process may set it.
#[cfg(attaching)]
pub(crate) fn most_files() -> usize {
    raise(libc::RLIMIT_NOFILE, limit(libc::RLIMIT_NOFILE));
    usize::try_from(limit(libc::RLIMIT_NOFILE).rlim_cur).unwrap_or(usize::MAX)
}

/// Raises a limit as far as this process may. Returns whether it is another one then.
fn raise(which: libc::__rlimit_resource_t, now: libc::rlimit) -> bool {
    let most = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let soft = libc::rlimit { rlim_cur: now.rlim_max, rlim_max: now.rlim_max };
    // More than the hard limit is for processes with the rights. No number of files is unlimited.
    let wanted =
        [Some(most).filter(|_| now.rlim_max != libc::RLIM_INFINITY && which != libc::RLIMIT_NOFILE), Some(soft)];
    // SAFETY: the limits are readable.
    let raised = wanted.into_iter().flatten().any(|limit| unsafe { libc::setrlimit(which, &raw const limit) } == 0);
    raised && limit(which).rlim_cur != now.rlim_cur
}

fn is_ignored(signal: c_int) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: it is writable, and zero is a value of each field.
    unsafe {
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
        now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn set_action(signal: c_int, action: libc::sighandler_t) {
    // SAFETY: zero is a value of each field: no flags, no blocked signals.
    let mut new = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    new.sa_sigaction = action;
    // SAFETY: it is readable; handlers passed here do nothing.
    unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
}

/// Begins this process anew without libraries of others, which may show it another time or other files: those are for
/// the program. Libraries of ours stay, as somebody may record this one.
fn begin_without_preloaded() -> Result<()> {
    if let Some(before) = env::var_os(PRELOADED) {
        // SAFETY: there is one thread: nothing has begun.
        unsafe {
            env::remove_var(PRELOADED);
            env::set_var("LD_PRELOAD", before);
        }
        return Ok(());
    }
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    let libraries = || recording::preloaded(before.as_bytes());
    if libraries().all(recording::is_own_library) {
        return Ok(());
    }
    let kept = libraries().filter(|path| recording::is_own_library(path)).collect::<Vec<_>>().join(&b':');
    let mut args = env::args_os();
    let mut anew = Command::new("/proc/self/exe");
    anew.arg0(args.next().unwrap_or_else(|| OsString::from("rftrace"))).args(args);
    anew.env("LD_PRELOAD", OsString::from_vec(kept)).env(PRELOADED, &before);
    Err(anew.exec()).context("cannot restart rftrace without the libraries in LD_PRELOAD")
}
