//! Where a receiver is.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// uftrace's port.
pub const PORT: u16 = 8090;

/// A host and port, or a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By TCP.
    Tcp {
        /// Its name, or the address in numbers.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a socket.
    Unix(PathBuf),
}

/// What is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAddress(String);

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no address; HOST, HOST:PORT, [IPv6]:PORT and unix:PATH are", self.0)
    }
}

impl Error for NoAddress {}

impl FromStr for Address {
    type Err = NoAddress;

    /// Reads `HOST`, `HOST:PORT`, `[IPv6]:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
            // An address of version 6 alone.
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(PORT), str::parse);
        match port {
            Ok(port) if !host.is_empty() && !host.contains(['/', '[', ']']) => {
                Ok(Self::Tcp { host: host.to_owned(), port })
            }
            _ => Err(NoAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("host", "host:8090"),
            ("host:1", "host:1"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::1", "[::1]:8090"),
            ("[::1]", "[::1]:8090"),
            ("[::1]:7", "[::1]:7"),
            ("unix:a/b:c", "unix:a/b:c"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown, "{text}");
        }
        for text in ["", ":1", "host:", "host:65536", "host:x", "[::1", "[::1]7", "unix:", "http://host", "[]:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
