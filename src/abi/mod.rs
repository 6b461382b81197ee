//! Interface of the tracer and its frontends: records, chunks, per-thread blocks and the control block.
//!
//! This folder is compiled into both sides and is the only definition. **A change of any layout or meaning in it
//! must raise [`VERSION`] and the suffix of the two versioned symbols** (`rftrace_backend_init_v10`,
//! `rftrace_backend_control_v10`): sides that do not fit then fail to link instead of misreading each other.
//!
//! Here are the symbols and the version; the rest is in files of their own, whose names are all passed on here:
//!
//! - `record.rs`: one event.
//! - `chunk.rs`: chunks of records, their owners, and how a region is cut into them.
//! - `thread.rs`: the data of a thread: its return stack, and frames that it has left.
//! - `values.rs`: arguments and results: their codes, and tables that tell which are recorded; calls that are watched.
//! - `filter.rs`: filters.
//! - `control.rs`: the state that all threads share, and the memory that a frontend gives.
//! - `outside.rs`: further data shared with a process that puts the tracer into another one.
//!
//! # Symbols of the backend
//!
//! | symbol | what it does |
//! |---|---|
//! | `mcount`, `__fentry__` | the hooks that compilers call in function prologues |
//! | `rftrace_patched_mcount`, `rftrace_patched_fentry` | the same for patched call sites, which jump here, see below |
//! | `rftrace_entry` | the hook of entry branches, which stubs jump to, see below; on aarch64 that of functions with room for a branch |
//! | `rftrace_entry_with_ends` | the same where branches tell of the function's ends, on x86-64: its return address stays |
//! | `rftrace_keeping_entry` | on aarch64 the hook of entry branches |
//! | `rftrace_backend_keep_scalable()` | on aarch64, where the processor has scalable vectors: they are kept from now on. Before there are entry branches |
//! | `rftrace_backend_use_lse()` | on aarch64, where all processors have the atomic instructions of Armv8.1: they are used from now on |
//! | `rftrace_sled_entry`, `rftrace_sled_exit` | the hooks that sleds call, at the beginning of a function and where it ends; on x86-64 Linux |
//! | `rftrace_backend_init_v10(*const InitArgs) -> u32` | takes the memory to record into; returns an [`init`] status |
//! | `rftrace_backend_control_v10() -> *const Control` | the control block, for reading the chunks |
//! | `rftrace_backend_enable()` | starts recording |
//! | `rftrace_backend_disable()` | stops recording |
//! | `rftrace_backend_begin_disable() -> u32` | marks that recording is about to be stopped: an enable takes the mark away |
//! | `rftrace_backend_end_disable(u32) -> u8` | with what the beginning returned: stops recording if no enable came between; else returns 0 |
//! | `rftrace_backend_reset()` | while off: frees all full chunks and starts a new cycle |
//! | `rftrace_backend_filter(u8)` | not 0: recording is filtered as [`FilterControl`] says; 0: everything is recorded |
//! | `rftrace_backend_suspend_thread() -> *mut ThreadBlock` | this thread is not recorded until it resumes |
//! | `rftrace_backend_resume_thread(*mut ThreadBlock)` | with what suspending returned: it is recorded again |
//! | `rftrace_backend_exclude_thread(*mut ThreadBlock,u8)` | not 0: nothing of that thread is recorded from now on; 0: it is again. Any thread may call it |
//! | `rftrace_backend_thread() -> *const ThreadBlock` | what is kept for the calling thread; null or 1 if it is not traced. A thread may read its own return stack by it |
//! | `rftrace_backend_trampoline() -> usize` | what hooked functions return to; on x86-64 one of several that lie in one block |
//! | `rftrace_backend_thread_exit(*mut ThreadBlock)` | the calling thread, whose block this is (or null), ends |
//! | `rftrace_backend_confine()` | the tracer makes no system call from now on, see [`FilterControl::confined`] |
//! | `rftrace_backend_set_core(u32)` | the calling thread runs on this core from now on |
//! | `rftrace_backend_forked(*const InitArgs) -> u32` | in the child of a fork: forgets the other threads, begins a new cycle; not null: in that buffer, like init |
//! | `rftrace_backend_switch() -> *const Switch` | what the hooks look at first |
//! | `__monstartup`, `_mcleanup` | on Linux: nothing; they keep gprof's start-up code (linked by `-pg`) quiet |
//!
//! # Patched call sites
//!
//! On aarch64 the hooks are `_mcount` and `mcount`, and there are none for patched call sites.
//!
//! A frontend may replace the five bytes of a `call mcount` by a jump to a stub of its own, which puts the address behind
//! the call (`child_ip`) into r11 and jumps to `rftrace_patched_mcount`; that comes back with a jump to the address. The
//! stack and all other registers are as at the call, rsp where it was before it. Calls and returns of the traced function
//! then are paired for the processor's return predictor. `rftrace_patched_fentry` is the same for `__fentry__`.
//!
//! # Entry branches
//!
//! A frontend may replace the first instructions of a function that calls no hook by a jump to a stub of its own, which pushes the
//! address where the function goes on (a copy of these instructions) and then that of the function, and jumps to `rftrace_entry`.
//! That records the function by its address, keeps all registers but the flags, takes both words off the stack and jumps to
//! the copy. The function returns by a trampoline that keeps all registers too: its callers were not compiled for hooks, and
//! may rely on any register that the function does not change.
//!
//! On aarch64 one instruction is replaced, where sp is the CFA. The stub jumps to `rftrace_keeping_entry` with x30 = the return address, not signed, and
//! x17 = where the function goes on, in front of which are the function's address << 16, the distance of the thread's words from tpidr_el0, and the
//! hook's address. It keeps all but x16 and x17, and comes back by `br x17`.
//!
//! # Sleds
//!
//! A frontend may write calls into the sleds that compilers leave for XRay: of `rftrace_sled_entry` at the beginning of a function, before its
//! first instruction; of `rftrace_sled_exit` before each `ret` and each jump to another function, when its frame is gone. In both its
//! return address lies directly above that of the call. All registers but the flags are kept. The function is recorded by the address
//! behind its first call, and its return address stays what it is: see [`UNHOOKED`]. Where it ends without a call, its exit is recorded
//! by what follows.
//!
//! # The feature `threadhook`
//!
//! A kernel whose tasks have no thread-local storage at `fs` defines `rftrace_thread_area`: it returns in r11 the address of
//! the running task's [`ThreadArea`] and changes no other register and no flag. The tracer then also exports
//! `rftrace_untraced_area`, whose address it may return where no task runs. See docs/kernels.md.

//!
//! # The feature `outside`
//!
//! The tracer is put into a process that has no library for it: the image is mapped and relocated by somebody else (`rftrace record -p`). It then
//! has no thread-local storage: a thread is known by its id, which the C library keeps where `fs` points to. It exports `rftrace_outside`,
//! an [`Outside`], and `rftrace_outside_begin(*const InitArgs)`, which is init and leaves the result there. Threads that have ended
//! are noticed when others begin.

mod chunk;
mod control;
mod filter;
mod outside;
mod record;
mod thread;
mod values;

pub use chunk::*;
pub use control::*;
pub use filter::*;
pub use outside::*;
pub use record::*;
pub use thread::*;
pub use values::*;

/// The version of this interface. Part of the names of `rftrace_backend_init_v10` and `rftrace_backend_control_v10`.
pub const VERSION: u32 = 10;
/// The oldest version whose records and chunks mean the same.
pub const OLDEST_RECORDS: u32 = 5;
