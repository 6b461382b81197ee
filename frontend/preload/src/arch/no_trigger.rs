//! Where recording cannot begin at a function: no code is changed.

use std::ffi::{c_int, c_void};

use rftrace_frontend::Tracer;

pub(crate) fn arm(_tracer: &Tracer, _name: &str) -> Result<(), String> {
    Err("--trigger works only on x86-64".to_owned())
}

pub(crate) fn hit(_tracer: &Tracer, _context: *mut c_void) -> bool {
    false
}

pub(crate) fn is_armed() -> bool {
    false
}

/// The signal of breakpoints.
pub(crate) const SIGNAL: c_int = libc::SIGTRAP;
