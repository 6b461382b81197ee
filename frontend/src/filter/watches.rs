//! Watches and triggers at calls. Watches are for makers of dumps: `call:PATTERN`, `call:PATTERN#100`, `slow:PATTERN>5ms`,
//! `slow:PATTERN>max`. Triggers switch recording on or off, in uftrace's spelling: `PATTERN@trace_off`.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rftrace::abi::{Watch, watch};
use rftrace_format::quantity::duration_ns;
use rftrace_pattern::Pattern;

use crate::clock::ticks_in;

/// The names of triggers.
const TRIGGERS: &str = "trace_on, trace_off, finish and depth=LEVELS";
/// The maximum number of recorded levels.
const MAX_LEVELS: u32 = 1023;

/// A rule about calls.
#[derive(Clone, Debug)]
pub(crate) struct WatchRule {
    pub(crate) pattern: Pattern,
    pub(crate) wanted: AtSite,
    /// The user's text.
    text: String,
}

/// Action of a rule at a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtSite {
    Watch(SiteWatch),
    /// The number of levels of calls from it on.
    Levels(u32),
}

/// Calls of a function with an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteWatch {
    /// Its number in reports.
    number: u64,
    calls: Calls,
}

/// The calls with a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    /// Each.
    All,
    /// The one with this number, from 1.
    Nth(u64),
    /// Calls of at least this duration.
    Slow(Duration),
    /// Calls longer than all before.
    Slowest,
    /// Each call: an action of [`watch`] in place of a notice.
    Trigger(u8),
}

impl WatchRule {
    /// Reads `NUMBER:call:PATTERN` and the like.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const HELP: &str = "write call:FUNCTION, call:FUNCTION#100, slow:FUNCTION>5ms or slow:FUNCTION>max";
        let (number, spec) = text.split_once(':').ok_or(HELP)?;
        let number = number.trim().parse().map_err(|_| "expected the number of the watch before the first `:`")?;
        let (kind, rest) = spec.split_once(':').ok_or(HELP)?;
        let (pattern, calls) = match kind {
            "call" => match rest.rsplit_once('#') {
                Some((pattern, nth)) => match nth.parse() {
                    Ok(nth) if nth > 0 => (pattern, Calls::Nth(nth)),
                    _ => return Err(format!("`{nth}` is not the number of a call; 1 is the first")),
                },
                None => (rest, Calls::All),
            },
            // A name may have a `>`.
            "slow" => match rest.rsplit_once('>') {
                Some((pattern, "max")) => (pattern, Calls::Slowest),
                Some((pattern, least)) => (pattern, Calls::Slow(Duration::from_nanos(duration_ns(least)?))),
                None => return Err(HELP.to_owned()),
            },
            _ => return Err(HELP.to_owned()),
        };
        let pattern = Pattern::new(pattern).map_err(|problem| problem.to_string())?;
        Ok(Self { pattern, wanted: AtSite::Watch(SiteWatch { number, calls }), text: spec.to_owned() })
    }

    /// A trigger for functions of a pattern, by uftrace's word for the action.
    pub(super) fn trigger(pattern: &str, action: &str) -> Result<Self, String> {
        let trigger = |action| AtSite::Watch(SiteWatch { number: 0, calls: Calls::Trigger(action) });
        let wanted = match action.split_once('=') {
            None => match action {
                "trace_on" | "traceon" => trigger(watch::ON),
                "trace_off" | "traceoff" => trigger(watch::OFF),
                "finish" => trigger(watch::FINISH),
                _ => return Err(format!("no such trigger: `{action}`; triggers are {TRIGGERS}")),
            },
            Some(("depth", levels)) => match levels.parse() {
                Ok(levels @ 1..=MAX_LEVELS) => AtSite::Levels(levels),
                _ => return Err(format!("`{levels}` is no number of levels; write a number from 1 to {MAX_LEVELS}")),
            },
            Some(_) => return Err(format!("no such trigger: `{action}`; triggers are {TRIGGERS}")),
        };
        let text = format!("{pattern}@{action}");
        let pattern = Pattern::new(pattern).map_err(|problem| problem.to_string())?;
        Ok(Self { pattern, wanted, text })
    }

    /// Returns true if it switches recording on or off, for a time.
    pub(super) fn is_switch(&self) -> bool {
        let calls = match self.wanted {
            AtSite::Watch(watch) => watch.calls,
            AtSite::Levels(_) => return false,
        };
        matches!(calls, Calls::Trigger(watch::ON | watch::OFF))
    }

    /// Returns the user's text, without its number.
    pub(crate) fn text(&self) -> String {
        self.text.clone()
    }

    /// Returns its text among other rules.
    #[cfg(any(test, all(feature = "control", target_os = "linux")))]
    pub(super) fn rule(&self) -> String {
        let text = self.text.replace(';', "\\;");
        match self.wanted {
            AtSite::Watch(SiteWatch { calls: Calls::Trigger(_), .. }) | AtSite::Levels(_) => format!("trigger={text}"),
            AtSite::Watch(SiteWatch { number, .. }) => format!("watch={number}:{text}"),
        }
    }
}

impl SiteWatch {
    /// For the hooks.
    pub(super) fn for_hooks(self) -> Watch {
        let mut watch = Watch {
            number: self.number,
            action: watch::TELL,
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
            Calls::Trigger(action) => watch.action = action,
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
            let wanted = AtSite::Watch(SiteWatch { number, calls });
            assert_eq!((rule.wanted, rule.text().as_str()), (wanted, &text[2..]));
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, expected) in [
            ("", "write call:FUNCTION"),
            ("x:call:f", "expected the number"),
            ("0:exit:f", "write call:FUNCTION"),
            ("0:call:f#0", "1 is the first"),
            ("0:call:f#x", "1 is the first"),
            ("0:call:", "`*` for all names"),
            ("0:slow:f", "slow:FUNCTION>5ms"),
            ("0:slow:f>5", "`5` has no unit; write 5ns, 5us"),
        ] {
            let problem = WatchRule::parse(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn triggers() {
        for (action, wanted, is_switch) in
            [("trace_on", watch::ON, true), ("traceoff", watch::OFF, true), ("finish", watch::FINISH, false)]
        {
            let rule = WatchRule::trigger("app::f", action).unwrap();
            let expected = AtSite::Watch(SiteWatch { number: 0, calls: Calls::Trigger(wanted) });
            assert_eq!((rule.wanted, rule.is_switch()), (expected, is_switch), "{action}");
            assert_eq!(rule.text(), format!("app::f@{action}"));
        }
        let levels = WatchRule::trigger("f", "depth=3").unwrap();
        assert_eq!((levels.wanted, levels.is_switch()), (AtSite::Levels(3), false));
        for (pattern, action, expected) in [
            ("f", "stop", "no such trigger: `stop`; triggers are trace_on"),
            ("f", "", "no such trigger"),
            ("f", "read=x", "no such trigger: `read=x`"),
            ("f", "depth=0", "from 1 to 1023"),
            ("f", "depth=x", "from 1 to 1023"),
            ("f", "depth=1024", "from 1 to 1023"),
            ("", "finish", "`*` for all names"),
        ] {
            let problem = WatchRule::trigger(pattern, action).unwrap_err();
            assert!(problem.contains(expected), "{pattern}@{action}: {problem}");
        }
    }
}
