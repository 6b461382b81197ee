//! The syntax of `--dump-on`.

use std::time::Duration;

use anyhow::{Result, bail};
use rftrace_format::quantity::duration_ns;
use rftrace_frontend::Filter;
use rftrace_record::control::Spelling;
use rftrace_record::dumps::{DumpOn, Event, Extent, Keep, Options};
use rftrace_record::run::parse_signal;

/// Forms of the triggers.
const KINDS: &str = "signal:NAME, fatal, panic, throw, stall:TIME, every:TIME, call:FUNCTION, call:FUNCTION#NUMBER, slow:FUNCTION>TIME or \
     slow:FUNCTION>max";

/// Shortest time between two dumps, or without a record: each look costs something.
const SHORTEST: Duration = Duration::from_millis(100);

/// Reads an event and its suffixes.
pub(super) fn parse(text: &str) -> Result<DumpOn, String> {
    let (event, extent) = split(text)?;
    let (kind, detail) = event.split_once(':').map_or((event, None), |(kind, detail)| (kind, Some(detail)));
    let time = |detail: &str| match duration_ns(detail).map(Duration::from_nanos)? {
        time if time < SHORTEST => Err(format!("{detail} is too short: the shortest time is 100ms")),
        time => Ok(time),
    };
    let event = match (kind, detail) {
        ("fatal", None) => Event::Fatal,
        ("panic", None) => Event::Panic,
        ("throw", None) => Event::Throw,
        ("signal", Some(name)) => match parse_signal(name)? {
            0 => return Err(format!("`{name}` is no signal; name one, as in signal:USR1")),
            signal => Event::Signal(signal),
        },
        ("stall", Some(detail)) => Event::Stall(time(detail)?),
        ("every", Some(detail)) => Event::Every(time(detail)?),
        ("call" | "slow", Some(_)) => {
            rule(0, event).parse::<Filter>().map_err(|error| error.to_string())?;
            Event::Call
        }
        _ => return Err(format!("no such event; events are {KINDS}")),
    };
    let is_of_thread = matches!(event, Event::Call | Event::Panic | Event::Throw);
    let of_whole = Extent { last: extent.last, ..Extent::default() };
    if !is_of_thread && extent != of_whole {
        return Err(
            "`after`, `thread`, `burst` and `times` work only with call, slow, panic and throw, the events of one thread"
                .to_owned(),
        );
    }
    if event == Event::Fatal && extent.last.is_some() {
        return Err("`last` does not work with fatal, which saves the whole ring; leave it out".to_owned());
    }
    Ok(DumpOn { text: text.to_owned(), event, extent })
}

/// Splits off the suffixes. A name may have commas too.
fn split(text: &str) -> Result<(&str, Extent), String> {
    let mut extent = Extent::default();
    let mut event = text;
    while let Some((before, option)) = event.rsplit_once(',') {
        let time = |value: &str| duration_ns(value).map(Duration::from_nanos);
        match option.split_once('=') {
            Some(("after", value)) => extent.after = time(value)?,
            Some(("last", value)) => extent.last = Some(time(value)?),
            None if option == "thread" => extent.is_of_thread = true,
            Some(("times", value)) => match value.parse() {
                Ok(times @ 1..) => extent.times = Some(times),
                _ => return Err(format!("times={value}: write a number, 1 or more")),
            },
            None if option == "burst" => extent.is_burst = true,
            _ => break,
        }
        event = before;
    }
    Ok((event, extent))
}

/// The rules of a filter that have the tracer look for calls.
pub(super) fn rules(on: &[DumpOn]) -> impl Iterator<Item = String> {
    on.iter().enumerate().filter_map(|(place, on)| Some(format!("watch={}", watch(place, on)?.replace(';', "\\;"))))
}

/// Spelling of triggers, for requests while the program runs.
pub(super) const SPELLING: Spelling = Spelling { read: parse, watch };

/// The value of the rule by which the tracer looks for it.
fn watch(number: usize, on: &DumpOn) -> Option<String> {
    // Unreadable patterns were refused.
    (on.event == Event::Call).then(|| format!("{number}:{}", split(&on.text).map_or("", |(event, _)| event)))
}

/// True if raised panics or exceptions have to be noticed.
pub(super) fn has_raised(on: &[DumpOn]) -> bool {
    on.iter().any(|on| matches!(on.event, Event::Panic | Event::Throw))
}

fn rule(place: usize, text: &str) -> String {
    format!("watch={place}:{}", text.replace(';', "\\;"))
}

/// Returns the options for dumps; `signal` asks for snapshots.
pub(super) fn options(on: &[DumpOn], (most, most_bytes, keep): (usize, u64, Keep), signal: i32) -> Result<Options> {
    let mut signals = on.iter().filter_map(|on| match on.event {
        Event::Signal(signal) => Some(signal),
        _ => None,
    });
    let chosen = signals.next().unwrap_or(signal);
    if signals.any(|other| other != chosen) {
        bail!("--dump-on names two signals; name only one");
    }
    Ok(Options { on: on.to_vec(), most, keep, most_bytes, signal: chosen, of_running: false })
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
            ("panic", Event::Panic),
            ("throw", Event::Throw),
        ] {
            assert_eq!(parse(text), Ok(DumpOn { text: text.to_owned(), event, extent: Extent::default() }));
        }
        let ms = Duration::from_millis;
        for (text, event, extent) in [
            ("panic,after=10ms", Event::Panic, Extent { after: ms(10), ..Extent::default() }),
            ("stall:2s,last=50ms", Event::Stall(ms(2000)), Extent { last: Some(ms(50)), ..Extent::default() }),
            (
                "call:<A, B>::f#7,thread,burst,last=1s",
                Event::Call,
                Extent { is_of_thread: true, is_burst: true, last: Some(ms(1000)), ..Extent::default() },
            ),
            ("throw,times=3", Event::Throw, Extent { times: Some(3), ..Extent::default() }),
        ] {
            assert_eq!(parse(text), Ok(DumpOn { text: text.to_owned(), event, extent }));
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, expected) in [
            ("", "no such event; events are signal:NAME"),
            ("fatal:x", "no such event; events are"),
            ("crash", "no such event; events are"),
            ("signal:KILL", "no program can handle this signal"),
            ("signal:none", "`none` is no signal"),
            ("signal:NOTHING", "no such signal"),
            ("stall:soon", "is no duration; write a number and a unit"),
            ("stall:", "is no duration; write a number and a unit"),
            ("call:f#first", "`first` is not the number of a call"),
            ("slow:f", "slow:FUNCTION>5ms"),
            ("every:1ms", "the shortest time is 100ms"),
            ("panic:x", "no such event; events are"),
            ("fatal,last=1s", "`last` does not work with fatal"),
            ("fatal,after=1ms", "work only with call, slow, panic and throw"),
            ("signal:USR1,thread", "work only with call, slow, panic and throw"),
            ("every:1s,burst", "work only with call, slow, panic and throw"),
            ("throw,after=soon", "is no duration; write a number and a unit"),
            ("throw,times=0", "times=0: write a number"),
            ("throw,soon", "no such event; events are"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn calls_are_looked_for_by_the_tracer() {
        let on = ["fatal", "call:f,thread", "slow:<[u8; 3], A>::g>5ms,last=1s"].map(|text| parse(text).unwrap());
        assert_eq!(rules(&on).collect::<Vec<_>>(), ["watch=1:call:f", "watch=2:slow:<[u8\\; 3], A>::g>5ms"]);
    }

    const WANTED: (usize, u64, Keep) = (10, 1 << 30, Keep::First);

    #[test]
    fn one_signal_asks_for_dumps() {
        let on = |texts: &[&str]| texts.iter().map(|text| parse(text).unwrap()).collect::<Vec<_>>();
        assert_eq!(options(&on(&["fatal"]), WANTED, 12).unwrap().signal, 12);
        assert_eq!(options(&on(&["signal:HUP", "signal:HUP"]), WANTED, 12).unwrap().signal, 1);
        assert!(options(&on(&["signal:HUP", "signal:TERM"]), WANTED, 12).is_err());
    }
}
