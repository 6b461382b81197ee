//! Puts the tracer into a program that runs, and takes it out again.
//!
//! - `sys` has the system calls, `status` what `/proc` tells of a thread, `call` has system calls begin again that were interrupted, `stop` has a thread stop, `frame` is what makes a
//!   borrowed thread go on by itself.
//! - `process` is a process as it is seen from outside, `refusal` says why one cannot be attached to.
//! - `needs` are the system calls that are made in it, `bpf` tells what a filter of system calls does with one, `confined` refuses a process whose filters do not let
//!   them pass.
//! - `callers` tells which functions a thread is in, `place` where it may be borrowed, `borrowed` is a thread that works for this process, `world` all others, stopped;
//!   `sleepers` are those of them that cannot be, and others in their memory.
//! - `left` are files and memory that killed recorders left in it, for the next one to remove; `owner` tells whose memory that is.
//! - `names` are those of the libraries in the process; `library` brings the tracer's library into the process, and that for resources, `stacks` gives return addresses back.
//! - `signal` sends a thread a signal that ends no wait of it.
//! - `branches` are those at functions' beginnings: the pass that changes code. `stubs` are what they lead to where no library makes it.
//! - `started` is a program that this process starts, held where the tracer can be put into it.
//! - `wanted` is what is recorded of a process, and how. `attached` is the whole where there is a library: begin, look, leave. `outside` is the same where there is none, with the tracer's `image` and the recorder's `bank`, the
//!   `jumps` that lead there, the `filter` of what is recorded, and the program's `unwinder`, which is told of the tracer or finds it by the program's
//!   `headers`; `way` chooses.
//!
//! Not here: what the library does there (`rftrace-preload`), and what becomes of what it records (`rftrace-record`).
//!
//! **Invariant**: a thread that is borrowed can go on by itself at each moment, as if a signal's handler had returned. So a program
//! outlives the end of this process, whenever that comes.
//!
//! **Invariant**: only `branches` and `jumps` change the program's code, and no memory of it that can be written becomes executable.

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
