//! The report: its selected row, and its order.

use rftrace_read::ShownNames;
use rftrace_views::{Field, Report};

use crate::list::{Cursor, Move};

/// The columns, sums or what single calls took.
const SUMS: [Field; 4] = [Field::Total, Field::Own, Field::Percent, Field::Calls];
const AVERAGES: [Field; 4] = [Field::TotalAvg, Field::TotalMax, Field::OwnAvg, Field::Calls];

#[derive(Debug)]
pub(crate) struct ReportView {
    pub(crate) report: Report,
    pub(crate) names: ShownNames,
    /// The columns of each function.
    pub(crate) columns: [Field; 4],
    pub(crate) sort: Field,
    pub(crate) cursor: Cursor,
}

impl ReportView {
    /// The report has to have the times of single calls.
    pub(crate) fn new(report: Report) -> Self {
        let names = report.shown_names(report.rows());
        let mut view = Self { report, names, columns: SUMS, sort: SUMS[0], cursor: Cursor::default() };
        view.sort_by(view.sort);
        view
    }

    /// The name of the selected function.
    pub(crate) fn selected(&self) -> Option<&str> {
        self.report.rows().get(self.cursor.selected).map(|row| row.name.as_str())
    }

    pub(crate) fn go(&mut self, to: Move, page: usize) {
        self.cursor.select(self.cursor.target(to, page), self.report.rows().len(), page);
    }

    /// Sorts by the next column; percents have the order of self time.
    pub(crate) fn sort_next(&mut self) {
        let after = self.columns.iter().skip_while(|&&field| field != self.sort).skip(1);
        let next = after.chain(&self.columns).find(|&&field| field != Field::Percent);
        self.sort_by(next.copied().unwrap_or(self.sort));
    }

    /// From sums to averages, and back.
    pub(crate) fn show_averages(&mut self) {
        self.columns = if self.columns == SUMS { AVERAGES } else { SUMS };
        self.sort_by(self.columns[0]);
    }

    fn sort_by(&mut self, field: Field) {
        self.sort = field;
        self.report.sort(&[field]);
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
