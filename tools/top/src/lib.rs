//! The hottest functions of a running program, interval by interval.
//!
//! [`Sums`] turns records into the time of each function in an interval. A [`Tick`] is an interval with facts about the
//! process. A [`Table`] collects ticks and names, and has the shown rows. [`run`] shows them in a terminal until the
//! user quits; there `app` handles keys and `draw` makes the picture. [`batch`] writes them as text.
//!
//! Not here: how records leave the program (`rftrace-record`), and the command (`rftrace-tools`). This crate opens no
//! file.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod app;
pub mod batch;
mod draw;
mod head;
mod screen;
mod sums;
mod table;
mod tick;

#[cfg(test)]
mod tests;

pub use head::Watched;
pub use rftrace_tui::screen::GiveBack;
pub use rftrace_tui::{Error, Result};
pub use screen::run;
pub use sums::{Interval, Sum, Sums};
pub use table::{Column, Table};
pub use tick::Tick;
