//! Functions that call no hook: the writer of their hooks, and the outcome for those that were to get a branch, as the API shows it.

use std::fmt;

use rftrace_format::recording::{EntriesLine, Share};

/// Writer of the branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EntryWay {
    /// This thread, the only one there is. The first choice in a program's life is the only one.
    #[default]
    Itself,
    /// An outside writer that stops all threads and gets the branches from `prepared_branches`. Each choice replaces the one before; stubs made
    /// for that are used again.
    Outside,
}

/// How the ends of functions are seen that call no hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// By their return address, which is replaced while they run.
    #[default]
    Returns,
    /// By branches where they return or jump to another function. Return addresses stay. An end without room for a branch is recorded with what
    /// the thread does next. On x86-64, in a program that does not run yet; elsewhere as [`Self::Returns`].
    Exits,
}

/// Outcome for the functions that [`Config::entry_branches`](crate::Config::entry_branches) names, and for
/// [library calls](crate::Config::library_calls).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryBranches {
    /// Functions that are recorded by a branch at their beginning.
    pub patched: usize,
    /// The others, by module and address.
    pub left_out: Vec<LeftOut>,
    /// Those that are recorded, but of which an end is recorded late.
    pub late: Vec<LeftOut>,
    /// Functions of other modules that are recorded where the program calls them.
    pub library_calls: usize,
    /// The others, by address.
    pub calls_left_out: Vec<LeftOut>,
    /// Message of the system's last refusal.
    pub refusal: Option<String>,
}

impl EntryBranches {
    /// Lines of it for `rftrace record`, of the program with this path.
    #[doc(hidden)]
    #[must_use]
    pub fn lines(&self, program: &str) -> String {
        let share =
            |n_done: usize, left_out: &[LeftOut]| Share { done: n_done as u64, of: (n_done + left_out.len()) as u64 };
        let functions = share(self.patched, &self.left_out);
        let library_calls = share(self.library_calls, &self.calls_left_out);
        let mut text = EntriesLine::Program { name: program, functions, library_calls }.to_string();
        for LeftOut { module, address, name, reason } in
            self.left_out.iter().chain(&self.late).chain(&self.calls_left_out)
        {
            text += &EntriesLine::LeftOut(&format!("{module}\t{address:#x}\t{name}\t{reason}")).to_string();
        }
        text
    }

    /// Nothing was to be done.
    pub(super) const fn nothing() -> Self {
        Self {
            patched: 0,
            left_out: Vec::new(),
            late: Vec::new(),
            library_calls: 0,
            calls_left_out: Vec::new(),
            refusal: None,
        }
    }
}

/// A function that has no branch, or whose calls are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The file name of its module.
    pub module: String,
    /// Its address, as in the file, or that of the slot by which it is called.
    pub address: u64,
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: WholeReason,
}

/// Why a function is left whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WholeReason {
    /// It uses flags that it has not set: it may be a part of another function.
    Part,
    /// It uses registers that it has not set and that calls may change on their way (x16 and x17 of aarch64): it may be a part of another function.
    Registers,
    /// It jumps to its own beginning, so a branch there would count turns of a loop.
    Loop,
    /// It is shorter than a branch, and nothing unused follows.
    Short,
    /// Something jumps, or points, into its first instructions.
    Target,
    /// Its first instructions must stay where they are.
    Instruction,
    /// It returns twice, or on another stack, or asks for its caller, or does what no hook may.
    Special,
    /// It calls a hook itself.
    CallsHook,
    /// Its bytes are not those of the file: somebody else has changed them.
    Changed,
    /// Its code, or its file, cannot be read.
    Unreadable,
    /// No unwind information tells that it is a function, and where it ends.
    Unlisted,
    /// There is no executable memory within 2 GiB.
    NoStubs,
    /// The system does not let code be changed.
    NotWritable,
    /// Other threads run already.
    Threads,
    /// A branch would lie in two pages, which are not written at one time.
    Pages,
    /// The program asks for its address, for more than to call it.
    Pointer,
    /// It was not there when the program began.
    Unbound,
    /// Calls of it authenticate what its slot holds, which is not signed by the tracer (`-z pac-plt` of aarch64).
    Authenticated,
    /// It has a branch, but one of its ends has no room for one.
    LateEnd,
}

impl fmt::Display for WholeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Part => "takes flags from where it was jumped to",
            Self::Registers => "takes registers from where it was jumped to",
            Self::Loop => "jumps to its own beginning",
            Self::Short => "shorter than a branch",
            Self::Target => "its first instructions are jumped to",
            Self::Instruction => "its first instructions must stay where they are",
            Self::Special => "returns twice or on another stack, or asks who has called it",
            Self::CallsHook => "calls the tracer itself",
            Self::Changed => "changed by somebody else",
            Self::Unreadable => "its file cannot be read",
            Self::Unlisted => "no unwind information tells where it ends",
            Self::NoStubs => "no executable memory within reach",
            Self::NotWritable => "the system does not let code be changed",
            Self::Threads => "other threads run already",
            Self::Pages => "a branch would lie in two pages, which are not written at one time",
            Self::Pointer => "its address is used for more than calls",
            Self::Unbound => "not there when the program began",
            Self::Authenticated => "its slot has to be signed",
            Self::LateEnd => "one of its ends has no room for a branch: recorded late",
        })
    }
}
