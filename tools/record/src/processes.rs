//! What the system says of processes.

use std::fs;

/// When a process was started, if it has not ended.
pub(crate) fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command, in parentheses, may contain anything.
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let behind = String::from_utf8_lossy(&stat[behind..]).into_owned();
    let mut fields = behind.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    if is_zombie { None } else { fields.nth(18).map(str::to_owned) }
}
