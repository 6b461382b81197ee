//! Queries for facts about functions' values from debug information, at a recorder's socket.
//!
//! Not here: the use of the answer (`values`).

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rftrace_format::passed::Passed;
use rftrace_format::recording::{TYPES, TYPES_END, TypesLine};

/// Asks the recorder at the socket in `folder` for the values of functions in `modules` (path, build-id), as
/// [`AskValues`](super::AskValues) does.
///
/// # Errors
///
/// No recorder answers, or its answer is incomplete.
pub fn ask_values(folder: &Passed, modules: &[(String, Option<String>)]) -> io::Result<String> {
    /// Reading the debug information of a large program takes seconds.
    const PATIENCE: Duration = Duration::from_secs(60);

    let folder = folder.open(File::options().read(true))?;
    // The folder's own path may be longer than a socket's.
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{TYPES}", folder.as_raw_fd()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let line = |(path, build_id): &(String, Option<String>)| {
        TypesLine::Module { build_id: build_id.as_deref(), path }.to_string()
    };
    send(&stream, modules.iter().map(line).collect::<String>().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // Of half an answer nothing is believed.
    answer.strip_suffix(TYPES_END).map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Sends without a signal for a missing reader.
fn send(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are there.
        let n_sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        let n_sent = usize::try_from(n_sent).map_err(|_| io::Error::last_os_error())?;
        bytes = bytes.get(n_sent..).unwrap_or_default();
    }
    Ok(())
}
