//! System calls that were interrupted, as a thread was told to stop or was sent a signal, and begin again: nobody is to see that this process
//! has come by.
//!
//! Of most the system notes in the register of their result that they begin again, and how (`ERESTART…`); some end with `EINTR`, though no
//! handler has run (signal(7)).

use std::io;

use nix::libc::{self, pid_t, user_regs_struct};

use super::status::Status;
use super::sys;

/// It begins again, and ends with `EINTR` where a handler has run.
const ERESTARTNOHAND: i64 = -514;
/// It begins again, also when a handler has run, whatever its flags are.
const ERESTARTNOINTR: i64 = -513;
/// It goes on by `restart_syscall`, which knows what is left of its time.
const ERESTART_RESTARTBLOCK: i64 = -516;
/// All such notes.
const NOTES: std::ops::RangeInclusive<i64> = -516..=-512;

/// Calls that end with `EINTR` when they were interrupted, and have done nothing then: waits, and those of sockets with a timeout. Others, such
/// as `close`, may have done their work.
const CALLS: [i64; 23] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    441, // epoll_pwait2
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_io_getevents,
    333, // io_pgetevents
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
];

fn call(registers: &user_regs_struct) -> i64 {
    registers.orig_rax.cast_signed()
}

/// Whether a call ends with `EINTR` that could begin again.
fn ends(registers: &user_regs_struct) -> bool {
    registers.rax.cast_signed() == -i64::from(libc::EINTR) && CALLS.contains(&call(registers))
}

/// Whether the system notes of a call that it is to begin again.
fn is_noted(registers: &user_regs_struct) -> bool {
    call(registers) >= 0 && NOTES.contains(&registers.rax.cast_signed())
}

/// Has the call of a thread that was told to stop begin again when it goes on.
///
/// # Errors
///
/// It is not traced by this one, or is not there any more.
pub fn begin_again(thread: pid_t) -> io::Result<()> {
    let mut registers = sys::registers(thread)?;
    if ends(&registers) {
        registers.rax = ERESTARTNOHAND.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// Has the call of a thread that is about to get a signal begin again when the signal's handler has returned. If another signal comes at the
/// same time, the call ends by that.
pub(crate) fn begin_again_after_handler(thread: pid_t) -> io::Result<()> {
    let mut registers = sys::registers(thread)?;
    // What a stop has interrupted before goes on by `restart_syscall`, which has forgotten it after a handler.
    let is_known = call(&registers) != libc::SYS_restart_syscall;
    if is_known
        && (is_noted(&registers) || ends(&registers))
        && Status::of(thread).is_some_and(|status| status.next() == 0)
    {
        registers.rax = ERESTARTNOINTR.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// Has a stopped thread's wait begin anew that the system would have go on by another call (`restart_syscall`), which it may not make.
pub(crate) fn begin_anew(thread: pid_t) -> io::Result<()> {
    let mut registers = sys::registers(thread)?;
    if call(&registers) >= 0 && registers.rax.cast_signed() == ERESTART_RESTARTBLOCK {
        registers.rax = ERESTARTNOINTR.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// The registers with which a thread goes on that is in them: a system call that was interrupted begins anew.
pub(crate) fn restarted(registers: &user_regs_struct) -> user_regs_struct {
    let mut restarted = *registers;
    if is_noted(registers) {
        restarted.rax = registers.orig_rax;
        restarted.rip -= 2;
    }
    restarted.orig_rax = u64::MAX;
    restarted
}
