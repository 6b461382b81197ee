//! The main loop: keys from the terminal, pictures to it, and threads that read the trace.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, Scope};
use std::time::Duration;

use rftrace_read::{Reading, Summary, Trace};
use rftrace_views::{Graph, Report};

use crate::Result;
use crate::app::{Answer, App, Request};
use crate::draw::draw;
use crate::graph::Of;
use crate::screen::{GiveBack, Screen};

/// A key is waited for that long before it is looked whether something was read.
const WAIT: Duration = Duration::from_millis(100);

/// Shows a trace until the user quits. Returns the number of records read in the chosen part, and their flaws; `None`
/// if the user did not wait for that.
///
/// A signal that ends the program takes effect when the terminal is restored.
///
/// # Errors
///
/// Stdout is no terminal, or the trace cannot be read.
pub fn run(trace: &mut Trace) -> Result<Option<Summary>> {
    let give_back = GiveBack::default();
    end_by_signals(give_back.clone())?;
    let mut screen = Screen::take(&give_back)?;
    let reading = Arc::new(Reading::default());
    trace.watch(Arc::clone(&reading));
    let trace = &*trace;
    thread::scope(|scope| {
        let app = App::new(trace, Arc::clone(&reading));
        let result = Loop { scope, answers: None }.run(app, &mut screen);
        reading.stop();
        // Before what is still read is waited for.
        give_back.give_back();
        result
    })
}

struct Loop<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    answers: Option<Receiver<Answer>>,
}

impl<'env> Loop<'_, 'env> {
    fn run(&mut self, mut app: App<'env>, screen: &mut Screen) -> Result<Option<Summary>> {
        while !app.is_over {
            self.read(&mut app)?;
            app.resize(screen.height()?);
            screen.draw(|frame| draw(&app, frame))?;
            let wait = if app.is_busy() { Duration::ZERO } else { WAIT };
            screen.keys(wait, |key| {
                app.key(key);
                !app.is_over
            })?;
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
        Request::Graph(Of::Program) => Answer::Graph(Graph::read(trace, None)),
        Request::Graph(Of::Thread(task)) => Answer::Graph(Graph::read_task(trace, &trace.tasks()[*task])),
        Request::Graph(Of::Function(_, pattern)) => Answer::Graph(Graph::read(trace, Some(pattern))),
        Request::Report => Answer::Report(Report::read_spread(trace)),
    }
}

/// Has the signals that end programs do so when the terminal is as it was before.
///
/// By a thread of their own: the loop may be where it does not come back from, as crossterm does not when its terminal is gone.
fn end_by_signals(give_back: GiveBack) -> io::Result<()> {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        use signal_hook::iterator::Signals;
        use signal_hook::low_level::emulate_default_handler;

        let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
        thread::spawn(move || {
            for signal in signals.forever() {
                give_back.give_back();
                // It does not return for these.
                let _ = emulate_default_handler(signal);
            }
        });
    }
    Ok(())
}
