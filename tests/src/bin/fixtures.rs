//! Builds the programs that most tests share, on all processors, so that no test waits for them:
//!
//! ```sh
//! cargo run -p rftrace-tests --bin fixtures              # all
//! cargo run -p rftrace-tests --bin fixtures -- hooks     # without those of other parts of .ci/parts
//! ```
//!
//! The tests build what is missing, so this saves time and nothing else.

use std::env;
use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use rftrace_tests::fixtures::{self, Profile, aarch64, crates_program, riscv64, rust_program};
use rftrace_tests::tools::require;

/// Builds something, and returns whether it is there.
type Build = fn() -> bool;

/// All builds by name, the longest first.
const BUILDS: [(&str, Build); 8] = [
    (ARM, || aarch64::require() && aarch64::command_line().exists()),
    ("library for C", || fixtures::c_library().library.exists()),
    ("library for C on riscv64", || riscv64::require() && riscv64::c_library().exists()),
    ("library for C on aarch64", || aarch64::require() && aarch64::c_library().exists()),
    ("Rust programs, optimised", || require(&["nightly"]) && rust_program("calls", Profile::Release).path.exists()),
    ("Rust programs", || require(&["nightly"]) && rust_program("calls", Profile::Debug).path.exists()),
    ("programs with crates", || require(&["nightly"]) && crates_program("tokio_local", Profile::Release).path.exists()),
    ("tools", || fixtures::command_line().join("rftrace").exists()),
];

/// The build that only the tests of the part `arm-record` need.
const ARM: &str = "tools for aarch64";

fn main() -> ExitCode {
    let parts: Vec<String> = env::args().skip(1).collect();
    let has_arm = parts.is_empty() || parts.iter().any(|part| part == "arm-record");
    let waiting = Mutex::new(BUILDS.iter().filter(|(name, _)| has_arm || *name != ARM));
    let failed = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("nobody panics with the lock").next();
    let work = || {
        while let Some((name, build)) = next() {
            if !panic::catch_unwind(build).unwrap_or(false) {
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
