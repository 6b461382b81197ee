//! The state of the screen, and the effects of keys.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use rftrace_read::{Pattern, Reading, Result, Summary, Trace, Warning};
use rftrace_views::{Graph, Report, literal};

use crate::calls::{CallsView, Follow, Outcome};
use crate::graph::{GraphView, Of};
use crate::list::{Cursor, Move};
use crate::report::ReportView;
use crate::screen::{is_interrupt, movement};
use crate::text::count;

/// Lines of the screen that no list has: the views' names, columns' titles, what is selected, and keys or messages.
pub(crate) const OTHER_LINES: u16 = 4;

/// So many graphs of functions are kept to go back to.
const MAX_GRAPHS: usize = 8;
/// A move to the side.
const SIDE_STEP: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// The graph of the program, or the last one of a thread or function.
    Graph,
    Report,
    Threads,
    Calls,
}

/// A result that needs all records, and takes its time.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Graph(Of),
    Report,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Graph(Result<Graph>),
    Report(Result<Report>),
}

/// A text that is being typed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input(pub(crate) String);

#[derive(Debug)]
pub(crate) struct App<'t> {
    pub(crate) trace: &'t Trace,
    /// Records read, by all readers.
    records: Arc<Reading>,
    pub(crate) view: View,
    /// The views from which one came here.
    before: Vec<View>,
    /// The graph of the program, and behind it those of threads and functions.
    pub(crate) graphs: Vec<GraphView>,
    pub(crate) report: Option<ReportView>,
    pub(crate) threads: Cursor,
    pub(crate) calls: Option<CallsView<'t>>,
    follow: Option<Follow<'t>>,
    /// The request that is being read, and true if a reader has taken it.
    reading: Option<(Request, bool)>,
    /// How many records had been read when that began.
    n_read_before: u64,
    pub(crate) input: Option<Input>,
    searched: String,
    pub(crate) shows_help: bool,
    pub(crate) message: String,
    /// Lines of a list that are seen.
    pub(crate) page: usize,
    /// Columns of names that are left out at the left.
    pub(crate) side: usize,
    pub(crate) is_over: bool,
}

impl<'t> App<'t> {
    pub(crate) fn new(trace: &'t Trace, records: Arc<Reading>) -> Self {
        Self {
            trace,
            records,
            view: View::Graph,
            before: Vec::new(),
            graphs: Vec::new(),
            report: None,
            threads: Cursor::default(),
            calls: None,
            follow: None,
            reading: Some((Request::Graph(Of::Program), false)),
            n_read_before: 0,
            input: None,
            searched: String::new(),
            shows_help: false,
            message: String::new(),
            page: 1,
            side: 0,
            is_over: false,
        }
    }

    /// The screen has so many lines.
    pub(crate) fn resize(&mut self, height: u16) {
        self.page = usize::from(height.saturating_sub(OTHER_LINES)).max(1);
        for view in &mut self.graphs {
            view.cursor.fit(self.page);
        }
        if let Some(view) = &mut self.report {
            view.cursor.fit(self.page);
        }
        self.threads.fit(self.page);
        self.work();
    }

    /// The request for another thread to read, while this one goes on.
    pub(crate) fn take_request(&mut self) -> Option<Request> {
        let (request, is_taken) = self.reading.as_mut()?;
        if mem::replace(is_taken, true) {
            return None;
        }
        self.n_read_before = self.records.n_records();
        Some(request.clone())
    }

    /// How many records of what is being read were.
    pub(crate) fn n_read(&self) -> u64 {
        self.records.n_records().saturating_sub(self.n_read_before)
    }

    /// True while something is being read.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Takes what was read. It is an error if the graph of the program could not be.
    pub(crate) fn answer(&mut self, answer: Answer) -> Result<()> {
        let Some((request, _)) = self.reading.take() else { return Ok(()) };
        match (request, answer) {
            (Request::Graph(of), Answer::Graph(Ok(graph))) => {
                if graph.is_empty() {
                    self.message = "no call of this function".into();
                    return Ok(());
                }
                if !matches!(of, Of::Program) {
                    self.show(View::Graph);
                } else if is_cut(self.trace, graph.summary()) {
                    self.message = "the trace has gaps: `q` quits and lists them".into();
                }
                if self.graphs.len() > MAX_GRAPHS {
                    self.graphs.remove(1);
                }
                self.graphs.push(GraphView::new(graph, of));
            }
            (Request::Report, Answer::Report(Ok(report))) => self.report = Some(ReportView::new(report)),
            (Request::Graph(Of::Program), Answer::Graph(Err(error))) => return Err(error),
            (Request::Graph(_), Answer::Graph(Err(error))) => self.message = error.to_string(),
            (Request::Report, Answer::Report(Err(error))) => {
                self.back();
                self.message = error.to_string();
            }
            (Request::Graph(_), Answer::Report(_)) | (Request::Report, Answer::Graph(_)) => {}
        }
        Ok(())
    }

    /// How much of the trace was read, and the flaws in it, once that is known.
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.graphs.first().map(|view| view.graph.summary())
    }

    /// In words, what was subtracted from the times that are shown, if anything was.
    pub(crate) fn correction(&self) -> Option<String> {
        match self.view {
            View::Graph => self.graphs.last()?.graph.correction(),
            View::Report => self.trace.cost().and(self.report.as_ref()).map(|view| view.report.correction()),
            View::Threads | View::Calls => None,
        }
    }

    /// True if there is work to go on with.
    pub(crate) fn is_busy(&self) -> bool {
        self.follow.is_some() || self.calls.as_ref().is_some_and(CallsView::is_busy)
    }

    /// Goes on with it for a moment.
    pub(crate) fn work(&mut self) {
        const MOMENT: Duration = Duration::from_millis(50);

        let until = Instant::now() + MOMENT;
        if let Some(follow) = &mut self.follow {
            match follow.work(until) {
                (_, Some((task, line))) => {
                    self.searched = follow.name().to_owned();
                    self.follow = None;
                    self.show(View::Calls);
                    self.open_calls(task, line);
                }
                (Outcome::Busy | Outcome::Done, None) => {}
                (Outcome::NotFound, None) => {
                    self.message = format!("no call of {} was found", follow.name());
                    self.follow = None;
                }
            }
        }
        if let Some(calls) = &mut self.calls {
            match calls.work(until, self.page) {
                Ok(Outcome::Busy | Outcome::Done) => {}
                Ok(Outcome::NotFound) => self.message = "nothing found".into(),
                Err(error) => self.message = error.to_string(),
            }
        }
    }

    /// The progress of long work.
    pub(crate) fn progress(&self) -> Option<String> {
        if let Some(follow) = &self.follow {
            let n_read = count(follow.n_read() as u64);
            return Some(format!("looking for {}: {n_read} lines; Esc stops", follow.name()));
        }
        let calls = self.calls.as_ref().filter(|calls| self.view == View::Calls && calls.is_busy())?;
        Some(format!("reading: {} lines; Esc stops", count(calls.known().0 as u64)))
    }

    /// Goes to a view; `Esc` leads back.
    fn show(&mut self, view: View) {
        /// Nobody goes back any further.
        const MAX_BEFORE: usize = 100;

        if self.view != view || view == View::Graph {
            if self.before.len() >= MAX_BEFORE {
                self.before.remove(0);
            }
            self.before.push(self.view);
        }
        self.view = view;
        self.side = 0;
    }

    /// Goes to where one came from.
    fn back(&mut self) {
        let was = self.view;
        let Some(view) = self.before.pop() else { return };
        // The graph of a thread or function goes when one leaves it.
        if was == View::Graph && self.graphs.len() > 1 {
            self.graphs.pop();
        }
        self.view = view;
        self.side = 0;
    }

    fn open_calls(&mut self, task: usize, line: usize) {
        let start_ns = self.trace.start_ns();
        match start_ns {
            Ok(start_ns) => self.calls = Some(CallsView::new(self.trace, task, start_ns.unwrap_or(0), line)),
            Err(error) => self.message = error.to_string(),
        }
        self.threads.select(task, self.trace.tasks().len(), self.page);
    }

    /// The graph of a function is wanted.
    fn zoom(&mut self, name: Option<String>) {
        let Some(name) = name else { return };
        match Pattern::new(&literal(&name)) {
            Ok(pattern) => self.reading = Some((Request::Graph(Of::Function(name, pattern)), false)),
            Err(error) => self.message = error.to_string(),
        }
    }

    fn show_report(&mut self) {
        if self.report.is_none() {
            self.reading = Some((Request::Report, false));
        }
        self.show(View::Report);
    }

    fn show_graph(&mut self) {
        self.graphs.truncate(1);
        self.before.retain(|view| *view != View::Graph);
        if self.view != View::Graph {
            self.show(View::Graph);
        }
    }

    fn show_threads(&mut self) {
        if self.trace.tasks().len() == 1 {
            if self.calls.is_none() {
                self.open_calls(0, 0);
            }
            self.show(View::Calls);
        } else {
            self.show(View::Threads);
        }
    }

    /// Goes to a call of what is selected.
    fn follow(&mut self) {
        let task = self.threads.selected;
        let found = match self.view {
            View::Graph => self.graphs.last().and_then(|view| {
                let path = view.path()?;
                let (from, task) = match &view.of {
                    Of::Program => (None, task),
                    Of::Thread(task) => (None, *task),
                    Of::Function(_, pattern) => (Some(pattern.clone()), task),
                };
                Some(Follow::new(self.trace, path, from, task))
            }),
            View::Report => {
                let name = self.report.as_ref().and_then(ReportView::selected);
                name.map(|name| Follow::call_of(self.trace, name.to_owned(), task))
            }
            View::Threads | View::Calls => return,
        };
        match found {
            Some(follow) => self.follow = Some(follow),
            None => self.message = "this line is not a function".into(),
        }
    }

    fn find(&mut self, is_forward: bool) {
        let (text, page) = (&self.searched, self.page);
        if text.is_empty() {
            self.message = "no search yet: / begins one".into();
            return;
        }
        let found = match self.view {
            View::Graph => self.graphs.last_mut().is_some_and(|view| view.find(text, is_forward, page)),
            View::Report => self.report.as_mut().is_some_and(|view| view.find(text, is_forward, page)),
            View::Calls => {
                if let Some(view) = &mut self.calls {
                    view.find(text, is_forward);
                }
                true
            }
            View::Threads => self.find_thread(is_forward),
        };
        if !found {
            self.message = format!("no name contains `{}`", self.searched);
        }
    }

    fn find_thread(&mut self, is_forward: bool) -> bool {
        let tasks = self.trace.tasks();
        let n_tasks = tasks.len();
        let place = |step: usize| (self.threads.selected + if is_forward { step } else { n_tasks - step }) % n_tasks;
        let is_it = |&task: &usize| {
            tasks[task].name().contains(&self.searched) || tasks[task].tid().to_string().contains(&self.searched)
        };
        let found = (1..=n_tasks).map(place).find(is_it);
        if let Some(found) = found {
            self.threads.select(found, n_tasks, self.page);
        }
        found.is_some()
    }

    fn go(&mut self, to: Move) {
        let page = self.page;
        match self.view {
            View::Graph => self.graphs.last_mut().into_iter().for_each(|view| view.go(to, page)),
            View::Report => self.report.iter_mut().for_each(|view| view.go(to, page)),
            View::Threads => {
                let line = self.threads.target(to, page);
                self.threads.select(line, self.trace.tasks().len(), page);
            }
            View::Calls => self.calls.iter_mut().for_each(|view| view.go(to, page)),
        }
    }

    /// Does what a key says.
    pub(crate) fn key(&mut self, key: KeyEvent) {
        self.message.clear();
        if is_interrupt(key) {
            self.is_over = true;
        } else if self.input.is_some() {
            self.type_in(key.code);
        } else if mem::take(&mut self.shows_help) || self.is_reading() {
            self.is_over = key.code == KeyCode::Char('q');
        } else if self.is_busy() && key.code == KeyCode::Esc {
            self.follow = None;
            self.calls.iter_mut().for_each(CallsView::stop);
        } else if let Some(to) = movement(key.code).or((key.code == KeyCode::Char(' ')).then_some(Move::PageDown)) {
            self.go(to);
        } else {
            self.command(key.code);
        }
        self.work();
    }

    fn command(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('G') => self.show_graph(),
            KeyCode::Char('R') => self.show_report(),
            KeyCode::Char('T') => self.show_threads(),
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Char('/') => self.input = Some(Input(String::new())),
            KeyCode::Char('n') => self.find(true),
            KeyCode::Char('N') => self.find(false),
            KeyCode::Left => self.side = self.side.saturating_sub(SIDE_STEP),
            KeyCode::Right => self.side = self.side.saturating_add(SIDE_STEP),
            KeyCode::Char('f') => self.follow(),
            _ => match self.view {
                View::Graph => self.graph_command(code),
                View::Report => self.report_command(code),
                View::Threads if code == KeyCode::Enter => {
                    self.open_calls(self.threads.selected, 0);
                    self.show(View::Calls);
                }
                View::Threads if code == KeyCode::Char('g') => {
                    self.reading = Some((Request::Graph(Of::Thread(self.threads.selected)), false));
                }
                View::Threads => {}
                View::Calls => self.calls_command(code),
            },
        }
    }

    fn graph_command(&mut self, code: KeyCode) {
        let page = self.page;
        let Some(view) = self.graphs.last_mut() else { return };
        match code {
            KeyCode::Enter => view.toggle(page),
            KeyCode::Char('e') => view.expand(page),
            KeyCode::Char('c') => view.collapse(page),
            KeyCode::Char('p' | 'u') => view.go_to_parent(page),
            KeyCode::Char('l') => view.go_to_longest(page),
            KeyCode::Char('s') => view.sort_next(page),
            KeyCode::Char('g') => {
                let name = view.selected_function().map(str::to_owned);
                self.zoom(name);
            }
            _ => {}
        }
    }

    fn report_command(&mut self, code: KeyCode) {
        let Some(view) = &mut self.report else { return };
        match code {
            KeyCode::Enter | KeyCode::Char('g') => {
                let name = view.selected().map(str::to_owned);
                self.zoom(name);
            }
            KeyCode::Char('s') => view.sort_next(),
            KeyCode::Char('a') => view.show_averages(),
            _ => {}
        }
    }

    fn calls_command(&mut self, code: KeyCode) {
        let Some(view) = &mut self.calls else { return };
        match code {
            KeyCode::Enter => view.go_to_other_end(),
            KeyCode::Char('p' | 'u') => view.go_to_parent(),
            KeyCode::Char('g') => {
                let name = view.selected_function();
                self.zoom(name);
            }
            _ => {}
        }
    }

    fn type_in(&mut self, code: KeyCode) {
        let Some(Input(text)) = &mut self.input else { return };
        match code {
            KeyCode::Char(c) => text.push(c),
            KeyCode::Backspace if !text.is_empty() => {
                text.pop();
            }
            KeyCode::Esc | KeyCode::Backspace => self.input = None,
            KeyCode::Enter => {
                let text = mem::take(text);
                self.input = None;
                if !text.is_empty() {
                    self.searched = text;
                }
                self.find(true);
            }
            _ => {}
        }
    }
}

/// True if an event is not among the records.
fn is_cut(trace: &Trace, summary: &Summary) -> bool {
    let n_lost = summary.warnings.count(Warning::LostRecord);
    // A file that cannot be read is an error where it is said what is missing.
    let has_gaps = trace.gaps().is_ok_and(|gaps| !gaps.is_empty());
    has_gaps || summary.overwritten || summary.deep_calls > 0 || n_lost > 0
}
