//! The name most like a wanted one, for "did you mean …?".

/// Returns the name most like `wanted`, if any is: its last part may be enough.
#[must_use]
pub fn nearest<N: AsRef<str>>(wanted: &str, names: impl Iterator<Item = N>) -> Option<N> {
    let wanted: Vec<char> = wanted.chars().collect();
    let tolerated = wanted.len() / 3;
    let distance = |name: &str| {
        let last = name.rsplit("::").next().unwrap_or_default();
        // A name in full is better than a last part.
        let whole = edits(&wanted, name, tolerated).map(|edits| 2 * edits);
        whole.into_iter().chain(edits(&wanted, last, tolerated).map(|edits| 2 * edits + 1)).min()
    };
    let near = names.filter(|name| !name.as_ref().is_empty()).filter_map(|name| Some((distance(name.as_ref())?, name)));
    near.min_by_key(|&(distance, _)| distance).map(|(_, name)| name)
}

/// Returns the number of inserted, removed or replaced characters, and of exchanged neighbours, that make one of the other; `None` above
/// `limit`.
fn edits(a: &[char], b: &str, limit: usize) -> Option<usize> {
    let n_b = b.chars().count();
    if a.len().abs_diff(n_b) > limit {
        return None;
    }
    let b: Vec<char> = b.chars().collect();
    let (mut above, mut row) = (Vec::new(), (0..=n_b).collect::<Vec<usize>>());
    for i in 0..a.len() {
        let two_above = std::mem::replace(&mut above, std::mem::replace(&mut row, vec![i + 1; n_b + 1]));
        for j in 0..n_b {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            row[j + 1] = replaced.min(row[j] + 1).min(above[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(two_above[j - 1] + 1);
            }
        }
    }
    Some(row[n_b]).filter(|&edits| edits <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest_of<'a>(wanted: &str, names: &[&'a str]) -> Option<&'a str> {
        nearest(wanted, names.iter().copied())
    }

    #[test]
    fn similar_names() {
        let names = ["app::work", "app::wrok::inner", "main", "app::works"];
        for (wanted, expected) in [
            ("app::worj", Some("app::work")),
            ("work", Some("app::work")),
            ("inner", Some("app::wrok::inner")),
            ("app::works", Some("app::works")),
            ("mian", Some("main")),
            ("something_else", None),
            // Half of a short word is another word.
            ("man", Some("main")),
            ("in", None),
            ("os", None),
            ("mxyn", None),
        ] {
            assert_eq!(nearest_of(wanted, &names), expected, "{wanted}");
        }
        assert_eq!(nearest_of("", &["", "abc"]), None);
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("kitten", "sitting", 3), ("laef", "leaf", 1)]
        {
            let a: Vec<char> = a.chars().collect();
            assert_eq!(edits(&a, b, 10), Some(expected));
            assert!(expected == 0 || edits(&a, b, expected - 1).is_none());
        }
    }
}
