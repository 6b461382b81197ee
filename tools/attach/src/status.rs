//! Status of a thread, from `/proc`.

use std::fs;
use std::io;

use nix::libc::{self, c_int, pid_t};
use rftrace_format::system;

/// A signal in a mask.
pub(crate) const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Signals of clocks of processor time.
pub(crate) const CLOCKS: u64 = bit(libc::SIGPROF) | bit(libc::SIGVTALRM);

/// The threads of a process, including ended ones not reaped yet.
pub(crate) fn threads(process: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn field(thread: pid_t, name: &str) -> Option<String> {
    let status = system::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Returns the process to be told of a process's end.
pub(crate) fn parent(process: pid_t) -> Option<pid_t> {
    field(process, "PPid:")?.parse().ok()
}

/// True if a thread has memory of a program: it has not ended, and is none of the kernel.
pub(crate) fn has_memory(thread: pid_t) -> bool {
    field(thread, "VmSize:").is_some()
}

/// Returns a thread's number for itself: another one than here if it has a namespace of its own for these.
pub(crate) fn own_number(thread: pid_t) -> Option<u32> {
    field(thread, "NSpid:")?.split_ascii_whitespace().next_back()?.parse().ok()
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// `R` if it runs or wants to, `S` if it waits, `D` if no signal wakes it, `Z` and `X` when it has ended, and
    /// others.
    pub(crate) state: char,
    /// Signals it has blocked.
    blocked: u64,
    /// Signals waiting for it, or for any thread of its process.
    pub(crate) pending: u64,
    /// Confinement: 0 for none, 1 for the strict mode of seccomp, 2 for filters of system calls.
    pub(crate) seccomp: u8,
}

impl Status {
    /// `None` when there is no such thread any more.
    pub(crate) fn of(thread: pid_t) -> Option<Self> {
        let status = system::read(format!("/proc/{thread}/status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let mask = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
        Some(Self {
            state: field("State:")?.chars().next()?,
            blocked: mask("SigBlk:")?,
            pending: mask("SigPnd:")? | mask("ShdPnd:")?,
            seccomp: field("Seccomp:").and_then(|mode| mode.parse().ok()).unwrap_or(0),
        })
    }

    /// The signals it blocks.
    pub(crate) fn blocked(&self) -> u64 {
        self.blocked
    }

    /// True if it does not block a signal.
    pub(crate) fn takes(&self, signal: c_int) -> bool {
        self.blocked & bit(signal) == 0
    }

    /// The signals it gets next.
    pub(crate) fn next(&self) -> u64 {
        self.pending & !self.blocked
    }
}
