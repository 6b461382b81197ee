//! System calls without a safe interface: ptrace, with registers of all kinds and signal masks.

#![expect(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::{self, c_int, c_uint, pid_t, user_regs_struct};
use rftrace_format::system;

use super::bpf::Instruction;

const PTRACE_GETSIGMASK: c_uint = 0x420a;
const PTRACE_SETSIGMASK: c_uint = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: c_uint = 0x420c;
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor has of vector registers.
const MOST_XSTATE_BYTES: usize = 32 << 10;

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It was told to, or its process is stopped by a signal.
    Told,
    /// It begins a system call, or has come to its end.
    SystemCall,
    /// This signal is about to be delivered.
    Signal(c_int),
    /// Something else reported by the system.
    Event,
    /// It has ended.
    Gone,
}

fn ptrace(request: c_uint, thread: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: callers pass the arguments of the request.
    let result = unsafe { libc::ptrace(request, thread, address as *mut libc::c_void, data as *mut libc::c_void) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has this thread trace another one from now on; the other one goes on running.
pub(crate) fn seize(thread: pid_t) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACESYSGOOD as usize)
}

/// The same for a process started by this one: it is killed when this one ends, and stops when it runs another program.
pub(crate) fn seize_started(process: pid_t) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    ptrace(libc::PTRACE_SEIZE, process, 0, options as usize)
}

/// Has the process about to become the program write its number to one end of a connection, and wait until a byte comes
/// back: it goes on if the byte is not 0. The file `other` is the other end; the process has it too.
pub(crate) fn wait_for_tracer(command: &mut Command, end: RawFd, other: RawFd) {
    let wait = move || {
        let number = std::process::id().to_le_bytes();
        let mut answer = 0u8;
        // SAFETY: the bytes are readable and writable. The process closes the other end, to notice the end of its
        // starter.
        let is_to_go_on = unsafe {
            libc::close(other);
            let is_told = libc::write(end, number.as_ptr().cast(), number.len()) == number.len().cast_signed();
            is_told && libc::read(end, (&raw mut answer).cast(), 1) == 1 && answer != 0
        };
        if is_to_go_on { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
    };
    // SAFETY: it makes system calls only, with memory from before.
    unsafe { command.pre_exec(wait) };
}

/// Tells it to stop.
pub(crate) fn interrupt(thread: pid_t) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)
}

/// Lets a stopped thread go on, with a signal if it is not 0.
pub(crate) fn go_on(thread: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_CONT, thread, 0, signal as usize)
}

/// Lets a stopped thread go on to the beginning or end of its next system call, with a signal if it is not 0.
pub(crate) fn go_on_to_system_call(thread: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_SYSCALL, thread, 0, signal as usize)
}

/// Lets a stopped thread go on for an instruction, or to the beginning of a signal's handler. It gets a SIGTRAP then.
/// If the signal is not 0, it gets that too.
pub(crate) fn step(thread: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_SINGLESTEP, thread, 0, signal as usize)
}

/// Lets a stopped thread go for good, with a signal if it is not 0.
pub(crate) fn detach(thread: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH, thread, 0, signal as usize)
}

/// The registers of a stopped thread.
pub(crate) fn registers(thread: pid_t) -> io::Result<user_regs_struct> {
    let mut registers = MaybeUninit::<user_regs_struct>::zeroed();
    ptrace(libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr() as usize)?;
    // SAFETY: zero is a value of each field, and the call has filled them.
    Ok(unsafe { registers.assume_init() })
}

/// Unknown registers.
pub(crate) fn no_registers() -> user_regs_struct {
    // SAFETY: zero is a value of each field.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

pub(crate) fn set_registers(thread: pid_t, registers: &user_regs_struct) -> io::Result<()> {
    ptrace(libc::PTRACE_SETREGS, thread, 0, ptr::from_ref(registers) as usize)
}

/// Its other registers: vectors, x87, and further ones of the processor.
pub(crate) fn extended_state(thread: pid_t) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MOST_XSTATE_BYTES];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    ptrace(libc::PTRACE_GETREGSET, thread, NT_X86_XSTATE, (&raw mut vector) as usize)?;
    bytes.truncate(vector.iov_len);
    Ok(bytes)
}

pub(crate) fn set_extended_state(thread: pid_t, bytes: &[u8]) -> io::Result<()> {
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    ptrace(libc::PTRACE_SETREGSET, thread, NT_X86_XSTATE, (&raw mut vector) as usize)
}

/// The signals blocked by a stopped thread.
pub(crate) fn signal_mask(thread: pid_t) -> io::Result<u64> {
    let mut mask = 0u64;
    ptrace(PTRACE_GETSIGMASK, thread, size_of::<u64>(), (&raw mut mask) as usize)?;
    Ok(mask)
}

pub(crate) fn set_signal_mask(thread: pid_t, mask: u64) -> io::Result<()> {
    ptrace(PTRACE_SETSIGMASK, thread, size_of::<u64>(), (&raw const mask) as usize)
}

/// A filter of system calls of a stopped thread, by its place among them; `None` behind the last one.
pub(crate) fn filter(thread: pid_t, place: usize) -> io::Result<Option<Vec<Instruction>>> {
    // No filter is longer (`BPF_MAXINSNS`).
    let mut filter = vec![Instruction::default(); 4096];
    // SAFETY: it is so long, and of the type written by the system (`struct sock_filter`).
    let n_instructions =
        unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, thread, place, filter.as_mut_ptr().cast::<libc::c_void>()) };
    match usize::try_from(n_instructions) {
        Ok(n_instructions) => {
            filter.truncate(n_instructions);
            Ok(Some(filter))
        }
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) }
        }
    }
}

/// Waits until a traced thread stops; `None` if it has not until `limit` is over.
pub(crate) fn wait(thread: pid_t, limit: Duration) -> io::Result<Option<Stop>> {
    /// Between two looks.
    const PAUSES: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];
    /// Most come sooner than a sleep would end.
    const NO_PAUSE: Duration = Duration::from_micros(100);

    let begun = Instant::now();
    let mut pause = PAUSES[0];
    loop {
        if let Some(stop) = stop_of(thread)? {
            return Ok(Some(stop));
        }
        let waited = begun.elapsed();
        if waited >= limit {
            return Ok(None);
        }
        if waited < NO_PAUSE {
            thread::yield_now();
        } else {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
}

/// Why a traced thread has stopped, if it has.
fn stop_of(thread: pid_t) -> io::Result<Option<Stop>> {
    let mut stopped = MaybeUninit::<libc::siginfo_t>::zeroed();
    // Of stops alone: how it has ended may be for somebody else.
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: it is writable.
    if unsafe { libc::waitid(libc::P_PID, thread.cast_unsigned(), stopped.as_mut_ptr(), options) } < 0 {
        let error = io::Error::last_os_error();
        // There will be no stop any more.
        return if error.raw_os_error() == Some(libc::ECHILD) {
            pass_end_on(thread);
            Ok(Some(Stop::Gone))
        } else {
            Err(error)
        };
    }
    // SAFETY: zero is a value of each field; the call leaves them if there is no stop.
    let (found, status) = unsafe { (stopped.assume_init_ref().si_pid(), stopped.assume_init_ref().si_status()) };
    let signal = status & 0xff;
    Ok(match status >> 8 {
        _ if found == 0 => None,
        libc::PTRACE_EVENT_STOP => Some(Stop::Told),
        0 if signal == libc::SIGTRAP | 0x80 => Some(Stop::SystemCall),
        0 => Some(Stop::Signal(signal)),
        _ => Some(Stop::Event),
    })
}

/// The system tells a process of its child's end when the child's ptracer knows. The exit status of a child of this process is left for its waiter.
fn pass_end_on(thread: pid_t) {
    if !is_child(thread) {
        // SAFETY: null is for a caller without use for the status.
        unsafe { libc::waitpid(thread, ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    }
}

/// True if this process has started it.
fn is_child(thread: pid_t) -> bool {
    let status = system::read_text(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<pid_t>().ok());
    field("Tgid:") == Some(thread) && field("PPid:") == Some(std::process::id().cast_signed())
}

/// True if two threads, of any processes, have the same memory. Two ended threads have it, too.
pub(crate) fn has_same_memory(one: pid_t, other: pid_t) -> io::Result<bool> {
    const KCMP_VM: c_int = 1;
    // SAFETY: the call takes no pointer.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0usize, 0usize) } {
        ..0 => Err(io::Error::last_os_error()),
        order => Ok(order == 0),
    }
}

/// Sends a thread a signal.
pub(crate) fn send(process: pid_t, thread: pid_t, signal: c_int) {
    // SAFETY: the call takes no pointer.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}

/// The words in some bytes.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<{ mem::size_of::<u64>() }>().0.iter().map(|word| u64::from_le_bytes(*word))
}
