//! A library with the tracer, for counted.c: gives its function `leaf`, which calls no hook, an entry branch. The functions are those of
//! `rftrace_frontend_ffi.h` that it calls.

extern crate rftrace as _; // the tracer itself

use std::sync::OnceLock;

use rftrace_frontend::{Config, Tracer};

static TRACER: OnceLock<&Tracer> = OnceLock::new();

/// Returns whether the function has its branch. The header has a pointer, of which the program asks whether it is one.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_init(n_events: usize, _is_ring: bool) -> usize {
    match Config::new().capacity_events(n_events).entry_branches("leaf").install() {
        Ok(tracer) => {
            let branches = tracer.entry_branches();
            if branches.patched != 1 {
                eprintln!("{branches:?}");
            }
            usize::from(branches.patched == 1 && TRACER.set(tracer).is_ok())
        }
        Err(error) => {
            eprintln!("{error}");
            0
        }
    }
}

/// Starts recording.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_enable() {
    TRACER.get().expect("init").enable();
}

/// Stops it.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_disable() {
    TRACER.get().expect("init").disable();
}
