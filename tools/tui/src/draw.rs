//! Draws the state as a picture.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::Paragraph;
use rftrace_views::{Duration, Field, GraphNode, Line, What, percent};

use crate::app::{App, OTHER_LINES, View};
use crate::calls::CallsView;
use crate::graph::{GraphLine, GraphView, Of};
use crate::report::ReportView;
use crate::screen::{ALARM, CHOSEN, DIM, TITLE, draw_help, fitting};
use crate::text::{clean, count};

/// From this depth on lines are not indented any further.
const MAX_INDENT: usize = 1024;

const HELP: [(&str, &str); 21] = [
    ("G  R  T", "graph of the program, report, calls of a thread"),
    ("arrows, j k", "up and down; names to the left and right"),
    ("PgUp PgDn Home End", "further"),
    ("Esc, Backspace", "back to where one came from; stop what takes long"),
    ("/  n  N", "search in names; next; previous"),
    ("g", "graph of the selected function, and its callers"),
    ("f", "follow: a call of it, in a thread's calls"),
    ("p, u", "its caller"),
    ("", ""),
    ("in a graph:", ""),
    ("Enter", "fold, unfold"),
    ("e  c", "unfold all; fold all"),
    ("l", "its callee that took longest"),
    ("s", "sort by time, or by first calls"),
    ("in the report:", ""),
    ("Enter  s  a", "graph of it; sort by the next column; averages"),
    ("among threads:", ""),
    ("Enter  g", "calls of the thread; graph of it"),
    ("among calls:", ""),
    ("Enter", "from a call's beginning to its end, and back"),
    ("q  ?", "quit; this"),
];

/// A line of a list: columns, which stay where they are, and what moves to the side.
struct Row<'a> {
    columns: String,
    style: Style,
    rest: Vec<Span<'a>>,
}

/// Draws all of it.
pub(crate) fn draw(app: &App<'_>, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.height <= OTHER_LINES {
        frame.render_widget(Paragraph::new("too few lines"), area);
        return;
    }
    let line = |y: u16| Rect { y: area.y + y, height: 1, ..area };
    let last = area.height - 1;
    frame.render_widget(Paragraph::new(heading(app)), line(0));
    let list = Rect { y: area.y + 2, height: area.height - OTHER_LINES, ..area };
    let mut detail = String::new();
    match app.view {
        View::Graph => {
            if let Some(view) = app.graphs.last() {
                frame.render_widget(columns_title("TOTAL TIME  TOTAL %   SELF TIME  FUNCTION".into()), line(1));
                draw_rows(app, frame, list, view.cursor.selected - view.cursor.top, graph_rows(view, list));
                detail = graph_detail(view);
            }
        }
        View::Report => {
            if let Some(view) = &app.report {
                frame.render_widget(columns_title(report_title(view)), line(1));
                draw_rows(app, frame, list, view.cursor.selected - view.cursor.top, report_rows(view, list));
                detail = report_detail(view);
            }
        }
        View::Threads => {
            frame.render_widget(columns_title("       TID        PID  THREAD".into()), line(1));
            draw_rows(app, frame, list, app.threads.selected - app.threads.top, thread_rows(app, list));
            detail = "Enter shows the calls of a thread, g its graph".into();
        }
        View::Calls => {
            if let Some(view) = &app.calls {
                frame.render_widget(columns_title("          TIME    DURATION    CALL".into()), line(1));
                let selected = view.cursor.selected.saturating_sub(view.cursor.top);
                draw_rows(app, frame, list, selected, calls_rows(app, view));
                detail = calls_detail(app, view);
            }
        }
    }
    let detail = Paragraph::new(Text::styled(clean(&detail).into_owned(), DIM)).scroll((0, side(app)));
    frame.render_widget(detail, line(last - 1));
    frame.render_widget(Paragraph::new(status(app, area.width)), line(last));
    if app.shows_help {
        draw_help(frame, &HELP);
    }
}

fn columns_title(text: String) -> Paragraph<'static> {
    Paragraph::new(Text::styled(text, TITLE))
}

/// The views, which of them is shown, and of what.
fn heading(app: &App<'_>) -> Text<'static> {
    let mut spans = vec![Span::raw(" ")];
    for (view, name) in [(View::Graph, "Graph"), (View::Report, "Report"), (View::Calls, "Threads")] {
        let is_shown = app.view == view || (app.view == View::Threads && view == View::Calls);
        spans.push(Span::styled(format!(" {name} "), if is_shown { CHOSEN } else { Style::new() }));
        spans.push(Span::raw(" "));
    }
    let mut of = app.trace.dir().display().to_string();
    let mut thread = app.calls.as_ref().filter(|_| app.view == View::Calls).map(|calls| calls.task);
    if app.view == View::Graph {
        match app.graphs.last().map(|view| &view.of) {
            Some(Of::Function(name, _)) => of = format!("calls of {name}"),
            Some(Of::Thread(task)) => thread = Some(*task),
            Some(Of::Program) | None => {}
        }
    }
    if let Some(task) = thread.map(|task| &app.trace.tasks()[task]) {
        of = format!("thread {} {}", task.tid(), task.name());
    }
    if app.trace.is_chosen() {
        of.push_str(" (a part of it)");
    }
    if let Some(correction) = app.correction() {
        of.push_str(&format!(", {correction}"));
    }
    spans.push(Span::raw(format!(" {}", clean(&of))));
    Text::from(spans)
}

/// Keys, or what there is to say.
fn status(app: &App<'_>, width: u16) -> Text<'static> {
    if let Some(input) = &app.input {
        return Text::raw(format!("/{}\u{2588}", clean(&input.0)));
    }
    if let Some(progress) = app.progress() {
        return Text::raw(clean(&progress).into_owned());
    }
    if app.is_reading() {
        return Text::raw(format!("reading: {} records; q quits", count(app.n_read())));
    }
    if !app.message.is_empty() {
        return Text::styled(clean(&app.message).into_owned(), ALARM);
    }
    let keys = match app.view {
        View::Graph => "Enter fold  s sort  g graph of it  f its calls  p caller  / search  R report  T threads",
        View::Report => "Enter graph of it  f its calls  s sort  a averages  / search  G graph  T threads",
        View::Threads => "Enter calls  g graph of it  / search  G graph  R report",
        View::Calls => "Enter other end  p caller  g graph of it  / search  T threads  G graph  R report",
    };
    let keys = format!("? help  q quit  {keys}");
    Text::styled(fitting(&keys, width).to_owned(), DIM)
}

fn draw_rows<'a>(
    app: &App<'_>,
    frame: &mut Frame<'_>,
    area: Rect,
    selected: usize,
    rows: impl IntoIterator<Item = Row<'a>>,
) {
    for (y, (place, row)) in (area.y..area.bottom()).zip(rows.into_iter().enumerate()) {
        let width = u16::try_from(row.columns.chars().count()).unwrap_or(area.width).min(area.width);
        let left = Rect { y, height: 1, width, ..area };
        let right = Rect { x: area.x + width, width: area.width - width, ..left };
        frame.render_widget(Paragraph::new(Text::styled(row.columns, row.style)), left);
        frame.render_widget(Paragraph::new(Text::from(row.rest)).scroll((0, side(app))), right);
        if place == selected {
            frame.buffer_mut().set_style(Rect { y, height: 1, ..area }, CHOSEN);
        }
    }
}

/// The columns of names that are left out at the left.
fn side(app: &App<'_>) -> u16 {
    u16::try_from(app.side).unwrap_or(u16::MAX)
}

/// The colour of a time, as in a replay.
fn time_style(ns: u64) -> Style {
    match ns {
        0..1_000_000 => Style::new(),
        1_000_000..1_000_000_000 => Style::new().fg(Color::Green),
        _ => Style::new().fg(Color::Yellow),
    }
}

fn graph_rows(view: &GraphView, area: Rect) -> impl Iterator<Item = Row<'static>> {
    let all_ns = view.graph.node(0).total_ns;
    let lines = view.lines.iter().skip(view.cursor.top).take(usize::from(area.height));
    lines.map(move |&line| {
        let mark = match view.is_unfolded(line) {
            Some(true) => "\u{25be} ",
            Some(false) => "\u{25b8} ",
            None => "  ",
        };
        let blank = format!("{:33}", "");
        let (columns, style, indent, text) = match line {
            GraphLine::Node { node, indent } => {
                let GraphNode { total_ns, self_ns, calls, did_not_return, .. } = view.graph.node(node);
                let own = if node == 0 && view.function().is_none() {
                    format!("{:10}", "")
                } else {
                    Duration(self_ns).to_string()
                };
                let columns = format!("{}  {:>7}  {own}  ", Duration(total_ns), percent(total_ns, all_ns));
                let text = format!("({}) {}{}", count(calls), view.shown_name(node), open_calls(did_not_return));
                (columns, time_style(total_ns), indent, text)
            }
            GraphLine::Ways => {
                let n_ways = view.graph.n_ways();
                let ways = if n_ways == 1 { "way" } else { "ways" };
                (blank, Style::new(), 0, format!("called in {n_ways} {ways}"))
            }
            GraphLine::Way { way } => {
                let way = view.graph.way(way);
                let caller = way.frames.iter().rev().nth(1).copied().flatten();
                let caller = caller.map_or("(outermost)", |name| view.graph.shown_name(name));
                let text = format!("({}) from {caller}", count(way.calls));
                (
                    format!("{}  {:>7}{:14}", Duration(way.total_ns), percent(way.total_ns, all_ns), ""),
                    time_style(way.total_ns),
                    1,
                    text,
                )
            }
            GraphLine::Frame { way, level } => {
                let name = view.graph.way(way).frames[level].map(|name| view.graph.shown_name(name));
                (blank, Style::new(), 2, name.unwrap_or("(entered before the trace begins)").to_owned())
            }
        };
        let indent = "  ".repeat(indent.min(MAX_INDENT));
        Row { columns, style, rest: vec![Span::raw(format!("{indent}{mark}{}", clean(&text)))] }
    })
}

/// The text behind a name, where calls were open at the end.
fn open_calls(did_not_return: u64) -> String {
    if did_not_return == 0 { String::new() } else { format!("; {} did not return", count(did_not_return)) }
}

fn graph_detail(view: &GraphView) -> String {
    let Some(GraphLine::Node { node, .. }) = view.selected() else {
        return view.selected_function().unwrap_or_default().to_owned();
    };
    let GraphNode { total_ns, calls, .. } = view.graph.node(node);
    let average = Duration(total_ns / calls.max(1)).to_string();
    let left_out = match view.graph.left_out() {
        0 => String::new(),
        left_out => format!("; {} calls are not shown: they have too many call paths", count(left_out)),
    };
    let (word, each) = if calls == 1 { ("call", "") } else { ("calls", " each") };
    format!("{}: {} {word}, {}{each}{left_out}", view.name(node), count(calls), average.trim_start())
}

fn report_title(view: &ReportView) -> String {
    let mut title = String::new();
    for field in view.columns {
        let mark = if field == view.sort { "\u{25be}" } else { "" };
        title.push_str(&format!("{:>10}  ", format!("{mark}{}", field.title())));
    }
    title + "Function"
}

fn report_rows(view: &ReportView, area: Rect) -> impl Iterator<Item = Row<'static>> {
    let all_self_ns = view.report.self_ns();
    let rows = view.report.rows().iter().skip(view.cursor.top).take(usize::from(area.height));
    rows.map(move |row| {
        let mut columns = String::new();
        for field in view.columns {
            columns.push_str(&format!("{:>10}  ", field.cell(row, all_self_ns)));
        }
        let ns = if view.sort == Field::Calls { row.total_ns } else { view.sort.value(row, all_self_ns) };
        Row {
            columns,
            style: time_style(ns),
            rest: vec![Span::raw(clean(view.names.get(&row.name)).into_owned() + &open_calls(row.did_not_return))],
        }
    })
}

fn report_detail(view: &ReportView) -> String {
    let wall = Duration(view.report.wall_ns()).to_string();
    let cpu = match view.report.cpu_ns() {
        Some(cpu_ns) => format!("CPU {}{}", Duration(cpu_ns).text(), view.report.off_cpu()),
        None => "waiting counts as self time".into(),
    };
    let place = format!("{} of {}", view.cursor.selected + 1, view.report.rows().len());
    format!("{place}; wall {}, {cpu}; {}", wall.trim_start(), view.selected().unwrap_or_default())
}

fn thread_rows(app: &App<'_>, area: Rect) -> impl Iterator<Item = Row<'static>> {
    let tasks = app.trace.tasks().iter().skip(app.threads.top).take(usize::from(area.height));
    tasks.map(|task| Row {
        columns: format!("{:10} {:10}  ", task.tid(), task.pid()),
        style: Style::new(),
        rest: vec![Span::raw(clean(task.name()).into_owned())],
    })
}

fn calls_rows<'a>(app: &App<'a>, view: &CallsView<'a>) -> impl Iterator<Item = Row<'static>> {
    view.seen.iter().zip(&view.seen_names).map(|(line, name)| {
        let since_ns = line.time_ns.saturating_sub(view.start_ns);
        let time = format!("{:4}.{:09}", since_ns / 1_000_000_000, since_ns % 1_000_000_000);
        let duration = line.duration_ns.map_or(String::new(), |ns| Duration(ns).to_string());
        let task = &app.trace.tasks()[view.task];
        // Where the file is gone meanwhile, there are none.
        let values = line.values(app.trace, task).unwrap_or_default();
        let (code, comment) = line.text(name, &values);
        let mut rest = vec![Span::raw(format!("{}{}", "  ".repeat(line.depth.min(MAX_INDENT)), clean(&code)))];
        if let Some(comment) = comment {
            let blank = if code.is_empty() { "" } else { " " };
            let style = if matches!(line.what, What::Lost { .. }) { ALARM } else { DIM };
            rest.push(Span::styled(format!("{blank}/* {} */", clean(&comment)), style));
        }
        let style = line.duration_ns.map_or(Style::new(), time_style);
        Row { columns: format!("{time:>14}  {duration:>10}  | "), style, rest }
    })
}

fn calls_detail(app: &App<'_>, view: &CallsView<'_>) -> String {
    let (n_known, is_complete) = view.known();
    let more = if is_complete { "" } else { " or more" };
    if n_known == 0 && is_complete {
        return "no call of this thread is shown".into();
    }
    let name = view.selected().map(|line: Line| line.name(app.trace, &app.trace.tasks()[view.task]).into_owned());
    let place = count(view.cursor.selected as u64 + 1);
    format!("line {place} of {}{more}: {}", count(n_known as u64), name.unwrap_or_default())
}
