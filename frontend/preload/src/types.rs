//! What is known of functions' values: `rftrace record` reads debug information, and answers to this library what it has found.
//!
//! Not here: what is asked for, and what is done with the answer (`rftrace-frontend`).

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

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
    socket.and_then(|socket| rftrace_frontend::ask_values(&socket, modules).ok()).unwrap_or_default()
}
