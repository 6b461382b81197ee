//! Durations and sizes as people write them: a number and its unit. A number alone is an error, as nobody knows what it counts.
//!
//! Not here: their display.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Units of time in nanoseconds; a longer one precedes its endings.
const TIMES: [(&str, u64); 12] = [
    ("nsec", 1),
    ("usec", 1_000),
    ("msec", 1_000_000),
    ("sec", 1_000_000_000),
    ("min", 60_000_000_000),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Units of size in bytes, in capital letters, in the same order.
const SIZES: [(&str, u64); 10] = [
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("KB", 1 << 10),
    ("MB", 1 << 20),
    ("GB", 1 << 30),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("B", 1),
];

/// A duration such as `10us` or `1.5 ms`, in nanoseconds.
///
/// # Errors
///
/// It is no number with a unit, or longer than 584 years.
///
/// ```
/// use rftrace_format::quantity::duration_ns;
///
/// assert_eq!(duration_ns("1.5us"), Ok(1_500));
/// assert!(duration_ns("10").is_err());
/// ```
pub fn duration_ns(text: &str) -> Result<u64, String> {
    match with_unit(text, &TIMES) {
        (number, Some(unit_ns)) => decimal(number, unit_ns),
        (_, None) => None,
    }
    .ok_or_else(|| wrong("duration", text, &["ns", "us", "ms", "s"], "10us or 1.5ms; m and h are minutes and hours"))
}

/// A size such as `64M`, in bytes; `K`, `M` and `G` are powers of 1024.
///
/// # Errors
///
/// It is no number with a unit, or more than 2^64 bytes.
///
/// ```
/// use rftrace_format::quantity::bytes;
///
/// assert_eq!(bytes("64K"), Ok(65_536));
/// assert!(bytes("65536").is_err());
/// ```
pub fn bytes(text: &str) -> Result<u64, String> {
    match with_unit(&text.to_ascii_uppercase(), &SIZES) {
        (number, Some(unit)) => decimal(number, unit),
        (_, None) => None,
    }
    .ok_or_else(|| wrong("size", text, &["B", "K", "M", "G"], "64K or 1.5G"))
}

/// Reads a moment: seconds of a clock such as `12345.678`, in nanoseconds; or a time with a unit since a beginning,
/// with the flag set. `None` for other text.
pub fn moment_ns(text: &str) -> Option<(u64, bool)> {
    let (number, unit_ns) = with_unit(text, &TIMES);
    Some((decimal(number, unit_ns.unwrap_or(1_000_000_000))?, unit_ns.is_some()))
}

fn wrong(what: &str, text: &str, units: &[&str], examples: &str) -> String {
    if decimal(text.trim(), 1).is_some() {
        let with: Vec<_> = units.iter().map(|unit| format!("{}{unit}", text.trim())).collect();
        return format!("`{text}` has no unit; write {}", with.join(", "));
    }
    format!("`{text}` is no {what}; write a number and a unit, such as {examples}")
}

/// The number of a text, and the size of its unit, if it has one.
fn with_unit<'t>(text: &'t str, units: &[(&str, u64)]) -> (&'t str, Option<u64>) {
    let found = units.iter().find_map(|&(unit, size)| Some((text.strip_suffix(unit)?, Some(size))));
    let (number, size) = found.unwrap_or((text, None));
    (number.trim(), size)
}

/// `number` times `unit`, exactly: times of clocks have more digits than a floating-point number.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if number.is_empty() || number == "." || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(unit)? };
    let fraction = fraction.get(..12).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? };
    whole.checked_add(u64::try_from(digits * u128::from(unit) / scale).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ns) in [
            ("0ns", 0),
            ("1.5us", 1_500),
            (".25 us", 250),
            ("10usec", 10_000),
            ("2 ms", 2_000_000),
            ("3s", 3_000_000_000),
            ("1m", 60_000_000_000),
            ("2min", 120_000_000_000),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(duration_ns(text), Ok(ns), "{text}");
        }
        for bad in ["", ".", "us", "1.2.3us", "-1us", "1e3us", "1d", "٣s", "1.é", "99999999999s", "10"] {
            assert!(duration_ns(bad).is_err(), "{bad}");
        }
        assert_eq!(duration_ns("10").unwrap_err(), "`10` has no unit; write 10ns, 10us, 10ms, 10s");
        assert!(duration_ns("1d").unwrap_err().starts_with("`1d` is no duration; write a number and a unit"));
    }

    #[test]
    fn sizes() {
        for (text, size) in [("64K", 1 << 16), ("1MiB", 1 << 20), ("1.5g", 3 << 29), ("100B", 100), ("2 kb", 2048)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for bad in ["", "K", "64", "64T", "-1K", "99999999999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes("64").unwrap_err(), "`64` has no unit; write 64B, 64K, 64M, 64G");
    }

    #[test]
    fn moments() {
        assert_eq!(moment_ns("12345.678901234"), Some((12_345_678_901_234, false)));
        assert_eq!(moment_ns("1.5s"), Some((1_500_000_000, true)));
        for bad in ["", ".", "s", "-1s", "1e3", "1.2.3", "1d"] {
            assert_eq!(moment_ns(bad), None, "{bad}");
        }
    }
}
