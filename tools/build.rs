//! Has `rftrace-preload` and `rftrace-preload-resources` linked as shared libraries.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// What the tracer exports: the hooks, the functions of the C library that it takes the place of, and what `rftrace record -p` calls.
const TRACER: [&str; 26] = [
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

/// What the library for `--resources` exports: the functions that give out something and take it back.
const RESOURCES: [&str; 79] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "cfree",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "open",
    "open64",
    "__open",
    "__open64",
    "__open_2",
    "__open64_2",
    "openat",
    "openat64",
    "__openat_2",
    "__openat64_2",
    "creat",
    "creat64",
    "mkstemp",
    "mkstemp64",
    "mkostemp",
    "mkostemp64",
    "mkstemps",
    "mkstemps64",
    "mkostemps",
    "mkostemps64",
    "shm_open",
    "memfd_create",
    "posix_openpt",
    "fopen",
    "fopen64",
    "freopen",
    "freopen64",
    "tmpfile",
    "tmpfile64",
    "popen",
    "opendir",
    "dup",
    "dup2",
    "__dup2",
    "dup3",
    "fcntl",
    "fcntl64",
    "__fcntl",
    "pipe",
    "__pipe",
    "pipe2",
    "socket",
    "socketpair",
    "accept",
    "accept4",
    "epoll_create",
    "epoll_create1",
    "eventfd",
    "signalfd",
    "timerfd_create",
    "inotify_init",
    "inotify_init1",
    "fanotify_init",
    "close",
    "__close",
    "fclose",
    "pclose",
    "closedir",
    "close_range",
    "closefrom",
    "pthread_create",
    "pthread_join",
    "pthread_tryjoin_np",
    "pthread_timedjoin_np",
    "pthread_clockjoin_np",
    "pthread_detach",
    "thrd_create",
    "thrd_join",
    "thrd_detach",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if [target("OS"), target("ENV"), target("ARCH")] != ["linux", "gnu", "x86_64"] {
        return Ok(());
    }
    // Who runs one as a program is told what it is.
    link("rftrace-preload", "rftrace_preload_start", &TRACER)?;
    link("rftrace-preload-resources", "rftrace_preload_resources_start", &RESOURCES)
}

/// Has a program linked as a library.
fn link(name: &str, entry: &str, exports: &[&str]) -> Result<(), Box<dyn Error>> {
    // All else stays inside: no program is to find the standard library's functions here.
    let script = PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.map"));
    fs::write(&script, format!("{{ global: {}; local: *; }};\n", exports.join("; ")))?;
    let script = format!("-Wl,--version-script={}", script.display());
    let needed = exports.iter().map(|symbol| format!("-Wl,--undefined={symbol}"));
    let arguments = ["-shared".to_owned(), script, format!("-Wl,-soname,{name}"), format!("-Wl,--entry={entry}")];
    for argument in arguments.into_iter().chain(needed) {
        println!("cargo::rustc-link-arg-bin={name}={argument}");
    }
    Ok(())
}
