//! Tests on whole trace directories.

#![allow(clippy::disallowed_methods, reason = "tests name their own files")]

mod dir;

#[cfg(target_os = "linux")]
mod anonymous;
mod browser;
mod chosen;
mod cli;
mod completions;
#[cfg(target_os = "linux")]
mod counters;
mod example;
mod export;
#[cfg(target_os = "linux")]
mod golden;
mod graph;
mod hostile;
#[cfg(target_os = "linux")]
mod import;
mod info;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod large;
#[cfg(target_os = "linux")]
mod limits;
mod losses;
mod merge;
#[cfg(target_os = "linux")]
mod messages;
#[cfg(target_os = "linux")]
mod net;
mod overloads;
mod perfetto;
mod reader;
#[cfg(target_os = "linux")]
mod replace;
#[cfg(target_os = "linux")]
mod schedule;
#[cfg(unix)]
mod script;
#[cfg(target_os = "linux")]
mod symbols;
mod tree;
#[cfg(target_os = "linux")]
mod tui;
mod values;
mod view;
mod view_long;
