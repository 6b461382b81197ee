//! The attach options for one process.

use std::path::PathBuf;

use rftrace_format::passed::Passed;
use rftrace_frontend::Ends;

/// The options of a recording. By default it records all calls of the tracer, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The path of the tracer's library, which is loaded into the process.
    pub library: PathBuf,
    /// The filter rules, in the frontend's language; empty to record everything.
    pub filter: String,
    /// True to record the program's calls of library functions too. The program then need not call the tracer.
    pub has_library_calls: bool,
    /// The patterns of functions that get a branch at their beginning: `GLOB`, `/REGEX/`, either with `@MODULE`. These
    /// functions need not call the tracer.
    pub branches: Vec<String>,
    /// The symbols of functions that get no branch.
    pub exceptions: Vec<String>,
    /// The way to see the ends of functions with branches; `None` for the way that the program needs.
    pub ends: Option<Ends>,
    /// The folder of programs that get branches. Other programs get none.
    pub within: Option<PathBuf>,
    /// True to begin with recording off.
    pub is_disabled: bool,
    /// True to turn calls of the tracer into NOPs and jumps.
    pub is_patched: bool,
    /// The socket that answers questions about functions' values, if that is needed.
    pub types: Option<Passed>,
    /// The options for recording resources, if they are recorded.
    pub resources: Option<ResourcesWanted>,
}

/// The options for recording allocations and releases of resources.
#[derive(Clone, Debug)]
pub struct ResourcesWanted {
    /// The path of the library for resources, which is loaded into the process.
    pub library: PathBuf,
    /// The method of finding callers, as the library names it.
    pub backtraces: &'static str,
    /// The specified functions, if there are any.
    pub specified: Option<Specified>,
}

/// Specified functions in the form for the library.
#[derive(Clone, Debug)]
pub struct Specified {
    /// The table of their effects.
    pub table: Vec<u8>,
    /// The functions' numbers in the table and their names, as lines `NUMBER NAME`.
    pub names: String,
}

impl Wanted {
    /// True if functions that do not call the tracer are hooked.
    pub(crate) fn hooks_others(&self) -> bool {
        self.has_library_calls || !self.branches.is_empty()
    }
}
