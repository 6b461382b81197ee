//! The error of all parsers.

use alloc::borrow::Cow;
use core::fmt;

/// An error: a part of a file violates the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The fault and the expected form.
    pub reason: Cow<'static, str>,
}

impl Malformed {
    /// Creates the error for a fault at `offset`.
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
