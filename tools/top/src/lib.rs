//! The hottest functions of a program that runs, interval by interval.
//!
//! [`Sums`] makes of records, as they come, what each function took in an interval; a [`Tick`] is that with what else is to be said of
//! it. A [`Table`] takes ticks and names, and has the rows that are shown; [`run`] shows them in a terminal until the user has seen enough,
//! where `app` decides what keys do and `draw` makes the picture; [`batch`] writes them as text.
//!
//! Not here: how records come out of the program (`rftrace-record`), and asking for them (`rftrace-tools`). Nothing here opens a file.

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
