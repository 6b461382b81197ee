//! The terminal as a screen for all interactive commands: it is taken, drawn on, and restored.
//!
//! Not here: the contents, and the end of the program.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Block, Clear, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use crate::list::Move;
use crate::{Error, Result};

/// The style of less important text.
pub const DIM: Style = Style::new().fg(Color::DarkGray);
/// The style of titles.
pub const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
/// The style of the selection.
pub const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The style of faults.
pub const ALARM: Style = Style::new().fg(Color::Red);

/// A terminal for drawing.
#[derive(Debug)]
pub struct Screen {
    terminal: DefaultTerminal,
    given_back: GiveBack,
}

/// A handle that gives the terminal back, from any thread. No picture is drawn after that.
#[derive(Clone, Debug, Default)]
pub struct GiveBack {
    /// Held while something is written to the terminal.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    is_given_back: bool,
}

impl Screen {
    /// Takes the terminal, until it is given back.
    ///
    /// # Errors
    ///
    /// Stdout is no terminal, or the terminal fails.
    pub fn take(give_back: &GiveBack) -> Result<Self> {
        if !io::stdout().is_terminal() {
            return Err(Error::NoTerminal);
        }
        let mut state = give_back.state.lock().unwrap_or_else(PoisonError::into_inner);
        let terminal = ratatui::try_init().inspect_err(|_| restore())?;
        state.is_taken = true;
        Ok(Self { terminal, given_back: give_back.clone() })
    }

    /// Returns the present number of lines.
    ///
    /// # Errors
    ///
    /// Those of the terminal.
    pub fn height(&self) -> Result<u16> {
        Ok(self.terminal.size()?.height)
    }

    /// Draws a picture, unless the terminal was given back.
    ///
    /// # Errors
    ///
    /// Those of the terminal.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        let state = self.given_back.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_given_back {
            self.terminal.draw(draw)?;
        }
        Ok(())
    }

    /// Waits for keys, and passes them to `take` as long as it returns true.
    ///
    /// # Errors
    ///
    /// Those of the terminal.
    pub fn keys(&self, mut wait: Duration, mut take: impl FnMut(KeyEvent) -> bool) -> Result<()> {
        while event::poll(wait)? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && !take(key)
            {
                break;
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.given_back.give_back();
    }
}

impl GiveBack {
    /// Gives the terminal back, once. It does not wait for a terminal that takes no output.
    pub fn give_back(&self) {
        let held = (0..20).find_map(|_| match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(Duration::from_millis(10));
                None
            }
        });
        let Some(mut state) = held else { return restore() };
        if state.is_taken && !state.is_given_back {
            restore();
        }
        state.is_given_back = true;
    }
}

/// Has the terminal be as it was. One that is gone is: ratatui's own function would say so on stderr, and panic where that is gone too.
fn restore() {
    let _ = ratatui::try_restore();
}

/// Returns the movement of a key in a list; `None` for other keys.
#[must_use]
pub fn movement(code: KeyCode) -> Option<Move> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => Move::Up,
        KeyCode::Down | KeyCode::Char('j') => Move::Down,
        KeyCode::PageUp => Move::PageUp,
        KeyCode::PageDown => Move::PageDown,
        KeyCode::Home => Move::First,
        KeyCode::End => Move::Last,
        _ => return None,
    })
}

/// Returns true for Ctrl-C, which sends no signal while the terminal is taken.
#[must_use]
pub fn is_interrupt(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c')
}

/// Returns as many whole keys of a line as fit into `width` columns. Two spaces are between keys.
#[must_use]
pub fn fitting(keys: &str, width: u16) -> &str {
    let ends = keys.match_indices("  ").map(|(end, _)| end).chain([keys.len()]);
    let fits = |end: &usize| keys[..*end].chars().count() <= usize::from(width);
    &keys[..ends.take_while(fits).last().unwrap_or(0)]
}

/// Draws the help on keys over the middle of the screen.
pub fn draw_help(frame: &mut Frame<'_>, help: &[(&str, &str)]) {
    let area = frame.area();
    let lines: Vec<_> = help.iter().map(|(keys, what)| Text::raw(format!(" {keys:18}  {what}"))).collect();
    let height = u16::try_from(help.len()).unwrap_or(u16::MAX).saturating_add(2).min(area.height);
    let longest = lines.iter().map(Text::width).max().unwrap_or(0);
    let width = u16::try_from(longest).unwrap_or(u16::MAX).saturating_add(3).min(area.width);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys ")), place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_whole() {
        let keys = "? help  q quit  / search";
        let fitted = [5, 6, 13, 14, 23, 24, 80].map(|width| fitting(keys, width));
        assert_eq!(fitted, ["", "? help", "? help", "? help  q quit", "? help  q quit", keys, keys]);
    }
}
