//! Tells where the tracer is that is mapped into processes without a library for it: the package `rftrace` has built it.

use std::env;
use std::fs;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // There is none where this package is for nothing, and for documentation.
    let image = env::var_os("DEP_RFTRACE_OUTSIDE").map_or_else(nothing, PathBuf::from);
    println!("cargo::rerun-if-changed={}", image.display());
    println!("cargo::rustc-env=RFTRACE_OUTSIDE={}", image.display());
}

fn nothing() -> PathBuf {
    let path = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("nothing");
    let _ = fs::write(&path, b"");
    path
}
