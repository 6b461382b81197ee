//! Attach options for one process.

use std::path::PathBuf;

use rftrace_format::passed::Passed;

/// How to record. By default all calls of the tracer are, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The file of the library that is loaded.
    pub library: PathBuf,
    /// Rules of what is recorded, in the frontend's language; empty for everything.
    pub filter: String,
    /// True to record the program's calls of library functions too: it need not call the tracer then.
    pub has_library_calls: bool,
    /// Which functions get a branch at their beginning: `GLOB`, `/REGEX/`, either with `@MODULE`. These need not call the tracer.
    pub branches: Vec<String>,
    /// Symbols of functions that get none.
    pub exceptions: Vec<String>,
    /// Programs that do not lie below this folder get none at all.
    pub within: Option<PathBuf>,
    /// True to begin with recording switched off.
    pub is_disabled: bool,
    /// True to turn calls of the tracer into NOPs and jumps.
    pub is_patched: bool,
    /// Where somebody answers what values functions have, if that is needed.
    pub types: Option<Passed>,
    /// Options for recording resources, if that is wanted.
    pub resources: Option<ResourcesWanted>,
}

/// Options for recording the acquisition and release of resources.
#[derive(Clone, Debug)]
pub struct ResourcesWanted {
    /// The file of the library that is loaded.
    pub library: PathBuf,
    /// Way to find the callers, in the library's words.
    pub backtraces: &'static str,
    /// Functions that are specified, if there are any.
    pub specified: Option<Specified>,
}

/// Functions that are specified, as the library takes them.
#[derive(Clone, Debug)]
pub struct Specified {
    /// The table of what they do.
    pub table: Vec<u8>,
    /// Their numbers in it and names, as lines `NUMBER NAME`.
    pub names: String,
}

impl Wanted {
    /// True if functions that do not call the tracer are hooked.
    pub(crate) fn hooks_others(&self) -> bool {
        self.has_library_calls || !self.branches.is_empty()
    }
}
