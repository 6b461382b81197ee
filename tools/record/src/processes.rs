//! Facts about processes, as the system reports them.

use std::collections::HashSet;
use std::fs::{self, DirEntry};

use rftrace_format::system;

pub(crate) use rftrace_format::store::start_time;
use rftrace_frontend::bank::own_number;

/// True if this process has started another one and not waited for it.
pub(crate) fn is_own_child(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.parent == std::process::id())
}

/// True if a thread has not ended.
pub(crate) fn thread_lives(tid: u32) -> bool {
    Stat::of(tid).is_some_and(|stat| !stat.is_zombie)
}

/// Returns a process's number for itself, if it has another one here, as in a container.
#[cfg(attaching)]
pub(crate) fn other_number(pid: u32) -> Option<u32> {
    own_number(format!("/proc/{pid}").as_ref()).filter(|&own| own != pid)
}

/// True in a container with numbers of its own: the kernel's records have those of the first namespace.
pub(crate) fn has_own_numbers() -> bool {
    const FIRST_NAMESPACE: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").unwrap_or_default().as_os_str() != FIRST_NAMESPACE
}

/// Returns the living threads of a process, by the ids in its own namespace.
#[must_use]
pub fn threads(pid: u32) -> HashSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lives = |task: &DirEntry| task.file_name().to_str().and_then(|tid| tid.parse().ok()).is_some_and(thread_lives);
    tasks.filter(lives).filter_map(|task| own_number(&task.path())).collect()
}

/// The status of `wait` of a process that has ended and whose parent has not waited for it.
pub(crate) fn status_of_zombie(pid: u32) -> Option<i32> {
    let stat = Stat::of(pid)?;
    stat.is_zombie.then_some(stat.status)
}

/// Returns the number of a process's threads.
#[must_use]
pub fn n_threads(pid: u32) -> Option<u32> {
    Stat::of(pid).map(|stat| stat.n_threads)
}

/// The system's file of this name for a process, or a thread.
struct Stat {
    is_zombie: bool,
    /// The process that has started it, or waits for it.
    parent: u32,
    /// Threads of the process, the main one included.
    n_threads: u32,
    /// The status of `wait`, once it has ended.
    status: i32,
}

impl Stat {
    fn of(id: u32) -> Option<Self> {
        // A thread's: emulators make up a process's view of itself.
        let stat = system::read(format!("/proc/{id}/task/{id}/stat")).ok()?;
        // The command, in parentheses, may contain anything.
        let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let behind = String::from_utf8_lossy(&stat[behind..]).into_owned();
        let mut fields = behind.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let n_threads = fields.nth(15)?.parse().ok()?;
        let status = fields.nth(31)?.parse().ok()?;
        Some(Self { is_zombie, parent, n_threads, status })
    }
}
