//! A trace in the browser: one page with its timeline, flame graph, call tree and functions.
//!
//! Not here: reading (`rftrace-read`), call stacks (`rftrace-views`), and the formats of other tools
//! (`rftrace-export`).
//!
//! - [`Page::read`] packs the calls of a trace; [`Page::html`] returns one file with the page and the calls.
//! - [`Counter`]s are shown above the calls, such as the memory of each process.
//! - [`Server`] serves the page to browsers of this machine.
//!
//! # How it works
//!
//! The page unpacks all calls into typed arrays, 24 bytes each, by task and depth. Calls of one depth do not overlap,
//! so a binary search skips calls narrower than a pixel. The cost of a picture depends on the number of pixels, not on
//! the length of the trace. Flame graph, tree and functions of a range read its calls level by level, in slices, so the
//! page stays responsive. `pack.rs` defines the form of the calls.
//!
//! A trace too long for a browser's memory is a [`Zoom`]: a file of all calls, and of blocks of calls that are narrower
//! than pixels of several widths. The page requests from the server the parts that it draws.
//!
//! # Trust
//!
//! Names are data: they are in JSON or packed, and the page shows them as text. The page may load only its own data.
//!
//! # Example
//!
//! This program writes a page with all calls of a trace:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rftrace_page::{MAX_CALLS, Page};
//! use rftrace_read::Trace;
//!
//! let trace = Trace::open(Path::new("trace"))?;
//! let page = Page::read(&trace, "my program", MAX_CALLS)?;
//! std::fs::write("trace.html", page.html()?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod calls;
mod counters;
mod dictionary;
mod error;
mod html;
mod labels;
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
