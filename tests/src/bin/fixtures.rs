//! Builds the programs that most tests share, on all processors, so that no test waits for them:
//!
//! ```sh
//! cargo run -p rftrace-tests --bin fixtures
//! ```
//!
//! The tests build what is missing, so this saves time and nothing else. What needs a tool that is not here is left out.

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use rftrace_tests::fixtures::{self, Profile, aarch64, riscv64};
use rftrace_tests::tools::require;

/// What is built, by name. The longest first.
const BUILDS: [(&str, fn()); 8] = [
    ("tools for aarch64", || drop(aarch64::require().then(aarch64::command_line))),
    ("library for C", || drop(fixtures::c_library())),
    ("library for C on riscv64", || drop(riscv64::require().then(riscv64::c_library))),
    ("library for C on aarch64", || drop(aarch64::require().then(aarch64::c_library))),
    ("Rust programs, optimised", || drop(require(&["nightly"]).then(|| fixtures::rust_program("", Profile::Release)))),
    ("Rust programs", || drop(require(&["nightly"]).then(|| fixtures::rust_program("", Profile::Debug)))),
    ("programs with crates", || drop(require(&["nightly"]).then(|| fixtures::crates_program("", Profile::Release)))),
    ("tools", || drop(fixtures::command_line())),
];

fn main() -> ExitCode {
    let waiting = Mutex::new(BUILDS.iter());
    let failed = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("nobody panics with the lock").next();
    let work = || {
        while let Some((name, build)) = next() {
            if panic::catch_unwind(build).is_err() {
                failed.lock().expect("nobody panics with the lock").push(*name);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("nobody panics with the lock");
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("not built: {}", failed.join(", "));
    ExitCode::FAILURE
}
