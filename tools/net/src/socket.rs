//! Sockets of both kinds.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::sockopt::{KeepAlive, Linger};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket};

use crate::address::Address;
use crate::error::{Error, Result};
use crate::sys;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects, and lets each transfer wait at most so long.
    pub(crate) fn connect(address: &Address, timeout: Duration) -> Result<Self> {
        let stream = match address {
            Address::Tcp { host, port } => connect_tcp(host, *port, timeout).map(Self::Tcp),
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        };
        let limited = stream.and_then(|stream| {
            match &stream {
                Self::Tcp(tcp) => {
                    tcp.set_write_timeout(Some(timeout)).and_then(|()| tcp.set_read_timeout(Some(timeout)))
                }
                Self::Unix(unix) => {
                    unix.set_write_timeout(Some(timeout)).and_then(|()| unix.set_read_timeout(Some(timeout)))
                }
            }?;
            Ok(stream)
        });
        limited.map_err(|source| Error::Connect { address: address.clone(), source })
    }

    /// True if the peer's system has received all that was written.
    ///
    /// # Errors
    ///
    /// If it has refused it.
    pub(crate) fn is_all_acknowledged(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(tcp) => match tcp.take_error()? {
                Some(error) => Err(error),
                None => Ok(sys::n_unacknowledged(tcp.as_fd())? == 0),
            },
            // Written bytes have arrived.
            Self::Unix(_) => Ok(true),
        }
    }

    /// Lets the system notice a peer whose machine is gone.
    pub(crate) fn keep_alive(&self) {
        if let Self::Tcp(tcp) = self {
            let _ = setsockopt(tcp, KeepAlive, &true);
        }
    }

    /// Says that nothing more is sent.
    pub(crate) fn close_writing(&self) {
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Write),
            Self::Unix(unix) => unix.shutdown(Shutdown::Write),
        };
    }

    /// Another handle of it.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(tcp) => tcp.try_clone().map(Self::Tcp),
            Self::Unix(unix) => unix.try_clone().map(Self::Unix),
        }
    }

    /// Ends it, for all handles.
    pub(crate) fn close(&self) {
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Self::Unix(unix) => unix.shutdown(Shutdown::Both),
        };
    }

    /// Closes it so that the peer learns that not all was taken.
    pub(crate) fn abort(self) {
        if let Self::Tcp(tcp) = self {
            let _ = setsockopt(&tcp, Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 });
        }
    }
}

fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(bytes),
            Self::Unix(unix) => unix.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Unix(unix) => unix.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
}

/// Where connections come in. It does not wait for them.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// Its file is removed with it.
    Unix(UnixListener, std::path::PathBuf),
}

impl Listener {
    /// Listens at an address. One that others than this machine reach is refused unless `may_be_public`.
    pub(crate) fn bind(address: &Address, may_be_public: bool) -> Result<Self> {
        let failed = |source| Error::Listen { address: address.clone(), source };
        let listener = match address {
            Address::Tcp { host, port } => {
                let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs().map_err(failed)?.collect();
                if !may_be_public && addresses.iter().any(|address| !address.ip().is_loopback()) {
                    return Err(Error::Public { address: address.clone(), port: *port });
                }
                TcpListener::bind(addresses.as_slice()).map(Self::Tcp)
            }
            Address::Unix(path) => listen_at(path).map(|unix| Self::Unix(unix, path.clone())),
        };
        let listener = listener.map_err(failed)?;
        match &listener {
            Self::Tcp(tcp) => tcp.set_nonblocking(true),
            Self::Unix(unix, _) => unix.set_nonblocking(true),
        }
        .map_err(failed)?;
        Ok(listener)
    }

    /// Where it listens, with the port that the system has chosen if none was.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(tcp) => {
                tcp.local_addr().map(|address| Address::Tcp { host: address.ip().to_string(), port: address.port() })
            }
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    /// A connection, and what it is called.
    pub(crate) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(tcp) => {
                let (stream, peer) = tcp.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Stream::Tcp(stream), peer.to_string()))
            }
            Self::Unix(unix, path) => {
                let (stream, _) = unix.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Stream::Unix(stream), format!("unix:{}", path.display())))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix, _) => unix.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a socket in the file system that only this user reaches. One that nobody listens to any more gives way.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        fs::remove_file(path)?;
    }
    let made = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(made.as_raw_fd(), &UnixAddr::new(path)?)?;
    // Nobody can connect before `listen`.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listen(&made, Backlog::new(16)?)?;
    Ok(UnixListener::from(made))
}
