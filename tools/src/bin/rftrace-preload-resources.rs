//! The library that `rftrace record --resources` preloads into programs. It is a "program" because that is what `cargo install`
//! installs; build.rs has it linked as a shared library.

#![cfg_attr(library = "rftrace-preload-resources", no_main)]

#[cfg(library = "rftrace-preload-resources")]
extern crate rftrace_preload_resources as _;

#[cfg(library = "rftrace-preload-resources")]
mod arch;

#[cfg(library = "rftrace-preload-resources")]
arch::start!(rftrace_preload_resources_start, started);

#[cfg(library = "rftrace-preload-resources")]
extern "C" fn started() -> ! {
    eprintln!(
        "rftrace-preload-resources {} is a library, and does nothing by itself; `rftrace record --resources` loads it into programs",
        env!("CARGO_PKG_VERSION")
    );
    std::process::exit(1)
}

#[cfg(not(library = "rftrace-preload-resources"))]
fn main() {
    eprintln!("rftrace record --resources works only on x86-64 Linux with the GNU C library");
    std::process::exit(1);
}
