//! Has what is recorded of programs that run already, where the tracer gets into those.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(attaching)");
    // As rftrace-attach is for.
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if [target("OS"), target("ARCH")] == ["linux", "x86_64"] {
        println!("cargo::rustc-cfg=attaching");
    }
}
