//! Reads files of the kernel, below `/proc` and `/sys`: they have no size, and no user or trace names them.
//!
//! Not here: files that a directory, a peer or a user names (`opener`).
#![allow(clippy::disallowed_methods, reason = "files of the kernel have no size to check")]

extern crate std;

use alloc::string::String;
use alloc::vec::Vec;
use std::fs::{self, File};
use std::io::Result;
use std::path::Path;

/// Opens such a file.
///
/// # Errors
///
/// The errors of the system.
pub fn open(path: impl AsRef<Path>) -> Result<File> {
    File::open(path)
}

/// Reads a whole one.
///
/// # Errors
///
/// The errors of the system.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    fs::read(path)
}

/// Reads a whole text.
///
/// # Errors
///
/// The errors of the system, and [`InvalidData`](std::io::ErrorKind::InvalidData) where it is no UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    fs::read_to_string(path)
}
