//! Text of a trace as it may reach a terminal.

use std::borrow::Cow;

/// With a replacement for each character that does something else than stand there: controls, and those that turn the direction of
/// writing or are not seen.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    let is_bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    if text.contains(is_bad) { text.replace(is_bad, "\u{fffd}").into() } else { text.into() }
}

/// A number with commas.
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
        assert_eq!(clean("a\x1b[31m\u{9b}b\tc\u{202e}d\0"), "a\u{fffd}[31m\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}");
    }

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }
}
