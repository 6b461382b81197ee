//! The reasons why a process cannot be attached to, in words: found before the process is touched, or by the system's
//! refusal.

use std::fs;

use anyhow::{Context, Result, bail};
use nix::libc::pid_t;
use nix::unistd::{Uid, User, geteuid};
use rftrace_format::opener::{self, MOST_PROGRAM};
use rftrace_format::system;
use rftrace_frontend::bank::{living_thread, owner_of};

use super::names;
use super::process::{Map, Process};
use super::status;

/// The hooks called by compilers.
const HOOKS: [&str; 3] = ["mcount", "_mcount", "__fentry__"];

/// The values of `/proc/PID/status`.
#[derive(Debug)]
struct Status(String);

impl Status {
    /// The values of a thread of a living process, the main one if possible.
    fn of_process(pid: pid_t) -> Result<Self> {
        Self::read(living_thread(pid.cast_unsigned()).map_or(pid, u32::cast_signed))
    }

    fn read(pid: pid_t) -> Result<Self> {
        let text = system::read(format!("/proc/{pid}/status")).with_context(|| format!("there is no process {pid}"))?;
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    fn get(&self, key: &str) -> &str {
        let found = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        found.unwrap_or_default().trim()
    }

    fn number(&self, key: &str) -> u32 {
        self.get(key).split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Refuses a process by its state in the system, before it is touched.
pub(crate) fn check_state(pid: pid_t) -> Result<()> {
    let status = Status::of_process(pid)?;
    let process = status.number("Tgid");
    if process.cast_signed() != pid {
        bail!("{pid} is a thread of process {process}: use -p {process}");
    }
    if process == std::process::id() {
        bail!("process {pid} is this rftrace: choose another process");
    }
    match status.get("State").as_bytes().first() {
        Some(b'Z' | b'X') => bail!("process {pid} has ended: it is a zombie until its parent asks for its status"),
        Some(b'T') => bail!("process {pid} is stopped: continue it first (kill -CONT {pid})"),
        _ => {}
    }
    // Only threads of the kernel have no memory of their own.
    if status.get("VmSize").is_empty() {
        bail!("{pid} is a kernel thread: rftrace record --kernel records the kernel's functions");
    }
    let tracer = status.number("TracerPid");
    if tracer != 0 {
        let name = system::read_text(format!("/proc/{tracer}/comm")).unwrap_or_default();
        bail!("{} (PID {tracer}) already traces process {pid}, and only one program can: end it first", name.trim());
    }
    if status.get("x86_Thread_features").split_ascii_whitespace().any(|feature| feature == "shstk") {
        bail!(
            "cannot hook returns in process {pid}, which has shadow stacks (CET): start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
        );
    }
    Ok(())
}

/// Refuses programs for other processors.
pub(crate) fn check_program(process: &Process) -> Result<()> {
    const CLASS_64: u8 = 2;
    const X86_64: [u8; 2] = [62, 0];

    let pid = process.pid;
    let head =
        opener::read(&process.file("exe"), MOST_PROGRAM).ok().filter(|bytes| bytes.len() >= 20).unwrap_or_default();
    if head.starts_with(b"\x7fELF") && (head[4] != CLASS_64 || head[18..20] != X86_64) {
        bail!(
            "process {pid} runs a 32-bit program, or one for another processor: rftrace attaches to x86-64 programs only"
        );
    }
    Ok(())
}

/// True if there is a dynamic linker for the library: the GNU C library's.
pub(crate) fn has_library(maps: &[Map]) -> bool {
    maps.iter().any(|map| map.path.contains("/libc.so.6"))
}

/// Refuses programs started to be recorded.
pub(crate) fn check_recorded(process: &Process, maps: &[Map]) -> Result<()> {
    let environment = system::read(process.file("environ")).unwrap_or_default();
    let is_recorded = environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(b"RFTRACE_RECORD="));
    if is_recorded || maps.iter().any(|map| map.path.ends_with("/rftrace-preload")) {
        bail!(was_started(process.pid));
    }
    Ok(())
}

fn was_started(pid: pid_t) -> String {
    format!(
        "cannot attach to process {pid}: rftrace record started it, or a parent of it; to record a part of its run, start it with \
         --disabled, and switch recording on and off by kill -USR2 {pid}"
    )
}

/// The other process attached to this one, if it lives. A program started to be recorded is refused: its recorder
/// passes signals on to it, so nobody is to end the recorder.
pub(crate) fn owner(process: &Process, maps: &[Map]) -> Result<Option<u32>> {
    if has_library(maps) {
        check_recorded(process, maps)?;
    }
    let Some(own) = status::own_number(process.pid) else { return Ok(None) };
    let owner = |map: &Map| {
        let word = |at: usize| {
            let mut word = [0; 8];
            process.read(map.range.start + at as u64, &mut word).then(|| u64::from_le_bytes(word))
        };
        owner_of(own, word).filter(|&owner| owner != std::process::id())
    };
    let owner = maps.iter().filter(|map| names::is_bank(&map.path)).find_map(owner);
    if owner.is_some_and(|owner| status::parent(process.pid) == Some(owner.cast_signed())) {
        bail!(was_started(process.pid));
    }
    Ok(owner)
}

/// Refuses processes recorded by another one.
pub(crate) fn check_owner(process: &Process, maps: &[Map]) -> Result<()> {
    if let Some(owner) = owner(process, maps)? {
        let pid = process.pid;
        bail!(
            "another rftrace (PID {owner}) already records process {pid}: end that one by kill -INT {owner}, or use --take-over"
        );
    }
    Ok(())
}

/// Refuses processes that do not see the file in memory from which the library is loaded.
pub(crate) fn check_files(process: &Process) -> Result<()> {
    // A link to nowhere for this process.
    if fs::symlink_metadata(process.file("root/proc/self")).is_err() {
        bail!(
            "cannot load the tracer's library into process {}: it sees no /proc, as its root directory is another one, or it runs in a \
             container; mount /proc there, such as by mount --bind /proc ROOT/proc",
            process.pid
        );
    }
    Ok(())
}

/// Refuses programs without calls of the tracer.
pub(crate) fn check_hooks(process: &Process, maps: &[Map]) -> Result<()> {
    let mut paths: Vec<&str> =
        maps.iter().filter(|map| map.is_executable && map.path.starts_with('/')).map(|map| &*map.path).collect();
    paths.dedup();
    let calls = |path: &&str| {
        let module = process.module(maps, |other| other == *path).ok().flatten();
        module.is_some_and(|module| module.imports(&HOOKS))
    };
    if paths.iter().any(calls) {
        return Ok(());
    }
    let exe = fs::read_link(process.file("exe")).unwrap_or_default();
    bail!(
        "process {} ({}) does not call mcount, nor do its libraries: use -P '*' to record its functions nevertheless, or --libcalls to \
         record its calls of libraries, or build it with -pg, -mfentry or -Z instrument-mcount",
        process.pid,
        exe.display()
    )
}

/// Why the system lets this process not attach.
pub(crate) fn denied(pid: pid_t) -> String {
    let Ok(status) = Status::of_process(pid) else { return format!("process {pid} has ended") };
    let own = geteuid();
    let scope = system::read_text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    denied_by(pid, Uid::from_raw(status.number("Uid")), own, scope.trim())
}

fn denied_by(pid: pid_t, user: Uid, own: Uid, scope: &str) -> String {
    if user != own && !own.is_root() {
        let name = User::from_uid(user).ok().flatten().map_or_else(|| user.to_string(), |user| user.name);
        return format!("process {pid} belongs to {name}: run rftrace as that user, or with sudo");
    }
    match scope {
        "1" => format!(
            "the kernel lets only ancestors attach to process {pid} (kernel.yama.ptrace_scope is 1): run rftrace with sudo, or start \
             the program by rftrace record --disabled"
        ),
        "2" => format!(
            "the kernel lets only root attach to process {pid} (kernel.yama.ptrace_scope is 2): run rftrace with sudo"
        ),
        "3" => format!(
            "the kernel lets nobody attach to process {pid} until the next boot (kernel.yama.ptrace_scope is 3)"
        ),
        _ if own.is_root() => {
            format!(
                "the kernel does not let root attach to process {pid}: a security module or the container's rights forbid it"
            )
        }
        _ => format!(
            "process {pid} is not dumpable (it has changed its rights, or its dumpable flag by prctl): run rftrace with sudo"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_the_system_has_its_words() {
        let (root, user, other) = (Uid::from_raw(0), Uid::from_raw(1000), Uid::from_raw(1001));
        for (whose, own, scope, wanted) in [
            (other, user, "0", "belongs to 1001"),
            (user, user, "1", "only ancestors"),
            (user, user, "2", "only root"),
            (root, root, "3", "until the next boot"),
            (user, user, "0", "not dumpable"),
            (user, user, "", "not dumpable"),
            (root, root, "0", "root"),
        ] {
            let told = denied_by(7, whose, own, scope);
            assert!(told.contains(wanted) && told.contains("process 7"), "{told}");
        }
    }

    #[test]
    fn what_is_no_process() {
        assert!(check_state(std::process::id().cast_signed()).unwrap_err().to_string().contains("this rftrace"));
        assert!(check_state(i32::MAX).unwrap_err().to_string().contains("no process"));
    }
}
