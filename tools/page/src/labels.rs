//! Labels of functions in the page's tables and boxes.
//!
//! Not here: the short names themselves (`rftrace-read`).

use rftrace_read::{NAME_COLUMNS, ShownNames, short_name};
use serde::Serialize;

/// The columns of labels for narrow boxes.
const NARROW: [usize; 2] = [NAME_COLUMNS / 2, NAME_COLUMNS / 4];

/// The labels of each function, from the widest on; none if its name is the only one.
///
/// The first one is for tables, and unique. A box has the widest one of its size, and the tooltip has the full name.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Labels(Vec<Vec<String>>);

impl Labels {
    /// Makes the labels of functions with these names.
    pub(crate) fn new(functions: &[String], mut names: ShownNames) -> Self {
        names.add_all(functions.iter().map(String::as_str));
        Self(functions.iter().map(|name| labels(name, names.get(name))).collect())
    }
}

fn labels(name: &str, shown: &str) -> Vec<String> {
    let mut labels = vec![shown.to_owned()];
    // The page cuts names without a path as they are.
    for columns in NARROW.into_iter().filter(|_| name.contains("::")) {
        let label = short_name(name, columns);
        if labels.last().is_none_or(|last| *last != label) {
            labels.push(label.into_owned());
        }
    }
    if labels == [name] { Vec::new() } else { labels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_wide_to_narrow() {
        let name = "<core::iter::Map<alloc::vec::IntoIter<u8>, app::main::{closure#0}> as core::iter::Iterator>::next";
        let functions = [name.to_owned(), "main".to_owned(), "app::run".to_owned(), "x".repeat(40)];
        let wide = "<Map<IntoIter<u8>, main::{closure#0}> as Iterator>::next";
        let labels = Labels::new(&functions, ShownNames::default());
        let none: [&str; 0] = [];
        assert_eq!(labels.0[0], [wide, "<Map<…> as Iterator>::next", "<Map<…>…::next"]);
        assert_eq!([&labels.0[1], &labels.0[2], &labels.0[3]], [&none; 3]);
        assert_eq!(Labels::new(&functions, ShownNames::new(true)).0[0][..2], [name, "<Map<…> as Iterator>::next"]);
    }
}
