//! System calls without a safe interface.

#![expect(unsafe_code)]

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::thread;
use std::time::Duration;

use nix::libc::{self, c_int};

/// Sends a process a signal, whichever.
pub(crate) fn send(pid: u32, signal: c_int) {
    // SAFETY: the call takes no pointer.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Lets an event of the kernel write into another one's buffer.
#[cfg(attaching)]
pub(crate) fn share_buffer(event: RawFd, other: RawFd) -> io::Result<()> {
    const SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: the call takes no pointer.
    if unsafe { libc::ioctl(event, SET_OUTPUT as _, other) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A process, which stays this one whatever becomes of its number.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// The process with this number now.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the system has just opened it for this.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(file as RawFd) }))
    }

    /// The status of `wait` of its end, once its parent has waited for it. Linux tells it from 6.15 on.
    pub(crate) fn status(&self) -> Option<i32> {
        /// `struct pidfd_info` in its first version.
        #[repr(C)]
        #[derive(Default)]
        struct Info {
            mask: u64,
            cgroup: u64,
            numbers: [u32; 11],
            exit_code: i32,
        }
        const EXIT: u64 = 1 << 3;
        const GET_INFO: libc::c_ulong = 3 << 30 | (size_of::<Info>() as libc::c_ulong) << 16 | 0xff << 8 | 11;

        let mut info = Info { mask: EXIT, ..Info::default() };
        // SAFETY: the system writes no more than the size given in the request.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as _, &raw mut info) } == 0;
        (done && info.mask & EXIT != 0).then_some(info.exit_code)
    }

    /// Sends it a signal.
    pub(crate) fn send(&self, signal: c_int) -> io::Result<()> {
        // SAFETY: nothing is passed with the signal.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, ptr::null::<libc::siginfo_t>(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Waits until a child has ended; it stays a zombie. `nix`'s function knows no real-time signals, one of which may have
/// ended it.
pub(crate) fn wait_for_end(pid: u32) -> io::Result<()> {
    loop {
        let mut ended = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: it is writable.
        if unsafe { libc::waitid(libc::P_PID, pid, ended.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
            continue;
        }
        // SAFETY: zero is a value of each field, and the call has filled them.
        if [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&unsafe { ended.assume_init() }.si_code) {
            return Ok(());
        }
        // The system tells of a stop too while another thread of this process traces it, for a moment, to send it a signal.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends a child's life as a zombie. Returns its end, and the usage of the child and of its own reaped children.
pub(crate) fn reap(pid: u32) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both are writable.
    while unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, usage.as_mut_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zero is a value of each field, and the call has filled them.
    Ok((ExitStatus::from_raw(status), unsafe { usage.assume_init() }))
}

/// Has the process about to become the program write its number to files, and then `1` to another one. The files must
/// stay open until it runs.
pub(crate) fn announce_to(command: &mut Command, numbers: &[OwnedFd], last: &OwnedFd) {
    let numbers: Vec<RawFd> = numbers.iter().map(AsRawFd::as_raw_fd).collect();
    let last = last.as_raw_fd();
    let announce = move || {
        let mut digits = [0; 10];
        let mut start = digits.len();
        // The memory may be a copy of a process with many threads: nothing is allocated.
        let mut rest = std::process::id();
        while rest > 0 && start > 0 {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        numbers.iter().try_for_each(|&file| write(file, &digits[start..]))?;
        write(last, b"1")
    };
    // SAFETY: it makes system calls only, with memory from before.
    unsafe { command.pre_exec(announce) };
}

/// Writes to a file that takes all at once.
fn write(file: RawFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the bytes are readable.
    if unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// True if a program has capabilities of its own.
pub(crate) fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: both names end with a NUL; nothing is written without room.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 }
}

/// Gives this thread the next higher real-time priority, if it has one and may do so: programs started by this process
/// inherit its priority, and one waiting for this thread on its processor would not let it work.
pub(crate) fn rise_above_others() {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: about this thread; the structure is readable and writable.
    unsafe {
        let policy = libc::sched_getscheduler(0);
        if [libc::SCHED_FIFO, libc::SCHED_RR].contains(&policy) && libc::sched_getparam(0, &raw mut param) == 0 {
            param.sched_priority += 1;
            libc::sched_setscheduler(0, policy, &raw const param);
        }
    }
}
