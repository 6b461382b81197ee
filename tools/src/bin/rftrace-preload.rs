//! The library that `rftrace record` preloads into programs. It is a "program" because that is what `cargo install`
//! installs; build.rs has it linked as a shared library.

#![cfg_attr(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"), no_main)]

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
extern crate rftrace_preload as _;

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
fn main() {
    eprintln!("rftrace record is for programs on x86-64 Linux with the GNU C library");
    std::process::exit(1);
}
