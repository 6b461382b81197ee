//! Text of a trace in a safe form for a terminal.

use std::borrow::Cow;

use rftrace_read::Shown;

/// Returns the text with unseen characters escaped.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    Shown::new(text).text()
}

/// Returns a number with commas.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_letters() {
        assert_eq!(clean("a::b<c>"), "a::b<c>");
        assert_eq!(clean("a\x1b[31m\u{9b}b\tc\u{202e}d\0"), "a\\u{1b}[31m\\u{9b}b\\tc\\u{202e}d\\0");
    }

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }
}
