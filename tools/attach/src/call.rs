//! Restarts of system calls that were interrupted, because a thread was told to stop or got a signal: the program must
//! not notice this process.
//!
//! Most calls leave a note in the register of their result that they restart, and how (`ERESTART…`). Some end with
//! `EINTR` although no handler has run (signal(7)).

use std::io;
use std::os::unix::fs::FileExt;

use nix::libc::{self, pid_t, user_regs_struct};
use rftrace_format::system;

use super::status::{CLOCKS, Status};
use super::sys;

/// It begins again, and ends with `EINTR` if a handler has run.
const ERESTARTNOHAND: i64 = -514;
/// It begins again, also when a handler has run, whatever its flags are.
const ERESTARTNOINTR: i64 = -513;
/// It goes on by `restart_syscall`, which knows the rest of its time.
const ERESTART_RESTARTBLOCK: i64 = -516;
/// All such notes.
const NOTES: std::ops::RangeInclusive<i64> = -516..=-512;

/// Calls that end with `EINTR` if they were interrupted, and have done nothing then: waits, and those of sockets with a
/// timeout. Others, such as `close`, may have done their work.
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

/// True if a call ends with `EINTR` although it could begin again.
fn ends(registers: &user_regs_struct) -> bool {
    registers.rax.cast_signed() == -i64::from(libc::EINTR) && CALLS.contains(&call(registers))
}

/// True if the system notes that a call is to begin again.
fn is_noted(registers: &user_regs_struct) -> bool {
    call(registers) >= 0 && NOTES.contains(&registers.rax.cast_signed())
}

/// The registers of a stopped thread. A call that goes on by `restart_syscall` gets its first number, if the code tells
/// it: the system only asks for it when the call begins anew.
pub(crate) fn registers(thread: pid_t) -> io::Result<user_regs_struct> {
    let mut registers = sys::registers(thread)?;
    if call(&registers) == libc::SYS_restart_syscall {
        let mut code = [0; 7];
        let memory = system::open(format!("/proc/{thread}/mem"));
        let is_read = memory.is_ok_and(|memory| memory.read_exact_at(&mut code, registers.rip.wrapping_sub(7)).is_ok());
        if let Some(number) = is_read.then(|| begun_by(code, &registers)).flatten() {
            registers.orig_rax = number;
        }
    }
    Ok(registers)
}

/// The operation of a futex without its flags (`FUTEX_PRIVATE_FLAG`, `FUTEX_CLOCK_REALTIME`).
const OPERATION: u64 = 0x7f;

/// The number of the call begun by the instruction at the end of some code.
fn begun_by(code: [u8; 7], registers: &user_regs_struct) -> Option<u64> {
    /// Operations that wait.
    const WAITS: [u64; 2] = [libc::FUTEX_WAIT as u64, libc::FUTEX_WAIT_BITSET as u64];

    match code {
        // mov eax, number; syscall
        [0xb8, a, b, c, d, 0x0f, 0x05] => Some(u32::from_le_bytes([a, b, c, d]).into()),
        // The C library's `syscall`, used by Rust's standard library for waits, has forgotten it: mov r9, [rsp+8];
        // syscall
        [0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05] if WAITS.contains(&(registers.rsi & OPERATION)) => {
            Some(libc::SYS_futex as u64)
        }
        _ => None,
    }
}

/// Makes the system call of a thread that was told to stop begin again when the thread goes on.
///
/// # Errors
///
/// This thread does not trace the other one, or it has ended.
pub fn begin_again(thread: pid_t) -> io::Result<()> {
    let mut registers = registers(thread)?;
    if ends(&registers) {
        registers.rax = ERESTARTNOHAND.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// True if a call makes the system forget how an earlier one goes on (`restart_syscall`): it is a sleep, or was interrupted as well.
pub(crate) fn forgets_rest(registers: &user_regs_struct) -> bool {
    let is_sleep = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&call(registers));
    is_sleep || registers.rax.cast_signed() == ERESTART_RESTARTBLOCK
}

/// Has a call begin anew instead of going on by `restart_syscall`: the thread has made another call, and the system has
/// forgotten the rest of the first one's time.
pub(crate) fn forget_rest(registers: &mut user_regs_struct) {
    if call(registers) >= 0 && registers.rax.cast_signed() == ERESTART_RESTARTBLOCK {
        registers.rax = ERESTARTNOHAND.cast_unsigned();
    }
}

/// True if a call waits until a moment, not for a time: begun anew it ends at the same moment.
fn has_fixed_end(registers: &user_regs_struct) -> bool {
    match call(registers) {
        libc::SYS_futex => registers.rsi & OPERATION == libc::FUTEX_WAIT_BITSET as u64,
        libc::SYS_clock_nanosleep => registers.rsi & libc::TIMER_ABSTIME as u64 != 0,
        _ => false,
    }
}

/// True if an interrupted call begins anew, given the signals waiting for its thread: those of clocks are not to end
/// it. One may strike at any moment, so without any the call begins anew if this changes nothing.
pub(crate) fn begins_anew(registers: &user_regs_struct, signals: u64) -> bool {
    is_clocks(signals) || signals == 0 && has_fixed_end(registers)
}

/// Lets a stopped thread go for good. A clock of processor time may have struck meanwhile, with this thread as the
/// first to be told: it does not end the thread's call.
pub(crate) fn let_go(thread: pid_t) -> io::Result<()> {
    let mut registers = registers(thread)?;
    if is_noted(&registers) && Status::of(thread).is_some_and(|status| begins_anew(&registers, status.next())) {
        registers.rax = ERESTARTNOINTR.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    sys::detach(thread, 0)
}

/// True if there are signals, of clocks of processor time alone.
fn is_clocks(signals: u64) -> bool {
    signals != 0 && signals & !CLOCKS == 0
}

/// A thread is about to get a signal: has its call begin again when the signal's handler has returned. If another
/// signal comes at the same time, it ends the call.
pub(crate) fn begin_again_after_handler(thread: pid_t) -> io::Result<()> {
    let mut registers = registers(thread)?;
    // A call interrupted by an earlier stop goes on by `restart_syscall`, which has forgotten it after a handler.
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

/// Has a stopped thread's wait begin anew that the system would have go on by another call (`restart_syscall`): the
/// thread may not make it.
pub(crate) fn begin_anew(thread: pid_t) -> io::Result<()> {
    let mut registers = registers(thread)?;
    if call(&registers) >= 0 && registers.rax.cast_signed() == ERESTART_RESTARTBLOCK {
        registers.rax = ERESTARTNOINTR.cast_unsigned();
        sys::set_registers(thread, &registers)?;
    }
    Ok(())
}

/// The registers for a thread to go on with: an interrupted system call begins anew.
pub(crate) fn restarted(registers: &user_regs_struct) -> user_regs_struct {
    let mut restarted = *registers;
    if is_noted(registers) {
        restarted.rax = registers.orig_rax;
        restarted.rip -= 2;
    }
    restarted.orig_rax = u64::MAX;
    restarted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_calls() {
        let by = |code, rsi| begun_by(code, &user_regs_struct { rsi, ..sys::no_registers() });
        assert_eq!(by([0xb8, 0xe6, 0, 0, 0, 0x0f, 0x05], 0), Some(libc::SYS_clock_nanosleep as u64));
        let by_function = |rsi| by([0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05], rsi);
        assert_eq!(by_function(9 | 128 | 256), Some(libc::SYS_futex as u64));
        assert_eq!(by_function(1000), None);
        assert_eq!(by([0x90, 0x90, 0x90, 0x48, 0x89, 0x0f, 0x05], 0), None);
    }

    #[test]
    fn waits_until_a_moment() {
        let fixed =
            |call: i64, rsi| has_fixed_end(&user_regs_struct { orig_rax: call as u64, rsi, ..sys::no_registers() });
        assert!(fixed(libc::SYS_futex, 9 | 128 | 256) && fixed(libc::SYS_clock_nanosleep, 1));
        assert!(!fixed(libc::SYS_futex, 128) && !fixed(libc::SYS_clock_nanosleep, 0) && !fixed(libc::SYS_poll, 9));
    }
}
