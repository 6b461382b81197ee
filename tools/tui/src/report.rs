//! The report: which row is selected, and by what it is sorted.

use rftrace_views::{Field, Report};

use crate::list::{Cursor, Move};

/// The columns. By the first three of them it can be sorted; a percent is of what self time is.
pub(crate) const COLUMNS: [Field; 4] = [Field::Total, Field::Own, Field::Percent, Field::Calls];
const SORTS: [Field; 3] = [Field::Total, Field::Own, Field::Calls];

#[derive(Debug)]
pub(crate) struct ReportView {
    pub(crate) report: Report,
    pub(crate) sort: Field,
    pub(crate) cursor: Cursor,
}

impl ReportView {
    pub(crate) fn new(mut report: Report) -> Self {
        report.sort(&SORTS[..1]);
        Self { report, sort: SORTS[0], cursor: Cursor::default() }
    }

    /// The name of the selected function.
    pub(crate) fn selected(&self) -> Option<&str> {
        self.report.rows().get(self.cursor.selected).map(|row| row.name.as_str())
    }

    pub(crate) fn go(&mut self, to: Move, page: usize) {
        self.cursor.select(self.cursor.target(to, page), self.report.rows().len(), page);
    }

    /// Sorts by the next column.
    pub(crate) fn sort_next(&mut self) {
        let place = SORTS.iter().position(|&field| field == self.sort).unwrap_or(0);
        self.sort = SORTS[(place + 1) % SORTS.len()];
        self.report.sort(&[self.sort]);
        self.cursor = Cursor::default();
    }

    /// Selects the next row with a text in its name, or the one before; whether there is one.
    pub(crate) fn find(&mut self, text: &str, is_forward: bool, page: usize) -> bool {
        let rows = self.report.rows();
        let places = 1..=rows.len();
        let place = |step: usize| {
            let step = if is_forward { step } else { rows.len() - step };
            (self.cursor.selected + step) % rows.len()
        };
        let found = places.map(place).find(|&place| rows[place].name.contains(text));
        if let Some(found) = found {
            let n_rows = rows.len();
            self.cursor.select(found, n_rows, page);
        }
        found.is_some()
    }
}
