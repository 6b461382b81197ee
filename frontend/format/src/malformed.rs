//! Faults in files.

use alloc::borrow::Cow;
use core::fmt;

/// A part of a file is not as the format wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The fault, and the expected form.
    pub reason: Cow<'static, str>,
}

impl Malformed {
    /// At `offset` in the file, for this reason.
    pub fn new(offset: u64, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { offset, reason: reason.into() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.reason)
    }
}

impl core::error::Error for Malformed {}
