//! Temporary directories that stand in for the user's: messages name those of the user.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Directories shown in place of the user's, and those.
static STAND_INS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(Vec::new());

/// Has messages name the directory `of`, where `shown` is a temporary one in its place.
#[cfg(all(feature = "full", target_os = "linux"))]
pub(crate) fn stand_in(shown: &Path, of: &Path) {
    STAND_INS.lock().unwrap_or_else(PoisonError::into_inner).push((shown.to_owned(), of.to_owned()));
}

/// Returns the user's directory, for a shown one.
pub(crate) fn of_user(shown: &Path) -> PathBuf {
    let stand_ins = STAND_INS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = stand_ins.iter().find(|(other, _)| other == shown).map(|(_, of)| of.clone());
    own.unwrap_or_else(|| shown.to_owned())
}
