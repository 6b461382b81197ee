//! Traces over a network, by uftrace's protocol and one of our own.
//!
//! - [`protocol`]: messages of uftrace's, read piece by piece and written. No input or output of its own.
//! - [`stream`]: ours, for what is recorded while a program runs, in the same way.
//! - [`receive`]: a server that makes a directory of what each peer sends.
//! - [`send`]: a client that sends a directory; [`outgoing`]: a connection by our protocol.
//! - [`mod@line`]: what a kernel sends by a serial line.
//!
//! Not here: the commands' arguments and what they print (`rftrace-tools`), and what the files of a trace hold (`rftrace-format`).

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(unix)]
mod address;
#[cfg(unix)]
mod error;
mod held;
#[cfg(unix)]
pub mod line;
#[cfg(unix)]
pub mod outgoing;
#[cfg(unix)]
mod peers;
pub mod protocol;
#[cfg(unix)]
pub mod receive;
#[cfg(unix)]
pub mod send;
#[cfg(unix)]
mod socket;
#[cfg(unix)]
mod spools;
#[cfg(unix)]
mod store;
pub mod stream;
#[cfg(unix)]
mod sys;
#[cfg(unix)]
mod token;

#[cfg(unix)]
pub use address::{Address, NoAddress, PORT, Protocol, To, UFTRACE_PORT};
#[cfg(unix)]
pub use error::{Error, Result};
#[cfg(unix)]
pub use token::Token;
