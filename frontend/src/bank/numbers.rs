//! What processes and threads call themselves, which is something else than here where they have numbers of their own, as in a container; and
//! when a process was started, which tells it from another one that gets its number later.

use std::fs;
use std::path::Path;

/// What a process or a thread calls itself, by its folder in `/proc`. `None`: it is not there.
#[must_use]
pub fn own_number(folder: &Path) -> Option<u32> {
    let status = fs::read(folder.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // From the outermost space of numbers that this process sees to the innermost.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// When a process was started, in ticks of the system since it began. `None`: it is not there, or has ended.
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command, in parentheses, may contain anything.
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let behind = String::from_utf8_lossy(stat.get(behind..)?).into_owned();
    let mut fields = behind.split_ascii_whitespace();
    let is_there = !matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| is_there)
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
