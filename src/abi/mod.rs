//! The interface of the tracer and its frontends: records, chunks, per-thread blocks, filters and the control block.
//!
//! This folder is compiled into both sides and is the only definition. **A change of any layout or meaning in it must
//! raise [`VERSION`] and the suffix of the two versioned symbols** (`rftrace_backend_init_v10`,
//! `rftrace_backend_control_v10`). Sides of different versions then fail to link instead of misreading each other.
//!
//! This file has the symbols and the version. The other files, whose items are all re-exported here:
//!
//! - `record.rs`: one event.
//! - `chunk.rs`: chunks of records, their owners, and the division of a buffer into chunks.
//! - `thread.rs`: the data of a thread: its return stack, and frames that it has left without a return.
//! - `values.rs`: codes of arguments and results, the tables of recorded values, and watches on calls.
//! - `filter.rs`: filters.
//! - `control.rs`: the state shared by all threads, and the memory from a frontend.
//! - `outside.rs`: data shared with the process that puts the tracer into another one.
//!
//! # Symbols of the backend
//!
//! | symbol | effect |
//! |---|---|
//! | `mcount`, `__fentry__` | the hooks that compilers call in function prologues |
//! | `rftrace_patched_mcount`, `rftrace_patched_fentry` | the hooks for patched call sites, see below |
//! | `rftrace_entry` | the hook for entry branches, see below; on aarch64 for functions with room for a branch |
//! | `rftrace_entry_with_ends` | on x86-64 the hook for entry branches of functions with branches at their ends; the return address stays |
//! | `rftrace_keeping_entry` | on aarch64 the hook for entry branches |
//! | `rftrace_backend_keep_scalable()` | on aarch64 processors with scalable vectors: hooks keep them from now on. Call it before there are entry branches |
//! | `rftrace_backend_use_lse()` | on aarch64, if all processors have the atomic instructions of Armv8.1: hooks use them from now on |
//! | `rftrace_sled_entry`, `rftrace_sled_exit` | on x86-64 Linux the hooks that XRay's sleds call, at the beginning and at the ends of a function |
//! | `rftrace_backend_init_v10(*const InitArgs) -> u32` | takes the memory for records; returns an [`init`] status |
//! | `rftrace_backend_control_v10() -> *const Control` | returns the control block, for reading the chunks |
//! | `rftrace_backend_enable()` | starts recording |
//! | `rftrace_backend_disable()` | stops recording |
//! | `rftrace_backend_begin_disable() -> u32` | marks that recording is about to stop; an enable removes the mark |
//! | `rftrace_backend_end_disable(u32) -> u8` | takes the result of `begin_disable`: stops recording if no enable came between, otherwise returns 0 |
//! | `rftrace_backend_reset()` | while recording is off: frees all full chunks and starts a new cycle |
//! | `rftrace_backend_filter(u8)` | not 0: recording is filtered by [`FilterControl`]; 0: everything is recorded |
//! | `rftrace_backend_suspend_thread() -> *mut ThreadBlock` | stops recording the calling thread until it resumes |
//! | `rftrace_backend_resume_thread(*mut ThreadBlock)` | takes the result of `suspend_thread`: records the thread again |
//! | `rftrace_backend_exclude_thread(*mut ThreadBlock,u8)` | not 0: excludes that thread from now on; 0: includes it again. Any thread may call it |
//! | `rftrace_backend_thread() -> *const ThreadBlock` | returns the block of the calling thread; null or 1 if it is not traced. A thread may read its own return stack in it |
//! | `rftrace_backend_trampoline() -> usize` | returns the address to which hooked functions return; on x86-64 one of several in one block |
//! | `rftrace_backend_thread_exit(*mut ThreadBlock)` | ends the calling thread, which has this block (or null) |
//! | `rftrace_backend_confine()` | the tracer makes no system call from now on, see [`FilterControl::confined`] |
//! | `rftrace_backend_set_core(u32)` | sets the core on which the calling thread runs from now on |
//! | `rftrace_backend_forked(*const InitArgs) -> u32` | in the child of a fork: forgets the other threads and begins a new cycle; not null: in that buffer, like init |
//! | `rftrace_backend_switch() -> *const Switch` | returns the switch that the hooks read first |
//! | `__monstartup`, `_mcleanup` | on Linux: no effect; they replace gprof's start-up code (linked by `-pg`) |
//!
//! # Patched call sites
//!
//! On aarch64 the hooks are `_mcount` and `mcount`, and there are none for patched call sites.
//!
//! A frontend may replace the five bytes of a `call mcount` by a jump to its own stub. The stub puts the address behind
//! the call (`child_ip`) into r11 and jumps to `rftrace_patched_mcount`, which jumps back to that address. The stack
//! and all other registers are as at the call, and rsp has its value from before the call.
//!
//! So calls and returns of the traced function are paired for the processor's return predictor.
//! `rftrace_patched_fentry` does the same for `__fentry__`.
//!
//! # Entry branches
//!
//! A frontend may replace the first instructions of a function without a hook by a jump to its own stub. The stub
//! pushes the address of a copy of these instructions, then the address of the function, and jumps to `rftrace_entry`.
//! The hook records the function by its address, keeps all registers except the flags, pops both words and jumps to the
//! copy.
//!
//! The function returns through a trampoline that keeps all registers too: its callers were not compiled for hooks, and
//! may rely on any register left unchanged by the function.
//!
//! On aarch64 the jump replaces one instruction, at a place where sp is the CFA. The stub jumps to
//! `rftrace_keeping_entry` with x30 = the return address, not signed, and x17 = the resume address. In front of that
//! address lie the function's address << 16, the distance of the thread's words from tpidr_el0, and the hook's address.
//!
//! The hook keeps all registers except x16 and x17, and returns by `br x17`.
//!
//! # Sleds
//!
//! Compilers leave sleds for XRay in a function's code, and a frontend may write calls into them: a call of
//! `rftrace_sled_entry` at the beginning of the function, before its first instruction, and a call of
//! `rftrace_sled_exit` before each `ret` and each jump to another function, when the frame is gone. In both, the
//! function's return address lies directly above that of the call.
//!
//! The hooks keep all registers except the flags. They record the function by the address behind its first call. The
//! return address stays in place: see [`UNHOOKED`]. If a function ends without a call, the thread's next record ends
//! it.
//!
//! # The feature `threadhook`
//!
//! A kernel whose tasks have no thread-local storage at `fs` defines the function `rftrace_thread_area`. It returns in
//! r11 the address of the running task's [`ThreadArea`], and changes no other register and no flag.
//!
//! The tracer then also exports `rftrace_untraced_area`; the function may return its address while no task runs. See
//! docs/kernels.md.

//!
//! # The feature `outside`
//!
//! `rftrace record -p` puts this tracer into a process without a library for it: it maps and relocates the image. The
//! tracer then has no thread-local storage. It knows a thread by its id, at an offset from `fs` in the C library's
//! data.
//!
//! It exports `rftrace_outside`, an [`Outside`], and `rftrace_outside_begin(*const InitArgs)`, which does the same as
//! init and stores the result in `Outside::status`. It notices ended threads when others begin.

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

/// The version of this interface, a part of the names of `rftrace_backend_init_v10` and `rftrace_backend_control_v10`.
pub const VERSION: u32 = 10;
/// The oldest version with the same meaning of records and chunks.
pub const OLDEST_RECORDS: u32 = 5;
