//! A function trace in the browser: one page with its timeline, flame graph, call tree and functions.
//!
//! Not here: reading (`rftrace-read`), call stacks (`rftrace-views`), and other tools' formats (`rftrace-export`).
//!
//! - [`Page::read`] packs the calls of a trace; [`Page::html`] is the page with them as one file.
//! - [`Counter`]s are shown beside the calls: memory of each process, for one.
//! - [`Server`] serves the same page to browsers of this machine.
//!
//! # How it works
//!
//! The page unpacks all calls into typed arrays, 24 bytes each, by task and depth. Calls of one depth do not overlap, so calls
//! narrower than a pixel are found by binary search, and a picture costs as much as there are pixels, however long the trace is. Flame
//! graph, tree and functions of a range go through its calls level by level, in slices, so that the page answers meanwhile.
//! `pack.rs` says how the calls are sent.
//!
//! A trace too long for a browser's memory is a [`Zoom`]: a file of all calls, and of blocks of those that are narrower than pixels of several
//! widths. The page asks the server for the parts it draws.
//!
//! # Trust
//!
//! Names are data: they are in JSON or packed, and the page shows them as text. It may load nothing but its own data.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod calls;
mod counters;
mod dictionary;
mod error;
mod html;
mod numbers;
mod pack;
mod server;
mod values;
mod zoom;

pub use counters::Counter;
pub use error::{Error, Result};
pub use pack::{MAX_CALLS, Page};
pub use server::{Server, SharedFile};
pub use zoom::Zoom;
