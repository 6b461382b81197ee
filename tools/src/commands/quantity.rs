//! Durations and sizes of options, within their limits.
//!
//! Not here: how they are written (`rftrace-format`).

use std::time::Duration;

use rftrace_format::quantity::{bytes, duration_ns};

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
