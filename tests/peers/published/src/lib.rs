//! rftrace 0.3.2, as published, behind those C functions of this repository's `rftrace_frontend_ffi.h` that the
//! conformance suite's programs use. There was no library for C programs at that time.

extern crate rftrace as _; // the tracer itself

use std::ffi::{CStr, c_char};
use std::fs;

use rftrace_frontend::Events;

/// Gives the tracer a buffer.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_init(max_event_count: usize, overwriting: bool) -> *mut Events {
    rftrace_frontend::init(max_event_count, overwriting)
}

/// Starts recording.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_enable() {
    rftrace_frontend::enable();
}

/// Stops recording.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_disable() {
    rftrace_frontend::disable();
}

/// Writes a uftrace directory. 0, or -1 if that fails.
///
/// # Safety
///
/// `events` is what [`rftrace_init`] returned, the other arguments are NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_dump_full_uftrace(
    events: *mut Events,
    out_dir: *const c_char,
    binary_name: *const c_char,
) -> i64 {
    // SAFETY: by this function's contract.
    let (events, out_dir, name) = unsafe { (&mut *events, CStr::from_ptr(out_dir), CStr::from_ptr(binary_name)) };
    let out_dir = out_dir.to_str().expect("programs name their folders in ASCII");
    let name = name.to_str().expect("programs have names in ASCII");
    // The function wants the folder to be there.
    let saved = fs::create_dir_all(out_dir).and_then(|()| rftrace_frontend::dump_full_uftrace(events, out_dir, name));
    if saved.is_ok() { 0 } else { -1 }
}
