//! Writing a trace directory: `directory` puts the files in place, `symfile` makes those of symbols. What their bytes are is
//! in the crate `rftrace-format`.

pub(crate) mod directory;
#[cfg(target_os = "linux")]
pub(crate) mod symfile;
