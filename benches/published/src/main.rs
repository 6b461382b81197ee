//! The measured program with rftrace 0.3.2, as published.

extern crate rftrace as _;

/// Bytes of the buffer that one event takes.
const EVENT_BYTES: usize = 40;

include!("../../measured.rs");
