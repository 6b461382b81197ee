//! Traces over a network, by uftrace's protocol.
//!
//! - [`protocol`]: its messages, read piece by piece and written. No input or output of its own.
//! - [`receive`]: a server that makes a directory of what each peer sends.
//! - [`send`]: a client that sends a directory.
//!
//! Not here: the commands' arguments and what they print (`rftrace-tools`), and what the files of a trace hold (`rftrace-format`).

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(unix)]
mod address;
#[cfg(unix)]
mod error;
pub mod protocol;
#[cfg(unix)]
pub mod receive;
#[cfg(unix)]
pub mod send;
#[cfg(unix)]
mod socket;
#[cfg(unix)]
mod store;
#[cfg(unix)]
mod sys;

#[cfg(unix)]
pub use address::{Address, NoAddress, PORT};
#[cfg(unix)]
pub use error::{Error, Result};
