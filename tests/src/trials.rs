//! Tests that a program lists itself, for test binaries without Rust's harness.

use std::panic::resume_unwind;
use std::thread;

use libtest_mimic::Trial;

/// A test that fails by a panic. It runs on a thread with its name, which messages of [`tools`](crate::tools) have.
pub fn trial(name: String, test: impl FnOnce() + Send + 'static) -> Trial {
    let thread = thread::Builder::new().name(name.clone());
    Trial::test(name, move || {
        thread.spawn(test)?.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok(())
    })
}
