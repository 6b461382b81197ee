//! Times as perf writes them.

use rftrace_format::text::NANOS_PER_SECOND;

/// Seconds with up to nine decimals, in nanoseconds.
pub(crate) fn nanos_of_seconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if seconds.is_empty() || fraction.len() > 9 || !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds() {
        assert_eq!(nanos_of_seconds("1.5"), Some(1_500_000_000));
        assert_eq!(nanos_of_seconds("24577.817284184"), Some(24_577_817_284_184));
        assert_eq!(nanos_of_seconds("7"), Some(7_000_000_000));
        for bad in ["", ".5", "-1.5", "1.0123456789", "1.-5", "1e3", "99999999999999.0", "+1"] {
            assert_eq!(nanos_of_seconds(bad), None, "{bad}");
        }
    }
}
