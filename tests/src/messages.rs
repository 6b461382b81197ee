//! Messages and their causes: the tables of `tests/messages` list every message of the product. `tests/messages/README.md` describes them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::fixtures::repository;
use crate::golden;

/// Beginnings of the names of macros whose texts are for developers of rftrace, or for a program.
const NOT_FOR_USERS: [&str; 9] =
    ["asm", "assert", "concat", "debug_assert", "global_asm", "naked_asm", "panic", "print", "unreachable"];
/// Texts with fewer words are parts of others.
const LEAST_WORDS: usize = 3;

/// The kind of a row, by its first character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A command of a shell.
    Command,
    /// Tests.
    Tests,
    /// A state of a system that no test can bring about.
    System,
    /// None: the texts are no messages.
    None,
}

/// A cause and its messages.
#[derive(Debug)]
pub struct Row {
    /// The kind of `head`.
    pub cause: Cause,
    /// The command, the tests, or a reason.
    pub head: String,
    /// The messages, a line each. `…` stands for any text.
    pub messages: Vec<String>,
    /// The table's name and the row's line.
    pub place: String,
}

/// A text in the source of the product.
#[derive(Debug)]
pub struct Text {
    /// The file, and the line.
    pub place: String,
    /// Its parts between the values and ends of lines.
    parts: Vec<String>,
}

fn folder() -> PathBuf {
    repository().join("tests/messages")
}

/// The names of all tables.
///
/// # Panics
///
/// When the folder cannot be read.
#[must_use]
pub fn tables() -> Vec<String> {
    golden::tables_in(&folder())
}

/// The rows of a table.
///
/// # Panics
///
/// When the table cannot be read, or a line belongs to no row.
#[must_use]
pub fn rows(table: &str) -> Vec<Row> {
    let path = folder().join(format!("{table}.txt"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rows: Vec<Row> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let cause = match line.get(..2) {
            Some("$ ") => Cause::Command,
            Some("= ") => Cause::Tests,
            Some("! ") => Cause::System,
            Some("- ") => Cause::None,
            _ if line.is_empty() || line.starts_with('#') => continue,
            _ => {
                let row = rows.last_mut().unwrap_or_else(|| panic!("{table}.txt:{number}: a message without a cause"));
                row.messages.push(line.to_owned());
                continue;
            }
        };
        rows.push(Row {
            cause,
            head: line[2..].to_owned(),
            messages: Vec::new(),
            place: format!("{table}.txt:{number}"),
        });
    }
    rows
}

/// Returns the first message of a row that is not in the output of its command, in the row's order.
#[must_use]
pub fn missing<'r>(row: &'r Row, output: &str) -> Option<&'r str> {
    let mut rest = output;
    row.messages.iter().map(String::as_str).find(|message| {
        let behind = message.split('…').try_fold(rest, |rest, part| rest.split_once(part).map(|(_, behind)| behind));
        rest = behind.unwrap_or(rest);
        behind.is_none()
    })
}

/// The texts of the product that stand in no row and in no golden output, a line each.
///
/// # Panics
///
/// When a file of the product cannot be read.
#[must_use]
pub fn unlisted() -> String {
    let mut listed: Vec<String> =
        tables().iter().flat_map(|table| rows(table)).map(|row| row.messages.join("\n")).collect();
    for name in golden::names() {
        let path = repository().join("tests/golden").join(format!("{name}.txt"));
        let outputs = fs::read_to_string(path).expect("a golden table");
        listed.extend(
            outputs.lines().filter(|line| !line.starts_with("$ ") && !line.starts_with("= ")).map(str::to_owned),
        );
    }
    let mut unlisted = String::new();
    for text in texts() {
        if !listed.iter().any(|output| text.is_in(output)) {
            writeln!(unlisted, "{}: {}", text.place, text.parts.join(" … ")).expect("memory");
        }
    }
    unlisted
}

/// All texts of the product that users may read as messages.
fn texts() -> Vec<Text> {
    let mut texts = Vec::new();
    for folder in ["src", "frontend", "tools"] {
        read_folder(&repository().join(folder), &mut texts);
    }
    texts
}

fn read_folder(folder: &Path, texts: &mut Vec<Text>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !["benches", "examples", "target", "tests"].contains(&name) {
            read_folder(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !["build.rs", "tests.rs"].contains(&name)
        {
            let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let tokens = source.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            read_tokens(tokens, &path.strip_prefix(repository()).expect("a file of ours").display().to_string(), texts);
        }
    }
}

/// Collects the literals of a file, but for those of tests, of attributes, and for developers.
fn read_tokens(tokens: TokenStream, file: &str, texts: &mut Vec<Text>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                tokens.next_if(|next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'));
                let Some(TokenTree::Group(attribute)) = tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                else {
                    continue;
                };
                let text = attribute.stream().to_string();
                if text.starts_with("error") {
                    read_tokens(attribute.stream(), file, texts);
                } else if text.starts_with("test") || text == "cfg (test)" {
                    let is_end = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        token => token.to_string() == ";",
                    };
                    tokens.by_ref().find(is_end);
                }
            }
            TokenTree::Ident(name) => {
                let name = name.to_string();
                let is_macro =
                    tokens.next_if(|next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!')).is_some();
                if name == "expect" || is_macro && NOT_FOR_USERS.iter().any(|prefix| name.starts_with(prefix)) {
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                }
            }
            TokenTree::Group(group) => read_tokens(group.stream(), file, texts),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let is_word = |word: &&str| word.bytes().any(|byte| byte.is_ascii_lowercase());
                if text.starts_with('"') && text.split(' ').filter(is_word).count() >= LEAST_WORDS {
                    let place = format!("{file}:{}", literal.span().start().line);
                    texts.push(Text { place, parts: parts(&text[1..text.len() - 1]) });
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// The fixed parts of a literal as it stands in the source.
fn parts(literal: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = literal.chars().peekable();
    while let Some(character) = characters.next() {
        let part = parts.last_mut().expect("one at least");
        match character {
            '\\' => match characters.next() {
                Some('\n') => while characters.next_if(|next| next.is_whitespace()).is_some() {},
                Some('u') => {
                    let digits: String = characters.by_ref().skip(1).take_while(|&digit| digit != '}').collect();
                    part.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
                }
                Some('n') => parts.push(String::new()),
                Some(escaped) => part.push(if escaped == 't' { '\t' } else { escaped }),
                None => {}
            },
            '\n' => parts.push(String::new()),
            '{' | '}' if characters.next_if_eq(&character).is_some() => part.push(character),
            '{' => {
                characters.by_ref().find(|&end| end == '}');
                parts.push(String::new());
            }
            _ => part.push(character),
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

impl Text {
    /// Returns true if all parts are in an output, in their order.
    fn is_in(&self, output: &str) -> bool {
        self.parts
            .iter()
            .try_fold(output, |rest, part| rest.split_once(part.as_str()).map(|(_, behind)| behind))
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenStream, parts, read_tokens};

    #[test]
    fn literals_have_fixed_parts() {
        assert_eq!(parts(r"{}: {n} of {0:?} more\u{2026}"), [":", "of", "more\u{2026}"]);
        assert_eq!(parts("one \\\n     two\\nthree {{x}}"), ["one two", "three {x}"]);
    }

    #[test]
    fn texts_of_tests_and_attributes_are_left_out() {
        let source = r#"
            #[doc = "three more words"] fn one() { bail!("cannot read {path}") }
            #[error("an error's own text")] struct Two;
            fn three() { assert!(true, "for the developers alone"); say("too few"); }
            #[cfg(test)] mod tests { fn four() { bail!("in a test alone") } }
            #[test] fn five() { bail!("in a test alone") }
            const SIX: &str = "at the very end";
        "#;
        let mut texts = Vec::new();
        read_tokens(source.parse::<TokenStream>().unwrap(), "a.rs", &mut texts);
        let found: Vec<_> = texts.iter().map(|text| (&*text.place, text.parts.join("|"))).collect();
        let expected = [("a.rs:2", "cannot read"), ("a.rs:3", "an error's own text"), ("a.rs:7", "at the very end")];
        assert_eq!(found, expected.map(|(place, text)| (place, text.to_owned())));
    }
}
