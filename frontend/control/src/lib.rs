//! Control of a recording while the program runs.
//!
//! - [`protocol`]: lines of words there, an answer back.
//! - [`socket`]: where a recorder listens, and who may talk to it.
//! - [`client`]: finds the recorder of a process, and asks.
//! - [`folder`]: the names as files.
//! - [`server`]: answers, as a [`Recording`] can. `listed` has its sockets, which a child closes.
//! - `commands` says what the words mean; `names` has ftrace's names for the same, `target` the processes that they are for,
//!   `rules` changes the rules of a filter, `triggers` what dumps are made on.
//!
//! Not here: the command lines (`rftrace-tools`), and what a recorder does (`rftrace-record`).

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(target_os = "linux")]
pub mod client;
mod commands;
#[cfg(target_os = "linux")]
pub mod folder;
#[cfg(target_os = "linux")]
mod listed;
mod names;
pub mod protocol;
mod recording;
mod rules;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(target_os = "linux")]
pub mod socket;
mod target;
mod threads;
mod triggers;

/// The command line of a process, as words with blanks between them.
#[cfg(target_os = "linux")]
#[must_use]
pub fn command_line(pid: u32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = command.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").replace(char::is_control, "?").trim_end().to_owned()
}

pub use names::{NAMES, Name};
pub use recording::{BufferKind, Facts, Function, Recording, Text, Trigger, Watched, Work};
