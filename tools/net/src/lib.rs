//! Traces over a network, with uftrace's protocol and with one of rftrace.
//!
//! - [`protocol`]: the messages of uftrace's protocol, without input or output.
//! - [`stream`]: rftrace's protocol for recording while a program runs, without input or output.
//! - [`receive`]: a server that makes a directory for each peer's trace.
//! - [`send`]: a client that sends a directory; [`outgoing`]: a connection with rftrace's protocol.
//! - [`mod@line`]: the data of a kernel on a serial line.
//!
//! Not here: the arguments and the output of commands (`rftrace-tools`), and the files of a trace (`rftrace-format`).
//!
//! # Example
//!
//! This program sends a trace to a receiver on another machine (`rftrace recv`):
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use rftrace_net::send::send;
//! use rftrace_net::{Address, PORT, Protocol, To};
//!
//! let address = Address::Tcp { host: "receiver.example".to_owned(), port: PORT };
//! let to = To { protocol: Protocol::Own, address };
//! let sent = send(Path::new("trace"), &to, None, Duration::from_secs(30))?;
//! println!("{} files, {} bytes", sent.files, sent.bytes);
//! # Ok::<(), rftrace_net::Error>(())
//! ```

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests name their own files"))]

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
mod token_file;

#[cfg(unix)]
pub use address::{Address, NoAddress, PORT, Protocol, To, UFTRACE_PORT};
#[cfg(unix)]
pub use error::{Error, Result};
#[cfg(unix)]
pub use token::Token;
