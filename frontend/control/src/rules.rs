//! The rules of a filter, changed one by one. As text they are `key=value; key=value`, with `\;` for a `;` in a value.
//!
//! The program's library knows the keys and their meaning.

use std::fmt;

/// The rules of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<(String, String)>);

/// The key of the recorder's own watches: hidden, and out of any filter's reach.
const WATCH: &str = "watch";

impl Rules {
    /// Reads them. Text without `=` is a key without a value; the program will refuse it.
    pub(crate) fn parse(text: &str) -> Self {
        let mut rules = vec![String::new()];
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            let rule = rules.last_mut().expect("there is one");
            match (c, characters.peek()) {
                ('\\', Some(&next @ (';' | '\\'))) => {
                    characters.next();
                    // A backslash is the pattern's.
                    if next == '\\' {
                        rule.push('\\');
                    }
                    rule.push(next);
                }
                (';' | '\n', _) => rules.push(String::new()),
                _ => rule.push(c),
            }
        }
        let pair = |rule: String| match rule.split_once('=') {
            Some((key, value)) => (key.trim().to_owned(), value.trim().to_owned()),
            None => (rule.trim().to_owned(), String::new()),
        };
        Self(rules.into_iter().filter(|rule| !rule.trim().is_empty()).map(pair).collect())
    }

    /// The values of a key.
    pub(crate) fn get<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Gives a key these values, and no others.
    pub(crate) fn set(&mut self, key: &str, values: impl IntoIterator<Item = String>) {
        self.0.retain(|(known, _)| known != key);
        self.0.extend(values.into_iter().map(|value| (key.to_owned(), value)));
    }

    /// Adds a rule, if it is new.
    pub(crate) fn add(&mut self, key: &str, value: String) {
        if !self.get(key).any(|known| known == value) {
            self.0.push((key.to_owned(), value));
        }
    }

    /// Takes a rule away. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: &str, value: &str) -> bool {
        let n_before = self.0.len();
        self.0.retain(|rule| (rule.0.as_str(), rule.1.as_str()) != (key, value));
        self.0.len() < n_before
    }

    /// Returns a user's rules, with the recorder's watches of `self`.
    pub(crate) fn replaced_by(&self, mut users: Self) -> Self {
        users.0.retain(|(key, _)| key != WATCH);
        users.0.extend(self.0.iter().filter(|(key, _)| key == WATCH).cloned());
        users
    }

    /// Returns a user's rules as text.
    pub(crate) fn shown(&self) -> String {
        Self(self.0.iter().filter(|(key, _)| key != WATCH).cloned().collect()).to_string()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = |(key, value): &(String, String)| match value.is_empty() {
            true => key.clone(),
            false => format!("{key}={}", value.replace(';', "\\;")),
        };
        f.write_str(&self.0.iter().map(rule).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_changed_one_by_one() {
        let mut rules = Rules::parse(r"include=<[u8\; 3] as A>::b; depth=5;; watch=1:call:f; exclude=/\\d/");
        assert_eq!(rules.to_string(), r"include=<[u8\; 3] as A>::b; depth=5; watch=1:call:f; exclude=/\\d/");
        rules.add("include", "c".to_owned());
        rules.add("include", "c".to_owned());
        rules.set("depth", ["7".to_owned()]);
        assert_eq!(rules.get("include").collect::<Vec<_>>(), ["<[u8; 3] as A>::b", "c"]);
        assert!(rules.remove("include", "c") && !rules.remove("include", "d"));
        assert_eq!(rules.shown(), r"include=<[u8\; 3] as A>::b; exclude=/\\d/; depth=7");
        assert_eq!(rules.replaced_by(Rules::parse("depth=2; watch=9:call:g")).to_string(), "depth=2; watch=1:call:f");
        rules.set("depth", []);
        assert_eq!(rules.get("depth").count(), 0);
        assert_eq!(Rules::parse("depth").to_string(), "depth");
    }
}
