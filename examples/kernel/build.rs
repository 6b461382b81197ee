//! Tells the linker where the kernel lies in memory.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let script = format!("src/arch/{arch}/kernel.ld");
    println!("cargo::rustc-link-arg=-T{folder}/{script}");
    println!("cargo::rerun-if-changed={script}");
}
