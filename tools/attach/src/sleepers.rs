//! Threads asleep in the system that cannot be stopped (state `D`): for a disk, or for the child of a `vfork`. And
//! other users of their memory.
//!
//! A thread that was told to stop does so before it runs any code of its own. So, once seen asleep, it stays at the
//! place told by the system until it is let go. Its registers can be read in part, and not be changed.
//!
//! While the parent of a `vfork` sleeps its child runs in the same memory, as a process of its own: a guest.
//!
//! **Invariant**: no thread is known as asleep if it may yet begin a thread or a child, or go on elsewhere.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;

use nix::libc::{self, pid_t, user_regs_struct};
use rftrace_format::system;

use super::process::Process;
use super::status::{self, Status};
use super::sys;

/// Why a thread may still run code of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// A thread could not be stopped, and is not known to be asleep.
    Awake,
    /// The system does not tell the users of its memory.
    Unknown,
    /// Somebody else traces a guest.
    Traced,
    /// A guest is beginning its program, and is not to be traced meanwhile.
    Beginning,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awake | Self::Beginning => {
                "waits in the kernel where nothing can stop it (for a disk, or for a child that has not begun its program)"
            }
            Self::Unknown => {
                "waits in the kernel where nothing can stop it, and the kernel does not tell which processes share its memory (kcmp, wchan)"
            }
            Self::Traced => "waits for a child that shares its memory (vfork), and another program traces that child",
        })
    }
}

/// The registers of a thread that was told to stop and is asleep: its instruction and stack pointers, and the arguments
/// of the system call; the others are 0.
///
/// # Errors
///
/// It is not known to be asleep.
pub(crate) fn asleep(process: &Process, thread: pid_t) -> Result<user_regs_struct, Doubt> {
    /// A system call of 64 bits.
    const SYSCALL: [u8; 2] = [0x0f, 0x05];

    let told = system::read_text(format!("/proc/{thread}/syscall"));
    let registers = told.ok().and_then(|told| registers(&told)).ok_or(Doubt::Awake)?;
    if Status::of(thread).is_none_or(|status| status.state != 'D') {
        return Err(Doubt::Awake);
    }
    let call = registers.orig_rax.cast_signed();
    if call == NO_CALL {
        // The instruction without memory begins again.
        return Ok(registers);
    }
    // Others have other numbers (int 0x80).
    if OTHERS.contains(&call) || process.bytes(registers.rip.wrapping_sub(2), 2) != SYSCALL {
        return Err(Doubt::Awake);
    }
    if MAKE_CHILDREN.contains(&call) && !has_child(thread)? {
        return Err(Doubt::Awake);
    }
    Ok(registers)
}

/// Mark in place of a system call's number: memory is not there.
const NO_CALL: i64 = -1;
/// System calls that make threads and children.
const MAKE_CHILDREN: [i64; 4] = [libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone3];
/// System calls from which a thread does not come back to its place, and those that may sleep while nobody else can
/// read the memory: they change the maps.
const OTHERS: [i64; 20] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    335, // uretprobe
    336, // uprobe
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_mremap,
    libc::SYS_remap_file_pages,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
];

/// Parses `/proc/TID/syscall` of a thread that does not run: the number, six arguments, and the pointers; or no number
/// and no arguments.
fn registers(told: &str) -> Option<user_regs_struct> {
    let mut fields = told.split_ascii_whitespace();
    let call: i64 = fields.next()?.parse().ok()?;
    let words = fields.map(|field| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok());
    let words: Vec<u64> = words.collect::<Option<_>>()?;
    let mut registers = sys::no_registers();
    registers.orig_rax = call.cast_unsigned();
    match (call, &words[..]) {
        (NO_CALL, &[rsp, rip]) => (registers.rsp, registers.rip) = (rsp, rip),
        (0.., &[rdi, rsi, rdx, r10, r8, r9, rsp, rip]) => {
            (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
            (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
            (registers.rsp, registers.rip) = (rsp, rip);
        }
        _ => return None,
    }
    Some(registers)
}

/// True if a thread, asleep while it makes a child, has made it, and waits until the child has begun its program.
fn has_child(thread: pid_t) -> Result<bool, Doubt> {
    /// The system's functions for this wait alone: they call others to make the child (since Linux 5.10).
    const WAIT: [&str; 2] = ["kernel_clone", "wait_for_vfork_done"];

    let place = system::read_text(format!("/proc/{thread}/wchan")).unwrap_or_default();
    // Compilers add to a name when they make a variant of a function.
    let name = place.split('.').next().unwrap_or_default();
    if name.is_empty() || name == "0" { Err(Doubt::Unknown) } else { Ok(WAIT.contains(&name)) }
}

/// The threads, of any processes, with the memory of `thread`, and not known yet.
///
/// # Errors
///
/// The system does not tell the memory of all candidates.
pub(crate) fn guests(process: &Process, thread: pid_t, known: &HashSet<pid_t>) -> Result<Vec<pid_t>, Doubt> {
    let processes = fs::read_dir("/proc").map_err(|_| Doubt::Unknown)?.flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<pid_t>().ok());
    let mut hosts = HashSet::from([process.pid]);
    let (mut found, mut denied) = (Vec::new(), Vec::new());
    for other in processes {
        for its in status::threads(other).unwrap_or_default() {
            match sys::has_same_memory(thread, its).map_err(|error| error.raw_os_error()) {
                Ok(true) => {
                    found.push(its);
                    hosts.insert(other);
                }
                Ok(false) | Err(Some(libc::ESRCH)) => {}
                // Of other users, as most are.
                Err(Some(libc::EPERM)) => denied.push(other),
                Err(_) => return Err(Doubt::Unknown),
            }
        }
    }
    let is_near =
        |other: &pid_t| hosts.contains(other) || status::parent(*other).is_some_and(|parent| hosts.contains(&parent));
    if !status::has_memory(thread) || denied.iter().any(is_near) {
        return Err(Doubt::Unknown);
    }
    found.retain(|guest| !known.contains(guest));
    Ok(found)
}

/// Has this process trace a guest, and tells it to stop.
///
/// # Errors
///
/// It cannot be traced now. An ended one is no guest any more, and no error.
pub(crate) fn tell(guest: pid_t) -> Result<(), Doubt> {
    let told = system::read_text(format!("/proc/{guest}/syscall")).unwrap_or_default();
    let call = told.split(' ').next().and_then(|call| call.parse::<i64>().ok());
    // It gets the rights of the new program only if nobody traces it; and until it has begun, a tracer waits for it.
    if call.is_some_and(|call| [libc::SYS_execve, libc::SYS_execveat].contains(&call)) {
        return Err(Doubt::Beginning);
    }
    match sys::seize(guest).and_then(|()| sys::interrupt(guest)) {
        Err(error) if lives(guest) && error.kind() == io::ErrorKind::PermissionDenied => Err(Doubt::Traced),
        Err(_) if lives(guest) => Err(Doubt::Awake),
        _ => Ok(()),
    }
}

/// True if a thread may still run code of its program.
pub(crate) fn lives(thread: pid_t) -> bool {
    Status::of(thread).is_some_and(|status| !"ZX".contains(status.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_thread_goes_on() {
        let told = "58 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffcf3b140b0 0x7fbca015d3b8\n";
        let found = registers(told).unwrap();
        assert_eq!((found.orig_rax, found.rsp, found.rip), (58, 0x7ffc_f3b1_40b0, 0x7fbc_a015_d3b8));
        let told = [found.rdi, found.rsi, found.rdx, found.r10, found.r8, found.r9];
        assert_eq!(told, [1, 2, 3, 4, 5, 6]);
        let fault = registers("-1 0x7ff0 0x4010\n").unwrap();
        assert_eq!((fault.orig_rax.cast_signed(), fault.rsp, fault.rip), (NO_CALL, 0x7ff0, 0x4010));
        for other in ["running\n", "", "58 0x1 0x2", "-1 0x1 0x2 0x3"] {
            assert!(registers(other).is_none(), "{other}");
        }
    }
}
