//! How durations are written.

use std::time::Duration;

/// A number, perhaps with a fraction, and its unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_start);
    let nanos_per_unit = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err("write a duration with its unit, ns, us, ms or s, as in min=1.5us".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is no number"))?;
    Ok(Duration::from_nanos((number * nanos_per_unit).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanos) in [("0ns", 0), ("7ns", 7), ("1.5us", 1_500), ("2 ms", 2_000_000), ("3s", 3_000_000_000)] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "1", "us", "1.2.3us", "1h", "-1us", "1e3us"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
