//! Pictures of each view of a small trace, and what keys do.

use std::fs;
use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rftrace_read::{Kind, Reading, Record, Trace};
use tempfile::TempDir;

use crate::app::App;
use crate::draw::draw;
use crate::terminal::answer;

const BASE: u64 = 0x40_0000;
const NAMES: [&str; 5] = ["main", "read", "step", "work", "evil\u{1b}[31m\u{202e}name"];
const MAIN: u64 = 0;
const READ: u64 = 1;
const STEP: u64 = 2;
const WORK: u64 = 3;
const EVIL: u64 = 4;

/// A call of a function, by its number, at some time, and what it called.
struct Call(u64, std::ops::Range<u64>, Vec<Call>);

fn write(call: &Call, depth: u16, out: &mut Vec<u8>) {
    let Call(function, times, inner) = call;
    let record = |kind, time_ns| {
        let addr = BASE + 0x1000 + 16 * function;
        Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }.encode()
    };
    out.extend(record(Kind::Entry, times.start));
    inner.iter().for_each(|call| write(call, depth + 1, out));
    out.extend(record(Kind::Exit, times.end));
}

fn trace(tasks: &[(u32, Vec<Call>)]) -> (TempDir, Trace) {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
    for word in [1_u64 << 1 | 1 << 5, 0, 1024] {
        info.extend(word.to_le_bytes());
    }
    file("info", &info);
    let mut task_txt = "SESS timestamp=0.000000001 pid=7 sid=00c0ffee00c0ffee exename=\"/bin/prog\"\n".to_owned();
    for (tid, calls) in tasks {
        task_txt += &format!("TASK timestamp=0.000000002 tid={tid} pid=7\n");
        let mut records = Vec::new();
        calls.iter().for_each(|call| write(call, 0, &mut records));
        file(&format!("{tid}.dat"), &records);
    }
    file("task.txt", task_txt.as_bytes());
    file(
        "sid-00c0ffee00c0ffee.map",
        format!("{BASE:x}-{:x} r-xp 00000000 00:00 0 /bin/prog\n", BASE + 0x3000).as_bytes(),
    );
    let mut symbols = String::new();
    for (number, name) in NAMES.iter().enumerate() {
        symbols += &format!("{:016x} T {name}\n", 0x1000 + 16 * number);
    }
    file("prog.sym", format!("{symbols}{:016x} ? __func_end\n", 0x1000 + 16 * NAMES.len()).as_bytes());
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}

/// Two threads.
fn small() -> (TempDir, Trace) {
    trace(&[
        (
            7,
            vec![Call(
                MAIN,
                1_000..9_001_000,
                vec![
                    Call(READ, 1_200..1_500, vec![]),
                    Call(
                        STEP,
                        2_000..6_002_000,
                        vec![Call(WORK, 3_000..4_003_000, vec![Call(READ, 4_000..4_010, vec![])])],
                    ),
                    Call(STEP, 7_000_000..9_000_000, vec![Call(WORK, 7_100_000..8_900_000, vec![])]),
                ],
            )],
        ),
        (8, vec![Call(WORK, 5_000..6_000, vec![]), Call(EVIL, 7_000..7_100, vec![])]),
    ])
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

    /// The list alone.
    fn list(&mut self) -> String {
        let screen = self.screen();
        let lines = &screen[1..screen.len() - 2];
        lines.iter().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
    }
}

#[test]
fn the_graph() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 60, 16);
    assert!(shown.screen()[0].starts_with("  Graph   Report   Threads"));
    assert_eq!(
        shown.list(),
        "TOTAL TIME   SELF TIME  FUNCTION
  9.001 ms              ▾ (1) prog
  9.000 ms  999.700 us    ▾ (1) main
  0.300 us    0.300 us        (1) read
  8.000 ms    2.200 ms      ▾ (2) step
  5.800 ms    5.799 ms      ▾ (2) work
  0.010 us    0.010 us        (1) read
  1.000 us    1.000 us      (1) work
  0.100 us    0.100 us      (1) evil\\u{1b}[31m\\u{202e}name
"
    );
    shown.press("c");
    assert_eq!(shown.list().lines().count(), 5);
    assert_eq!(shown.screen()[14], "prog: 1 call, 9.001 ms");
}

#[test]
fn the_graph_of_a_function() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 60, 16);
    shown.press("/work<Enter>g<End><Enter><End><Enter>");
    assert!(shown.screen()[0].ends_with("calls of work"));
    assert_eq!(
        shown.list(),
        "TOTAL TIME   SELF TIME  FUNCTION
  5.801 ms    5.800 ms  ▾ (3) work
  0.010 us    0.010 us    (1) read
                        ▾ called in 2 ways
  5.800 ms                ▸ (2) from step
  1.000 us                ▾ (1) from (outermost)
                              work
"
    );
    shown.press("<Esc>");
    assert_eq!(shown.selected(), "  5.800 ms    5.799 ms      ▾ (2) work");
}

#[test]
fn the_report() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 80, 16);
    shown.press("R");
    assert_eq!(
        shown.list(),
        "▾Total time   Self time      Self %       Calls  Function
  9.000 ms  999.700 us      11.10%           1  main
  8.000 ms    2.200 ms      24.44%           2  step
  5.801 ms    5.800 ms      64.44%           3  work
  0.310 us    0.310 us       0.00%           2  read
  0.100 us    0.100 us       0.00%           1  evil\\u{1b}[31m\\u{202e}name
"
    );
    shown.press("s");
    assert_eq!(shown.selected(), "  5.801 ms    5.800 ms      64.44%           3  work");
    assert!(shown.screen()[1].contains("▾Self time"));
    shown.press("sa");
    assert_eq!(
        shown.list(),
        "▾Total avg   Total max    Self avg       Calls  Function
  9.000 ms    9.000 ms  999.700 us           1  main
  4.000 ms    6.000 ms    1.100 ms           2  step
  1.933 ms    4.000 ms    1.933 ms           3  work
  0.155 us    0.300 us    0.155 us           2  read
  0.100 us    0.100 us    0.100 us           1  evil\\u{1b}[31m\\u{202e}name
"
    );
    shown.press("sss");
    assert!(shown.screen()[1].contains("▾Calls") && shown.selected().contains("work"));
    shown.press("s");
    assert!(shown.screen()[1].starts_with("▾Total avg"));
    shown.press("a");
    assert!(shown.screen()[1].starts_with("▾Total time"));
}

#[test]
fn threads_and_calls() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 60, 20);
    shown.press("T");
    assert_eq!(
        shown.list(),
        "       TID        PID  THREAD\n         7          7  prog\n         8          7  prog\n"
    );
    shown.press("<Enter>");
    assert_eq!(shown.screen()[0], "  Graph   Report   Threads   thread 7 prog");
    assert_eq!(
        shown.list(),
        "          TIME    DURATION    CALL
   0.000000000              | main() {
   0.000000200    0.300 us  |   read();
   0.000001000              |   step() {
   0.000002000              |     work() {
   0.000003000    0.010 us  |       read();
   0.004002000    4.000 ms  |     } /* work */
   0.006001000    6.000 ms  |   } /* step */
   0.006999000              |   step() {
   0.007099000    1.800 ms  |     work();
   0.008999000    2.000 ms  |   } /* step */
   0.009000000    9.000 ms  | } /* main */
"
    );
    shown.press("<Backspace>j<Enter>");
    assert!(shown.list().contains("| evil\\u{1b}[31m\\u{202e}name();"), "{}", shown.list());
}

#[test]
fn help() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 80, 24);
    shown.press("?");
    assert!(shown.screen().iter().any(|line| line.contains("q  ?                quit; this")));
    shown.press("x");
    assert!(!shown.screen().iter().any(|line| line.contains("quit; this")));
}

#[test]
fn keys() {
    // Keys to press, and a part of the line that is selected then.
    for (keys, selected) in [
        // In the graph.
        ("", "(1) prog"),
        ("jj", "(1) read"),
        ("jjk", "(1) main"),
        ("<Up>", "(1) prog"),
        ("<End>", "evil"),
        ("<End><Home>", "(1) prog"),
        ("<PageDown><PageDown>", "evil"),
        ("<PageDown><PageUp>", "(1) prog"),
        ("jjj<Enter>", "▸ (2) step"),
        ("jjj<Enter><Down>", "(1) work"),
        ("c<Down>", "▸ (1) main"),
        ("c<Down><Enter><Down><Down>", "▸ (2) step"),
        ("ce/step<Enter>j", "(2) work"),
        ("/read<Enter>", "0.300 us        (1) read"),
        ("/read<Enter>n", "0.010 us        (1) read"),
        ("/read<Enter>nn", "0.300 us        (1) read"),
        ("/read<Enter>N", "0.010 us        (1) read"),
        ("c/read<Enter>n", "0.010 us        (1) read"),
        ("/rex<Backspace>ad<Enter>", "0.300 us        (1) read"),
        ("/rea<Esc>j", "(1) main"),
        ("/nothing<Enter>", "(1) prog"),
        ("/read<Enter>np", "(2) work"),
        ("/read<Enter>npp", "(2) step"),
        ("lll", "(2) work"),
        // From view to view, and back.
        ("R", "main"),
        ("RG", "(1) prog"),
        ("R<Esc>", "(1) prog"),
        ("Rj<Enter>", "(2) step"),
        ("Rj<Enter><Esc>", "2  step"),
        ("Rj<Enter>jg", "(3) work"),
        ("Rj<Enter>jg<Esc>", "(2) work"),
        ("Rj<Enter>jg<Esc><Esc>", "2  step"),
        ("Rj<Enter>G", "(1) prog"),
        ("Rss", "3  work"),
        ("R/ead<Enter>", "read"),
        ("T", "7          7  prog"),
        ("T/8<Enter>", "8          7  prog"),
        // Among calls.
        ("T<Enter>", "| main() {"),
        ("T<Enter><End>", "9.000 ms  | } /* main */"),
        ("T<Enter><Enter>", "9.000 ms  | } /* main */"),
        ("T<Enter><Enter><Enter>", "| main() {"),
        ("T<Enter>/work<Enter>", "0.000002000              |     work() {"),
        ("T<Enter>/work<Enter>n", "0.007099000    1.800 ms  |     work();"),
        ("T<Enter>/work<Enter>nN", "0.000002000              |     work() {"),
        ("T<Enter>/work<Enter>np", "0.006999000              |   step() {"),
        ("T<Enter>/work<Enter>g", "(3) work"),
        // From a graph or report to calls.
        ("/read<Enter>f", "0.000000200    0.300 us  |   read();"),
        ("/read<Enter>nf", "0.000003000    0.010 us  |       read();"),
        ("/read<Enter>nf<Esc>", "0.010 us        (1) read"),
        ("/read<Enter>nfn", "0.000000200    0.300 us  |   read();"),
        ("/evil<Enter>f", "| evil"),
        ("Rj<Enter>jf", "0.000002000              |     work() {"),
        ("/work<Enter>gjf", "0.000003000    0.010 us  |       read();"),
        ("Rjjf", "0.000002000              |     work() {"),
        ("f", "(1) prog"),
    ] {
        let (_dir, trace) = small();
        let mut shown = Shown::new(&trace, 70, 8);
        shown.press(keys);
        let found = shown.selected();
        assert!(found.contains(selected), "{keys}: {found}");
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

#[test]
fn an_empty_trace() {
    let (_dir, trace) = trace(&[(7, vec![])]);
    let mut shown = Shown::new(&trace, 70, 8);
    assert!(shown.list().contains("(1) prog"));
    shown.press("jklgfpec<Enter>");
    assert!(shown.list().contains("(1) prog"));
    shown.press("Rjskf<Enter>T");
    assert_eq!(shown.screen()[6], "nothing of this thread is shown");
    shown.press("jk<End><Home><Enter>pgn/x<Enter>");
    assert_eq!(shown.screen()[6], "nothing of this thread is shown");
}

/// Many more lines than are read at once: the visible ones are those of a complete reading.
#[test]
fn a_long_list() {
    let call = |n: u64| Call(WORK, 10 * n + 2..10 * n + 9, vec![Call(READ, 10 * n + 4..10 * n + 6, vec![])]);
    let (_dir, trace) = trace(&[(7, vec![Call(MAIN, 1..1_000_000, (0..30_000).map(call).collect())])]);
    let mut shown = Shown::new(&trace, 70, 14);
    shown.press("T<End>");
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
    assert_eq!(shown.screen()[13], "there is none");
}

#[test]
fn a_search_among_calls_goes_round() {
    let (_dir, trace) = small();
    let mut shown = Shown::new(&trace, 60, 20);
    shown.press("T<Enter>/read<Enter>");
    let (first, second) = ("   0.000000200    0.300 us  |   read();", "   0.000003000    0.010 us  |       read();");
    assert_eq!(shown.selected(), first);
    for (keys, line) in
        [("n", second), ("n", first), ("N", second), ("N", first), ("<Home>N", second), ("<End>n", first)]
    {
        shown.press(keys);
        assert_eq!(shown.selected(), line, "{keys}");
    }
    shown.press("/nothing<Enter>");
    assert_eq!(shown.screen()[19], "there is none");
    shown.press("N");
    assert_eq!(shown.screen()[19], "there is none");
    assert_eq!(shown.selected(), first);
    // A missing entry is not looked for elsewhere.
    shown.press("<Home>pj<Home>");
    assert!(shown.selected().ends_with("| main() {"));
}

#[test]
fn what_is_missing_is_told_of() {
    let (dir, trace) = small();
    let last = |shown: &mut Shown<'_>| shown.screen().pop().unwrap();
    assert!(last(&mut Shown::new(&trace, 90, 20)).starts_with("? help"));
    fs::write(dir.path().join("record.txt"), "full=1\n").unwrap();
    let mut shown = Shown::new(&trace, 90, 20);
    assert_eq!(last(&mut shown), "not all was recorded: after `q` it is said what is missing");
    shown.press("j");
    assert!(last(&mut shown).starts_with("? help"));
    assert_eq!(shown.app.summary().map(|summary| summary.records), Some(18));
}
