//! `-T`: actions at calls of a function, in uftrace's syntax, as rules of a filter.
//!
//! Not here: the meaning of the rules (`rftrace-frontend`), and a function without `@`, at which recording begins (`rftrace-preload`).

use std::time::Duration;

use anyhow::{Result, bail};
use rftrace_format::quantity::duration_ns;
use rftrace_record::run::parse_signal;

/// Actions that can be written behind `@`.
const ACTIONS: &str =
    "trace_on, trace_off, finish, filter, notrace, depth=LEVELS, and arg1, fparg1, retval as for -A and -R";

/// Content of the options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Triggers {
    /// In the frontend's language.
    pub(super) rules: Vec<String>,
    /// The function with whose first call recording begins, and costs nothing before.
    pub(super) start: Option<String>,
    /// Recording can go on again at a function.
    pub(super) has_on: bool,
}

/// Reads them. Recording begins `disabled`, `depth` levels are recorded.
pub(super) fn read(options: &[String], disabled: bool, depth: Option<u32>) -> Result<Triggers> {
    let mut triggers = Triggers::default();
    for option in options.iter().flat_map(|option| option.split(';')) {
        let Some((function, actions)) = option.rsplit_once('@') else {
            if let Some(before) = triggers.start.replace(option.to_owned()) {
                bail!("-T {before} and -T {option}: the recording begins at one function; leave one of them out");
            }
            continue;
        };
        let mut specs = Vec::new();
        for action in actions.split(',').map(str::trim) {
            match action_of(function, action, depth)? {
                Action::Rule(rule) => triggers.rules.push(rule),
                Action::Value(spec) => specs.push(spec),
            }
            triggers.has_on |= matches!(action, "trace_on" | "traceon");
        }
        if !specs.is_empty() {
            triggers.rules.push(format!("values={}@{}", escaped(function), specs.join(",")));
        }
    }
    if disabled && triggers.has_on {
        triggers.rules.push("paused=1".to_owned());
    }
    Ok(triggers)
}

/// Result of one action.
enum Action<'a> {
    Rule(String),
    /// A spec of a value.
    Value(&'a str),
}

fn action_of<'a>(function: &str, action: &'a str, depth: Option<u32>) -> Result<Action<'a>> {
    let pattern = escaped(function);
    let (key, value) = action.split_once('=').map_or((action, None), |(key, value)| (key, Some(value)));
    let of_all = |option: &str| {
        if function == "*" {
            return Ok(());
        }
        bail!("-T {function}@{action}: this action holds for all functions; write {option}, or -T '*@{action}'")
    };
    let is_value = ["arg", "fparg", "retval"].iter().any(|&word| action.starts_with(word));
    let rule = match (key, value) {
        ("filter", None) => format!("below={pattern}"),
        ("notrace", None) => format!("not_below={pattern}"),
        ("trace_on" | "traceon" | "trace_off" | "traceoff" | "finish", None) => format!("trigger={pattern}@{action}"),
        ("depth", Some(value)) => {
            if let (Ok(levels), Some(depth)) = (value.parse::<u32>(), depth)
                && levels > depth
            {
                bail!("-T {function}@{action}: -D {depth} permits fewer levels; use a larger -D");
            }
            format!("trigger={pattern}@{action}")
        }
        ("time", Some(value)) => {
            let least =
                duration_ns(value).map(Duration::from_nanos).map_err(|problem| wrong(function, action, &problem))?;
            of_all(&format!("-t {value}"))?;
            format!("min={}ns", least.as_nanos())
        }
        ("size", Some(value)) => {
            let bytes: u64 = value.parse().map_err(|_| wrong(function, action, "write the number of bytes"))?;
            of_all(&format!("--rules size={bytes}"))?;
            format!("size={bytes}")
        }
        ("read", Some(_)) => {
            bail!("-T {function}@{action}: uftrace has this action, rftrace has not; actions are {ACTIONS}")
        }
        ("trace" | "recover" | "backtrace" | "hide" | "clear", _) => {
            bail!("-T {function}@{action}: uftrace has this action, rftrace has not; actions are {ACTIONS}")
        }
        _ if is_value => return Ok(Action::Value(action)),
        _ => bail!("-T {function}@{action}: no such action; actions are {ACTIONS}"),
    };
    Ok(Action::Rule(rule))
}

fn wrong(function: &str, action: &str, problem: &str) -> anyhow::Error {
    anyhow::anyhow!("-T {function}@{action}: {problem}")
}

/// A pattern as it stands in a rule.
fn escaped(pattern: &str) -> String {
    pattern.replace(';', "\\;")
}

/// Reads `--signal`: a signal at which recording ends; 0 for none.
pub(super) fn parse_finish(text: &str) -> Result<i32, String> {
    if text == "0" {
        return Ok(0);
    }
    match text.rsplit_once('@') {
        Some((signal, "finish")) => match parse_signal(signal)? {
            0 => Err(format!("`{signal}` is no signal; name one, or leave the option out")),
            signal => Ok(signal),
        },
        Some((_, "trace_on" | "trace_off" | "traceon" | "traceoff")) => {
            Err("--signal only ends a recording; --signal-toggle SIGNAL (default: USR2) switches it off and on"
                .to_owned())
        }
        _ => Err("write SIGNAL@finish, as in USR1@finish".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(option: &str) -> Result<Triggers> {
        read(&[option.to_owned()], false, Some(4))
    }

    #[test]
    fn uftraces_words_become_rules() {
        for (option, rules) in [
            ("f@trace_off", &["trigger=f@trace_off"][..]),
            ("app::f@traceon", &["trigger=app::f@traceon"]),
            ("f@finish", &["trigger=f@finish"]),
            ("f@filter,depth=2", &["below=f", "trigger=f@depth=2"]),
            ("f@notrace", &["not_below=f"]),
            ("*@time=10us", &["min=10000ns"]),
            ("*@size=64", &["size=64"]),
            ("f@arg1/s,retval,trace_on", &["trigger=f@trace_on", "values=f@arg1/s,retval"]),
            ("a@trace_off;b@trace_on", &["trigger=a@trace_off", "trigger=b@trace_on"]),
        ] {
            let triggers = read_one(option).unwrap();
            assert_eq!((triggers.rules, triggers.start), (rules.iter().map(|&rule| rule.to_owned()).collect(), None));
        }
        assert_eq!(read_one("main").unwrap().start.as_deref(), Some("main"));
    }

    #[test]
    fn a_beginning_without_records() {
        let triggers = |disabled| read(&["f@trace_on".to_owned()], disabled, None).unwrap().rules;
        assert_eq!(triggers(true), ["trigger=f@trace_on", "paused=1"]);
        assert_eq!(triggers(false), ["trigger=f@trace_on"]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (option, expected) in [
            ("f@bogus", "no such action; actions are trace_on"),
            ("f@", "no such action"),
            ("f@trace_off=1", "no such action"),
            ("f@read=proc/statm", "uftrace has this action"),
            ("f@recover", "uftrace has this action"),
            ("f@time=1ms", "for all functions; write -t 1ms"),
            ("*@time=soon", "*@time=soon: "),
            ("f@size=64", "--rules size=64"),
            ("f@depth=5", "-D 4 permits"),
            ("f;g", "the recording begins at one function"),
        ] {
            let problem = format!("{:#}", read_one(option).unwrap_err());
            assert!(problem.contains(expected), "{option}: {problem}");
        }
    }

    #[test]
    fn a_signal_ends_it() {
        assert_eq!(parse_finish("USR1@finish"), Ok(10));
        for (text, expected) in [
            ("USR1", "write SIGNAL@finish"),
            ("USR1@trace_off", "--signal-toggle"),
            ("KILL@finish", "handle"),
            ("none@finish", "`none` is no signal"),
        ] {
            assert!(parse_finish(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
