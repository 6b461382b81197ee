//! Functions without a hook: the writer of their branches, and the result for functions chosen to get a branch.

use std::fmt;

use rftrace_format::recording::{EntriesLine, Share};

/// Writer of the branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EntryWay {
    /// This thread, the only one there is. The first choice in a program's life is the only one.
    #[default]
    Itself,
    /// An outside writer that stops all threads and gets the branches from `prepared_branches`. Each choice replaces
    /// the one before; its stubs are reused.
    Outside,
}

/// The way in which the tracer notices the end of a function without a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// By its return address, replaced by the tracer while the function runs.
    #[default]
    Returns,
    /// By branches at each return and at each jump to another function. Return addresses stay as they are. An end
    /// without room for a branch is recorded with the thread's next event. Only on x86-64; elsewhere the same as
    /// [`Self::Returns`].
    Exits,
}

/// The result for the functions chosen by [`Config::entry_branches`](crate::Config::entry_branches), and for
/// [library calls](crate::Config::library_calls).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryBranches {
    /// The number of functions recorded by a branch at their beginning.
    pub patched: usize,
    /// The chosen functions without a branch, by module and address.
    pub left_out: Vec<LeftOut>,
    /// The recorded functions with a late record of an end.
    pub late: Vec<LeftOut>,
    /// The number of functions of other modules recorded at the program's calls.
    pub library_calls: usize,
    /// The unrecorded functions of other modules, by address.
    pub calls_left_out: Vec<LeftOut>,
    /// The message for the last refusal by the system; `None` without one.
    pub refusal: Option<String>,
}

impl EntryBranches {
    /// Returns the lines for `rftrace record`, for the program with this path.
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

/// A function without a branch, or without recorded calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The file name of its module.
    pub module: String,
    /// The function's address in the file, or the address of the slot for its calls.
    pub address: u64,
    /// The function's name.
    pub name: String,
    /// The reason.
    pub reason: WholeReason,
}

/// The reason why a function gets no branch, or why its calls are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WholeReason {
    /// It reads flags before setting them, so it may be a part of another function.
    Part,
    /// It reads registers that calls may change on their way (x16 and x17 of aarch64) before setting them, so it may be
    /// a part of another function.
    Registers,
    /// It jumps to its own beginning, so a branch there would count turns of a loop.
    Loop,
    /// It is shorter than a branch, and no unused bytes follow.
    Short,
    /// A jump or pointer leads into its first instructions.
    Target,
    /// Its first instructions cannot be moved.
    Instruction,
    /// It returns twice or on another stack, asks for its caller, or does something else that a hook must not do.
    Special,
    /// It calls a hook itself.
    CallsHook,
    /// Its bytes differ from those in the file: somebody else has changed them.
    Changed,
    /// Its code or its file cannot be read.
    Unreadable,
    /// No unwind information lists it as a function and gives its end.
    Unlisted,
    /// No executable memory is available within 2 GiB.
    NoStubs,
    /// The system refuses changes of code.
    NotWritable,
    /// Other threads run already.
    Threads,
    /// The branch would cross a page boundary, and two pages cannot be written at one time.
    Pages,
    /// The program uses its address for more than calls.
    Pointer,
    /// It was not loaded at the beginning of the program.
    Unbound,
    /// Its calls authenticate the pointer in its slot, and the tracer cannot sign pointers (`-z pac-plt` of aarch64).
    Authenticated,
    /// It has a branch, but one of its ends has no room for a branch.
    LateEnd,
}

impl fmt::Display for WholeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Part => "reads flags that it has not set",
            Self::Registers => "reads registers that it has not set",
            Self::Loop => "jumps to its own beginning",
            Self::Short => "shorter than a branch",
            Self::Target => "a jump leads into its first instructions",
            Self::Instruction => "its first instructions cannot be moved",
            Self::Special => "returns twice or on another stack, or asks for its caller",
            Self::CallsHook => "calls the tracer itself",
            Self::Changed => "its code differs from its file",
            Self::Unreadable => "cannot read its file",
            Self::Unlisted => "no unwind information names its end",
            Self::NoStubs => "no executable memory within reach",
            Self::NotWritable => "the system refuses changes of code",
            Self::Threads => "other threads run already",
            Self::Pages => "a branch would cross a page boundary",
            Self::Pointer => "the program uses its address for more than calls",
            Self::Unbound => "not loaded at the start of the program",
            Self::Authenticated => "its slot needs a signed pointer",
            Self::LateEnd => "one of its ends has no room for a branch: recorded late",
        })
    }
}
