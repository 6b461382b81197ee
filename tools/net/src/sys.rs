//! System calls for which there is no safe interface.

#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{self, c_int};

/// Bytes written to a TCP connection that its peer's system has not acknowledged.
pub(crate) fn n_unacknowledged(tcp: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut bytes: c_int = 0;
    // SAFETY: the request, also known as SIOCOUTQ, writes one `int`.
    let result = unsafe { libc::ioctl(tcp.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}
