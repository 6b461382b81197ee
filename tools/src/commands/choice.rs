//! The options by which a part of a trace is shown: names, levels, durations, times and tasks. They are uftrace's, and have the same
//! meaning in all commands.

use anyhow::{Result, anyhow, bail};
use clap::Args;
use rftrace_read::{Choice, Pattern, Trace};

/// Which calls.
#[derive(Args, Clone)]
#[command(next_help_heading = "What is shown")]
pub(crate) struct CallsArgs {
    /// Show only this function and what it calls; a glob or `/regex/`. Can be given several times.
    #[arg(short = 'F', long, value_name = "FUNC", value_parser = parse_pattern)]
    filter: Vec<Pattern>,
    /// Do not show this function, nor what it calls; a glob or `/regex/`. Can be given several times.
    #[arg(short = 'N', long, value_name = "FUNC", value_parser = parse_pattern)]
    notrace: Vec<Pattern>,
    /// Show so many levels of calls, from the outermost functions on or, with --filter, from those.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = parse_levels)]
    depth: Option<usize>,
    /// Show only calls that took so long at least, such as `1.5us`; a number alone is nanoseconds.
    #[arg(short = 't', long, value_name = "TIME", value_parser = parse_duration)]
    time_filter: Option<u64>,
}

impl CallsArgs {
    /// What they choose.
    pub(crate) fn choice(self) -> Choice {
        let mut choice = Choice::default();
        choice.below = self.filter;
        choice.not_below = self.notrace;
        choice.depth = self.depth.unwrap_or(choice.depth);
        choice.min_ns = self.time_filter.unwrap_or(0);
        choice
    }
}

/// When, and of whom.
#[derive(Args)]
#[command(next_help_heading = "What is shown")]
pub(crate) struct RangeArgs {
    /// Leave out what is before. A number is a second of the trace's clock; with a unit (`ns`, `us`, `ms`, `s`, `m`) it is since the
    /// trace's start.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    from: Option<Time>,
    /// Leave out this time and what is after.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    to: Option<Time>,
    /// Both, as uftrace has them; either may be missing.
    #[arg(short = 'r', long, value_name = "FROM~TO", value_parser = parse_range, conflicts_with_all = ["from", "to"])]
    time_range: Option<(Option<Time>, Option<Time>)>,
    /// Show only this task. Can be given several times, also with commas between.
    #[arg(long, value_name = "TID", visible_alias = "task", value_delimiter = ',')]
    tid: Vec<u32>,
}

/// Has only that shown.
pub(crate) fn choose(trace: &mut Trace, calls: CallsArgs, range: &RangeArgs) -> Result<()> {
    let mut choice = calls.choice();
    if !range.tid.is_empty() {
        keep_tasks(trace, &range.tid)?;
    }
    let (from, to) = range.time_range.unwrap_or((range.from, range.to));
    let at = |time: Option<Time>| time.map(|time| time.absolute(trace)).transpose();
    choice.times = at(from)?.unwrap_or(0)..at(to)?.unwrap_or(u64::MAX);
    if choice.times.is_empty() {
        bail!("nothing is between --from and --to: the first must be the earlier one");
    }
    trace.choose(choice);
    Ok(())
}

/// Leaves out all but these tasks.
pub(crate) fn keep_tasks(trace: &mut Trace, tids: &[u32]) -> Result<()> {
    /// So many are named where none of them is meant.
    const NAMED: usize = 20;

    trace.keep_tasks(tids).map_err(|unknown| {
        let known: Vec<_> = trace.tasks().iter().map(|task| task.tid().to_string()).take(NAMED).collect();
        let more = if trace.tasks().len() > NAMED { ", …" } else { "" };
        anyhow!("the trace has no task {unknown}; it has {}{more}", known.join(", "))
    })
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    SinceStart(u64),
    Absolute(u64),
}

impl Time {
    /// Nanoseconds of the trace's clock.
    pub(crate) fn absolute(self, trace: &Trace) -> Result<u64> {
        Ok(match self {
            Self::SinceStart(ns) => trace.start_ns()?.unwrap_or(0).saturating_add(ns),
            Self::Absolute(ns) => ns,
        })
    }
}

/// A name, a glob or `/regex/`.
pub(crate) fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| error.to_string())
}

fn parse_levels(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&levels| levels > 0).ok_or_else(|| "1 is the least".to_owned())
}

/// A moment: seconds of the trace's clock, or a time with a unit since its start.
pub(crate) fn parse_time(text: &str) -> Result<Time, String> {
    let (number, unit_ns) = with_unit(text);
    let ns = decimal(number, unit_ns.unwrap_or(1_000_000_000))
        .ok_or("it must be a number, with `ns`, `us`, `ms`, `s` or `m` for a time since the trace's start")?;
    Ok(if unit_ns.is_some() { Time::SinceStart(ns) } else { Time::Absolute(ns) })
}

fn parse_range(text: &str) -> Result<(Option<Time>, Option<Time>), String> {
    let (from, to) = text.split_once('~').ok_or("it is two times with `~` between, such as 1ms~2ms, 5s~ or ~100us")?;
    let time = |text: &str| if text.is_empty() { Ok(None) } else { parse_time(text).map(Some) };
    Ok((time(from)?, time(to)?))
}

/// A duration such as `10us`, in nanoseconds; a number alone is nanoseconds, as in uftrace.
pub(crate) fn parse_duration(text: &str) -> Result<u64, String> {
    let (number, unit_ns) = with_unit(text);
    decimal(number, unit_ns.unwrap_or(1))
        .ok_or_else(|| "a time is a number and a unit, such as 10us or 1.5ms; ns, us, ms, s and m are units".to_owned())
}

/// A number and how many nanoseconds its unit has, if it has one.
fn with_unit(text: &str) -> (&str, Option<u64>) {
    /// Longer ones first: `ms` ends with `s`.
    const UNITS: [(&str, u64); 11] = [
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
    ];
    let found = UNITS.iter().find_map(|&(unit, ns)| Some((text.strip_suffix(unit)?, Some(ns))));
    let (number, unit_ns) = found.unwrap_or((text, None));
    (number.trim(), unit_ns)
}

/// `number` times `unit_ns`, to the nanosecond: times of clocks have more digits than a floating-point number.
fn decimal(number: &str, unit_ns: u64) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let since_start = |text| match parse_time(text) {
            Ok(Time::SinceStart(ns)) => Some(ns),
            _ => None,
        };
        assert_eq!(since_start("1.5s"), Some(1_500_000_000));
        assert_eq!(since_start("20ms"), Some(20_000_000));
        assert_eq!(since_start(".25 us"), Some(250));
        assert_eq!(since_start("7ns"), Some(7));
        assert_eq!(since_start("2m"), Some(120_000_000_000));
        assert_eq!(parse_time("12345.678901234"), Ok(Time::Absolute(12_345_678_901_234)));
        assert_eq!(parse_time("3"), Ok(Time::Absolute(3_000_000_000)));
        for bad in ["", ".", "s", "-1s", "1e3", "1.2.3", "99999999999s", "1h", "٣s", "1.é"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges() {
        let (second, micro) = (Time::Absolute(1_000_000_000), Time::SinceStart(5_000));
        assert_eq!(parse_range("1~5us"), Ok((Some(second), Some(micro))));
        assert_eq!(parse_range("~5us"), Ok((None, Some(micro))));
        assert_eq!(parse_range("1~"), Ok((Some(second), None)));
        assert!(parse_range("1").is_err() && parse_range("x~").is_err());
    }

    #[test]
    fn durations() {
        for (text, ns) in
            [("1.5us", 1_500), ("10", 10), ("10usec", 10_000), ("2 ms", 2_000_000), ("1m", 60_000_000_000)]
        {
            assert_eq!(parse_duration(text), Ok(ns), "{text}");
        }
        assert!(parse_duration("1h").is_err());
    }
}
