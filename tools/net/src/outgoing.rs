//! A connection to a receiver with rftrace's protocol.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use rftrace_format::text::Shown;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::socket::Stream;
use crate::stream::{self, Hello};

/// The longest answer.
const MAX_ANSWER_BYTES: usize = 4096;

/// A connection to a receiver. If it is dropped before its end, the receiver notices that data is missing.
#[derive(Debug)]
pub struct Outgoing {
    stream: Stream,
    timeout: Duration,
    n_bytes: u64,
}

impl Outgoing {
    /// Connects and sends the beginning. No step may take longer than `timeout`.
    ///
    /// # Errors
    ///
    /// The receiver cannot be reached.
    pub fn connect(to: &Address, hello: &Hello, timeout: Duration) -> Result<Self> {
        let mut outgoing = Self { stream: Stream::connect(to, timeout)?, timeout, n_bytes: 0 };
        outgoing.send(&stream::hello(hello))?;
        Ok(outgoing)
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// The receiver does not take them: [`Error::Refused`] if it gives a reason.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.n_bytes += bytes.len() as u64;
        self.stream.write_all(bytes).map_err(|error| match error.kind() {
            // It may have said why before it went.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => match self.answer() {
                Err(error @ Error::Refused(_)) => error,
                _ => Error::Closed,
            },
            _ => broken(error, self.timeout),
        })
    }

    /// Returns the number of bytes sent so far.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Waits for the answer to the end of the stream. Returns the receiver's name of the trace.
    ///
    /// # Errors
    ///
    /// The receiver has not received everything, or refuses the trace.
    pub fn finish(mut self) -> Result<String> {
        self.answer()
    }

    fn answer(&mut self) -> Result<String> {
        let (answer, end) = read_answer(&mut self.stream);
        match end {
            Some(Ok(())) => return Err(Error::Closed),
            Some(Err(error)) => return Err(broken(error, self.timeout)),
            None => {}
        }
        match text_of(&answer).split_once(' ') {
            Some(("ok", name)) => Ok(name.to_owned()),
            Some(("no", reason)) => Err(Error::Refused(reason.to_owned())),
            _ => Err(Error::Refused(
                "its answer is not that of `rftrace recv`; for `uftrace recv` use uftrace://HOST".to_owned(),
            )),
        }
    }
}

/// Reads a receiver's answer: up to the end of its line, or to how the reading ended before.
pub(crate) fn read_answer(stream: &mut Stream) -> (Vec<u8>, Option<io::Result<()>>) {
    let mut answer = Vec::new();
    let mut piece = [0; 256];
    while answer.len() < MAX_ANSWER_BYTES && !answer.ends_with(b"\n") {
        match stream.read(&mut piece) {
            Ok(0) => return (answer, Some(Ok(()))),
            Ok(n_read) => answer.extend(piece.get(..n_read).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (answer, Some(Err(error))),
        }
    }
    (answer, None)
}

/// Returns an answer as text for a terminal.
pub(crate) fn text_of(answer: &[u8]) -> String {
    Shown::new(&String::from_utf8_lossy(answer.trim_ascii_end())).text().into_owned()
}

pub(crate) fn broken(error: io::Error, timeout: Duration) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Stalled(timeout),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Error::Closed,
        _ => Error::Broken(error),
    }
}
