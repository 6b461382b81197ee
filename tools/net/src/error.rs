//! The errors of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::address::Address;
use crate::protocol::Malformed;
use crate::stream;

/// The result of receiving or sending.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: a trace could not be received or sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory cannot be read, made or written.
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Other machines can reach the address, and the server has no token.
    Public {
        /// The address.
        address: Address,
        /// The port.
        port: u16,
    },
    /// The server cannot listen at this address.
    Listen {
        /// The address.
        address: Address,
        /// The error of the system.
        source: io::Error,
    },
    /// No receiver listens at this address, or the name is unknown.
    Connect {
        /// The address.
        address: Address,
        /// The error of the system.
        source: io::Error,
    },
    /// The server cannot wait for peers or accept them.
    Wait(io::Error),
    /// The peer ended the connection before the end of the trace.
    Closed,
    /// The connection broke.
    Broken(io::Error),
    /// The peer has neither sent nor taken a byte for this time.
    Stalled(Duration),
    /// The peer has taken longer than this for a message, and longer than a slow line would.
    Slow(Duration),
    /// The peer's bytes violate uftrace's protocol.
    Malformed(Malformed),
    /// The peer's bytes violate rftrace's protocol.
    BadStream(stream::Malformed),
    /// The peer has not shown the required token.
    Token,
    /// The receiver refuses the trace for this reason.
    Refused(String),
    /// A file cannot be a token.
    TokenFile {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The peer has sent this file twice.
    Twice(String),
    /// The peer's name of a file points outside of the directory.
    FileName(String),
    /// The trace has more bytes than this limit.
    TooLarge(u64),
    /// The trace has more files than this limit.
    TooManyFiles(usize),
    /// The server has this many peers, which is the limit.
    TooManyPeers(usize),
    /// The server had this many peers, and this one had not announced its trace.
    GaveWay(usize),
    /// The end came without `info`.
    NoInfo,
    /// The server was stopped.
    Stopped,
    /// The directory is no complete trace.
    NoTrace {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The file does not fit into any message.
    Unsendable {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: Malformed,
    },
    /// This file of the trace changed while it was sent.
    Changed(PathBuf),
}

impl Error {
    /// Makes an error of one that the system tells of a path.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Public { address, port } => write!(
                f,
                "cannot listen on {address} without a token: other machines can reach it. Listen on 127.0.0.1 or on a socket (--unix \
                 PATH), and forward the port by ssh: on the other machine run `ssh -N -L {port}:127.0.0.1:{port} THIS_HOST`, then send \
                 to 127.0.0.1:{port}. In a trusted network (there is no encryption) use a token: --token-file FILE at both ends"
            ),
            Self::Listen { address, source } => {
                write!(f, "cannot listen on {address}: {source}")?;
                if source.kind() == io::ErrorKind::AddrInUse {
                    f.write_str("; end the other server, or choose another port or path")?;
                }
                Ok(())
            }
            Self::Connect { address, source } => write!(
                f,
                "cannot connect to {address}: {source}; is `rftrace recv` or `uftrace recv` running there, with the same port?"
            ),
            Self::Wait(source) => write!(f, "cannot wait for peers: {source}"),
            Self::Closed => f.write_str("the peer closed the connection before the end of the trace"),
            Self::Broken(source) => write!(f, "the connection broke: {source}"),
            Self::Stalled(time) => write!(f, "the peer sent and took no byte for {time:?}"),
            Self::Slow(time) => write!(f, "a message took longer than {time:?}, at less than 16 KiB a second"),
            Self::Malformed(source) => write!(f, "{source}"),
            Self::BadStream(source) => write!(f, "{source}"),
            Self::Token => f.write_str(
                "the sender has not shown the token: give `rftrace send` or `rftrace record` --token-file FILE; uftrace has no token",
            ),
            Self::Refused(reason) => write!(f, "the receiver refuses the trace: {reason}"),
            Self::TokenFile { path, reason } => write!(
                f,
                "{path} has no token: {reason}; to make one: head -c 32 /dev/urandom > {path} && chmod 600 {path}, and copy it to the other end",
                path = path.display()
            ),
            Self::Twice(name) => write!(f, "the sender has sent the file {name} twice"),
            Self::FileName(name) => write!(f, "the sender named a file \"{name}\" outside of the trace directory"),
            Self::TooLarge(most) => write!(f, "the trace has more than {most} bytes; --max-size sets the limit"),
            Self::TooManyFiles(most) => write!(f, "the trace has more than {most} files"),
            Self::TooManyPeers(most) => {
                write!(f, "the receiver is busy: all {most} connections are in use; `rftrace recv --max-peers` sets the limit")
            }
            Self::GaveWay(most) => {
                write!(f, "the sender had announced no trace when all {most} connections were in use, and another one needed it")
            }
            Self::NoInfo => f.write_str("the sender ended the trace without `info`"),
            Self::Stopped => f.write_str("the receiver was stopped"),
            Self::NoTrace { dir, reason } => write!(f, "cannot send {}: {reason}", dir.display()),
            Self::Unsendable { path, source } => {
                write!(f, "cannot send {} by uftrace's protocol: {source}", path.display())
            }
            Self::Changed(path) => {
                write!(
                    f,
                    "{} changed during the transfer: the receiver has no valid trace; send it again",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Listen { source, .. } | Self::Connect { source, .. } => Some(source),
            Self::Wait(source) | Self::Broken(source) => Some(source),
            Self::BadStream(source) => Some(source),
            Self::Malformed(source) | Self::Unsendable { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<stream::Malformed> for Error {
    fn from(source: stream::Malformed) -> Self {
        Self::BadStream(source)
    }
}

impl From<Malformed> for Error {
    fn from(source: Malformed) -> Self {
        Self::Malformed(source)
    }
}
