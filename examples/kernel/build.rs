//! Tells the linker where the kernel lies in memory.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rustc-link-arg=-T{folder}/kernel.ld");
    println!("cargo::rerun-if-changed=kernel.ld");
}
