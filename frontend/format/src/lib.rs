//! The format of a trace directory, as uftrace 0.13 to 0.19 and rftrace write and read it.
//!
//! Each part of the format is defined here once: the writer and the reader of a trace use the same type.
//!
//! Types convert between records and bytes, and between lines and text ([`Display`](core::fmt::Display) and `parse`).
//! Only `opener`, `store` and `system`, with the feature `std`, do I/O. The crate is `no_std` with `alloc` and has no
//! dependencies; the feature `libc` adds one, for a conversion.
//!
//! | file | contents | module |
//! |---|---|---|
//! | `info` | a header of 40 bytes, then sections of text | [`info`] |
//! | `task.txt` | a line for each program, thread and fork | [`tasks`] |
//! | `sid-<SID>.map` | a line for each module: its place in memory | [`map`] |
//! | `<module>.sym` | the module's functions | [`symbols`] |
//! | `<module>.dbg` | their source lines, and the specs of their values | [`symbols`], [`values`], [`layout`] |
//! | `<tid>.dat` | the task's records, 16 bytes each, and values behind them | [`record`], [`items`] |
//! | `events.txt` | names of the events in the `.dat` files | [`events`] |
//! | `extern.dat` | counters | [`events`] |
//! | `perf-cpu<N>.dat` | names of threads, context switches and wakings, as records of `perf` | [`perf`] |
//! | `clock.txt` | the conversion from ticks to nanoseconds, and the cost of a recorded call; only rftrace writes it | [`clock`], [`cost`] |
//! | `record.txt` | the losses of the recording; only rftrace writes it | [`gaps`] |
//! | `resources.dat` | allocated and released resources with their callers; only rftrace writes it | [`resources`] |
//! | `.recording` | the working folder of `rftrace record` | [`recording`] |
//!
//! [`files`] defines the names of these files, and [`anonymous`] removes personal facts from them.
//!
//! Further modules define data between processes: [`branches`] and [`interposed`] between the libraries in a traced
//! program and its recorder, [`specification`] from the recorder to a traced program, [`companion`] the files that a
//! receiver of a stream gets unchanged. The crate `rftrace-frontend` defines the image that a kernel sends.
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
//! Parsers return [`Malformed`] with the place and the reason. Lines of unknown kinds are no errors, as newer versions
//! may write some.
//!
//! Source: uftrace, `uftrace.h`, `utils/data-file.c`, `utils/symbol.c`. The tests compare with uftrace's own reading.

#![no_std]
#![warn(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

extern crate alloc;

pub mod anonymous;
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
#[cfg(feature = "std")]
pub mod system;
pub mod tasks;
pub mod text;
pub mod values;

pub use malformed::Malformed;
