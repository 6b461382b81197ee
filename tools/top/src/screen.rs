//! The main loop: it receives intervals and keys, and draws pictures.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rftrace_tui::screen::{GiveBack, Screen};

use crate::Result;
use crate::app::App;
use crate::draw::draw;
use crate::head::Watched;
use crate::table::Table;
use crate::tick::Tick;

/// A key is waited for that long before it is looked whether an interval has come.
const WAIT: Duration = Duration::from_millis(50);

/// Shows intervals, up to a maximum number, until the user quits or no further one comes. `name` returns the name of
/// the function at an address. Then it gives the terminal back, unless another thread has done so.
///
/// # Errors
///
/// The terminal fails.
pub fn run(
    give_back: &GiveBack,
    watched: Watched,
    table: Table,
    ticks: &Receiver<Tick>,
    n_ticks: usize,
    mut name: impl FnMut(u64) -> Arc<str>,
) -> Result<()> {
    let mut screen = Screen::take(give_back)?;
    let mut app = App::new(watched, table);
    while !app.is_over && app.table.n_ticks() < n_ticks {
        match ticks.try_recv() {
            Ok(tick) => app.add(tick, &mut name),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        app.resize(screen.height()?);
        screen.draw(|frame| draw(&app, frame))?;
        screen.keys(WAIT, |key| {
            app.key(key);
            !app.is_over
        })?;
    }
    Ok(())
}
