//! The implementation of `rftrace record`: it examines a program, runs it with a preloaded tracer, and makes one trace
//! of the files that its processes saved.
//!
//! Not here: the command's arguments and its summary (`rftrace-tools`), and the preloaded library (`rftrace-preload`).

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

#[cfg(target_os = "linux")]
mod access;
#[cfg(target_os = "linux")]
mod ask;
#[cfg(attaching)]
pub mod attach;
#[cfg(target_os = "linux")]
pub mod banks;
mod callsites;
#[cfg(target_os = "linux")]
mod companions;
mod compiled;
#[cfg(target_os = "linux")]
pub mod control;
#[cfg(target_os = "linux")]
pub mod cost;
#[cfg(target_os = "linux")]
pub mod dumps;
#[cfg(target_os = "linux")]
mod ended;
#[cfg(target_os = "linux")]
pub mod entries;
#[cfg(target_os = "linux")]
#[cfg_attr(not(attaching), expect(dead_code, reason = "there nothing is attached to"))]
mod errands;
#[cfg(attaching)]
pub mod follow;
#[cfg(target_os = "linux")]
pub mod inherited;
#[cfg(target_os = "linux")]
pub mod join;
mod kept;
#[cfg(target_os = "linux")]
pub mod kernel;
#[cfg(attaching)]
pub mod live;
#[cfg(target_os = "linux")]
pub mod notes;
#[cfg(target_os = "linux")]
pub mod output;
#[cfg(attaching)]
pub mod outside;
#[cfg(target_os = "linux")]
mod own_buffers;
#[cfg(target_os = "linux")]
pub mod parts;
#[cfg(target_os = "linux")]
pub mod pipe;
#[cfg(target_os = "linux")]
pub mod preload;
#[cfg(target_os = "linux")]
pub mod processes;
mod processors;
#[cfg(target_os = "linux")]
pub mod program;
#[cfg(target_os = "linux")]
pub mod resources;
#[cfg(target_os = "linux")]
mod rfs;
#[cfg(target_os = "linux")]
pub mod run;
#[cfg(target_os = "linux")]
mod save;
#[cfg(target_os = "linux")]
mod schedule;
#[cfg(target_os = "linux")]
pub mod sender;
#[cfg(target_os = "linux")]
mod snapshots;
#[cfg(target_os = "linux")]
pub mod specification;
#[cfg(target_os = "linux")]
mod spools;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
pub mod terminal;
#[cfg(target_os = "linux")]
pub mod told;
#[cfg(target_os = "linux")]
mod tracefs;
#[cfg(attaching)]
pub mod track;
#[cfg(target_os = "linux")]
pub mod unfinished;
mod values;
#[cfg(target_os = "linux")]
mod waking;

pub use callsites::CallSites;
pub use compiled::compiled_functions;
#[cfg(target_os = "linux")]
pub use kept::Kept;
pub use processors::Processor;
#[cfg(target_os = "linux")]
pub use schedule::{ScheduleEvents, ScheduleRecorder};
