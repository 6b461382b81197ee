//! Lines as cargo writes them.

use std::fmt;

use anstyle::{AnsiColor, Style};

/// Of the word before a status.
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Of headings.
pub(super) const HEADING: Style = Style::new().bold();
/// Of what is less important.
pub(super) const FAINT: Style = Style::new().dimmed();

/// `text` in a style.
pub(super) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A line such as cargo's `   Compiling rftrace v0.3.3`.
pub(super) fn status(word: &str, text: &str) {
    say_styled!("{GOOD}{word:>12}{GOOD:#} {text}");
}

/// A line that begins with `warning:`.
pub(super) fn warning(text: &str) {
    say_styled!("{WARNING}warning{WARNING:#}: {text}");
}

/// A line that begins with `error:`.
pub(super) fn error(text: &str) {
    say_styled!("{ERROR}error{ERROR:#}: {text}");
}
