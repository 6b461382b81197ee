//! Text of a trace in a safe form for a terminal.

use std::borrow::Cow;

use rftrace_read::Shown;
pub use rftrace_views::count;

/// Returns the text with unseen characters escaped.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    Shown::new(text).text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_letters() {
        assert_eq!(clean("a::b<c>"), "a::b<c>");
        assert_eq!(clean("a\x1b[31m\u{9b}b\tc\u{202e}d\0"), "a\\u{1b}[31m\\u{9b}b\\tc\\u{202e}d\\0");
    }
}
