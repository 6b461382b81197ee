//! A place in a list of which a part is seen.

/// How keys move in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A line up.
    Up,
    /// A line down.
    Down,
    /// As many lines up as are seen.
    PageUp,
    /// As many lines down.
    PageDown,
    /// To the first line.
    First,
    /// To the last line.
    Last,
}

/// The line that is selected, and the first one that is seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The line that is selected.
    pub selected: usize,
    /// The first one that is seen.
    pub top: usize,
}

impl Cursor {
    /// Where a move leads, if the list is long enough.
    #[must_use]
    pub fn target(self, to: Move, page: usize) -> usize {
        match to {
            Move::Up => self.selected.saturating_sub(1),
            Move::Down => self.selected.saturating_add(1),
            Move::PageUp => self.selected.saturating_sub(page),
            Move::PageDown => self.selected.saturating_add(page),
            Move::First => 0,
            Move::Last => usize::MAX,
        }
    }

    /// Selects a line of a list of `n_lines`.
    pub fn select(&mut self, line: usize, n_lines: usize, page: usize) {
        self.selected = line.min(n_lines.saturating_sub(1));
        self.fit(page);
    }

    /// Has the selected line among those that are seen.
    pub fn fit(&mut self, page: usize) {
        let lowest = self.selected.saturating_sub(page.max(1) - 1);
        self.top = self.top.clamp(lowest, self.selected);
    }

    /// Has it in the middle, where there is room.
    pub fn center(&mut self, page: usize) {
        self.top = self.selected.saturating_sub(page / 2);
    }
}
