//! Writing uftrace's data directory: [`format`](self::format) describes it, [`encode`] makes its parts, [`directory`] puts them in place.

pub(crate) mod directory;
pub(crate) mod encode;
pub(crate) mod format;
#[cfg(target_os = "linux")]
pub(crate) mod symfile;
