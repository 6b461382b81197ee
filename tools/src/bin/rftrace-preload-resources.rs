//! The library that `rftrace record --resources` preloads into programs. It is a "program" because that is what `cargo install`
//! installs; build.rs has it linked as a shared library.

#![cfg_attr(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"), no_main)]

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
extern crate rftrace_preload_resources as _;

/// Who starts the library as a program has it loaded by this one, as the C library itself has.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[used]
#[unsafe(link_section = ".interp")]
static INTERPRETER: [u8; 28] = *b"/lib64/ld-linux-x86-64.so.2\0";

/// Where such a program begins; build.rs says so to the linker. The stack is aligned to 16 bytes, not as after a call.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn rftrace_preload_resources_start() -> ! {
    std::arch::naked_asm!("xor ebp, ebp", "call {main}", "ud2", main = sym started)
}

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
extern "C" fn started() -> ! {
    eprintln!(
        "rftrace-preload-resources {}: a library, which `rftrace record --resources` puts into programs that it records. It does \
         nothing by itself",
        env!("CARGO_PKG_VERSION")
    );
    std::process::exit(1)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
fn main() {
    eprintln!("rftrace record is for programs on x86-64 Linux with the GNU C library");
    std::process::exit(1);
}
