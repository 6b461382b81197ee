//! The state of each thread: its chunk, and its stack.
//!
//! It lies in thread-local storage that is there from the thread's first instruction on: access takes no call, and nothing is allocated for it.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::compiler_fence;

use crate::state;

/// A thread's own. All zero at first. A signal handler may change it between any two instructions of the thread.
#[repr(C)]
pub(crate) struct Thread {
    /// Where the next unit goes (`chunks`).
    pub(crate) cursor: Cell<usize>,
    /// The number of the process that its chunk belongs to: that of a parent until the first event in a child.
    pub(crate) process: Cell<u64>,
    /// That which the recorder was told of this thread in.
    pub(crate) told: Cell<u64>,
    /// Its number for the system.
    pub(crate) tid: Cell<u32>,
    /// It may make no system calls any more, nor read the time: it records nothing.
    pub(crate) is_stopped: Cell<bool>,
    /// From here to the end of the stack all can be read; 0 if that is not known.
    pub(crate) stack_low: Cell<usize>,
    /// The outermost call of the program's own allocator (`layers`).
    layer: [Cell<usize>; 2],
    /// Which cache it takes first.
    pub(crate) cache: Cell<usize>,
    /// How often something was taken or given back that a function may do for another one, and what that was last (`log`).
    n_logged: Cell<usize>,
    logged: [Cell<u64>; N_LOGGED],
}

const N_LOGGED: usize = 16;

impl Thread {
    /// Says which call of the program's own allocator it is in. Returns what was said before.
    pub(crate) fn set_layer(&self, layer: [usize; 2]) -> [usize; 2] {
        [self.layer[0].replace(layer[0]), self.layer[1].replace(layer[1])]
    }

    /// The call that was said last. It may have been left by a jump since.
    pub(crate) fn layer(&self) -> [usize; 2] {
        [self.layer[0].get(), self.layer[1].get()]
    }

    /// How much was logged until now.
    pub(crate) fn n_logged(&self) -> u32 {
        self.n_logged.get() as u32
    }

    /// Says that something was taken, or given back.
    pub(crate) fn log(&self, what: u64, is_taken: bool) {
        let place = add(&self.n_logged, 1);
        self.logged[place % N_LOGGED].set(what << 1 | u64::from(is_taken));
    }

    /// The first and the last log entry for it since then: true if it was taken. Only the latest entries are kept.
    fn logged(&self, since: u32, what: u64) -> [Option<bool>; 2] {
        let n_since = || self.n_logged().wrapping_sub(since) as usize;
        let until = self.n_logged.get();
        let mut said = [None; 2];
        for place in until - n_since().min(N_LOGGED).min(until)..until {
            let entry = self.logged[place % N_LOGGED].get();
            if entry >> 1 == what << 1 >> 1 {
                let is_taken = Some(entry & 1 != 0);
                said = [said[0].or(is_taken), is_taken];
            }
        }
        compiler_fence(AcqRel);
        // A signal handler may have come between, and written in the place of the first ones.
        [said[0].filter(|_| n_since() <= N_LOGGED), said[1]]
    }

    /// True if it was taken since then, and not given back.
    pub(crate) fn has_taken(&self, since: u32, what: u64) -> bool {
        self.logged(since, what)[1] == Some(true)
    }

    /// True if the one present then was given back, as far as known. One that a signal handler has taken and given back since then is another one.
    pub(crate) fn has_given_back(&self, since: u32, what: u64) -> bool {
        self.logged(since, what)[0] == Some(false)
    }
}

global_asm!(
    ".section .tbss.rftrace_resources,\"awT\",@nobits",
    ".balign 64",
    ".globl rftrace_resources_thread",
    ".hidden rftrace_resources_thread",
    ".type rftrace_resources_thread, @tls_object",
    ".size rftrace_resources_thread, {size}",
    "rftrace_resources_thread:",
    ".zero {size}",
    ".text",
    size = const size_of::<Thread>(),
);

/// That of this thread.
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    let place: *const Thread;
    // SAFETY: the offset of the storage from the thread pointer, which the linker knows.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + rftrace_resources_thread@GOTTPOFF]",
            out(reg) place,
            options(nostack, readonly, pure),
        );
    }
    // SAFETY: as large as said above, zero is a value of each field, and nobody else refers to it. It is not used beyond the thread's end.
    unsafe { &*place }
}

/// Adds to a number in one instruction, which no signal can come into. Returns what it was.
#[inline(always)]
pub(crate) fn add(number: &Cell<usize>, more: usize) -> usize {
    let mut before = more;
    // SAFETY: the number is this thread's own.
    unsafe { asm!("xadd qword ptr [{}], {}", in(reg) number.as_ptr(), inout(reg) before, options(nostack)) };
    before
}

/// Where this thread's storage begins, at the end of its stack, if that was made by the C library.
#[inline(always)]
pub(crate) fn pointer() -> usize {
    let pointer;
    // SAFETY: the thread pointer points to itself.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, pure)) };
    pointer
}

/// This thread's number for the system.
pub(crate) fn number() -> u32 {
    if state::is_confined() {
        return number_in_library();
    }
    // SAFETY: the call takes nothing.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// The same as the C library knows it, without a system call: it writes into a mutex who has that.
fn number_in_library() -> u32 {
    /// Behind the lock and how often it is held: constants for new ones lie in programs, so this stays.
    const OWNER: usize = 2;

    // One of this kind is never left to the processor.
    let mut mutex = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    let mutex = &raw mut mutex;
    // SAFETY: a mutex of this function's own, and one of its first words.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        let number = mutex.cast::<u32>().add(OWNER).read_volatile();
        libc::pthread_mutex_unlock(mutex);
        number
    }
}

/// About where the stack ends here.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let here = 0usize;
    &raw const here as usize
}

/// Runs this while no signal comes to this thread but those that an instruction raises.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: both have room for what is written.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: as it was above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}

/// Runs this on another stack, as large as it is: it is not to unwind, nor to be left by a jump.
pub(crate) fn on_stack<F: FnOnce() -> T, T>(stack: &mut [u8], work: F) -> T {
    struct Call<F, T> {
        work: Option<F>,
        result: Option<T>,
    }

    extern "C" fn run<F: FnOnce() -> T, T>(call: &mut Call<F, T>) {
        call.result = call.work.take().map(|work| work());
    }

    let mut call = Call { work: Some(work), result: None };
    let top = stack.as_mut_ptr_range().end as usize & !15;
    // SAFETY: the function gets its argument on a stack of its own, keeps this register, and returns.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run::<F, T> as extern "C" fn(&mut Call<F, T>),
            in("rdi") &raw mut call,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    call.result.unwrap_or_else(|| unreachable!("it has run"))
}

/// Runs this, and leaves `errno` as it is.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the thread's own, as long as it lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}
