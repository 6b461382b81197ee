//! Numbers and names as words.

/// Returns a number with commas.
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

/// Returns a share in percent, with a tenth.
pub fn percent(part: u64, all: u64) -> String {
    let tenths = tenths(part, all);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A share in tenths of a percent.
pub(crate) fn tenths(part: u64, all: u64) -> u64 {
    let tenths = u128::from(part) * 1000 / u128::from(all.max(1));
    u64::try_from(tenths).unwrap_or(u64::MAX)
}

/// Returns the text of a [pattern](rftrace_read::Pattern) that matches only this function's name.
pub fn literal(name: &str) -> String {
    let mut pattern = String::new();
    for c in name.chars() {
        if matches!(c, '*' | '?' | '[' | '\\' | '/') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use rftrace_read::Pattern;

    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let shares = [(0, 0), (1, 3), (1999, 2000), (7, 7), (u64::MAX, 1)].map(|(part, all)| percent(part, all));
        assert_eq!(shares, ["0.0 %", "33.3 %", "99.9 %", "100.0 %", "1844674407370955161.5 %"]);
    }

    #[test]
    fn patterns_of_names() {
        for name in ["main", "operator*", "a[1]", "/x/", "<a as b>::c", "a?\\"] {
            let pattern = Pattern::new(&literal(name)).unwrap();
            assert!(pattern.matches(name), "{name}");
            assert!(!pattern.matches(&format!("{name}x")), "{name}");
        }
    }
}
