//! Durations and sizes of options, within their limits.
//!
//! Not here: how they are written (`rftrace-format`).

use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::HumanBytes;
use rftrace_format::quantity::{bytes, duration_ns};
use rftrace_format::system;

/// The size of a buffer, such as `64M`.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0..0x1_0000 => Err("the lowest size is 64K".to_owned()),
        size @ 0x1_0000..=0x1000_0000_0000 => {
            usize::try_from(size).map_err(|_| "the size exceeds the address space".to_owned())
        }
        _ => Err("the highest size is 16384G".to_owned()),
    }
}

/// The number of a process.
pub(crate) fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a PID is a number; `pgrep NAME` lists those of a program".to_owned())
}

/// Refuses a buffer that this machine can never hold: the system would end programs for the memory in it.
pub(crate) fn check_buffer(n_bytes: usize) -> Result<()> {
    let text = system::read("/proc/meminfo").unwrap_or_default();
    check_buffer_in(n_bytes, &String::from_utf8_lossy(&text))
}

fn check_buffer_in(n_bytes: usize, meminfo: &str) -> Result<()> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let Some(memory) = kib("MemTotal:") else { return Ok(()) };
    let most = (memory + kib("SwapTotal:").unwrap_or(0)) << 10;
    // The sizes where none is given are for all machines.
    if n_bytes as u64 > most.max(1 << 30) {
        bail!(
            "--buffer {} is more than the memory of this machine, {}: use a smaller --buffer",
            HumanBytes(n_bytes as u64),
            HumanBytes(most)
        );
    }
    Ok(())
}

/// How long to wait for others, such as `30s`.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match duration_ns(text).map(Duration::from_nanos)? {
        time if (Duration::from_millis(1)..=Duration::from_hours(168)).contains(&time) => Ok(time),
        _ => Err("the time must be from 1ms to 168h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_fits_into_memory() {
        let meminfo = "MemTotal:        8000000 kB\nMemFree:  1 kB\nSwapTotal:  1000000 kB\n";
        assert!(check_buffer_in(8 << 30, meminfo).is_ok() && check_buffer_in(9999 << 30, "").is_ok());
        let error = check_buffer_in(9999 << 30, meminfo).unwrap_err().to_string();
        assert_eq!(
            error,
            "--buffer 9.76 TiB is more than the memory of this machine, 8.58 GiB: use a smaller --buffer"
        );
    }

    #[test]
    fn limits() {
        assert_eq!(parse_size("64K"), Ok(1 << 16));
        for bad in ["63K", "16385G", "65536"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        for (text, millis) in [("30s", 30_000), ("500ms", 500), ("1.5s", 1_500), ("168h", 604_800_000)] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "0s", "30", "10us", "169h", "3d", "-1s"] {
            assert!(parse_timeout(bad).is_err(), "{bad}");
        }
    }
}
