//! Patterns for names of functions: a name, a glob or a regex. They choose the functions to record, and the part of a trace to show.
//!
//! ```
//! use rftrace_pattern::Pattern;
//!
//! let pattern = Pattern::new("app::*")?;
//! assert!(pattern.matches("app::work::inner") && !pattern.matches("main"));
//! # Ok::<(), rftrace_pattern::Error>(())
//! ```

#![forbid(unsafe_code)]

mod nearest;

use std::fmt;

use regex_lite::Regex;

pub use nearest::nearest;

/// A pattern for names: one name, a glob or a regex.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    /// The text is the name.
    Exact,
    Everything,
    /// The parts of a glob with `*` only: much quicker than its regex, above all in unoptimised programs.
    Parts(Vec<String>),
    Glob(Regex),
    Regex(Regex),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// - `/…/` is a regex, in the syntax of the crate [`regex-lite`](https://docs.rs/regex-lite/#syntax). It may match
    ///   any part of a name.
    /// - Other text is a glob for the whole name: `*` matches any characters, `?` one, `[a-z]` and `[!a-z]` one of
    ///   these or of all others; `\\` makes the next character literal.
    ///
    /// # Errors
    ///
    /// The text is empty, or its regex is malformed.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let test = if text.is_empty() {
            return Err(Error("the pattern is empty; write `*` for all names".to_owned()));
        } else if let Some(regex) = as_regex(text) {
            Test::Regex(Regex::new(regex).map_err(wrong)?)
        } else if text == "*" {
            Test::Everything
        } else if text.contains('*') && !text.contains(['?', '[', '\\']) {
            Test::Parts(text.split('*').map(str::to_owned).collect())
        } else if text.contains(['?', '[', '\\']) {
            Test::Glob(Regex::new(&glob_to_regex(text)).map_err(wrong)?)
        } else {
            Test::Exact
        };
        Ok(Self { text: text.to_owned(), test })
    }

    /// Returns true if the pattern matches `name`. A name always matches itself, even with special characters.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match &self.test {
            Test::Exact => self.text == name,
            Test::Everything => true,
            Test::Parts(parts) => has_parts(name, parts),
            Test::Glob(regex) => self.text == name || regex.is_match(name),
            Test::Regex(regex) => regex.is_match(name),
        }
    }

    /// Returns true if the pattern matches all names.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self.test, Test::Everything)
    }

    /// Returns true if the pattern must also be compared with C++ names that include parameters.
    #[must_use]
    pub fn has_parameters(&self) -> bool {
        self.text.contains('(')
    }

    /// Returns the text of the pattern.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the literal letters of the pattern, approximately, for a search of similar names.
    #[must_use]
    pub fn plain(&self) -> String {
        let text = as_regex(&self.text).unwrap_or(&self.text);
        text.chars().filter(|c| !"*?\\^$".contains(*c)).collect()
    }
}

/// An error: the fault in a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

fn wrong(error: regex_lite::Error) -> Error {
    Error(error.to_string())
}

/// The regex of `/…/`.
fn as_regex(text: &str) -> Option<&str> {
    text.strip_prefix('/')?.strip_suffix('/')
}

/// Returns true if `name` has these parts, at least two, with anything between them.
fn has_parts(name: &str, parts: &[String]) -> bool {
    let [first, between @ .., last] = parts else { return false };
    let Some(mut rest) = name.strip_prefix(first.as_str()) else { return false };
    for part in between {
        // The first place leaves most for the others.
        let Some(place) = rest.find(part.as_str()) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last.as_str())
}

/// `*` stands for any characters, `?` for one, `[a-z]` and `[!a-z]` for one of these or of all others; behind `\` a
/// character is literal, and so is an unclosed bracket.
fn glob_to_regex(glob: &str) -> String {
    let mut regex = "^(?s:".to_owned();
    let mut rest = glob.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '\\' => push_literal(rest.next().unwrap_or('\\'), &mut regex),
            '[' => match class(rest.as_str()) {
                Some((class, behind)) => {
                    regex.push_str(&class);
                    rest = behind.chars();
                }
                None => push_literal(c, &mut regex),
            },
            c => push_literal(c, &mut regex),
        }
    }
    regex.push_str(")$");
    regex
}

/// Returns the regex of a class behind its `[`, and the rest of the text.
fn class(text: &str) -> Option<(String, &str)> {
    let (is_not, body) = text.strip_prefix(['!', '^']).map_or((false, text), |body| (true, body));
    // A bracket that comes first is a member.
    let first = body.chars().next()?;
    let end = first.len_utf8() + body[first.len_utf8()..].find(']')?;
    let mut class = if is_not { "[^" } else { "[" }.to_owned();
    let mut members = body[..end].chars().peekable();
    while let Some(from) = members.next() {
        push_literal(from, &mut class);
        let mut range = members.clone();
        if range.next() == Some('-')
            && let Some(to) = range.next()
        {
            // The wrong way round it is empty.
            if from > to {
                return None;
            }
            class.push('-');
            push_literal(to, &mut class);
            members = range;
        }
    }
    class.push(']');
    Some((class, &body[end + 1..]))
}

/// Appends a literal character.
fn push_literal(c: char, regex: &mut String) {
    if c.is_ascii_punctuation() && c != '<' && c != '>' {
        regex.push('\\');
    }
    regex.push(c);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(name)
    }

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expected) in [
            ("main", "main", true),
            ("main", "domain", false),
            ("app::*", "app::work::inner", true),
            ("app::*", "<app::Work>::inner", false),
            ("*app::*", "<app::Work>::inner", true),
            ("*::fmt", "<app::Work as core::fmt::Display>::fmt", true),
            ("work?", "work1", true),
            ("work?", "work", false),
            ("work[0-2]", "work1", true),
            ("work[0-2]", "work3", false),
            ("work[!0-2]", "work3", true),
            ("work[^0-2]", "work1", false),
            ("a[]x]b", "a]b", true),
            ("a[!]x]b", "a]b", false),
            ("a[-x]b", "a-b", true),
            ("a[x-]b", "a-b", true),
            ("a[.x]b", "ayb", false),
            ("a.b", "axb", false),
            ("*", "", true),
            ("a*b*a", "aba", true),
            ("a*b*a", "aabcba", true),
            ("a*a", "a", false),
            ("a*ba*a", "aba", false),
            ("**b**", "abc", true),
            ("grüß?", "grüße", true),
            ("[α-ω]x", "βx", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            // Names that look like globs.
            ("<[u8; 3] as names::Speak>::speak", "<[u8; 3] as names::Speak>::speak", true),
            ("Vector::operator*", "Vector::operator*", true),
            ("Vector::operator[]", "Vector::operator[]", true),
            ("operator\\[]", "operator[]", true),
            ("a[z-a]", "a[z-a]", true),
            (" spaced ", "spaced", true),
        ] {
            assert_eq!(matches(glob, name), expected, "{glob} and {name}");
        }
    }

    #[test]
    fn regexes_match_anywhere() {
        assert!(matches("/work[0-9]+$/", "app::work12"));
        assert!(!matches("/^work/", "app::work12"));
        assert!(matches("/(?i)WORK/", "app::work"));
        assert!(Pattern::new("/(/").unwrap_err().to_string().contains("group"));
        assert!(Pattern::new(" ").is_err());
        // A single slash is a name.
        assert!(matches("/", "/"));
        assert!(matches("//", "anything"));
    }

    /// The obvious way: for each rest of the glob, each rest of the name.
    fn naive(glob: &[char], name: &[char]) -> bool {
        match (glob.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((&'*', rest)), _) => (0..=name.len()).any(|n| naive(rest, &name[n..])),
            (Some((&'?', rest)), Some((_, name))) => naive(rest, name),
            (Some((c, rest)), Some((first, name))) => c == first && naive(rest, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,40}", name in ".{0,20}") {
            if let Ok(pattern) = Pattern::new(&text) {
                let _ = pattern.matches(&name);
            }
        }

        #[test]
        fn every_glob_is_one(text in "[^/].{0,40}") {
            prop_assert!(Pattern::new(&text).is_ok() || text.trim().is_empty() || text.trim().starts_with('/'));
        }

        #[test]
        fn every_name_matches_itself(name in "[ -~&&[^/]]{0,20}[!-~&&[^/]]") {
            prop_assert!(matches(&name, name.trim()));
        }

        #[test]
        fn globs_are_what_they_seem(glob in "[ab*?.:]{1,8}|[ab*]{1,8}", name in "[ab.:]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&glob, &name), naive(&chars(&glob), &chars(&name)));
        }
    }
}
