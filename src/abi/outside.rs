//! The data shared by a tracer put into a process from outside and the process that put it there: the feature
//! `outside`, on x86-64 Linux. It is a symbol of the tracer, `rftrace_outside`. Fields are zero unless stated
//! otherwise.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use super::control::{Control, Switch};

/// The maximum number of functions whose first instruction may become a jump to the tracer.
pub const MOST_JUMPS: usize = 16;
/// The size in bytes of such a jump, `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// The maximum number of threads recorded at the same time.
pub const MOST_THREADS: usize = 8192;
/// The number of words for the unwinder's registration of unwind information.
pub const REGISTRATION_WORDS: usize = 16;

/// A function with a possible jump to the tracer as its first instruction. This entry is written before the jump.
#[derive(Debug)]
#[repr(C)]
pub struct Jump {
    /// The address of the function; 0 for none.
    pub function: AtomicUsize,
    /// The function's original first bytes: those under the jump and the following ones.
    pub displaced: AtomicU64,
}

/// The data of the symbol `rftrace_outside`.
#[derive(Debug)]
#[repr(C)]
pub struct Outside {
    /// The tracer's control block; never null.
    pub control: &'static Control,
    /// The tracer's switch; never null.
    pub switch: &'static Switch,
    /// The offset from the address in `fs` to the thread's system id, 4 bytes, in the C library's data of the thread.
    pub tid_at: AtomicUsize,
    /// A table of the system ids of threads: an entry of [`table_stride`](Self::table_stride) bytes for each of the
    /// tracer's thread numbers.
    pub table: AtomicPtr<u8>,
    /// The size of an entry in bytes. Its first 8 bytes are the id.
    pub table_stride: AtomicUsize,
    /// The number of entries.
    pub table_entries: AtomicUsize,
    /// The result of the last init, plus 1.
    pub status: AtomicU32,
    /// Not 0 once the program's unwinder knows the tracer's code.
    pub is_registered: AtomicU32,
    /// The next block to check for an ended thread.
    pub next_looked: AtomicUsize,
    /// The functions with a jump in place.
    pub jumps: [Jump; MOST_JUMPS],
    /// The memory for the unwinder's registration.
    pub registration: [AtomicU64; REGISTRATION_WORDS],
}
