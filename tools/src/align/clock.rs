//! What a trace directory tells of its clock: `clock.txt`.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, read_file};
use crate::text;

/// Nanoseconds of a second.
pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Converts ticks of a time stamp counter to nanoseconds and back, as who wrote the trace did: by the line through one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TscClock {
    /// A moment, in ticks.
    pub tsc: u64,
    /// The same moment in nanoseconds.
    pub nanos: u64,
    /// How many nanoseconds 2^32 ticks take. Never 0.
    pub nanos_per_2_32_ticks: u64,
}

impl TscClock {
    /// The line through a moment, with so many ticks a second.
    pub fn at_rate(tsc: u64, nanos: u64, hz: u64) -> Self {
        let rate = (u128::from(NANOS_PER_SECOND) << 32) / u128::from(hz.max(1));
        Self { tsc, nanos, nanos_per_2_32_ticks: u64::try_from(rate).unwrap_or(u64::MAX).max(1) }
    }

    /// The time at `tsc`; at most what a `u64` holds, at least 0.
    pub fn nanos(&self, tsc: u64) -> u64 {
        match tsc.checked_sub(self.tsc) {
            Some(after) => self.nanos.saturating_add(self.scale(after)),
            None => self.nanos.saturating_sub(self.scale(self.tsc - tsc)),
        }
    }

    /// The first tick whose time is `nanos`, or, where ticks are longer than nanoseconds, the first one after it.
    ///
    /// It is the inverse of [`TscClock::nanos`]: of a time that this clock has given to a tick, it returns a tick with that time.
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

    /// Ticks per second.
    pub fn hz(&self) -> u64 {
        let hz = (u128::from(NANOS_PER_SECOND) << 32) / u128::from(self.nanos_per_2_32_ticks.max(1));
        u64::try_from(hz).unwrap_or(u64::MAX)
    }

    fn scale(&self, ticks: u64) -> u64 {
        let nanos = (u128::from(ticks) * u128::from(self.nanos_per_2_32_ticks)) >> 32;
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// The least number of ticks that takes `nanos`.
    fn ticks_until(&self, nanos: u64) -> u64 {
        let rate = self.nanos_per_2_32_ticks.max(1);
        if nanos < 1 << 32 {
            return (nanos << 32).div_ceil(rate);
        }
        u64::try_from((u128::from(nanos) << 32).div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
    }
}

/// The contents of `clock.txt`, which rftrace writes beside what uftrace knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockFile {
    path: PathBuf,
    /// What the records' times were made by.
    pub clock: TscClock,
    /// Whether `clock` gives the very nanoseconds of the records. In older files its rate is rounded.
    pub is_exact: bool,
    /// When recording ended, in ticks.
    pub last_tsc: u64,
    /// The Unix time at the clock's moment in nanoseconds, where it was known.
    pub unix_nanos: Option<u64>,
}

impl ClockFile {
    /// Reads the `clock.txt` of a trace directory; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read, a line is malformed, or one that is needed is missing.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("clock.txt");
        match read_file(&path) {
            Ok(bytes) => Self::parse(&path, &bytes).map(Some),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        const KEYS: [&str; 6] =
            ["first_tsc", "first_nanos", "last_tsc", "tsc_hz", "nanos_per_2_32_ticks", "first_unix_nanos"];
        let mut values = [None; KEYS.len()];
        for (offset, line) in text::lines(bytes) {
            let Some((key, value)) = line.split_once('=') else {
                return Err(Error::malformed(path, offset, "not a line of the form `key=value`"));
            };
            let Some(place) = KEYS.iter().position(|known| *known == key) else { continue };
            let Ok(number) = value.parse::<u64>() else {
                return Err(Error::malformed(path, offset, format!("{key}: not a number of 64 bits")));
            };
            values[place] = Some(number);
        }
        let [first_tsc, first_nanos, last_tsc, hz, rate, unix_nanos] = values;
        let needed = |value: Option<u64>, key| {
            value.ok_or_else(|| Error::malformed(path, bytes.len() as u64, format!("the line `{key}=` is missing")))
        };
        let (tsc, nanos) = (needed(first_tsc, "first_tsc")?, needed(first_nanos, "first_nanos")?);
        let clock = match rate {
            Some(rate) => TscClock { tsc, nanos, nanos_per_2_32_ticks: rate },
            None => TscClock::at_rate(tsc, nanos, needed(hz, "tsc_hz")?),
        };
        if clock.nanos_per_2_32_ticks == 0 || hz == Some(0) {
            return Err(Error::malformed(path, bytes.len() as u64, "a clock that stands still"));
        }
        let last_tsc = last_tsc.unwrap_or(tsc);
        Ok(Self { path: path.to_owned(), clock, is_exact: rate.is_some(), last_tsc, unix_nanos })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_read_and_what_is_wrong_is_told() {
        let text = "first_tsc=100\nfirst_nanos=50\nlast_tsc=900\nlast_nanos=450\ntsc_hz=2000000000\n\
                    tsc_hz_source=kernel\nfirst_unix_nanos=7\nutc_offset_seconds=-3\n";
        let read = |text: &str| ClockFile::parse(Path::new("clock.txt"), text.as_bytes());
        let file = read(text).unwrap();
        assert_eq!(file.clock, TscClock { tsc: 100, nanos: 50, nanos_per_2_32_ticks: 1 << 31 });
        assert_eq!((file.last_tsc, file.unix_nanos, file.is_exact), (900, Some(7), false));
        let exact = read(&format!("{text}nanos_per_2_32_ticks=2147483647\n")).unwrap();
        assert_eq!((exact.clock.nanos_per_2_32_ticks, exact.is_exact), (2_147_483_647, true));
        assert_eq!(exact.clock.hz(), 2_000_000_000);
        for (text, offset) in [
            ("first_tsc=1\nnonsense\n", 12),
            ("first_tsc=-1\n", 0),
            ("first_tsc=18446744073709551616\n", 0),
            ("first_tsc=1\nfirst_nanos=1\n", 26),
            ("first_tsc=1\nfirst_nanos=1\ntsc_hz=0\n", 35),
            ("first_tsc=1\nfirst_nanos=1\nnanos_per_2_32_ticks=0\n", 49),
            ("", 0),
        ] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, Error::Malformed { offset: at, .. } if at == offset), "{text}: {error}");
        }
    }

    proptest! {
        /// Whatever a clock made of a tick, it finds a tick with that time, and none before it.
        #[test]
        fn ticks_is_the_inverse_of_nanos(
            tsc in any::<u64>().prop_map(|tsc| tsc >> 2),
            nanos in 0..u64::MAX / 4,
            hz in 1_000_000_u64..20_000_000_000,
            distance in 0..1_i64 << 45,
            is_before in any::<bool>(),
        ) {
            let clock = TscClock::at_rate(tsc, nanos, hz);
            let tick = if is_before { tsc.checked_sub_signed(distance) } else { tsc.checked_add_signed(distance) };
            let Some(tick) = tick else { return Ok(()) };
            let time = clock.nanos(tick);
            if time == 0 || time == u64::MAX { return Ok(()) }
            let found = clock.ticks(time);
            prop_assert_eq!(clock.nanos(found), time);
            prop_assert!(found <= tick && (found == 0 || clock.nanos(found - 1) < time || is_before));
            prop_assert!(tick - found <= hz / NANOS_PER_SECOND + 1);
        }

        #[test]
        fn nothing_panics(tsc: u64, nanos: u64, rate: u64, tick: u64) {
            let clock = TscClock { tsc, nanos, nanos_per_2_32_ticks: rate };
            clock.nanos(tick);
            clock.ticks(tick);
            clock.hz();
        }
    }
}
