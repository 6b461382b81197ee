//! PIDs and TIDs of processes and threads in their own PID namespaces, as in a container; the start time of a process,
//! to tell it from a later one with the same PID; and its folder in `/proc`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rftrace_format::store;
use rftrace_format::system;

use crate::host::linux::modules;

/// Returns the PID of this process in its `/proc`, maybe one of another PID namespace. Takes no memory.
pub(super) fn number_in_proc() -> Option<u32> {
    let mut link = [0; 16];
    // SAFETY: a path that ends with a NUL, and a buffer with so much room.
    let length = unsafe { libc::readlink(c"/proc/self".as_ptr(), link.as_mut_ptr().cast(), link.len()) };
    str::from_utf8(link.get(..usize::try_from(length).ok()?)?).ok()?.parse().ok()
}

/// The mapping of a file by processes, as the system reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    inode: u64,
}

impl Mapping {
    /// The mapping of a file in memory.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self { inode: file.metadata()?.ino() })
    }

    /// Returns the PID here of the process with the file mapped at an address (0: anywhere) and with its own PID `own`;
    /// looks at `likely` first. Several processes may have the same PID, each in a namespace of its own.
    ///
    /// A process that this one may not examine, as of another user, is believed if it was started after this one.
    /// `None` if it has ended.
    pub(super) fn process(self, own: u32, likely: u32, mapped_at: u64) -> Option<u32> {
        // An emulator maps the file at another address.
        if modules::is_emulated() {
            return Some(own);
        }
        let is_believed = |pid| start_ticks(pid) >= start_ticks(std::process::id());
        let is_it = |pid: u32| {
            own_number(&folder(pid)) == Some(own)
                && self.is_in(&folder_of(pid), mapped_at).unwrap_or_else(|| pid == own && is_believed(pid))
        };
        let all = || fs::read_dir("/proc").into_iter().flatten().flatten();
        let others = || all().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&pid| is_it(pid));
        [likely, own].into_iter().find(|&pid| is_it(pid)).or_else(others)
    }

    /// `None` without access.
    fn is_in(self, process: &Path, mapped_at: u64) -> Option<bool> {
        let maps = system::read(process.join("maps")).ok()?;
        let start = if mapped_at == 0 { String::new() } else { format!("{mapped_at:08x}-") };
        // The addresses, what is permitted, the offset, the device, the inode, the path.
        let is_it = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(4);
            fields.next().and_then(|inode| inode.parse().ok()) == Some(self.inode)
                && fields.next().is_some_and(|path| path.starts_with("/memfd:"))
        };
        Some(String::from_utf8_lossy(&maps).lines().any(|line| line.starts_with(&start) && is_it(line)))
    }
}

/// Returns the process that has started another one, or waits for it. `None` if it has ended.
pub(super) fn parent(pid: u32) -> Option<u32> {
    let status = system::read(folder(pid).join("status")).ok()?;
    String::from_utf8_lossy(&status).lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Returns the PID or TID of a process or thread in its own namespace, by its folder in `/proc`; `None` if it does not
/// exist.
#[must_use]
pub fn own_number(folder: &Path) -> Option<u32> {
    let status = system::read(folder.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // From the outermost space of numbers that this process sees to the innermost.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Returns the folder in `/proc` with the memory, files and program of a process: that of its main thread or, after
/// that thread's end, of another one.
#[must_use]
pub fn folder_of(pid: u32) -> PathBuf {
    living_thread(pid).map_or_else(|| folder(pid), folder)
}

fn folder(id: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{id}"))
}

/// Returns a living thread of a process, preferably the main one; `None` if all have ended.
#[must_use]
pub fn living_thread(pid: u32) -> Option<u32> {
    let lives = |thread: &u32| behind_name(*thread).is_some_and(|stat| !has_ended(&stat));
    let others = || fs::read_dir(folder(pid).join("task")).into_iter().flatten().flatten();
    let others = || others().filter_map(|task| task.file_name().to_str()?.parse().ok()).find(lives);
    Some(pid).filter(lives).or_else(others)
}

/// Returns the start time of a process in ticks of the system since its boot. `None` for an ended process.
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    store::start_time(pid)?.parse().ok()
}

/// Returns the fields behind a thread's name in its `stat`: its state first.
fn behind_name(id: u32) -> Option<String> {
    let stat = system::read(folder(id).join("stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    Some(String::from_utf8_lossy(stat.get(behind..)?).into_owned())
}

fn has_ended(stat: &str) -> bool {
    stat.trim_start().starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_read() {
        let own = start_ticks(std::process::id());
        assert!(own.is_some_and(|ticks| ticks > 0) && start_ticks(0).is_none());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_ne!(start_ticks(child.id()), own);
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(own_number(Path::new("/proc/self")), Some(std::process::id()));
        assert_eq!(own_number(Path::new("/proc/0")), None);
        let folder = std::env::temp_dir().join(format!("rftrace-numbers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("status"), "Name:\tinit\nNSpid:\t4711\t12\t1\nThreads:\t1\n").unwrap();
        assert_eq!(own_number(&folder), Some(1));
        fs::remove_dir_all(folder).unwrap();
    }
}
