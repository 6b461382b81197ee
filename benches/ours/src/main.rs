//! The measured program with the rftrace of this repository.

extern crate rftrace as _;

/// Bytes of the buffer that one event takes.
const EVENT_BYTES: usize = 16;

include!("../../measured.rs");
