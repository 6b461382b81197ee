//! The terminal: keys from it, pictures to it, and that it is left as it was.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, Scope};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rftrace_read::{Reading, Trace};
use rftrace_views::{Graph, Report};

use crate::app::{Answer, App, Request};
use crate::draw::draw;
use crate::{Error, Result};

/// A key is waited for that long before it is looked whether a signal came.
const WAIT: Duration = Duration::from_millis(100);

/// Shows a trace until the user has seen enough.
///
/// A signal that ends programs does so when the terminal is as it was before.
///
/// # Errors
///
/// Stdout is no terminal, or the trace cannot be read.
pub fn run(mut trace: Trace) -> Result<()> {
    if !io::stdout().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let reading = Arc::new(Reading::default());
    trace.watch(Arc::clone(&reading));
    let signal = Signal::new()?;
    let mut terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
    let result = thread::scope(|scope| {
        let app = App::new(&trace, Arc::clone(&reading));
        let result = Loop { scope, answers: None, signal: &signal }.run(app, &mut terminal);
        reading.stop();
        // Before what is still read is waited for.
        ratatui::restore();
        result
    });
    signal.end();
    result
}

struct Loop<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    answers: Option<Receiver<Answer>>,
    signal: &'env Signal,
}

impl<'env> Loop<'_, 'env> {
    fn run(&mut self, mut app: App<'env>, terminal: &mut DefaultTerminal) -> Result<()> {
        while !app.is_over && !self.signal.has_come() {
            self.read(&mut app)?;
            app.resize(terminal.size()?.height);
            terminal.draw(|frame| draw(&app, frame))?;
            let mut wait = if app.is_busy() { Duration::ZERO } else { WAIT };
            while !app.is_over && event::poll(wait)? {
                if let Event::Key(key) = event::read()?
                    && key.kind != KeyEventKind::Release
                {
                    app.key(key);
                }
                wait = Duration::ZERO;
            }
        }
        Ok(())
    }

    /// Has what is asked for read by a thread, and takes what was read.
    fn read(&mut self, app: &mut App<'env>) -> Result<()> {
        if let Some(request) = app.take_request() {
            let (sender, receiver) = mpsc::channel();
            let trace = app.trace;
            self.answers = Some(receiver);
            self.scope.spawn(move || {
                // Nobody takes it if the user has quit.
                let _ = sender.send(answer(trace, &request));
            });
        }
        match self.answers.as_ref().map(Receiver::try_recv) {
            Some(Ok(answer)) => {
                self.answers = None;
                app.answer(answer)?;
            }
            // Its thread has panicked: so does the scope's end, with the terminal as it was.
            Some(Err(TryRecvError::Disconnected)) => app.is_over = true,
            Some(Err(TryRecvError::Empty)) | None => {}
        }
        Ok(())
    }
}

/// Reads what is asked for.
pub(crate) fn answer(trace: &Trace, request: &Request) -> Answer {
    match request {
        Request::Graph(function) => Answer::Graph(Graph::read(trace, function.as_ref().map(|(_, pattern)| pattern))),
        Request::Report => Answer::Report(Report::read(trace)),
    }
}

/// A signal that ends programs, for as long as the terminal is not as it was.
struct Signal(Arc<AtomicUsize>);

impl Signal {
    fn new() -> io::Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        #[cfg(unix)]
        for signal in [
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGQUIT,
        ] {
            signal_hook::flag::register_usize(signal, Arc::clone(&came), signal.unsigned_abs() as usize)?;
        }
        Ok(Self(came))
    }

    fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Does what the signal does.
    fn end(&self) {
        #[cfg(unix)]
        if let Ok(signal @ 1..) = i32::try_from(self.0.load(Ordering::Relaxed)) {
            // What remains is to go on as if the user had quit.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}
