//! The display of durations.

use std::fmt;

/// A number of nanoseconds, displayed in the largest of `us`, `ms` and `s` that leaves a whole part, with three
/// decimals.
///
/// The text has 10 columns, more from 1000 seconds on.
#[derive(Debug, Clone, Copy)]
pub struct Duration(pub u64);

/// The unit of a duration in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Micros,
    Millis,
    Seconds,
}

impl Duration {
    /// Returns the text without padding.
    pub fn text(self) -> String {
        self.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn unit(self) -> Unit {
        match self.0 {
            0..1_000_000 => Unit::Micros,
            1_000_000..1_000_000_000 => Unit::Millis,
            _ => Unit::Seconds,
        }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (thousandth, name) = match self.unit() {
            Unit::Micros => (1, "us"),
            Unit::Millis => (1_000, "ms"),
            Unit::Seconds => (1_000_000, " s"),
        };
        let thousandths = self.0 / thousandth;
        write!(f, "{:3}.{:03} {name}", thousandths / 1000, thousandths % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::Duration;

    #[test]
    fn units() {
        for (nanos, text) in [
            (0, "  0.000 us"),
            (1, "  0.001 us"),
            (999_999, "999.999 us"),
            (1_000_000, "  1.000 ms"),
            (999_999_999, "999.999 ms"),
            (1_000_000_000, "  1.000  s"),
            (75_250_999_999, " 75.250  s"),
            (12_345_000_000_000, "12345.000  s"),
            (u64::MAX, "18446744073.709  s"),
        ] {
            assert_eq!(Duration(nanos).to_string(), text);
        }
        assert_eq!([1, 75_250_999_999].map(|nanos| Duration(nanos).text()), ["0.001 us", "75.250 s"]);
    }
}
