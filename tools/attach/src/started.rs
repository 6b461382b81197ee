//! A program that this process starts and holds at its beginning: its C library has made the first thread's control
//! block, and no code of the program has run. There the tracer can be put into it, as it finds threads by that block.
//!
//! **Invariant**: until the program is let go, it ends when this process does, as if it had not been started. On the way
//! to its beginning it gets its signals at once, as it has no handlers yet: it may never get there. Later signals wait.

use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::libc::{self, c_int, pid_t};

use super::process::Process;
use super::sys::{self, Stop};

/// The started program. It is killed if this value is dropped before [`let_go`](Self::let_go).
#[derive(Debug)]
pub struct Started {
    pid: pid_t,
    /// Signals that came meanwhile.
    pending: Vec<c_int>,
    is_held: bool,
}

/// The place of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before all its own code.
    Beginning,
    /// It has ended before.
    Ended,
}

/// Has a stopped thread go on, with a signal if it is not 0.
type Request = fn(pid_t, c_int) -> io::Result<()>;

/// Signals that stop a program, which is held anyway.
const STOPPING: [c_int; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// System calls of C libraries before the first thread has its control block.
const BEGINNING: [i64; 17] = [
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_arch_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prlimit64,
    libc::SYS_getrlimit,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

impl Started {
    /// Starts a program with this thread, which alone can control it, and holds it before its first instruction.
    ///
    /// # Errors
    ///
    /// The program cannot be run, or the system does not permit tracing it.
    pub fn begin(mut command: Command) -> Result<(Child, Self)> {
        let (mut own, its) = UnixStream::pair()?;
        sys::wait_for_tracer(&mut command, its.as_raw_fd(), own.as_raw_fd());
        thread::scope(|scope| {
            // It returns when the other program runs: not before this thread lets it.
            let spawned = scope.spawn(move || {
                let child = command.spawn();
                drop(its);
                child
            });
            let held = Self::hold(&mut own);
            let child = spawned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (held, child) {
                (Ok(held), Ok(child)) => Ok((child, held)),
                (Err(Some(error)), _) => Err(error),
                (_, Err(error)) => Err(error.into()),
                (Err(None), Ok(_)) => Err(anyhow!("the program ended before its first instruction")),
            }
        })
    }

    /// Takes the process waiting at the other end, and waits until it runs its program. No error: it does not, and its
    /// starter knows why.
    fn hold(own: &mut UnixStream) -> Result<Self, Option<anyhow::Error>> {
        let mut number = [0; size_of::<pid_t>()];
        own.read_exact(&mut number).map_err(|_| None)?;
        let pid = pid_t::from_le_bytes(number);
        let seized = sys::seize_started(pid);
        own.write_all(&[u8::from(seized.is_ok())]).map_err(|error| Some(error.into()))?;
        seized
            .context("the kernel does not let rftrace trace the program (ptrace; /proc/sys/kernel/yama/ptrace_scope may forbid it)")
            .map_err(Some)?;
        let mut this = Self { pid, pending: Vec::new(), is_held: true };
        match this.wait(sys::go_on, false) {
            Ok(Stop::Event) => Ok(this),
            Ok(_) => {
                this.is_held = false;
                Err(None)
            }
            Err(error) => Err(Some(error)),
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Has it go on by a request until it stops, except for a signal, which it gets.
    fn go_on(&mut self, by: Request) -> Result<Stop> {
        self.request(by, 0)?;
        self.wait(by, true)
    }

    /// `has_signals`: it gets its signals, unless they stop it. Before it runs its program it has the handlers of this
    /// process.
    fn wait(&mut self, by: Request, has_signals: bool) -> Result<Stop> {
        /// Nothing is to be done when it is over.
        const INTERVAL: Duration = Duration::from_secs(1);

        loop {
            let signal = match sys::wait(self.pid, INTERVAL)? {
                Some(Stop::Signal(signal)) if signal != libc::SIGTRAP => {
                    let is_given = has_signals && !STOPPING.contains(&signal);
                    if !is_given {
                        self.pending.push(signal);
                    }
                    if is_given { signal } else { 0 }
                }
                Some(Stop::Told) => 0,
                Some(stop) => return Ok(stop),
                None => continue,
            };
            self.request(by, signal)?;
        }
    }

    /// A killed process is waited for.
    fn request(&self, by: Request, signal: c_int) -> Result<()> {
        match by(self.pid, signal) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Has it go on until the first thread has a control block, of a C library that `is_known` finds.
    ///
    /// # Errors
    ///
    /// It is none of them.
    pub(crate) fn go_to_beginning(&mut self, process: &Process, is_known: impl Fn(u64) -> bool) -> Result<Place> {
        // Those from before it ran its program: it gets them now.
        for signal in mem::take(&mut self.pending) {
            sys::send(self.pid, self.pid, signal);
        }
        if process.auxiliary(libc::AT_BASE).unwrap_or(0) != 0 {
            self.go_to_entry(process)
        } else {
            self.go_to_control_block(is_known)
        }
    }

    /// Until the dynamic linker has done all it has to.
    fn go_to_entry(&mut self, process: &Process) -> Result<Place> {
        const BREAKPOINT: u8 = 0xcc;

        let entry = process.auxiliary(libc::AT_ENTRY).context("the auxiliary vector lacks the program's entry")?;
        let first = *process.bytes(entry, 1).first().context("cannot read the code at the program's entry")?;
        process.write(entry, &[BREAKPOINT]).context("cannot change the code at the program's entry")?;
        loop {
            match self.go_on(sys::go_on)? {
                Stop::Gone => return Ok(Place::Ended),
                Stop::Signal(_) => {
                    let mut registers = sys::registers(self.pid)?;
                    if registers.rip == entry + 1 {
                        process.write(entry, &[first])?;
                        registers.rip = entry;
                        sys::set_registers(self.pid, &registers)?;
                        return Ok(Place::Beginning);
                    }
                    self.pending.push(libc::SIGTRAP);
                }
                _ => {}
            }
        }
    }

    /// Until the C library keeps the thread's number there. The system tells the number in its answer to the call that
    /// has it cleared at the thread's end.
    fn go_to_control_block(&mut self, is_known: impl Fn(u64) -> bool) -> Result<Place> {
        /// Instructions from this call on.
        const MOST_STEPS: usize = 1000;
        const ENOSYS: i64 = -38;

        loop {
            match self.go_on(sys::go_on_to_system_call)? {
                Stop::Gone => return Ok(Place::Ended),
                Stop::SystemCall => {}
                _ => continue,
            }
            let registers = sys::registers(self.pid)?;
            let (call, is_begin) = (registers.orig_rax.cast_signed(), registers.rax.cast_signed() == ENOSYS);
            if is_begin && !BEGINNING.contains(&call) {
                bail!("the C library of process {} is unknown: rftrace supports the GNU C library and musl", self.pid);
            }
            if !is_begin && call == libc::SYS_set_tid_address {
                break;
            }
        }
        for _ in 0..MOST_STEPS {
            if is_known(sys::registers(self.pid)?.fs_base) {
                return Ok(Place::Beginning);
            }
            if self.go_on(sys::step)? == Stop::Gone {
                return Ok(Place::Ended);
            }
        }
        bail!("the C library of process {} is unknown: rftrace supports the GNU C library and musl", self.pid);
    }

    /// Lets the program go, and delivers the waiting signals.
    ///
    /// # Errors
    ///
    /// Those of the system. If the program was killed meanwhile, that is no error.
    pub fn let_go(mut self) -> Result<()> {
        self.is_held = false;
        for signal in mem::take(&mut self.pending) {
            sys::send(self.pid, self.pid, signal);
        }
        self.request(sys::detach, 0).context("cannot continue the program")
    }

    /// Leaves the program traced by this thread (`PTRACE_SEIZE`), which lets it go on. Returns the signals that came
    /// meanwhile.
    #[must_use]
    pub fn into_traced(mut self) -> Vec<c_int> {
        self.is_held = false;
        mem::take(&mut self.pending)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_held {
            sys::send(self.pid, self.pid, libc::SIGKILL);
        }
    }
}
