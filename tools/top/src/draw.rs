//! Draws the state as a picture.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line as Text;
use ratatui::widgets::Paragraph;
use rftrace_tui::screen::{ALARM, CHOSEN, DIM, TITLE, draw_help, fitting};
use rftrace_tui::text::clean;

use crate::app::{App, OTHER_LINES};
use crate::head;

const HELP: [(&str, &str); 9] = [
    ("s  t  c  a  n", "sort by self time, total time, calls, average, name"),
    ("b", "all since the beginning, or the last interval"),
    ("f  /", "only functions with a text, glob or /regex/ as name"),
    ("space", "pause the screen, and resume"),
    ("arrows, PgUp PgDn", "up and down"),
    ("q  Esc  Ctrl-C", "end: the program goes on without the tracer"),
    ("", ""),
    ("Self %", "100 % is one thread for all the time; waiting counts"),
    ("Average", "of the calls that ended, from their beginning"),
];

const KEYS: &str = "? help  q quit  sort: s self t total c calls a avg n name  b all  f filter  space pause";

/// Draws all of it.
pub(crate) fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.height <= OTHER_LINES {
        frame.render_widget(Paragraph::new("the terminal has too few lines"), area);
        return;
    }
    let mut line = |y: u16, text: String, style: Style| {
        let place = Rect { y: area.y + y, height: 1, ..area };
        frame.render_widget(Paragraph::new(Text::raw(text)).style(style), place);
    };
    let ([first, second], has_losses) = head::lines(&app.watched, &app.table);
    line(0, first, Style::new());
    line(1, second, if has_losses { ALARM } else { Style::new() });
    line(2, app.table.title(), TITLE);
    let last = area.height - 1;
    for (y, (place, row)) in (3..last).zip(app.table.rows().iter().enumerate().skip(app.cursor.top)) {
        let style = if place == app.cursor.selected { CHOSEN } else { Style::new() };
        line(y, app.table.columns(row) + &row.shown, style);
    }
    let (text, style) = status(app, area.width);
    line(last, text, style);
    if app.shows_help {
        draw_help(frame, &HELP);
    }
}

/// Keys, or what there is to say.
fn status(app: &App, width: u16) -> (String, Style) {
    if let Some(input) = &app.input {
        return (format!("functions with: {}\u{2588}", clean(input)), Style::new());
    }
    if !app.message.is_empty() {
        return (clean(&app.message).into_owned(), ALARM);
    }
    if app.is_paused {
        return ("paused: press space to resume; rftrace goes on measuring".to_owned(), TITLE);
    }
    if app.table.n_ticks() == 0 {
        return ("wait for the first interval; q quits".to_owned(), DIM);
    }
    match app.table.chosen() {
        "" => (fitting(KEYS, width).to_owned(), DIM),
        chosen => {
            let keys = format!("only {}: f and Enter show all   {KEYS}", clean(chosen));
            (fitting(&keys, width).to_owned(), DIM)
        }
    }
}
