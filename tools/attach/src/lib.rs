//! Puts the tracer into a running program, and removes it again.
//!
//! - `sys` makes the system calls, `status` reads `/proc`. `call` restarts interrupted system calls, `stop` stops a
//!   thread, and `frame` lets a borrowed thread go on by itself.
//! - `process` is a process seen from outside, `refusal` the reason why one cannot be attached to.
//! - `needs` lists the system calls made in it, `bpf` computes the effect of a filter on a call, and `confined` refuses
//!   a process whose filters forbid these calls.
//! - `callers` finds the functions on a thread's stack, `place` whether it may be borrowed. `borrowed` is a thread that
//!   works for this process, `world` all others, stopped; `sleepers` are threads that cannot be stopped, and other
//!   users of their memory.
//! - `left` are files and memory that killed recorders left in it, for the next one to remove; `owner` tells whose
//!   memory that is.
//! - `names` are those of the libraries in the process. `library` loads the tracer's library and that for resources;
//!   `stacks` restores return addresses.
//! - `signal` sends a thread a signal without ending its waits.
//! - `branches` is the pass that writes branches into code. `stubs` are their targets in a process without the library.
//! - `started` is a program that this process starts, held at the place where the tracer can be put into it.
//! - `wanted` has the options. `attached` attaches, maintains and detaches with a library; `outside` does so without
//!   one, with the tracer's `image`, the recorder's `bank`, the `jumps` to the tracer, the `filter`, and the program's
//!   `unwinder`, which is told of the tracer or finds it by the program's `headers`. `way` chooses between both.
//!
//! Not here: the work of the library in the process (`rftrace-preload`), and the use of its records (`rftrace-record`).
//!
//! **Invariant**: a borrowed thread can go on by itself at each moment, as if a signal handler had returned. So a
//! program survives the end of this process at any time.
//!
//! **Invariant**: only `branches` and `jumps` change the program's code, and no writable memory of it becomes
//! executable.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(unsafe_code)]

mod attached;
mod bank;
mod borrowed;
mod bpf;
mod branches;
mod call;
mod callers;
mod confined;
mod filter;
mod frame;
mod headers;
mod image;
mod jumps;
mod left;
mod library;
mod names;
mod needs;
mod outside;
mod owner;
mod place;
mod process;
mod refusal;
mod signal;
mod sleepers;
mod stacks;
mod started;
mod status;
mod stop;
mod stubs;
mod sys;
mod unwinder;
mod wanted;
mod way;
mod world;

pub use attached::{Files, State};
pub use bank::BankPlaces;
pub use bpf::Call;
pub use branches::NoBranch;
pub use call::begin_again;
pub use needs::needed_calls;
pub use outside::Mapped;
pub use process::OtherRoot;
pub use signal::send_unseen;
pub use started::Started;
pub use wanted::{ResourcesWanted, Specified, Wanted};
pub use way::{Attached, leave, owner};
