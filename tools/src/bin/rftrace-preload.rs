//! The library that `rftrace record` preloads into programs. It is a "program" because that is what `cargo install`
//! installs; build.rs has it linked as a shared library.

#![cfg_attr(library = "rftrace-preload", no_main)]

#[cfg(library = "rftrace-preload")]
extern crate rftrace_preload as _;

#[cfg(library = "rftrace-preload")]
mod start;

#[cfg(library = "rftrace-preload")]
start::start!(rftrace_preload_start, started);

#[cfg(library = "rftrace-preload")]
extern "C" fn started() -> ! {
    eprintln!(
        "rftrace-preload {}: a library, which `rftrace record PROGRAM` puts into programs that it records. It does nothing by itself",
        env!("CARGO_PKG_VERSION")
    );
    std::process::exit(1)
}

#[cfg(not(library = "rftrace-preload"))]
fn main() {
    eprintln!("rftrace record is for programs on x86-64 and aarch64 Linux with the GNU C library");
    std::process::exit(1);
}
