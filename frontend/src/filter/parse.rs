//! Filters in text: `include=app::*; depth=5; min=1us`.

use std::time::Duration;

use rftrace_format::quantity::duration_ns;
use rftrace_pattern::nearest;

use super::rules::{Filter, Flaw, RuleKind};
use super::watches::WatchRule;
use crate::Error;

/// The keys without a pattern, or with more than one.
const LIMITS: [&str; 5] = ["depth", "min", "size", "values", "trigger"];

/// The keys of a recorder's watches, and of a beginning without records; users do not write them.
const WATCH: &str = "watch";
const PAUSED: &str = "paused";

impl Filter {
    /// Parses the [text form](Self#text-form) of a filter.
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] with the place of the fault.
    pub fn parse(text: &str) -> Result<Self, Error> {
        filter(text).map_err(Flaw::into_error)
    }
}

impl std::str::FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

/// Reads a filter.
fn filter(text: &str) -> Result<Filter, Flaw> {
    let mut filter = Filter::new();
    for (start, rule) in split(text) {
        filter = add(filter, &rule)
            .map_err(|problem| Flaw::new(format!("at character {}, `{}`", start + 1, rule.trim()), problem))?;
    }
    Ok(filter)
}

/// Returns the rules of a text, without `\` in front of `;`, and their places, in characters.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut rules: Vec<(usize, String)> = Vec::new();
    let mut rule = String::new();
    let mut start = 0;
    let mut characters = text.chars().enumerate().peekable();
    while let Some((place, c)) = characters.next() {
        match (c, characters.peek()) {
            ('\\', Some((_, ';'))) => {
                rule.push(';');
                characters.next();
            }
            // Not the beginning of `\;`.
            ('\\', Some((_, '\\'))) => {
                rule.push_str("\\\\");
                characters.next();
            }
            (';' | '\n', _) => {
                rules.push((start, std::mem::take(&mut rule)));
                start = place + 1;
            }
            _ if rule.is_empty() && c.is_whitespace() => start = place + 1,
            _ => rule.push(c),
        }
    }
    rules.push((start, rule));
    rules.retain(|(_, rule)| !rule.trim().is_empty());
    rules
}

/// Adds a rule to `filter`. The error names the fault.
fn add(mut filter: Filter, rule: &str) -> Result<Filter, String> {
    let Some((key, value)) = rule.split_once('=') else {
        return Err(format!("write it as key=value; keys are {}", keys().join(", ")));
    };
    let (key, value) = (key.trim(), value.trim());
    let mut filter = match key {
        "depth" => {
            let levels = value.parse().map_err(|_| "write the number of levels, as in depth=5".to_owned())?;
            filter.max_depth(levels)
        }
        "min" => filter.min_duration(Duration::from_nanos(duration_ns(value)?)),
        "size" => {
            let bytes = value.parse().map_err(|_| "write the number of bytes, as in size=64".to_owned())?;
            filter.min_code_bytes(bytes)
        }
        // A name may have an `@`, specs have none.
        "values" => match value.rsplit_once('@') {
            Some((pattern, specs)) => filter.values(pattern, specs),
            None => return Err("write the values, as in values=open@arg1/s,retval/i32".to_owned()),
        },
        "trigger" => match value.rsplit_once('@') {
            Some((pattern, action)) => filter.trigger(pattern, action),
            None => return Err("write the action, as in trigger=init@trace_off".to_owned()),
        },
        PAUSED => {
            filter.begins_paused = value == "1";
            filter
        }
        WATCH => {
            filter.watches.push(WatchRule::parse(value)?);
            filter
        }
        _ => match RuleKind::ALL.iter().find(|kind| kind.key() == key) {
            Some(&kind) => filter.rule(kind, value),
            None => {
                let similar = nearest(key, keys().into_iter().map(str::to_owned));
                let similar = similar.map(|similar| format!("; did you mean {similar}?")).unwrap_or_default();
                return Err(format!("no such key: `{key}`; keys are {}{similar}", keys().join(", ")));
            }
        },
    };
    filter.flaw.take().map_or(Ok(filter), |flaw| Err(flaw.problem))
}

fn keys() -> Vec<&'static str> {
    RuleKind::ALL.iter().map(|kind| kind.key()).chain(LIMITS).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn rules(filter: &Filter) -> Vec<String> {
        filter.rules().iter().map(super::super::rules::Rule::text).collect()
    }

    fn problem(text: &str) -> String {
        Filter::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_key() {
        let text = "include=app::*; exclude = *::fmt ;module=libfoo*;not_module=libc.so.6\nbelow=main::work;\n
            not_below=alloc::*; entry=*::poll; depth=5; min=1us; size=64;";
        let filter = Filter::parse(text).unwrap();
        assert_eq!(
            rules(&filter),
            [
                "include=app::*",
                "exclude=*::fmt",
                "module=libfoo*",
                "not_module=libc.so.6",
                "below=main::work",
                "not_below=alloc::*",
                "entry=*::poll"
            ]
        );
        assert_eq!((filter.max_depth, filter.min_code_bytes), (Some(5), 64));
        assert_eq!(filter.min_duration, Duration::from_micros(1));
        for nothing in ["", " ", ";;\n ;"] {
            assert_eq!(rules(&Filter::parse(nothing).unwrap()), <[&str; 0]>::default());
        }
    }

    #[test]
    fn the_text_of_all_rules_is_read_as_the_same() {
        for text in [
            "",
            "include=app::*; exclude=*::fmt; module=libfoo*; not_module=libc.so.6; below=main::work; not_below=alloc::*; entry=*::poll",
            r"include=<[u8\; 3] as Speak>::speak; depth=5; min=1500ns; size=64",
            "values=open@arg1/s,retval/i32; trigger=init@trace_off; trigger=f@depth=3; watch=7:slow:app::f>5ms; min=10us; paused=1",
        ] {
            assert_eq!(Filter::parse(text).unwrap().text(), text);
        }
    }

    #[test]
    fn a_semicolon_can_be_part_of_a_pattern() {
        let filter = Filter::parse(r"include=<[u8\; 3] as Speak>::speak;exclude=/a\\;depth=2").unwrap();
        assert_eq!(rules(&filter), [r"include=<[u8\; 3] as Speak>::speak", r"exclude=/a\\"]);
        assert!(filter.rules()[0].pattern.matches("<[u8; 3] as Speak>::speak"));
        assert_eq!(filter.max_depth, Some(2));
        // The written text is read as the same.
        assert_eq!(rules(&Filter::parse(&rules(&filter)[0]).unwrap())[0], rules(&filter)[0]);
    }

    #[test]
    fn problems_name_the_place_and_the_remedy() {
        for (text, expected) in [
            ("depth=5; dept=3", "at character 10, `dept=3`: no such key: `dept`"),
            ("dept=3", "did you mean depth?"),
            ("include", "write it as key=value"),
            ("depth=x", "write the number of levels"),
            ("depth=0", "the minimum is 1"),
            ("depth=-1", "write the number of levels"),
            ("min=5", "unit"),
            ("size=big", "write the number of bytes"),
            ("include=", "`*` for all names"),
            ("min=1us;\nexclude=/(/", "at character 10, `exclude=/(/`: "),
        ] {
            assert!(problem(text).contains(expected), "{text}: {}", problem(text));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,80}") {
            let _ = Filter::parse(&text);
        }

        #[test]
        fn nothing_near_the_language_panics(
            parts in prop::collection::vec("(include|depth|min|size|entry|below|x)?=?[0-9a-z*?\\[\\]\\\\;/(){}.µ ]{0,12}", 0..6),
        ) {
            let _ = Filter::parse(&parts.join(";"));
        }
    }
}
