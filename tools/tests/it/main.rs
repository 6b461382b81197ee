//! Tests on whole trace directories.

mod dir;

mod cli;
mod dump;
mod export;
mod hostile;
#[cfg(target_os = "linux")]
mod import;
mod info;
mod merge;
mod reader;
mod replay;
mod report;
#[cfg(target_os = "linux")]
mod schedule;
#[cfg(target_os = "linux")]
mod symbols;
mod tree;
mod uftrace;
