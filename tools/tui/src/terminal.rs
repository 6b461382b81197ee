//! The terminal: keys from it, pictures to it, and that it is left as it was.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rftrace_read::{Reading, Summary, Trace};
use rftrace_views::{Graph, Report};

use crate::app::{Answer, App, Request};
use crate::draw::draw;
use crate::{Error, Result};

/// A key is waited for that long before it is looked whether something was read.
const WAIT: Duration = Duration::from_millis(100);

/// Shows a trace until the user has seen enough. Returns how much was read of the part that is chosen, and the flaws in it; `None` if the
/// user did not wait for that.
///
/// A signal that ends programs does so when the terminal is as it was before.
///
/// # Errors
///
/// Stdout is no terminal, or the trace cannot be read.
pub fn run(trace: &mut Trace) -> Result<Option<Summary>> {
    if !io::stdout().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let reading = Arc::new(Reading::default());
    trace.watch(Arc::clone(&reading));
    let drawing = Arc::new(Mutex::new(()));
    end_by_signals(Arc::clone(&drawing))?;
    let mut terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
    let trace = &*trace;
    thread::scope(|scope| {
        let app = App::new(trace, Arc::clone(&reading));
        let result = Loop { scope, answers: None, drawing: &drawing }.run(app, &mut terminal);
        reading.stop();
        // Before what is still read is waited for.
        ratatui::restore();
        result
    })
}

struct Loop<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    answers: Option<Receiver<Answer>>,
    /// Held while something is written to the terminal.
    drawing: &'env Mutex<()>,
}

impl<'env> Loop<'_, 'env> {
    fn run(&mut self, mut app: App<'env>, terminal: &mut DefaultTerminal) -> Result<Option<Summary>> {
        while !app.is_over {
            self.read(&mut app)?;
            app.resize(terminal.size()?.height);
            {
                let _drawing = self.drawing.lock().unwrap_or_else(PoisonError::into_inner);
                terminal.draw(|frame| draw(&app, frame))?;
            }
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
        Ok(app.summary().cloned())
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
        Request::Report => Answer::Report(Report::read_spread(trace)),
    }
}

/// Has the signals that end programs do so when the terminal is as it was before.
///
/// By a thread of their own: the loop may be where it does not come back from, as crossterm does not when its terminal is gone.
fn end_by_signals(drawing: Arc<Mutex<()>>) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        use signal_hook::iterator::Signals;
        use signal_hook::low_level::emulate_default_handler;

        let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
        thread::spawn(move || {
            for signal in signals.forever() {
                // Nothing is drawn after this. A terminal that takes nothing is not waited for.
                let _drawing = (0..20).find_map(|_| {
                    let held = drawing.try_lock().ok();
                    if held.is_none() {
                        thread::sleep(Duration::from_millis(10));
                    }
                    held
                });
                ratatui::restore();
                // It does not return for these.
                let _ = emulate_default_handler(signal);
            }
        });
    }
    Ok(())
}
