//! Pictures of each view of a small trace, and what keys do.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rftrace_read::{Kind, Reading, Record, Trace};
use rftrace_tests::golden;
use tempfile::TempDir;

use crate::app::App;
use crate::draw::draw;
use crate::terminal::answer;

/// Two threads.
fn small() -> (TempDir, Trace) {
    let dir = golden::copy("tui/small");
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}

/// An app with a terminal to draw on, which is given what it asks for at once.
struct Shown<'t> {
    app: App<'t>,
    terminal: Terminal<TestBackend>,
}

impl<'t> Shown<'t> {
    fn new(trace: &'t Trace, width: u16, height: u16) -> Self {
        let mut app = App::new(trace, Arc::new(Reading::default()));
        app.resize(height);
        let mut shown = Self { app, terminal: Terminal::new(TestBackend::new(width, height)).unwrap() };
        shown.settle();
        shown
    }

    fn settle(&mut self) {
        if let Some(request) = self.app.take_request() {
            self.app.answer(answer(self.app.trace, &request)).unwrap();
        }
        while self.app.is_busy() {
            self.app.work();
        }
    }

    /// Presses keys: a character is itself, names of others stand in angle brackets.
    fn press(&mut self, keys: &str) {
        let mut rest = keys;
        while let Some(first) = rest.chars().next() {
            let end = if first == '<' { rest.find('>').unwrap() + 1 } else { first.len_utf8() };
            let code = match &rest[..end] {
                "<Enter>" => KeyCode::Enter,
                "<Esc>" => KeyCode::Esc,
                "<Backspace>" => KeyCode::Backspace,
                "<Up>" => KeyCode::Up,
                "<Down>" => KeyCode::Down,
                "<Left>" => KeyCode::Left,
                "<Right>" => KeyCode::Right,
                "<PageUp>" => KeyCode::PageUp,
                "<PageDown>" => KeyCode::PageDown,
                "<Home>" => KeyCode::Home,
                "<End>" => KeyCode::End,
                _ => KeyCode::Char(first),
            };
            self.app.key(KeyEvent::new(code, KeyModifiers::NONE));
            self.settle();
            rest = &rest[end..];
        }
    }

    /// The screen, a line each without blanks at its end.
    fn screen(&mut self) -> Vec<String> {
        self.terminal.draw(|frame| draw(&self.app, frame)).unwrap();
        let buffer = self.terminal.backend().buffer();
        let line =
            |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..buffer.area.height).map(line).collect()
    }

    /// The line of the list that is shown as selected.
    fn selected(&mut self) -> String {
        let screen = self.screen();
        let buffer = self.terminal.backend().buffer();
        let is_selected = |y: &u16| buffer[(0, *y)].modifier.contains(ratatui::style::Modifier::REVERSED);
        let line = (2..buffer.area.height - 2).find(is_selected).expect("a selected line");
        screen[usize::from(line)].clone()
    }
}

/// A row of `tests/golden/tui.txt`: a trace, the size of the terminal, what is shown of the screen, and keys.
fn row(command: &str, dir: &Path) -> String {
    let mut words = command.splitn(4, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (trace, (width, height), part) =
        (Trace::open(&dir.join(word())).unwrap(), word().split_once('x').unwrap(), word());
    let mut shown = Shown::new(&trace, width.parse().unwrap(), height.parse().unwrap());
    shown.press(word());
    match part {
        "selected" => shown.selected(),
        "screen" => {
            let mut screen = shown.screen();
            // The copy has another path each time.
            let title = screen[0].split("   /").next().unwrap_or_default().to_owned();
            screen[0] = title;
            screen.join("\n")
        }
        other => panic!("{other}"),
    }
}

#[test]
fn screens_are_as_before() {
    if let Err(differences) = golden::check("tui", row) {
        panic!("{differences}");
    }
}

#[test]
fn quitting() {
    let (_dir, trace) = small();
    for keys in ["q", "?q", "Rq", "T<Enter>q", "/a<Esc>q"] {
        let mut shown = Shown::new(&trace, 70, 8);
        shown.press(keys);
        assert!(shown.app.is_over, "{keys}");
    }
    let mut shown = Shown::new(&trace, 70, 8);
    shown.press("/q");
    assert!(!shown.app.is_over);
    shown.app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(shown.app.is_over);
}

#[test]
fn any_size() {
    let (_dir, trace) = small();
    for (width, height) in [(0, 0), (1, 1), (1, 30), (200, 5), (10, 4), (30, 6)] {
        let mut shown = Shown::new(&trace, width, height);
        for keys in ["jjj", "R", "T", "<Enter>", "<End>", "?"] {
            shown.press(keys);
            shown.screen();
        }
    }
}

/// Many more lines than are read at once: the visible ones are those of a complete reading.
#[test]
fn a_long_list() {
    let [main, work, read] = [0x40_1000, 0x40_1020, 0x40_1040];
    let mut records = Vec::new();
    let mut add = |kind, time_ns, depth, addr| {
        records.extend(Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }.encode());
    };
    add(Kind::Entry, 1, 0, main);
    for start in (0..300_000).step_by(10) {
        add(Kind::Entry, start + 2, 1, work);
        add(Kind::Entry, start + 4, 2, read);
        add(Kind::Exit, start + 6, 2, read);
        add(Kind::Exit, start + 9, 1, work);
    }
    add(Kind::Exit, 1_000_000, 0, main);
    let dir = golden::copy("tui/small");
    fs::write(dir.path().join("7.dat"), records).unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    let mut shown = Shown::new(&trace, 70, 14);
    shown.press("T<Enter><End>");
    assert_eq!(shown.screen()[12], "line 90,002 of 90,002: main");
    let all: Vec<_> = rftrace_views::TaskLines::new(&trace, &trace.tasks()[0]).map(Result::unwrap).collect();
    assert_eq!(all.len(), 90_002);
    for keys in [
        "<Up>",
        "<PageUp>",
        "<PageUp><PageUp>",
        "<Home>",
        "<PageDown><Down>",
        "/main<Enter>",
        "/work<Enter>N",
        "<End>p",
    ] {
        shown.press(keys);
        let view = shown.app.calls.as_ref().unwrap();
        let top = view.cursor.top;
        assert!(!view.seen.is_empty());
        assert_eq!(view.seen, all[top..all.len().min(top + 10)], "{keys}");
    }
    // From the last call up to the first one.
    shown.press("<End><Up><Up>p/nothing<Enter>");
    assert_eq!(shown.screen()[13], "nothing found");
}
