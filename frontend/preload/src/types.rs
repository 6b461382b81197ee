//! Types of functions' values: `rftrace record` reads debug information, and answers this library.
//!
//! Not here: the questions, and the use of the answer (`rftrace-frontend`).

use std::sync::{Mutex, PoisonError};

use rftrace_format::passed::Passed;

/// The folder of the socket at which the recorder answers.
static FOLDER: Mutex<Option<Passed>> = Mutex::new(None);

/// The recorder answers there, if it does.
pub(crate) fn begin(folder: Option<&Passed>) {
    *FOLDER.lock().unwrap_or_else(PoisonError::into_inner) = folder.cloned();
}

/// Asks for the values of modules' functions. Nothing is known where the recorder cannot be reached.
pub(crate) fn ask(modules: &[(String, Option<String>)]) -> String {
    let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    folder.and_then(|folder| rftrace_frontend::ask_values(&folder, modules).ok()).unwrap_or_default()
}
