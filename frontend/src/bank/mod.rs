//! Banks: memory owned by a recorder and written by recorded processes, so records outlive the processes however these
//! end.
//!
//! - `file`: the layout; `handover`: the protocol between both sides; `request`: requests to a running process.
//! - `client`: a recorded process's side of its bank; `child`: the same in the child of a fork; `described`: the
//!   recorder in place of a process without the library.
//! - `journal`: unloaded libraries and marks in a bank; `told`: these as events; `history`: the modules of a process
//!   over time.
//! - `collect`: the recorder's work on all banks while programs run; `pace`: its frequency; `stuck`: waits in vain;
//!   `numbers`: PIDs in containers.
//! - `spool`: its output file; `collected`: the result; `dump`: copies at a moment, with the open functions from
//!   `open`.
//! - `about`: facts about the process, beside its spool; `facts`: data of the program; `world`: the machine.
//! - `save`: makes a directory of the collected data.
//! - `tap`: shows records at once; `live`: the same without a spool, with `names` for it.
//! - `writer`: a recorder in the program itself.
//!
//! The overview is in docs/banks.md.
//!
//! Not here: a hook's wait for a free chunk (the tracer), and the recorder's messages to its user (`rftrace-record`).

#[cfg(target_os = "linux")]
mod about;
#[cfg(target_os = "linux")]
pub(crate) mod child;
#[cfg(not(target_os = "linux"))]
#[path = "none.rs"]
pub(crate) mod client;
#[cfg(target_os = "linux")]
pub(crate) mod client;
#[cfg(target_os = "linux")]
pub(crate) mod collect;
#[cfg(target_os = "linux")]
mod collected;
#[cfg(target_os = "linux")]
mod described;
#[cfg(target_os = "linux")]
mod dump;
#[cfg(target_os = "linux")]
mod facts;
#[cfg(target_os = "linux")]
pub(crate) mod file;
#[cfg(target_os = "linux")]
mod handover;
#[cfg(target_os = "linux")]
mod history;
#[cfg(target_os = "linux")]
mod journal;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod numbers;
#[cfg(target_os = "linux")]
mod open;
#[cfg(target_os = "linux")]
mod pace;
#[cfg(target_os = "linux")]
mod request;
#[cfg(target_os = "linux")]
pub(crate) mod save;
#[cfg(target_os = "linux")]
mod spool;
#[cfg(target_os = "linux")]
mod stuck;
#[cfg(target_os = "linux")]
mod tap;
#[cfg(target_os = "linux")]
mod told;
#[cfg(target_os = "linux")]
pub mod word;
#[cfg(target_os = "linux")]
mod world;
#[cfg(target_os = "linux")]
pub(crate) mod writer;

#[cfg(target_os = "linux")]
pub use about::{About, Extent};
pub use client::Bank;
#[cfg(target_os = "linux")]
pub use client::memory_of_tracer;
#[cfg(target_os = "linux")]
pub use collect::{Banks, Options};
#[cfg(target_os = "linux")]
pub use collected::{Collected, Death, Dump, Life, Written};
#[cfg(target_os = "linux")]
pub use described::{Described, Places, Tracer};
#[cfg(target_os = "linux")]
pub use dump::{NoDump, Notice};
#[cfg(target_os = "linux")]
pub use file::{RAISED, owner_of};
#[cfg(target_os = "linux")]
pub use journal::Loaded;
#[cfg(target_os = "linux")]
pub use live::{Live, Moment, Take};
#[cfg(target_os = "linux")]
pub use names::Names;
#[cfg(target_os = "linux")]
pub use numbers::{folder_of, living_thread, own_number};
#[cfg(target_os = "linux")]
pub use pace::{Fill, SHORTEST_PAUSE};
#[cfg(target_os = "linux")]
pub use request::{Answer, Asked, MOST_ANSWER_BYTES, NotAsked, State, functions_above};
#[cfg(target_os = "linux")]
pub use save::{SavedBank, Symbols, ToldModules};
#[cfg(target_os = "linux")]
pub use spool::SPOOL_VERSIONS;
#[cfg(target_os = "linux")]
pub use spool::spools;
#[cfg(target_os = "linux")]
pub use tap::Seen;
#[cfg(target_os = "linux")]
pub use told::Marked;
