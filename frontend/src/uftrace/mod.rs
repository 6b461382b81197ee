//! Writing a trace directory: `directory` puts the files in place, `task` writes the records of one, `modules` knows which modules there
//! are, `symfile` makes the files of their symbols; `raw` writes the records alone. The format of their bytes is in `rftrace-format`.

pub(crate) mod directory;
mod modules;
#[cfg(feature = "std")]
pub(crate) mod raw;
#[cfg(target_os = "linux")]
pub(crate) mod symfile;
mod task;
