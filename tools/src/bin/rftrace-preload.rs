//! The library that `rftrace record` preloads into programs. It is a "program" because that is what `cargo install`
//! installs; build.rs has it linked as a shared library.

#![cfg_attr(library = "rftrace-preload", no_main)]

#[cfg(library = "rftrace-preload")]
mod arch;

#[cfg(library = "rftrace-preload")]
arch::start!(rftrace_preload_start, started);

#[cfg(library = "rftrace-preload")]
extern "C" fn started() -> ! {
    // Request of `rftrace record`. The standard library does not know the arguments.
    let command = rftrace_format::system::read("/proc/self/cmdline").unwrap_or_default();
    let mut words = command.split(|&byte| byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    let kind = words.nth(1).and_then(|name| name.parse().ok());
    if let Some(cost) = kind.and_then(rftrace_preload::measure) {
        print!("{cost}");
        std::process::exit(0)
    }
    eprintln!(
        "rftrace-preload {} is a library, and does nothing by itself; `rftrace record PROGRAM` loads it into programs",
        env!("CARGO_PKG_VERSION")
    );
    std::process::exit(1)
}

#[cfg(not(library = "rftrace-preload"))]
fn main() {
    eprintln!("rftrace record works only on x86-64 and aarch64 Linux with the GNU C library");
    std::process::exit(1);
}
