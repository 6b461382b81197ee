//! The terminal shared by a program and its recorder.

use std::io::{self, IsTerminal, Write as _};

use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use rftrace_format::text::Shown;

/// Returns true if a line on stderr disturbs no other output: stderr is a terminal, and the program writes elsewhere,
/// does not draw on the screen (it would switch line editing off), and runs in the foreground.
#[must_use]
pub fn is_for_messages() -> bool {
    !io::stdout().is_terminal() && is_for_a_line()
}

/// Returns true if a single line may come between other output: stderr is a terminal, the program does not draw on the
/// screen, and it runs in the foreground.
#[must_use]
pub fn is_for_a_line() -> bool {
    let terminal = io::stderr();
    terminal.is_terminal()
        && tcgetattr(&terminal).is_ok_and(|settings| settings.local_flags.contains(LocalFlags::ICANON))
        && tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

/// Writes a line to stderr, maybe with text of others. Nobody may be there to read it.
pub(crate) fn say(text: &str) {
    let line = format!("rftrace: {}\n", Shown::lines(text));
    let _ = io::stderr().write_all(line.as_bytes());
}
