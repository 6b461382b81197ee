//! Names as a view shows them: short ones, each of one function.
//!
//! Not here: the short form (`short_names`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::iter;

use crate::short_names::{NAME_COLUMNS, short_name};

/// The maximum number of shortened names, and of their bytes: addresses without names can be any number.
const MAX_NAMES: usize = 1 << 20;
const MAX_BYTES: usize = 256 << 20;

/// Wider than any name.
const MAX_COLUMNS: usize = 4096;

/// The names of a table, or of the lines of a view.
///
/// Each short name stands for one function: two functions with one short form have wider names.
#[derive(Debug, Clone)]
pub struct ShownNames {
    /// The width of a short name; `None` for full names.
    columns: Option<usize>,
    /// The short name of each name.
    short: HashMap<Box<str>, Box<str>>,
    taken: HashSet<Box<str>>,
    bytes: usize,
}

impl Default for ShownNames {
    /// Short names of [`NAME_COLUMNS`].
    fn default() -> Self {
        Self::of_columns(NAME_COLUMNS)
    }
}

impl ShownNames {
    /// Creates full names, or short ones.
    #[must_use]
    pub fn new(are_full: bool) -> Self {
        let short = Self::default();
        if are_full { Self { columns: None, ..short } } else { short }
    }

    /// Creates short names of so many columns.
    #[must_use]
    pub fn of_columns(columns: usize) -> Self {
        Self { columns: Some(columns), short: HashMap::new(), taken: HashSet::new(), bytes: 0 }
    }

    /// Adds the names of a table. All those with one short form become wider.
    pub fn add_all<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        let Some(columns) = self.columns else { return };
        let mut rest: Vec<_> = names.into_iter().filter(|name| !self.short.contains_key(*name)).collect();
        rest.sort_unstable();
        rest.dedup();
        for width in widths(columns) {
            let forms: Vec<_> = rest.iter().map(|name| form(name, width)).collect();
            let mut n_names: HashMap<&str, usize> = HashMap::new();
            for form in &forms {
                *n_names.entry(form).or_default() += 1;
            }
            let is_free = |form: &str| width.is_none() || (n_names[form] == 1 && !self.taken.contains(form));
            let (free, others): (Vec<_>, Vec<_>) =
                rest.iter().copied().zip(&forms).partition(|(_, form)| is_free(form));
            rest = others.into_iter().map(|(name, _)| name).collect();
            for (name, form) in free {
                self.insert(name, form);
            }
        }
    }

    /// Returns the shown form of an added name, and the full form of others.
    #[must_use]
    pub fn get<'a>(&'a self, name: &'a str) -> &'a str {
        self.short.get(name).map_or(name, |short| short)
    }

    /// Returns the shown form of a name in the next line. A name with the short form of an earlier one is wider.
    pub fn next<'a>(&'a mut self, name: &'a str) -> &'a str {
        if let Some(columns) = self.columns.filter(|_| !self.short.contains_key(name)) {
            let mut forms = widths(columns).map(|width| (width, form(name, width)));
            if let Some((_, form)) = forms.find(|(width, form)| width.is_none() || !self.taken.contains(&**form)) {
                self.insert(name, &form);
            }
        }
        self.get(name)
    }

    fn insert(&mut self, name: &str, short: &str) {
        let bytes = self.bytes + name.len() + 2 * short.len();
        if self.short.len() < MAX_NAMES && bytes <= MAX_BYTES {
            self.bytes = bytes;
            self.short.insert(name.into(), short.into());
            self.taken.insert(short.into());
        }
    }
}

/// The widths of short forms, in the order of trying; `None` for the name itself.
fn widths(columns: usize) -> impl Iterator<Item = Option<usize>> {
    let wider = |width: &usize| Some(width + width / 3 + 1).filter(|width| *width < MAX_COLUMNS);
    iter::successors(Some(columns), wider).chain([usize::MAX]).map(Some).chain([None])
}

fn form(name: &str, width: Option<usize>) -> Cow<'_, str> {
    width.map_or(Cow::Borrowed(name), |width| short_name(name, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDS: [&str; 3] = [
        "<core::iter::Map<core::slice::Iter<u8>, app::a::{closure#0}> as core::iter::Iterator>::fold::<u64, app::F>",
        "<core::iter::Map<core::slice::Iter<u8>, app::b::{closure#0}> as core::iter::Iterator>::fold::<u64, app::F>",
        "app::main",
    ];

    const NARROW: &str = "<Map<…> as Iterator>::fold::<u64, F>";
    const WIDER: [&str; 2] = [
        "<Map<Iter<…>, a::{closure#0}> as Iterator>::fold::<…>",
        "<Map<Iter<…>, b::{closure#0}> as Iterator>::fold::<…>",
    ];

    #[test]
    fn names_of_a_table_are_unique() {
        let mut names = ShownNames::of_columns(40);
        names.add_all(FOLDS.into_iter().chain(FOLDS));
        assert_eq!(FOLDS.map(|name| names.get(name)), [WIDER[0], WIDER[1], "app::main"]);
        let mut one = ShownNames::of_columns(40);
        one.add_all(FOLDS[1..].iter().copied());
        assert_eq!(one.get(FOLDS[1]), NARROW);
        assert_eq!(one.get(FOLDS[0]), FOLDS[0]);
    }

    #[test]
    fn names_of_lines_are_unique() {
        let mut names = ShownNames::of_columns(40);
        let mut next = |name: &str| names.next(name).to_owned();
        assert_eq!([0, 1, 0].map(|idx: usize| next(FOLDS[idx])), [NARROW, WIDER[1], NARROW]);
        // Only the hash tells them apart.
        let with_hash = "app::main::h0123456789abcdef";
        assert_eq!([FOLDS[2], with_hash].map(next), [FOLDS[2], with_hash]);
        assert_eq!(ShownNames::new(true).next(FOLDS[0]), FOLDS[0]);
    }

    #[test]
    fn any_number_of_names_is_bounded() {
        let mut names = ShownNames { bytes: MAX_BYTES, ..ShownNames::of_columns(40) };
        assert_eq!(names.next(FOLDS[0]), FOLDS[0]);
        assert!(names.short.is_empty() && names.taken.is_empty());
    }
}
