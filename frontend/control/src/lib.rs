//! Control of a running recording, for `rftrace ctl`.
//!
//! - [`protocol`]: the commands, as lines of words, and the answers.
//! - [`socket`]: the recorder's socket, and the users with access.
//! - [`client`]: finds the recorder of a process, and sends commands.
//! - [`folder`]: the names as files.
//! - [`server`]: answers commands through a [`Recording`]. `listed` has its sockets; the child of a fork closes them.
//! - `commands` interprets the words; `names` has ftrace's names for them, `target` their processes. `rules` changes
//!   the rules of a filter, `triggers` the events that cause dumps.
//!
//! Not here: the command lines (`rftrace-tools`), and the work of a recorder (`rftrace-record`).

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

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

/// Returns the command line of a process, as words with blanks between them; empty if it cannot be read.
#[cfg(target_os = "linux")]
#[must_use]
pub fn command_line(pid: u32) -> String {
    let command = rftrace_format::system::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = command.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").replace(char::is_control, "?").trim_end().to_owned()
}

pub use names::{NAMES, Name};
pub use recording::{BufferKind, Facts, Function, Recording, Text, Trigger, Watched, Work};
