//! Counters of `perf stat -I MS -x SEP`.

use std::path::Path;

use rftrace_read::Result;
use rftrace_read::lines::Lines;

use super::seconds::nanos_of_seconds;

/// When `perf stat` began, as far as its file tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// A line `rdtsc TICKS` at the beginning, written by the caller of perf.
    Ticks(u64),
    /// The file does not tell.
    Unknown,
}

/// A counter's value in an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample<'l> {
    /// The end of the interval, in nanoseconds since `perf stat` began.
    pub(super) nanos: u64,
    /// The counter's name.
    pub(super) name: &'l str,
    /// The count of the interval, as perf has scaled it.
    pub(super) value: f64,
}

/// A file of counters.
pub(super) struct Counters {
    lines: Lines,
    start: Start,
    /// True if the current line is still to be returned.
    has_line: bool,
}

impl Counters {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::new(Lines::open(path)?)
    }

    fn new(mut lines: Lines) -> Result<Self> {
        let Some(first) = lines.next()? else {
            return Ok(Self { lines, start: Start::Unknown, has_line: false });
        };
        let Some(ticks) = first.strip_prefix("rdtsc ") else {
            return Ok(Self { lines, start: Start::Unknown, has_line: true });
        };
        match ticks.trim().parse() {
            Ok(ticks) => Ok(Self { lines, start: Start::Ticks(ticks), has_line: false }),
            Err(_) => Err(lines.error("expected `rdtsc TICKS`, the time stamp counter at the start of perf")),
        }
    }

    pub(super) fn start(&self) -> Start {
        self.start
    }

    /// The next counter that has a value.
    pub(super) fn next(&mut self) -> Result<Option<Sample<'_>>> {
        loop {
            if !std::mem::take(&mut self.has_line) && self.lines.next()?.is_none() {
                return Ok(None);
            }
            match parse(self.lines.current()) {
                Line::Other => {}
                Line::Sample(_) => break,
                Line::Nonsense => {
                    return Err(self.lines.error(
                        "expected an interval of a counter: `SECONDS,VALUE,UNIT,NAME,…`, as perf stat -I 100 -x, -o FILE writes it",
                    ));
                }
            }
        }
        match parse(self.lines.current()) {
            Line::Sample(sample) => Ok(Some(sample)),
            _ => Ok(None),
        }
    }
}

enum Line<'l> {
    Sample(Sample<'l>),
    /// A comment, or a counter that was not counted.
    Other,
    Nonsense,
}

fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    // A separator may be `#`: then a line of counters begins with a number all the same.
    if line.is_empty() || line.starts_with('#') {
        return Line::Other;
    }
    sample(line).unwrap_or(Line::Nonsense)
}

fn sample(line: &str) -> Option<Line<'_>> {
    let (seconds, rest) = line.split_at(line.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let separator = rest.chars().next().filter(|separator| !separator.is_whitespace() || *separator == '\t')?;
    let nanos = nanos_of_seconds(seconds)?;
    let fields: Vec<&str> = rest.split(separator).skip(1).take(8).collect();
    // Counters of single processors (-A) and of sockets have their name before the value.
    let is_value = |field: &str| field.starts_with('<') || field.trim().parse::<f64>().is_ok();
    let place = fields.iter().take(3).position(|field| is_value(field))?;
    let (value, name) = (fields[place].trim(), fields.get(place + 2)?.trim());
    if name.is_empty() {
        return None;
    }
    if value.starts_with('<') {
        return Some(Line::Other);
    }
    let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(Line::Sample(Sample { nanos, name, value }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counters(text: &'static str) -> Result<Counters> {
        Counters::new(Lines::new(Path::new("perf.csv"), Box::new(text.as_bytes())))
    }

    fn all(text: &'static str) -> Result<Vec<(u64, String, f64)>> {
        let mut counters = counters(text)?;
        let mut found = Vec::new();
        while let Some(sample) = counters.next()? {
            found.push((sample.nanos, sample.name.to_owned(), sample.value));
        }
        Ok(found)
    }

    #[test]
    fn what_perf_writes() {
        // perf 6.1, with `-x,`, and with the separator of the old scripts.
        let text = "# started on Sat Nov 21 20:35:05 2026\n\n\
                    \x20    0.100153537,0.76,msec,task-clock,764644,100.00,0.008,CPUs utilized\n\
                    \x20    0.100153537,<not supported>,,cycles,0,100.00,,\n\
                    \x20    0.200401193,77,,page-faults,764644,100.00,100.700,K/sec\n";
        let expected = [(100_153_537, "task-clock".to_owned(), 0.76), (200_401_193, "page-faults".to_owned(), 77.0)];
        assert_eq!(all(text).unwrap(), expected);
        let hashes = "rdtsc 4711\n    15.127678049#114116639##cycles:G#107341775#100.00##\n";
        assert_eq!(counters(hashes).unwrap().start(), Start::Ticks(4711));
        assert_eq!(all(hashes).unwrap(), [(15_127_678_049, "cycles:G".to_owned(), 114_116_639.0)]);
        let per_cpu = "1.0,CPU0,5,,cycles,1,100.00,,\n";
        assert_eq!(all(per_cpu).unwrap(), [(1_000_000_000, "cycles".to_owned(), 5.0)]);
        assert_eq!(all("").unwrap(), []);
    }

    #[test]
    fn what_perf_does_not_write() {
        for (text, place) in [
            ("rdtsc x\n", "byte 0: line 1: expected `rdtsc"),
            ("# c\n1.0 5 msec task-clock\n", "byte 4: line 2: expected an interval"),
            ("1.0,5\n", "line 1"),
            ("1.0,5,,\n", "line 1"),
            ("1.0,inf,,cycles\n", "line 1"),
            ("-1.0,5,,cycles\n", "line 1"),
            ("1.0", "line 1"),
        ] {
            let error = all(text).unwrap_err().to_string();
            assert!(error.starts_with("perf.csv: ") && error.contains(place), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "[0-9.,;#<> a-zé]{0,40}") {
            parse(&line);
        }
    }
}
