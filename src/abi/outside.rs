//! Data shared by a tracer put into a process from outside and the process that put it there: the feature `outside`, on x86-64 Linux. It is
//! a symbol of the tracer, `rftrace_outside`, all of which is zero where nothing else is said.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use super::control::{Control, Switch};

/// Functions of a program whose first instruction may become a jump to the tracer.
pub const MOST_JUMPS: usize = 16;
/// Bytes of such a jump, `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// Threads that can be recorded at the same time.
pub const MOST_THREADS: usize = 8192;
/// Words that the unwinder of a program wants, for what it is told of.
pub const REGISTRATION_WORDS: usize = 16;

/// A function whose first instruction may be a jump to the tracer. It is written here before there is a jump.
#[derive(Debug)]
#[repr(C)]
pub struct Jump {
    /// The address of the function; 0 for none.
    pub function: AtomicUsize,
    /// The bytes that the jump takes the place of, with those behind them.
    pub displaced: AtomicU64,
}

/// See above.
#[derive(Debug)]
#[repr(C)]
pub struct Outside {
    /// The tracer's control block, always.
    pub control: &'static Control,
    /// And its switch.
    pub switch: &'static Switch,
    /// Where a thread's own id is, from the address in `fs` on: 4 bytes, in what the C library keeps of a thread.
    pub tid_at: AtomicUsize,
    /// Where it is written what the system calls the thread with the tracer's number n: [`table_stride`](Self::table_stride) bytes for each.
    pub table: AtomicPtr<u8>,
    /// See there. The first 8 bytes are the id.
    pub table_stride: AtomicUsize,
    /// How many there are.
    pub table_entries: AtomicUsize,
    /// The result of the last init, plus 1.
    pub status: AtomicU32,
    /// Not 0: the program's unwinder was told of the tracer's code.
    pub is_registered: AtomicU32,
    /// The block at whose thread it is looked next, whether it has ended.
    pub next_looked: AtomicUsize,
    /// Functions that have become jumps.
    pub jumps: [Jump; MOST_JUMPS],
    /// For the unwinder.
    pub registration: [AtomicU64; REGISTRATION_WORDS],
}
