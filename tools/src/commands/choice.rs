//! The options by which a part of a trace is shown: names, levels, durations, times and tasks. They are uftrace's, and have the same
//! meaning in all commands.

use std::io::BufRead;
#[cfg(all(feature = "full", target_os = "linux"))]
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use rftrace_format::quantity::{duration_ns, moment_ns};
use rftrace_read::maps::Mapping;
use rftrace_read::{Choice, Pattern, Trace};
use rftrace_views::Field;

use super::common::Names;
use super::open::open_named;

/// The groups of these options in `--help`, each with an example.
const CALLS: &str = "Selected calls: -F 'app::*' -N '*::fmt' -D 5 -t 10us";
const TIMES: &str = "Selected time: --from 1s --to 1.5s";
const NAMES: &str = "Names and times: --demangle full --srcline";

/// How functions are named, and what of a trace is shown.
#[derive(Args)]
pub(crate) struct ShownArgs {
    /// Form of function names.
    #[arg(long, value_enum, value_name = "TYPE", default_value = "simple", help_heading = NAMES)]
    demangle: Names,
    /// Merge calls of inlined functions into the function around them.
    #[arg(long, help_heading = NAMES)]
    fold_inlined: bool,
    #[command(flatten)]
    calls: CallsArgs,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
}

impl ShownArgs {
    /// Opens a trace, of which only that is shown.
    pub(crate) fn open(&self, dir: &Path) -> Result<Trace> {
        let mut trace = self.open_whole_time(dir)?;
        self.choose_range(&mut trace)?;
        Ok(trace)
    }

    /// Has only the times and tasks of [`Self::range`] shown, too.
    pub(crate) fn choose_range(&self, trace: &mut Trace) -> Result<()> {
        let mut choice = self.calls.choice()?;
        choice.times = self.range.times(trace)?;
        trace.choose(choice);
        if !self.range.tid.is_empty() {
            keep_tasks(trace, &self.range.tid)?;
        }
        Ok(trace.use_index()?)
    }

    /// Opens a trace, of which only these calls are shown, whenever and of whatever task: [`Self::range`] is left to the caller.
    pub(crate) fn open_whole_time(&self, dir: &Path) -> Result<Trace> {
        let mut trace = open_named(dir, self.demangle)?;
        trace.fold_inlined(self.fold_inlined);
        trace.choose(self.calls.choice()?);
        Ok(trace)
    }

    /// A pattern of an argument, as those of the options are meant.
    pub(crate) fn pattern(&self, text: &str) -> Result<Pattern> {
        self.calls.matching.pattern(text).map_err(|error| anyhow!("{text}: {error}"))
    }
}

/// Option for times as recorded, without correction; for commands that show sums of times.
#[derive(Args)]
pub(crate) struct CorrectionArg {
    /// Show times as recorded. Otherwise the measured overhead of the tracer is subtracted.
    #[arg(long, help_heading = NAMES)]
    no_correct: bool,
}

impl CorrectionArg {
    /// Has times corrected, if that is wanted.
    pub(crate) fn apply(&self, trace: &mut Trace) {
        trace.correct_times(!self.no_correct);
    }
}

/// Option for full names; for commands that show names to people.
#[derive(Args)]
pub(crate) struct NamesArg {
    /// Show full names of functions, as with --demangle full and no. Otherwise names of more than 60 columns are cut.
    #[arg(long, help_heading = NAMES)]
    full_names: bool,
}

impl NamesArg {
    /// Has full names shown, if that is wanted.
    pub(crate) fn apply(&self, trace: &mut Trace) {
        trace.show_full_names(self.full_names);
    }
}

/// Options for places in the source; for commands with room for them.
#[derive(Args)]
pub(crate) struct SourcesArg {
    /// Show source lines, from the `.dbg` files of the trace or from debug information of unchanged programs.
    #[arg(long, help_heading = NAMES)]
    srcline: bool,
    /// Show the functions that the compiler inlined: they have no calls of their own.
    #[arg(long, help_heading = NAMES)]
    inlined: bool,
}

impl SourcesArg {
    /// Reads it, if it is wanted.
    pub(crate) fn read(&self, trace: &mut Trace) -> Result<()> {
        trace.show_inlined(self.inlined);
        if self.srcline || self.inlined {
            Ok(trace.read_sources(|module| source_lines(module, self.inlined))?)
        } else {
            Ok(())
        }
    }
}

/// The source lines of a module, as its file on this machine has them.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn source_lines(module: &Mapping, has_inlined: bool) -> Option<Box<dyn BufRead>> {
    Some(Box::new(Cursor::new(rftrace_symbols::source_lines(module, has_inlined)?)))
}

/// Without debug information there are only the trace's own.
#[cfg(not(all(feature = "full", target_os = "linux")))]
pub(crate) fn source_lines(_: &Mapping, _: bool) -> Option<Box<dyn BufRead>> {
    None
}

/// Which calls.
#[derive(Args)]
struct CallsArgs {
    /// Show only this function and its callees: a name, a glob or `/regex/`. Can be given several times.
    #[arg(short = 'F', long, value_name = "FUNC")]
    filter: Vec<String>,
    /// Leave out this function and its callees. Can be given several times.
    #[arg(short = 'N', long, value_name = "FUNC", help_heading = CALLS)]
    notrace: Vec<String>,
    /// Syntax of function names in all these options.
    #[arg(long = "match", value_enum, value_name = "TYPE", default_value = "glob", help_heading = CALLS)]
    matching: Match,
    /// Show only this number of call levels, from the outermost function or from --filter on.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = parse_levels, help_heading = CALLS)]
    depth: Option<usize>,
    /// Show only calls of at least this duration, such as `1.5us`.
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration_ns)]
    time_filter: Option<u64>,
}

impl CallsArgs {
    /// Returns the choice by these options.
    fn choice(&self) -> Result<Choice> {
        let patterns = |option: &str, texts: &[String]| -> Result<Vec<Pattern>> {
            let read = |text: &String| self.matching.pattern(text).map_err(|error| anyhow!("{option} {text}: {error}"));
            texts.iter().map(read).collect()
        };
        let mut choice = Choice::default();
        choice.below = patterns("--filter", &self.filter)?;
        choice.not_below = patterns("--notrace", &self.notrace)?;
        choice.depth = self.depth.unwrap_or(choice.depth);
        choice.min_ns = self.time_filter.unwrap_or(0);
        Ok(choice)
    }
}

/// How functions are named.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Match {
    /// A name, a glob or `/regex/`.
    Glob,
    /// As in uftrace: a regular expression, which may match any part of a name; or a name, if none of `.?*+-^$|()[]{}` is in it.
    Regex,
}

impl Match {
    fn pattern(self, text: &str) -> Result<Pattern, String> {
        match self {
            Self::Glob => parse_pattern(text),
            Self::Regex => parse_uftrace_pattern(text),
        }
    }
}

/// When, and of whom.
#[derive(Args)]
pub(crate) struct RangeArgs {
    /// Leave out the time before. A plain number is seconds of the trace's clock; with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`) it
    /// counts from the start of the trace.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = TIMES)]
    from: Option<Time>,
    /// Leave out this time and all later time.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = TIMES)]
    to: Option<Time>,
    /// Both, in uftrace's syntax; either may be missing.
    #[arg(short = 'r', long, value_name = "FROM~TO", value_parser = parse_range, conflicts_with_all = ["from", "to"], help_heading = TIMES)]
    time_range: Option<(Option<Time>, Option<Time>)>,
    /// Show only this task. Can be given several times, also with commas.
    #[arg(long, value_name = "TID", visible_alias = "task", value_delimiter = ',')]
    tid: Vec<u32>,
}

impl RangeArgs {
    /// When, in nanoseconds of the trace's clock.
    pub(crate) fn times(&self, trace: &Trace) -> Result<Range<u64>> {
        let (from, to) = self.time_range.unwrap_or((self.from, self.to));
        let at = |time: Option<Time>| time.map(|time| time.absolute(trace)).transpose();
        let times = at(from)?.unwrap_or(0)..at(to)?.unwrap_or(u64::MAX);
        if times.is_empty() {
            bail!("the time range is empty: --from must be before --to");
        }
        Ok(times)
    }

    /// True if nothing is left out.
    #[cfg(feature = "full")]
    pub(crate) fn is_everything(&self) -> bool {
        self.time_range.is_none() && self.from.is_none() && self.to.is_none() && self.tid.is_empty()
    }

    /// Of whom; nobody is everybody.
    #[cfg(feature = "full")]
    pub(crate) fn tids(&self) -> &[u32] {
        &self.tid
    }
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

/// Characters that tell a regular expression from a name in uftrace.
const REGEX: &[char] = &['.', '?', '*', '+', '-', '^', '$', '|', '(', ')', '[', ']', '{', '}'];

/// A name or a regular expression, told apart as uftrace does it.
pub(crate) fn parse_uftrace_pattern(text: &str) -> Result<Pattern, String> {
    let is_regex = text.contains(REGEX) && !text.starts_with("operator ");
    let pattern = if is_regex {
        format!("/{text}/")
    } else {
        // Nothing in it has a meaning.
        text.chars().flat_map(|c| ['\\'].into_iter().filter(move |_| "*?[\\".contains(c)).chain([c])).collect()
    };
    parse_pattern(&pattern)
}

fn parse_levels(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&levels| levels > 0).ok_or_else(|| "the lowest number is 1".to_owned())
}

/// A moment: seconds of the trace's clock, or a time with a unit since its start.
fn parse_time(text: &str) -> Result<Time, String> {
    let (ns, is_since_start) = moment_ns(text)
        .ok_or("it must be a number, with `ns`, `us`, `ms`, `s`, `m` or `h` for a time since the trace's start")?;
    Ok(if is_since_start { Time::SinceStart(ns) } else { Time::Absolute(ns) })
}

/// Two moments, either of which may be missing.
pub(crate) fn parse_range(text: &str) -> Result<(Option<Time>, Option<Time>), String> {
    let (from, to) = text.split_once('~').ok_or("a range is two times with `~` between: 1ms~2ms, 5s~ or ~100us")?;
    let time = |text: &str| if text.is_empty() { Ok(None) } else { parse_time(text).map(Some) };
    Ok((time(from)?, time(to)?))
}

/// The columns of a table for people: they see the order, too.
pub(super) fn with_order(mut fields: Vec<Field>, sort: &[Field]) -> Vec<Field> {
    for field in sort {
        if !fields.contains(field) {
            fields.push(*field);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_regular_expressions() {
        for (text, name, is_meant) in [
            ("main", "main", true),
            ("main", "domain", false),
            ("^.$", "b", true),
            ("^.$", "ab", false),
            ("a.", "cab", true),
            ("app::(work|rest)$", "app::rest", true),
            ("operator *", "operator *", true),
            ("operator *", "operator new", false),
            ("[[:digit:]]", "f1", true),
        ] {
            assert_eq!(parse_uftrace_pattern(text).unwrap().matches(name), is_meant, "{text} {name}");
        }
        assert!(parse_uftrace_pattern("(").is_err() && parse_uftrace_pattern("").is_err());
    }

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
        for bad in ["", ".", "s", "-1s", "1e3", "1.2.3", "99999999999s", "1d", "٣s", "1.é"] {
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
}
