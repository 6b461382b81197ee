//! System calls for which there is no safe interface.

#![expect(unsafe_code)]

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr;

use nix::libc::{self, c_int};

/// Sends a process a signal, whichever.
pub(crate) fn send(pid: u32, signal: c_int) {
    // SAFETY: the call takes no pointer.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Ends a child's life as a zombie. Returns how it ended, and what it and the children that it waited for have used.
pub(crate) fn reap(pid: u32) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both are writable.
    while unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, usage.as_mut_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zero is a value of each field, and the call has filled them.
    Ok((ExitStatus::from_raw(status), unsafe { usage.assume_init() }))
}

/// Whether a program has capabilities of its own.
pub(crate) fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: both names end with a NUL; nothing is written where there is no room.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 }
}
