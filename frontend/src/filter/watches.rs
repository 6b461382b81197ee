//! What is looked for in calls, for who makes dumps: `call:PATTERN`, `call:PATTERN#100`, `slow:PATTERN>5ms`, `slow:PATTERN>max`.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rftrace::abi::Watch;
use rftrace_pattern::Pattern;

use super::duration::duration;
use crate::clock::ticks_in;

/// A rule about calls.
#[derive(Clone, Debug)]
pub(crate) struct WatchRule {
    pub(crate) pattern: Pattern,
    pub(crate) wanted: SiteWatch,
    /// As it was written.
    text: String,
}

/// The same without the functions that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteWatch {
    /// What it is told by.
    number: u64,
    calls: Calls,
}

/// The calls that are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    /// Each.
    All,
    /// The one with this number, from 1.
    Nth(u64),
    /// Those that last as long.
    Slow(Duration),
    /// Those that last longer than all before.
    Slowest,
}

impl WatchRule {
    /// Reads `NUMBER:call:PATTERN` and the like.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const HELP: &str = "write call:FUNCTION, call:FUNCTION#100, slow:FUNCTION>5ms or slow:FUNCTION>max";
        let (number, spec) = text.split_once(':').ok_or(HELP)?;
        let number = number.trim().parse().map_err(|_| "a watch begins with its number")?;
        let (kind, rest) = spec.split_once(':').ok_or(HELP)?;
        let (pattern, calls) = match kind {
            "call" => match rest.rsplit_once('#') {
                Some((pattern, nth)) => match nth.parse() {
                    Ok(nth) if nth > 0 => (pattern, Calls::Nth(nth)),
                    _ => return Err(format!("`{nth}` is not the number of a call: 1 is the first")),
                },
                None => (rest, Calls::All),
            },
            // A name may have a `>`.
            "slow" => match rest.rsplit_once('>') {
                Some((pattern, "max")) => (pattern, Calls::Slowest),
                Some((pattern, least)) => (pattern, Calls::Slow(duration(least)?)),
                None => return Err(HELP.to_owned()),
            },
            _ => return Err(HELP.to_owned()),
        };
        let pattern = Pattern::new(pattern).map_err(|problem| problem.to_string())?;
        Ok(Self { pattern, wanted: SiteWatch { number, calls }, text: spec.to_owned() })
    }

    /// As it is written, without its number.
    pub(crate) fn text(&self) -> String {
        self.text.clone()
    }
}

impl SiteWatch {
    /// For the hooks.
    pub(super) fn for_hooks(self) -> Watch {
        let mut watch = Watch {
            number: self.number,
            on_return: 0,
            is_rising: 0,
            nth: 0,
            n_calls: AtomicU64::new(0),
            least_ticks: AtomicU64::new(0),
        };
        match self.calls {
            Calls::All => {}
            Calls::Nth(nth) => watch.nth = nth,
            Calls::Slow(least) => (watch.on_return, watch.least_ticks) = (1, ticks_in(least).into()),
            Calls::Slowest => (watch.on_return, watch.is_rising) = (1, 1),
        }
        watch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind() {
        for (text, name, calls) in [
            ("0:call:app::f", "app::f", Calls::All),
            ("1:call:app::f#100", "app::f", Calls::Nth(100)),
            ("2:slow:<A as B>::f>1.5ms", "<A as B>::f", Calls::Slow(Duration::from_micros(1500))),
            ("3:slow:f>max", "f", Calls::Slowest),
        ] {
            let rule = WatchRule::parse(text).unwrap();
            assert!(rule.pattern.matches(name), "{text}");
            let number = text[..1].parse().unwrap();
            assert_eq!((rule.wanted, rule.text().as_str()), (SiteWatch { number, calls }, &text[2..]));
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, expected) in [
            ("", "write call:FUNCTION"),
            ("x:call:f", "begins with its number"),
            ("0:exit:f", "write call:FUNCTION"),
            ("0:call:f#0", "1 is the first"),
            ("0:call:f#x", "1 is the first"),
            ("0:call:", "`*` stands for all"),
            ("0:slow:f", "slow:FUNCTION>5ms"),
            ("0:slow:f>5", "write a duration with its unit"),
        ] {
            let problem = WatchRule::parse(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
