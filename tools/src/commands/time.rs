//! Durations as they are written: a number and a unit.

/// A duration such as `10us`, in nanoseconds; a number alone is nanoseconds, as in uftrace.
pub(crate) fn parse_ns(text: &str) -> Result<u64, String> {
    let (number, unit_ns) = with_unit(text);
    decimal(number, unit_ns.unwrap_or(1)).ok_or_else(|| {
        "a time is a number and a unit, such as 10us or 1.5ms; ns, us, ms, s, m and h are units".to_owned()
    })
}

/// A number and how many nanoseconds its unit has, if it has one.
pub(super) fn with_unit(text: &str) -> (&str, Option<u64>) {
    /// Longer ones first: `ms` ends with `s`.
    const UNITS: [(&str, u64); 12] = [
        ("nsec", 1),
        ("usec", 1000),
        ("msec", 1_000_000),
        ("sec", 1_000_000_000),
        ("min", 60_000_000_000),
        ("ns", 1),
        ("us", 1000),
        ("µs", 1000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let found = UNITS.iter().find_map(|&(unit, ns)| Some((text.strip_suffix(unit)?, Some(ns))));
    let (number, unit_ns) = found.unwrap_or((text, None));
    (number.trim(), unit_ns)
}

/// `number` times `unit_ns`, to the nanosecond: times of clocks have more digits than a floating-point number.
pub(super) fn decimal(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if number.is_empty() || number == "." || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(unit_ns)? };
    let fraction = fraction.get(..12).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? };
    whole.checked_add(u64::try_from(digits * u128::from(unit_ns) / scale).ok()?)
}

/// How long to wait for others, such as `30s`; a number alone is seconds.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn parse_timeout(text: &str) -> Result<std::time::Duration, String> {
    const LEAST: u64 = 1_000_000;
    const MOST: u64 = 168 * 3_600_000_000_000;

    let (number, unit_ns) = with_unit(text);
    match decimal(number, unit_ns.unwrap_or(1_000_000_000)) {
        Some(ns @ LEAST..=MOST) => Ok(std::time::Duration::from_nanos(ns)),
        Some(_) => Err("1ms to 168h are possible".to_owned()),
        None => Err("a time is a number and a unit, such as 30s; ms, s, m and h are units".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ns) in [
            ("1.5us", 1_500),
            ("10", 10),
            ("10usec", 10_000),
            ("2 ms", 2_000_000),
            ("1m", 60_000_000_000),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(parse_ns(text), Ok(ns), "{text}");
        }
        assert!(parse_ns("1d").is_err());
    }

    #[cfg(all(feature = "full", target_os = "linux"))]
    #[test]
    fn timeouts() {
        use std::time::Duration;

        for (text, millis) in [("30", 30_000), ("500ms", 500), ("1.5s", 1_500), ("168h", 604_800_000)] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "0", "10us", "169h", "3d", "-1s"] {
            assert!(parse_timeout(bad).is_err(), "{bad}");
        }
    }
}
