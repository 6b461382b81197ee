//! The format of a trace directory, as uftrace 0.13 to 0.19 and rftrace write and read it.
//!
//! Each part of the format is defined here once: what writes a trace and what reads one use the same type. There is no I/O but by
//! `opener` and `store`, with the feature `std`: records become bytes and bytes records, lines are types with [`Display`](core::fmt::Display) and `parse`. The crate is
//! `no_std` with `alloc` and has no dependencies; the feature `libc` adds one, for a conversion.
//!
//! | file | contents | module |
//! |---|---|---|
//! | `info` | a header of 40 bytes, then sections of text | [`info`] |
//! | `task.txt` | a line for each program, thread and fork | [`tasks`] |
//! | `sid-<SID>.map` | a line for each module: where it was loaded | [`map`] |
//! | `<module>.sym` | the module's functions | [`symbols`] |
//! | `<module>.dbg` | where these are in the source, and which values are recorded of them | [`symbols`], [`values`], [`layout`] |
//! | `<tid>.dat` | the task's records, 16 bytes each, and values behind them | [`record`], [`items`] |
//! | `events.txt` | names of the events in the `.dat` files | [`events`] |
//! | `extern.dat` | counters | [`events`] |
//! | `perf-cpu<N>.dat` | names of threads and context switches, as records of `perf` | [`perf`] |
//! | `clock.txt` | how ticks became nanoseconds, and what a recorded call costs; only rftrace writes it | [`clock`], [`cost`] |
//! | `record.txt` | what was not recorded; only rftrace writes it | [`gaps`] |
//! | `resources.dat` | who took memory and gave it back; only rftrace writes it | [`resources`] |
//! | `.recording` | what `rftrace record` makes the trace of, until it is done | [`recording`] |
//!
//! [`files`] has the names; [`branches`] is what a program that is attached to tells its recorder, [`interposed`] what one library in it tells the other, [`companion`] which files of a trace a receiver gets as they are, [`specification`] what a recorder tells a program of functions that take something. What an image that a kernel sends looks like is not here but in `rftrace-frontend`.
//!
//! # Example
//!
//! ```
//! use rftrace_format::record::{Kind, Record};
//!
//! let entry = Record { time_ns: 5, kind: Kind::Entry, has_payload: false, payload_at: 0, depth: 2, addr: 0x1000 };
//! assert_eq!(Record::decode(&entry.encode()), Some(entry));
//! ```
//!
//! # Errors
//!
//! Readers return [`Malformed`] with the place and the reason. Lines of unknown kinds are no errors: newer versions
//! may write some.
//!
//! Source: uftrace, `uftrace.h`, `utils/data-file.c`, `utils/symbol.c`; the tests compare with uftrace's own reading.

#![no_std]
#![warn(clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

pub mod branches;
pub mod clock;
pub mod companion;
pub mod composite;
pub mod cost;
pub mod ending;
pub mod events;
pub mod files;
pub mod gaps;
pub mod info;
pub mod interposed;
pub mod items;
pub mod layout;
mod malformed;
pub mod map;
#[cfg(feature = "std")]
pub mod opener;
#[cfg(all(feature = "std", unix))]
pub mod passed;
pub mod perf;
pub mod quantity;
pub mod record;
pub mod recording;
pub mod resources;
#[cfg(all(feature = "std", unix))]
pub mod setting;
pub mod specification;
#[cfg(feature = "std")]
pub mod store;
pub mod symbols;
pub mod tasks;
pub mod text;
pub mod values;

pub use malformed::Malformed;
