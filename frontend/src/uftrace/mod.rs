//! Writing a trace directory: `directory` puts the files in place, `task` writes the records of one, `modules` lists
//! the modules; `raw` writes the records alone. The format of their bytes is in `rftrace-format`.
//!
//! Not here: symbol files (`elf::symfile`).

pub(crate) mod directory;
mod modules;
#[cfg(feature = "std")]
pub(crate) mod raw;
mod task;
