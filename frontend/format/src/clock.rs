//! `clock.txt`: the conversion from ticks of the time stamp counter to the nanoseconds of the records. Only rftrace
//! writes this file.
//!
//! The file has lines `key=value`. Readers skip unknown keys.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;

use crate::Malformed;
use crate::text::{self, NANOS_PER_SECOND};

/// A linear conversion between ticks of a time stamp counter and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TscClock {
    /// The fixed moment, in ticks.
    pub tsc: u64,
    /// The fixed moment, in nanoseconds.
    pub nanos: u64,
    /// The duration of 2^32 ticks in nanoseconds. Never 0.
    pub nanos_per_2_32_ticks: u64,
}

impl TscClock {
    /// Creates the conversion through one moment (`tsc` ticks, `nanos` nanoseconds) at `hz` ticks per second.
    pub fn at_rate(tsc: u64, nanos: u64, hz: u64) -> Self {
        Self::through(tsc, nanos, hz, NANOS_PER_SECOND.into())
    }

    /// Creates the conversion through two moments, each in ticks and nanoseconds. If the second moment is not later,
    /// the conversion has the smallest possible slope.
    pub fn between(first: (u64, u64), last: (u64, u64)) -> Self {
        let nanos = last.1.saturating_sub(first.1);
        Self::through(first.0, first.1, last.0.saturating_sub(first.0), nanos.into())
    }

    fn through(tsc: u64, nanos: u64, ticks: u64, take: u128) -> Self {
        let rate = (take << 32) / u128::from(ticks.max(1));
        Self { tsc, nanos, nanos_per_2_32_ticks: u64::try_from(rate).unwrap_or(u64::MAX).max(1) }
    }

    /// Converts ticks to nanoseconds, also before the fixed moment. The result is clamped to the range of a `u64`.
    #[inline]
    pub fn nanos(&self, tsc: u64) -> u64 {
        match tsc.checked_sub(self.tsc) {
            Some(after) => self.nanos.saturating_add(self.scale(after)),
            None => self.nanos.saturating_sub(self.scale(self.tsc - tsc)),
        }
    }

    /// Returns the first tick with the time `nanos`; with ticks longer than a nanosecond, the first tick after it.
    ///
    /// This is the inverse of [`TscClock::nanos`]: for the time of a tick it returns a tick with that time.
    pub fn ticks(&self, nanos: u64) -> u64 {
        match nanos.checked_sub(self.nanos) {
            Some(after) => self.tsc.saturating_add(self.ticks_until(after)),
            None => {
                // The last tick before the next nanosecond, counted backwards.
                let before = self.nanos - nanos;
                let past = before.checked_add(1).map_or(u64::MAX, |next| self.ticks_until(next));
                self.tsc.saturating_sub(past.saturating_sub(1).max(self.ticks_until(before)))
            }
        }
    }

    /// Returns the number of ticks per second.
    pub fn hz(&self) -> u64 {
        let hz = (u128::from(NANOS_PER_SECOND) << 32) / u128::from(self.nanos_per_2_32_ticks.max(1));
        u64::try_from(hz).unwrap_or(u64::MAX)
    }

    #[inline]
    fn scale(&self, ticks: u64) -> u64 {
        let nanos = (u128::from(ticks) * u128::from(self.nanos_per_2_32_ticks)) >> 32;
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Returns the minimum number of ticks for `nanos`.
    fn ticks_until(&self, nanos: u64) -> u64 {
        let rate = self.nanos_per_2_32_ticks.max(1);
        if nanos < 1 << 32 {
            return (nanos << 32).div_ceil(rate);
        }
        u64::try_from((u128::from(nanos) << 32).div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
    }
}

/// The keys of the lines.
pub mod key {
    /// The first moment, in ticks.
    pub const FIRST_TSC: &str = "first_tsc";
    /// The first moment, in nanoseconds.
    pub const FIRST_NANOS: &str = "first_nanos";
    /// The end of the recording, in ticks.
    pub const LAST_TSC: &str = "last_tsc";
    /// The end of the recording, in nanoseconds.
    pub const LAST_NANOS: &str = "last_nanos";
    /// The number of ticks per second.
    pub const HZ: &str = "tsc_hz";
    /// The source of that number.
    pub const HZ_SOURCE: &str = "tsc_hz_source";
    /// The duration of 2^32 ticks in nanoseconds.
    pub const RATE: &str = "nanos_per_2_32_ticks";
    /// The Unix time at the first moment, in nanoseconds.
    pub const UNIX_NANOS: &str = "first_unix_nanos";
    /// The number of ticks per second as the hardware or the hypervisor reports it.
    pub const REPORTED_HZ: &str = "reported_tsc_hz";
    /// The source of the reported number.
    pub const REPORTED_HZ_SOURCE: &str = "reported_tsc_hz_source";
    /// `true` if the counter runs at a constant rate.
    pub const INVARIANT_TSC: &str = "invariant_tsc";
    /// Unix time minus the trace's clock, in seconds.
    pub const UTC_OFFSET_SECONDS: &str = "utc_offset_seconds";
}

/// The content of `clock.txt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockFile {
    /// The conversion from ticks to the times of the records.
    pub clock: TscClock,
    /// True if `clock` reproduces the nanoseconds of the records exactly. In older files its rate is rounded.
    pub is_exact: bool,
    /// The end of the recording, in ticks.
    pub last_tsc: u64,
    /// The end of the recording, in nanoseconds.
    pub last_nanos: u64,
    /// The source of the counter's rate; empty if unknown.
    pub hz_source: Cow<'static, str>,
    /// The Unix time at the fixed moment of `clock` in nanoseconds, if it was known.
    pub unix_nanos: Option<u64>,
    /// The reported rate of the counter in ticks per second, and the source: the hardware or the hypervisor.
    pub reported_hz: Option<(u64, Cow<'static, str>)>,
    /// True if the counter runs at a constant rate in all states of the processor; `None` if unknown.
    pub invariant_tsc: Option<bool>,
    /// Unix time minus the trace's clock in seconds, rounded.
    pub utc_offset_seconds: Option<i64>,
}

impl ClockFile {
    /// Creates the content with the required values. `last` is the end of the recording in ticks and nanoseconds.
    pub fn new(clock: TscClock, last: (u64, u64), hz_source: impl Into<Cow<'static, str>>) -> Self {
        Self {
            clock,
            is_exact: true,
            last_tsc: last.0,
            last_nanos: last.1,
            hz_source: hz_source.into(),
            unix_nanos: None,
            reported_hz: None,
            invariant_tsc: None,
            utc_offset_seconds: None,
        }
    }

    /// Parses the bytes of the file.
    ///
    /// # Errors
    ///
    /// A line is malformed, or a required line is missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        const KEYS: [&str; 8] = [
            key::FIRST_TSC,
            key::FIRST_NANOS,
            key::LAST_TSC,
            key::LAST_NANOS,
            key::HZ,
            key::RATE,
            key::UNIX_NANOS,
            key::REPORTED_HZ,
        ];
        let mut values = [None; KEYS.len()];
        let (mut hz_source, mut reported_source) = (String::new(), String::new());
        let (mut invariant_tsc, mut utc_offset_seconds) = (None, None);
        for (offset, line) in text::lines(bytes) {
            let Some((name, value)) = line.split_once('=') else {
                return Err(Malformed::new(offset, "expected a line `key=value`"));
            };
            let wrong = |what: &str| Malformed::new(offset, alloc::format!("{name}: expected {what}"));
            match name {
                key::HZ_SOURCE => hz_source = value.into(),
                key::REPORTED_HZ_SOURCE => reported_source = value.into(),
                key::INVARIANT_TSC => invariant_tsc = Some(value.parse().map_err(|_| wrong("`true` or `false`"))?),
                key::UTC_OFFSET_SECONDS => {
                    utc_offset_seconds = Some(value.parse().map_err(|_| wrong("a number of 64 bits"))?);
                }
                _ => {
                    let Some(place) = KEYS.iter().position(|known| *known == name) else { continue };
                    values[place] = Some(value.parse::<u64>().map_err(|_| wrong("a number of 64 bits"))?);
                }
            }
        }
        let [first_tsc, first_nanos, last_tsc, last_nanos, hz, rate, unix_nanos, reported_hz] = values;
        let needed = |value: Option<u64>, key| {
            value.ok_or_else(|| Malformed::new(bytes.len() as u64, alloc::format!("the line `{key}=` is missing")))
        };
        let (tsc, nanos) = (needed(first_tsc, key::FIRST_TSC)?, needed(first_nanos, key::FIRST_NANOS)?);
        let clock = match rate {
            Some(rate) => TscClock { tsc, nanos, nanos_per_2_32_ticks: rate },
            None => TscClock::at_rate(tsc, nanos, needed(hz, key::HZ)?),
        };
        if clock.nanos_per_2_32_ticks == 0 || hz == Some(0) {
            return Err(Malformed::new(bytes.len() as u64, "the clock stands still: its rate is 0"));
        }
        let last_tsc = last_tsc.unwrap_or(tsc);
        Ok(Self {
            clock,
            is_exact: rate.is_some(),
            last_tsc,
            last_nanos: last_nanos.unwrap_or_else(|| clock.nanos(last_tsc)),
            hz_source: hz_source.into(),
            unix_nanos,
            reported_hz: reported_hz.map(|hz| (hz, reported_source.into())),
            invariant_tsc,
            utc_offset_seconds,
        })
    }
}

impl fmt::Display for ClockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |key, value: &dyn fmt::Display| writeln!(f, "{key}={value}");
        line(key::FIRST_TSC, &self.clock.tsc)?;
        line(key::FIRST_NANOS, &self.clock.nanos)?;
        line(key::LAST_TSC, &self.last_tsc)?;
        line(key::LAST_NANOS, &self.last_nanos)?;
        line(key::HZ, &self.clock.hz())?;
        line(key::HZ_SOURCE, &self.hz_source)?;
        line(key::RATE, &self.clock.nanos_per_2_32_ticks)?;
        if let Some(nanos) = self.unix_nanos {
            line(key::UNIX_NANOS, &nanos)?;
        }
        if let Some((hz, source)) = &self.reported_hz {
            line(key::REPORTED_HZ, hz)?;
            line(key::REPORTED_HZ_SOURCE, source)?;
        }
        if let Some(invariant) = self.invariant_tsc {
            line(key::INVARIANT_TSC, &invariant)?;
        }
        self.utc_offset_seconds.map_or(Ok(()), |seconds| line(key::UTC_OFFSET_SECONDS, &seconds))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_both_ways() {
        let line = TscClock { tsc: 100, nanos: 50, nanos_per_2_32_ticks: 1 << 31 };
        let mut file = ClockFile::new(line, (900, 450), "measured");
        let least = "first_tsc=100\nfirst_nanos=50\nlast_tsc=900\nlast_nanos=450\ntsc_hz=2000000000\n\
                     tsc_hz_source=measured\nnanos_per_2_32_ticks=2147483648\n";
        assert_eq!(file.to_string(), least);
        assert_eq!(ClockFile::parse(least.as_bytes()), Ok(file.clone()));
        file.unix_nanos = Some(7);
        file.reported_hz = Some((2_000_000_001, "kernel".into()));
        file.invariant_tsc = Some(true);
        file.utc_offset_seconds = Some(-3);
        let all = alloc::format!(
            "{least}first_unix_nanos=7\nreported_tsc_hz=2000000001\nreported_tsc_hz_source=kernel\ninvariant_tsc=true\n\
             utc_offset_seconds=-3\n"
        );
        assert_eq!(file.to_string(), all);
        assert_eq!(ClockFile::parse(all.as_bytes()), Ok(file));
    }

    #[test]
    fn older_files_and_what_is_wrong() {
        let text = "first_tsc=100\nfirst_nanos=50\nlast_tsc=900\ntsc_hz=2000000000\nnew_key=whatever\n";
        let file = ClockFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.clock, TscClock { tsc: 100, nanos: 50, nanos_per_2_32_ticks: 1 << 31 });
        assert_eq!((file.last_tsc, file.last_nanos, file.unix_nanos, file.is_exact), (900, 450, None, false));
        for (text, offset) in [
            ("first_tsc=1\nnonsense\n", 12),
            ("first_tsc=-1\n", 0),
            ("first_tsc=18446744073709551616\n", 0),
            ("first_tsc=1\nfirst_nanos=1\n", 26),
            ("first_tsc=1\nfirst_nanos=1\ntsc_hz=0\n", 35),
            ("first_tsc=1\nfirst_nanos=1\nnanos_per_2_32_ticks=0\n", 49),
            ("", 0),
        ] {
            assert_eq!(ClockFile::parse(text.as_bytes()).unwrap_err().offset, offset, "{text}");
        }
    }

    #[test]
    fn the_line_through_two_moments() {
        let line = TscClock::between((1000, 50), (3000, 1050));
        assert_eq!([1000, 2000, 3000, 5000, 0].map(|tsc| line.nanos(tsc)), [50, 550, 1050, 2050, 0]);
        assert_eq!(TscClock::between((7, 9), (7, 9)).nanos(7), 9);
        assert_eq!(TscClock::between((7, 9), (3, 1)).nanos(8), 9);
        let line = TscClock::between((1_000, 5_000), (3_001_000, 1_005_000));
        assert_eq!([0, 1_000].map(|tsc| line.nanos(tsc)), [4_667, 5_000]);
        assert!(line.nanos(3_001_000).abs_diff(1_005_000) <= 1);
        assert!(line.hz().abs_diff(3_000_000_000) < 10);
    }

    #[test]
    fn a_told_rate_is_kept() {
        let line = TscClock::at_rate(1_000, 5_000, 2_500_000_000);
        assert!(line.nanos(2_500_001_000).abs_diff(1_000_005_000) <= 1);
        assert!(line.hz().abs_diff(2_500_000_000) < 10);
        assert_eq!(TscClock::at_rate(1_000, 5_000, 0).nanos(1_000), 5_000);
    }

    #[test]
    fn a_year_does_not_overflow() {
        let year = 365 * 86_400 * NANOS_PER_SECOND;
        let line = TscClock::between((0, 0), (3 * year, year));
        assert!(line.nanos(3 * year).abs_diff(year) < 20_000_000);
    }

    proptest! {
        /// Whatever a line made of a tick, it finds a tick with that time, and none before it.
        #[test]
        fn ticks_is_the_inverse_of_nanos(
            tsc in any::<u64>().prop_map(|tsc| tsc >> 2),
            nanos in 0..u64::MAX / 4,
            hz in 1_000_000_u64..20_000_000_000,
            distance in 0..1_i64 << 45,
            is_before in any::<bool>(),
        ) {
            let line = TscClock::at_rate(tsc, nanos, hz);
            let tick = if is_before { tsc.checked_sub_signed(distance) } else { tsc.checked_add_signed(distance) };
            let Some(tick) = tick else { return Ok(()) };
            let time = line.nanos(tick);
            if time == 0 || time == u64::MAX { return Ok(()) }
            let found = line.ticks(time);
            prop_assert_eq!(line.nanos(found), time);
            prop_assert!(found <= tick && (found == 0 || line.nanos(found - 1) < time || is_before));
            prop_assert!(tick - found <= hz / NANOS_PER_SECOND + 1);
        }

        #[test]
        fn nothing_panics(tsc: u64, nanos: u64, rate: u64, tick: u64) {
            let line = TscClock { tsc, nanos, nanos_per_2_32_ticks: rate };
            line.nanos(tick);
            line.ticks(tick);
            line.hz();
        }

        #[test]
        fn any_text_is_read_or_an_error(text in "([a-z_0-9]{0,20}=?[0-9]{0,20}\n){0,9}") {
            let _ = ClockFile::parse(text.as_bytes());
        }
    }
}
