//! Which process this is.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::recording::{Entry, Fork};
use rftrace_format::system;

/// The process whose memory this is. A child of `vfork` is a guest in its parent's.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// When this program began to be recorded, by CLOCK_MONOTONIC: it tells the programs of one process apart. A child that was forked
/// goes on with its parent's.
static PROGRAM_NANOS: AtomicU64 = AtomicU64::new(0);
/// The process that forked this one, if it was recorded; 0 if not.
static FORKED_BY: AtomicU32 = AtomicU32::new(0);
/// When, by CLOCK_MONOTONIC.
static FORKED_NANOS: AtomicU64 = AtomicU64::new(0);

/// This process is recorded from here on.
pub(crate) fn begin() {
    OWNER.store(std::process::id(), Relaxed);
    PROGRAM_NANOS.store(monotonic_nanos(), Relaxed);
}

/// When the program began that runs in this process.
pub(crate) fn program_nanos() -> u64 {
    PROGRAM_NANOS.load(Relaxed)
}

thread_local! {
    /// The number of the fork that this thread is at.
    static FORK: Cell<u64> = const { Cell::new(0) };
}

/// This process is about to fork. `rftrace record` is told before there is a child: its parent may end at once, and the child
/// would be too late.
pub(crate) fn fork_begins(folder: &Path) {
    static COUNT: AtomicU64 = AtomicU64::new(0);

    FORK.set(COUNT.fetch_add(1, Relaxed));
    let _ = fs::write(announcement(folder, std::process::id()), "");
}

/// This process is a child that was forked just now.
pub(crate) fn forked(folder: &Path) {
    let parent = OWNER.load(Relaxed);
    FORKED_BY.store(parent, Relaxed);
    FORKED_NANOS.store(monotonic_nanos(), Relaxed);
    OWNER.store(std::process::id(), Relaxed);
    let _ = fs::rename(announcement(folder, parent), own_file(folder));
}

fn announcement(folder: &Path, parent: u32) -> PathBuf {
    folder.join(Entry::Fork { parent, number: FORK.get() }.to_string())
}

/// How this process began, if a recorded one forked it.
pub(crate) fn fork() -> Option<Fork> {
    let parent = FORKED_BY.load(Relaxed);
    (parent != 0).then(|| Fork { parent, nanos: FORKED_NANOS.load(Relaxed) })
}

/// True if the calling process is the one that is recorded here, not a child in its memory.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

/// Tells `rftrace record` that this process is recorded: it waits for it. What cannot be told is not waited for.
pub(crate) fn register(folder: &Path) {
    let _ = fs::write(own_file(folder), "");
}

/// The file that stands for this process: its id, and when it was started.
fn own_file(folder: &Path) -> PathBuf {
    let pid = std::process::id();
    // The main thread's, which is the one that gets here: `/proc/self/stat` is made up where an emulator runs the program.
    let stat = system::read("/proc/thread-self/stat").unwrap_or_default();
    // The command, in parentheses, may contain anything.
    let behind = stat.iter().rposition(|&byte| byte == b')').map_or(&[][..], |place| &stat[place + 1..]);
    let behind = String::from_utf8_lossy(behind);
    let started = behind.split_ascii_whitespace().nth(19).unwrap_or_default();
    folder.join(Entry::Process { pid, started }.to_string())
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
