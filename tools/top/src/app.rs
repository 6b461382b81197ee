//! The state of the screen, and the effects of keys.

use std::sync::Arc;

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use rftrace_tui::list::{Cursor, Move};
use rftrace_tui::screen::{is_interrupt, movement};

use crate::head::Watched;
use crate::table::{Column, Table};
use crate::tick::Tick;

/// Lines of the screen that no row has: two of the head, the titles, and keys.
pub(crate) const OTHER_LINES: u16 = 4;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) watched: Watched,
    pub(crate) table: Table,
    pub(crate) cursor: Cursor,
    pub(crate) page: usize,
    /// A pattern that is being typed in.
    pub(crate) input: Option<String>,
    pub(crate) message: String,
    pub(crate) shows_help: bool,
    /// True while the screen stays as it is.
    pub(crate) is_paused: bool,
    /// The ticks since then.
    waiting: Option<Tick>,
    pub(crate) is_over: bool,
}

impl App {
    pub(crate) fn new(watched: Watched, table: Table) -> Self {
        Self {
            watched,
            table,
            cursor: Cursor::default(),
            page: 1,
            input: None,
            message: String::new(),
            shows_help: false,
            is_paused: false,
            waiting: None,
            is_over: false,
        }
    }

    /// The screen has so many lines.
    pub(crate) fn resize(&mut self, height: u16) {
        self.page = usize::from(height.saturating_sub(OTHER_LINES)).max(1);
        self.go(None);
    }

    /// Takes an interval. What comes while the picture stays as it is becomes one, which is shown when it goes on.
    pub(crate) fn add(&mut self, tick: Tick, name: impl FnMut(u64) -> Arc<str>) {
        let tick = match self.waiting.take() {
            Some(mut waiting) => {
                waiting.append(tick);
                waiting
            }
            None => tick,
        };
        if self.is_paused {
            self.waiting = Some(tick);
            return;
        }
        self.table.add(tick, name);
        self.table.update();
        self.go(None);
    }

    /// Does what a key says.
    pub(crate) fn key(&mut self, key: KeyEvent) {
        self.message.clear();
        if is_interrupt(key) {
            self.is_over = true;
        } else if self.input.is_some() {
            self.type_in(key.code);
        } else if std::mem::take(&mut self.shows_help) {
            self.is_over = key.code == KeyCode::Char('q');
        } else if let Some(to) = movement(key.code) {
            self.go(Some(to));
        } else {
            self.command(key.code);
        }
    }

    fn command(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('s') => self.table.sort_by(Column::Own),
            KeyCode::Char('t') => self.table.sort_by(Column::Total),
            KeyCode::Char('c') => self.table.sort_by(Column::Calls),
            KeyCode::Char('a') => self.table.sort_by(Column::Average),
            KeyCode::Char('n') => self.table.sort_by(Column::Name),
            KeyCode::Char('b') => self.table.show_whole(!self.table.is_whole()),
            KeyCode::Char('f' | '/') => self.input = Some(String::new()),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
    }

    fn type_in(&mut self, code: KeyCode) {
        let Some(text) = &mut self.input else { return };
        match code {
            KeyCode::Char(c) => text.push(c),
            KeyCode::Backspace if !text.is_empty() => {
                text.pop();
            }
            KeyCode::Esc | KeyCode::Backspace => self.input = None,
            KeyCode::Enter => {
                let text = std::mem::take(text);
                self.input = None;
                self.cursor = Cursor::default();
                if let Err(error) = self.table.choose(&text) {
                    self.message = error.to_string();
                }
            }
            _ => {}
        }
    }

    /// Moves in the list, or stays in it.
    fn go(&mut self, to: Option<Move>) {
        let line = to.map_or(self.cursor.selected, |to| self.cursor.target(to, self.page));
        self.cursor.select(line, self.table.rows().len(), self.page);
    }
}
