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

/// All builds by name, the longest first, with the parts that need them; none for those that all runs need.
const BUILDS: [(&str, &[&str], Build); 8] = [
    ("tools for aarch64", &["arm-record"], || aarch64::require() && aarch64::command_line().exists()),
    ("library for C", &[], || fixtures::c_library().library.exists()),
    ("library for C on riscv64", &["riscv"], || riscv64::require() && riscv64::c_library().exists()),
    ("library for C on aarch64", &["arm", "arm-record"], || aarch64::require() && aarch64::c_library().exists()),
    ("Rust programs, optimised", &[], || {
        require(&["nightly"]) && rust_program("calls", Profile::Release).path.exists()
    }),
    ("Rust programs", &[], || require(&["nightly"]) && rust_program("calls", Profile::Debug).path.exists()),
    ("programs with crates", &["rust"], || {
        require(&["nightly"]) && crates_program("tokio_local", Profile::Release).path.exists()
    }),
    ("tools", &[], || fixtures::command_line().join("rftrace").exists()),
];

fn main() -> ExitCode {
    let chosen: Vec<String> = env::args().skip(1).collect();
    let is_chosen = |parts: &[&str]| {
        parts.is_empty() || chosen.is_empty() || chosen.iter().any(|part| parts.contains(&part.as_str()))
    };
    let waiting = Mutex::new(BUILDS.iter().filter(|(_, parts, _)| is_chosen(parts)));
    let failed = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("nobody panics with the lock").next();
    let work = || {
        while let Some((name, _, build)) = next() {
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
