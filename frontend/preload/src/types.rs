//! What is known of functions' values: `rftrace record` reads debug information, and answers to this library what it has found.
//!
//! Not here: what is asked for, and what is done with the answer (`rftrace-frontend`).

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rftrace_format::recording::{TYPES_END, TypesLine};

/// Where the recorder answers.
static SOCKET: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The recorder answers there; nowhere if that is empty.
pub(crate) fn begin(socket: &Path) {
    let socket = Some(socket.to_owned()).filter(|path| !path.as_os_str().is_empty());
    *SOCKET.lock().unwrap_or_else(PoisonError::into_inner) = socket;
}

/// Asks for the values of modules' functions. Nothing is known where the recorder cannot be reached.
pub(crate) fn ask(modules: &[(String, Option<String>)]) -> String {
    let socket = SOCKET.lock().unwrap_or_else(PoisonError::into_inner).clone();
    socket.and_then(|socket| ask_at(&socket, modules).ok()).unwrap_or_default()
}

fn ask_at(socket: &Path, modules: &[(String, Option<String>)]) -> io::Result<String> {
    /// Reading the debug information of a large program takes seconds.
    const PATIENCE: Duration = Duration::from_secs(60);

    let mut stream = UnixStream::connect(socket)?;
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

/// Without a signal where nobody reads.
fn send(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are there.
        let n_sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        let n_sent = usize::try_from(n_sent).map_err(|_| io::Error::last_os_error())?;
        bytes = bytes.get(n_sent..).unwrap_or_default();
    }
    Ok(())
}
