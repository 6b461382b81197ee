//! The address of a receiver.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The default port of rftrace's protocol.
pub const PORT: u16 = 8091;
/// The default port of uftrace's protocol.
pub const UFTRACE_PORT: u16 = 8090;

/// A host and port, or a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp {
        /// The host's name or numeric address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// An error: a text that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAddress(String);

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an address: write HOST, HOST:PORT, [IPv6]:PORT or unix:PATH, with uftrace:// in front for uftrace's protocol",
            self.0
        )
    }
}

impl Error for NoAddress {}

impl FromStr for Address {
    type Err = NoAddress;

    /// Reads `HOST`, `HOST:PORT`, `[IPv6]:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        Self::parse(text, PORT)
    }
}

impl Address {
    /// The same, with a port where none is told.
    fn parse(text: &str, port_if_none: u16) -> Result<Self, NoAddress> {
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
        let port = port.map_or(Ok(port_if_none), str::parse);
        match port {
            Ok(port) if !host.is_empty() && !host.contains(['/', '[', ']']) => {
                Ok(Self::Tcp { host: host.to_owned(), port })
            }
            _ => Err(NoAddress(text.to_owned())),
        }
    }
}

/// The protocol of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol of rftrace.
    Own,
    /// The protocol of uftrace.
    Uftrace,
}

/// The destination of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// The protocol.
    pub protocol: Protocol,
    /// The address.
    pub address: Address,
}

/// The prefix of the address of a receiver of uftrace.
const UFTRACE: &str = "uftrace://";

impl FromStr for To {
    type Err = NoAddress;

    /// Reads an address, or `uftrace://` and one.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let wrong = |_| NoAddress(text.to_owned());
        Ok(match text.strip_prefix(UFTRACE) {
            Some(rest) => {
                let address = Address::parse(rest.trim_end_matches('/'), UFTRACE_PORT).map_err(wrong)?;
                Self { protocol: Protocol::Uftrace, address }
            }
            None => Self { protocol: Protocol::Own, address: text.parse()? },
        })
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.protocol == Protocol::Uftrace {
            f.write_str(UFTRACE)?;
        }
        write!(f, "{}", self.address)
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
            ("host", "host:8091"),
            ("host:1", "host:1"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::1", "[::1]:8091"),
            ("[::1]", "[::1]:8091"),
            ("[::1]:7", "[::1]:7"),
            ("unix:a/b:c", "unix:a/b:c"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown, "{text}");
        }
        for text in ["", ":1", "host:", "host:65536", "host:x", "[::1", "[::1]7", "unix:", "http://host", "[]:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
            assert!(format!("uftrace://{text}").parse::<To>().is_err(), "{text}");
        }
    }

    #[test]
    fn protocols() {
        for (text, shown, protocol) in [
            ("host", "host:8091", Protocol::Own),
            ("unix:a", "unix:a", Protocol::Own),
            ("uftrace://host", "uftrace://host:8090", Protocol::Uftrace),
            ("uftrace://[::1]:7/", "uftrace://[::1]:7", Protocol::Uftrace),
            ("uftrace://unix:a", "uftrace://unix:a", Protocol::Uftrace),
        ] {
            let to: To = text.parse().unwrap();
            assert_eq!((to.to_string().as_str(), to.protocol), (shown, protocol), "{text}");
        }
    }
}
