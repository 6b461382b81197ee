//! Has `rftrace-preload` and `rftrace-preload-resources` linked as shared libraries.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

const TRACER: &str = "rftrace-preload";
const RESOURCES: &str = "rftrace-preload-resources";

/// Exports of the tracer: the functions of the C library, and one of the unwinder, that it takes the place of.
const OF_TRACER: [&str; 27] = [
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
    "posix_spawn",
    "posix_spawnp",
    "daemon",
    "dlclose",
    "dlsym",
    "mlockall",
    "prctl",
    "syscall",
    "_Unwind_RaiseException",
    "rftrace_mark",
];

/// And for each processor the hooks; what the library for `--resources` asks; and what `rftrace record -p` calls.
const ON_X86_64: [&str; 12] = [
    "mcount",
    "__fentry__",
    "rftrace_backend_thread",
    "rftrace_backend_trampoline",
    "rftrace_attach",
    "rftrace_attach_again",
    "rftrace_attach_answer",
    "rftrace_attach_branches",
    "rftrace_attach_control",
    "rftrace_attach_told",
    "rftrace_detach",
    "rftrace_work_stack",
];
const ON_AARCH64: [&str; 1] = ["_mcount"];

/// Exports of the library for `--resources`: functions that give out something and take it back, and those that forbid system calls.
const OF_RESOURCES: [&str; 93] = [
    "rftrace_resources_attach",
    "rftrace_resources_begin",
    "rftrace_resources_branched",
    "rftrace_resources_detach",
    "rftrace_resources_hook",
    "rftrace_resources_interposed",
    "rftrace_resources_specified",
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
    "fdopen",
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
    "fcloseall",
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
    "dlopen",
    "dlmopen",
    "dlclose",
    "prctl",
    "syscall",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    // Which of the two are libraries.
    println!("cargo::rustc-check-cfg=cfg(library, values(\"{TRACER}\", \"{RESOURCES}\"))");
    println!("cargo::rustc-check-cfg=cfg(attaching)");
    // Attaching to running programs, see rftrace-attach.
    if [target("OS"), target("ARCH")] == ["linux", "x86_64"] {
        println!("cargo::rustc-cfg=attaching");
    }
    let is_glibc = [target("OS"), target("ENV")] == ["linux", "gnu"];
    match target("ARCH").as_str() {
        "x86_64" if is_glibc => {
            link(TRACER, "rftrace_preload_start", &[&OF_TRACER[..], &ON_X86_64].concat())?;
            link(RESOURCES, "rftrace_preload_resources_start", &OF_RESOURCES)
        }
        "aarch64" if is_glibc => link(TRACER, "rftrace_preload_start", &[&OF_TRACER[..], &ON_AARCH64].concat()),
        _ => Ok(()),
    }
}

/// Has a program linked as a library. If run as a program, it says what it is.
fn link(name: &str, entry: &str, exports: &[&str]) -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-cfg=library=\"{name}\"");
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
