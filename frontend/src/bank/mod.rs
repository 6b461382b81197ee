//! Banks: memory that a recorder owns and that recorded processes write to, so that what is recorded outlives them however they end.
//!
//! `file` is the layout, `handover` how both sides hand over what lies there, `journal` what is told of libraries in it, `history` which modules a process has had, `told` what that is, `own` what a recorded process does with its bank, `described` what the recorder does of that for one that has no library in it, `child` what the child of a fork does, `collect` what the recorder does with all of them
//! while programs run, `pace` how often, `stuck` whether threads wait in vain, `numbers` what those in containers call themselves, `tap` what of it is shown at once, `collected` what that leaves, `dump` how it copies what is there at a moment, with the names of functions that `open` finds, `spool` the file that it writes, `about` what is beside that, `facts` what is kept of the program, and where it is sent `whole`, which says all, of the machine too (`world`), `save` how what it collected of a process becomes a directory; `live`
//! how a recorder looks at what is recorded at once, and writes nothing, with `names` for it; `writer` is a recorder in the program itself. docs/banks.md tells of the whole.
//!
//! Not here: how a hook waits for a free chunk (the tracer), and what the recorder says to its user (`rftrace-record`).

#[cfg(target_os = "linux")]
mod about;
#[cfg(target_os = "linux")]
pub(crate) mod child;
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
#[cfg(not(target_os = "linux"))]
#[path = "none.rs"]
pub(crate) mod own;
#[cfg(target_os = "linux")]
pub(crate) mod own;
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
mod whole;
#[cfg(target_os = "linux")]
pub mod word;
#[cfg(target_os = "linux")]
mod world;
#[cfg(target_os = "linux")]
pub(crate) mod writer;

#[cfg(target_os = "linux")]
pub use about::{Extent, told_bytes};
#[cfg(target_os = "linux")]
pub use collect::{Banks, Options};
#[cfg(target_os = "linux")]
pub use collected::{Collected, Death, Dump, Written};
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
pub use own::Bank;
#[cfg(target_os = "linux")]
pub use own::memory_of_tracer;
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
