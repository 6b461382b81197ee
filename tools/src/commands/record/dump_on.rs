//! `--dump-on`: how it is written what dumps are made on.

use std::time::Duration;

use anyhow::{Result, bail};
use rftrace_frontend::Filter;
use rftrace_record::dumps::{DumpOn, Event, Options};
use rftrace_record::run::parse_signal;

use crate::commands::time::parse_ns;

/// What can be written.
const KINDS: &str = "signal:NAME, fatal, stall:TIME, every:TIME, call:FUNCTION, call:FUNCTION#NUMBER, slow:FUNCTION>TIME or slow:FUNCTION>max";

/// Shortest time between two dumps, or without a record: each look costs something.
const SHORTEST: Duration = Duration::from_millis(100);

/// Reads what a dump is made on.
pub(super) fn parse(text: &str) -> Result<DumpOn, String> {
    let (kind, detail) = text.split_once(':').map_or((text, None), |(kind, detail)| (kind, Some(detail)));
    let time = |detail: &str| match parse_ns(detail).map(Duration::from_nanos)? {
        time if time < SHORTEST => Err(format!("{detail} is too short: 100ms is the least")),
        time => Ok(time),
    };
    let event = match (kind, detail) {
        ("fatal", None) => Event::Fatal,
        ("signal", Some(name)) => match parse_signal(name)? {
            0 => return Err("no signal: leave it out".to_owned()),
            signal => Event::Signal(signal),
        },
        ("stall", Some(detail)) => Event::Stall(time(detail)?),
        ("every", Some(detail)) => Event::Every(time(detail)?),
        ("call" | "slow", Some(_)) => {
            rule(0, text).parse::<Filter>().map_err(|error| error.to_string())?;
            Event::Call
        }
        _ => return Err(format!("a dump is made on {KINDS}")),
    };
    Ok(DumpOn { text: text.to_owned(), event })
}

/// The rules of a filter that have the tracer look for calls.
pub(super) fn rules(on: &[DumpOn]) -> impl Iterator<Item = String> {
    on.iter().enumerate().filter(|(_, on)| on.event == Event::Call).map(|(place, on)| rule(place, &on.text))
}

fn rule(place: usize, text: &str) -> String {
    format!("watch={place}:{}", text.replace(';', "\\;"))
}

/// What is wanted of dumps, where `signal` asks for snapshots.
pub(super) fn options(on: &[DumpOn], most: usize, signal: i32) -> Result<Options> {
    let mut signals = on.iter().filter_map(|on| match on.event {
        Event::Signal(signal) => Some(signal),
        _ => None,
    });
    let chosen = signals.next().unwrap_or(signal);
    if signals.any(|other| other != chosen) {
        bail!("--dump-on names two signals: one asks for dumps");
    }
    Ok(Options { on: on.to_vec(), most, signal: chosen })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, event) in [
            ("fatal", Event::Fatal),
            ("signal:USR1", Event::Signal(10)),
            ("signal:SIGTERM", Event::Signal(15)),
            ("stall:2s", Event::Stall(Duration::from_secs(2))),
            ("call:app::f#100", Event::Call),
            ("slow:<A as B>::f>max", Event::Call),
            ("every:500ms", Event::Every(Duration::from_millis(500))),
        ] {
            assert_eq!(parse(text), Ok(DumpOn { text: text.to_owned(), event }));
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, expected) in [
            ("", "a dump is made on signal:NAME"),
            ("fatal:x", "a dump is made on"),
            ("crash", "a dump is made on"),
            ("signal:KILL", "no program can handle this signal"),
            ("signal:none", "leave it out"),
            ("signal:NOTHING", "not a signal"),
            ("stall:soon", "a time is a number and a unit"),
            ("stall:", "a time is a number and a unit"),
            ("call:f#first", "`first` is not the number of a call"),
            ("slow:f", "slow:FUNCTION>5ms"),
            ("every:1ms", "100ms is the least"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn calls_are_looked_for_by_the_tracer() {
        let on = ["fatal", "call:f", "slow:[u8; 3]::g>5ms"].map(|text| parse(text).unwrap());
        assert_eq!(rules(&on).collect::<Vec<_>>(), ["watch=1:call:f", "watch=2:slow:[u8\\; 3]::g>5ms"]);
    }

    #[test]
    fn one_signal_asks_for_dumps() {
        let on = |texts: &[&str]| texts.iter().map(|text| parse(text).unwrap()).collect::<Vec<_>>();
        assert_eq!(options(&on(&["fatal"]), 10, 12).unwrap().signal, 12);
        assert_eq!(options(&on(&["signal:HUP", "signal:HUP"]), 10, 12).unwrap().signal, 1);
        assert!(options(&on(&["signal:HUP", "signal:TERM"]), 10, 12).is_err());
    }
}
