//! A position in a list of which a part is visible.

/// A movement in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// Up by the number of visible lines.
    PageUp,
    /// Down by the number of visible lines.
    PageDown,
    /// To the first line.
    First,
    /// To the last line.
    Last,
}

/// The selected line of a list, and the first visible one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The selected line.
    pub selected: usize,
    /// The first visible line.
    pub top: usize,
}

impl Cursor {
    /// Returns the line to which a move leads in a list of sufficient length.
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

    /// Scrolls so that the selected line is visible.
    pub fn fit(&mut self, page: usize) {
        let lowest = self.selected.saturating_sub(page.max(1) - 1);
        self.top = self.top.clamp(lowest, self.selected);
    }

    /// Scrolls so that the selected line is in the middle, if possible.
    pub fn center(&mut self, page: usize) {
        self.top = self.selected.saturating_sub(page / 2);
    }
}
