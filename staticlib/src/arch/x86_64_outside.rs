//! x86-64 Linux with the feature `outside`: the place of a thread's block, by the thread's id, as nobody gives the
//! tracer thread-local storage. The C library keeps the id in the thread's memory at `fs` ([`Outside::tid_at`]), from
//! its first instruction on.
//!
//! A table has a bucket for each id, by its low 16 bits, in one cache line. A word there has an id, negated, and the
//! number of the thread's block: from 1, or 0 for an untraced thread. The word of an ended thread goes when another one
//! wants its place.

use core::arch::{asm, global_asm};
use core::mem::{offset_of, size_of};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::abi::{Jump, MOST_JUMPS, MOST_THREADS, Outside, REGISTRATION_WORDS, ThreadBlock};
use crate::control_block::{CONTROL, SWITCH};

/// Data shared with the process that has put the tracer here.
#[unsafe(export_name = "rftrace_outside")]
pub(crate) static OUTSIDE: Outside = Outside {
    control: &CONTROL,
    switch: &SWITCH,
    tid_at: AtomicUsize::new(0),
    table: AtomicPtr::new(ptr::null_mut()),
    table_stride: AtomicUsize::new(0),
    table_entries: AtomicUsize::new(0),
    status: AtomicU32::new(0),
    is_registered: AtomicU32::new(0),
    next_looked: AtomicUsize::new(0),
    jumps: [const { Jump { function: AtomicUsize::new(0), displaced: AtomicU64::new(0) } }; MOST_JUMPS],
    registration: [const { AtomicU64::new(0) }; REGISTRATION_WORDS],
};

/// Buckets: as many as 16 bits tell apart.
const BUCKETS: usize = 1 << 16;
/// Words of a bucket.
const WORDS: usize = 8;

#[repr(C, align(64))]
struct Bucket([AtomicU64; WORDS]);

#[unsafe(export_name = "rftrace_outside_threads")]
static TABLE: [Bucket; BUCKETS] = [const { Bucket([const { AtomicU64::new(0) }; WORDS]) }; BUCKETS];

/// The address of a thread's block, by its number: [`UNTRACED`](super::UNTRACED) for number 0, as a thread may have
/// been told to be.
#[unsafe(export_name = "rftrace_outside_blocks")]
static BLOCKS: [AtomicPtr<ThreadBlock>; MOST_THREADS + 1] = {
    let mut blocks = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_THREADS + 1];
    blocks[0] = AtomicPtr::new(super::UNTRACED);
    blocks
};

/// The id of a block's thread, by the block's number.
static OWNERS: [AtomicU32; MOST_THREADS + 1] = [const { AtomicU32::new(0) }; MOST_THREADS + 1];

// r11 = the running thread's block; 0 if there is none yet. Keeps all other registers and the flags: so there is no comparison, and `jrcxz`.
global_asm!(
    ".p2align 6",
    ".type rftrace_thread_block,@function",
    "rftrace_thread_block:",
    ".cfi_startproc",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "mov rdx, [rip + {outside} + {tid_at}]",
    "mov edx, fs:[rdx]",
    "movzx r11d, dx",
    "lea rcx, [rip + {table}]",
    "lea r11, [r11 * 8]",
    "lea r11, [rcx + r11 * 8]",
    ".irp place, 0, 1, 2, 3, 4, 5, 6, 7",
    "mov ecx, [r11 + 8 * \\place]",
    "lea ecx, [rcx + rdx]",
    "jrcxz .Lrftrace_word_\\place",
    ".endr",
    "mov r11d, 0",
    ".Lrftrace_no_word:",
    ".cfi_remember_state",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_restore_state",
    ".irp place, 7, 6, 5, 4, 3, 2, 1",
    ".Lrftrace_word_\\place:",
    "lea r11, [r11 + 8]",
    ".endr",
    ".Lrftrace_word_0:",
    "mov r11d, [r11 + 4]",
    "lea rcx, [rip + {blocks}]",
    "mov r11, [rcx + r11 * 8]",
    "jmp .Lrftrace_no_word",
    ".cfi_endproc",
    ".size rftrace_thread_block, . - rftrace_thread_block",
    outside = sym OUTSIDE,
    tid_at = const offset_of!(Outside, tid_at),
    table = sym TABLE,
    blocks = sym BLOCKS,
);
// As the assembly has it.
const _: () = assert!(WORDS == 8 && size_of::<Bucket>() == 64);
// And as the hooks have it: they look at the first word themselves.
const _: () = assert!(offset_of!(Outside, tid_at) == 16);

/// The id of this thread.
pub(crate) fn own_tid() -> u32 {
    let tid;
    // SAFETY: reads the C library's memory for this thread.
    unsafe {
        asm!(
            "mov {tid:e}, fs:[{at}]",
            at = in(reg) OUTSIDE.tid_at.load(Relaxed),
            tid = out(reg) tid,
            options(nostack, preserves_flags, readonly),
        );
    }
    tid
}

/// The word of a thread with a block of this number.
fn word(tid: u32, number: usize) -> u64 {
    (number as u64) << 32 | u64::from(tid.wrapping_neg())
}

fn tid_of(word: u64) -> u32 {
    (word as u32).wrapping_neg()
}

fn number_of(word: u64) -> usize {
    (word >> 32) as usize
}

/// The words that may be a thread's.
fn bucket(tid: u32) -> &'static [AtomicU64; WORDS] {
    // SAFETY: there are as many as the number can be.
    unsafe { &TABLE.get_unchecked(tid as usize % BUCKETS).0 }
}

/// The place of a thread's word.
fn find(tid: u32) -> Option<&'static AtomicU64> {
    bucket(tid).iter().find(|place| tid_of(place.load(Relaxed)) == tid)
}

/// The number of a block; 0 if it is none.
fn number_of_block(block: *mut ThreadBlock) -> usize {
    let first = CONTROL.blocks.load(Relaxed) as usize;
    let number = (block as usize).wrapping_sub(first) / size_of::<ThreadBlock>();
    if block == super::UNTRACED || number >= MOST_THREADS { 0 } else { number.wrapping_add(1) }
}

/// The block of this thread, null before its first traced call.
pub(crate) fn thread_block() -> *mut ThreadBlock {
    match find(own_tid()) {
        Some(place) => BLOCKS.get(number_of(place.load(Relaxed))).map_or(ptr::null_mut(), |it| it.load(Relaxed)),
        None => ptr::null_mut(),
    }
}

/// Sets another block for this thread, which has had one, for a while.
pub(crate) fn set_thread_block(block: *mut ThreadBlock) {
    let number = find(own_tid()).map_or(0, |place| number_of(place.load(Relaxed)));
    if let Some(it) = BLOCKS.get(number).filter(|_| number != 0) {
        it.store(block, Relaxed);
    }
}

/// Sets the block of this thread if it has none. Returns whether it was set: a signal handler may have been faster; or there are too many threads
/// with the same low bits of their ids.
pub(crate) fn set_first_thread_block(block: *mut ThreadBlock) -> bool {
    let (tid, number) = (own_tid(), number_of_block(block));
    let new = word(tid, number);
    if number != 0
        && let Some((it, owner)) = BLOCKS.get(number).zip(OWNERS.get(number))
    {
        it.store(block, Relaxed);
        owner.store(tid, Release);
    }
    let is_set = enter(tid, new);
    if !is_set && let Some(owner) = OWNERS.get(number) {
        owner.store(0, Relaxed);
    }
    is_set
}

fn enter(tid: u32, new: u64) -> bool {
    for place in bucket(tid) {
        if find(tid).is_some() {
            return false;
        }
        let now = place.load(Relaxed);
        let is_free = now == 0 || has_ended(tid_of(now));
        if is_free && place.compare_exchange(now, new, Release, Relaxed).is_ok() {
            // A handler just before has another place, if one became free meanwhile.
            let is_only = bucket(tid).iter().filter(|place| tid_of(place.load(Relaxed)) == tid).count() == 1;
            if !is_only {
                place.store(0, Relaxed);
            }
            return is_only;
        }
    }
    false
}

/// The id of a block's thread, and 0 if it is nobody's.
pub(crate) fn tid_of_block(block: *mut ThreadBlock) -> u32 {
    OWNERS.get(number_of_block(block)).map_or(0, |owner| owner.load(Acquire))
}

/// Takes the block from an ended thread. Returns true if it was this thread's, and nobody has it now.
pub(crate) fn forget_thread(tid: u32, block: *mut ThreadBlock) -> bool {
    let number = number_of_block(block);
    let is_own = OWNERS.get(number).is_some_and(|it| it.compare_exchange(tid, 0, Acquire, Relaxed).is_ok());
    if !is_own {
        return false;
    }
    for place in bucket(tid) {
        let _ = place.compare_exchange(word(tid, number), 0, Relaxed, Relaxed);
    }
    // Another one may have got its id since, and found the block by it: it keeps the block, in both their names.
    has_ended(tid)
}

/// True if this process has no such thread any more.
pub(crate) fn has_ended(tid: u32) -> bool {
    const GETPID: usize = 39;
    const TGKILL: usize = 234;
    const ESRCH: isize = -3;

    let process = system_call(GETPID, 0, 0);
    system_call(TGKILL, process as usize, tid as usize) == ESRCH
}

/// A system call with two arguments, and 0 as the third one.
fn system_call(number: usize, first: usize, second: usize) -> isize {
    let result;
    // SAFETY: every caller passes one that changes no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

// Code for a borrowed thread: a system call, and a frame's return address, to give it its registers back. Not all
// programs have these.
global_asm!(
    ".globl rftrace_outside_call",
    ".type rftrace_outside_call,@function",
    "rftrace_outside_call:",
    "syscall",
    "ret",
    ".size rftrace_outside_call, . - rftrace_outside_call",
    ".globl rftrace_outside_restorer",
    ".type rftrace_outside_restorer,@function",
    "rftrace_outside_restorer:",
    "mov rax, 15", // rt_sigreturn
    "syscall",
    ".size rftrace_outside_restorer, . - rftrace_outside_restorer",
);
