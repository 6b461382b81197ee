//! Has `rftrace-preload` linked as a shared library.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// What the library exports: the hooks, the functions of the C library that it takes the place of, and what `rftrace record -p` calls.
const EXPORTS: [&str; 26] = [
    "mcount",
    "__fentry__",
    "__monstartup",
    "_mcleanup",
    "_exit",
    "_Exit",
    "sigaction",
    "signal",
    "bsd_signal",
    "__sysv_signal",
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execle",
    "execlp",
    "fexecve",
    "execveat",
    "daemon",
    "prctl",
    "syscall",
    "rftrace_attach",
    "rftrace_attach_again",
    "rftrace_attach_control",
    "rftrace_detach",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if [target("OS"), target("ENV"), target("ARCH")] != ["linux", "gnu", "x86_64"] {
        return Ok(());
    }
    // All else stays inside: no program is to find the standard library's functions here.
    let script = PathBuf::from(env::var("OUT_DIR")?).join("exports.map");
    fs::write(&script, format!("{{ global: {}; local: *; }};\n", EXPORTS.join("; ")))?;
    let script = format!("-Wl,--version-script={}", script.display());
    let needed = EXPORTS.map(|symbol| format!("-Wl,--undefined={symbol}"));
    let name = "-Wl,-soname,rftrace-preload".to_owned();
    // Who runs it as a program is told what it is.
    let entry = "-Wl,--entry=rftrace_preload_start".to_owned();
    for argument in ["-shared".to_owned(), script, name, entry].iter().chain(&needed) {
        println!("cargo::rustc-link-arg-bin=rftrace-preload={argument}");
    }
    Ok(())
}
