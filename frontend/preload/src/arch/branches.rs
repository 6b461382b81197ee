//! Functions that call no hook: which get a branch at their beginning, whether those of libraries are recorded where they are called, and
//! what became of them.
//!
//! Not here: how that is done (`rftrace-frontend`).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rftrace_format::branches::RUNTIMES;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::passed::Passed;
use rftrace_format::recording::EntriesLine;
use rftrace_format::setting::Settings;
use rftrace_frontend::bank::Bank;
use rftrace_frontend::{Config, Ends, Tracer, patchable_entries};

/// Which functions are hooked.
#[derive(Debug)]
pub(crate) struct Branches {
    /// None, if this program is not one that has branches.
    patterns: Vec<String>,
    /// How ends of these functions are seen.
    ends: Ends,
    /// They are seen so because the program needs it.
    reads_returns: bool,
    /// A file with symbols of functions that get none, one a line; empty for none.
    exceptions: PathBuf,
    /// True if functions with room for a branch from the compiler are recorded, if this program has such.
    is_patchable: bool,
    /// True if calls of libraries' functions are recorded.
    has_library_calls: bool,
}

impl Branches {
    /// Those of this program.
    pub(crate) fn of(settings: &Settings) -> Self {
        let is_within = settings.branches_within.as_os_str().is_empty() || is_below(&settings.branches_within);
        let patterns: Vec<String> = settings.branches.iter().filter(|_| is_within).cloned().collect();
        let is_own = !matches!(&*settings.ends, "exits" | "returns");
        let reads_returns = is_own && !patterns.is_empty() && reads_return_addresses();
        Self {
            is_patchable: settings.is_patchable && patchable_entries("/proc/self/exe".as_ref()) > 0,
            ends: match &*settings.ends {
                "exits" => Ends::Exits,
                "returns" => Ends::Returns,
                _ if reads_returns => Ends::Exits,
                _ => Ends::Returns,
            },
            reads_returns,
            patterns,
            exceptions: settings.branch_exceptions.clone(),
            has_library_calls: settings.has_library_calls,
        }
    }

    /// True if none is.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty() && !self.is_patchable && !self.has_library_calls
    }

    /// Adds what is wanted. `Err` says why that cannot be read.
    pub(crate) fn choose(&self, config: Config) -> Result<Config, String> {
        let config = config.library_calls(self.has_library_calls).patchable_entries(self.is_patchable).ends(self.ends);
        let config = self.patterns.iter().fold(config, |config, pattern| config.entry_branches(pattern));
        let path = &self.exceptions;
        if self.patterns.is_empty() || path.as_os_str().is_empty() {
            return Ok(config);
        }
        let text = opener::read_text(path, MOST_TEXT).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(config.entry_exceptions(text.lines().map(str::to_owned)))
    }

    /// Tells `rftrace record` how many functions were hooked, and which were not, if any were wanted. It may be gone, or not be for this
    /// user.
    pub(crate) fn tell(&self, told_at: Option<&Passed>, tracer: &Tracer, bank: Option<&Bank>) {
        if self.is_empty() {
            return;
        }
        let mut text = told(tracer);
        if self.reads_returns && cfg!(target_arch = "x86_64") {
            text += &EntriesLine::ReadsReturns(&program().to_string_lossy()).to_string();
        }
        // In one piece: others write there too.
        let file = told_at.and_then(|told| told.open(File::options().append(true)).ok());
        let _ = file.map(|mut file| file.write_all(text.as_bytes()));
        bank.into_iter().for_each(Bank::describe_hooked);
    }
}

/// The outcome for the functions that were to be hooked, in the form that `rftrace record` reads.
pub(super) fn told(tracer: &Tracer) -> String {
    tracer.entry_branches().lines(&program().to_string_lossy())
}

/// The path of this program.
fn program() -> PathBuf {
    // When the main thread has ended, the process as a whole has no program any more.
    fs::read_link("/proc/self/exe").or_else(|_| fs::read_link("/proc/thread-self/exe")).unwrap_or_default()
}

/// True if the program has a runtime that walks stacks by return addresses: it would take replaced ones for addresses of its own.
fn reads_return_addresses() -> bool {
    let is_there = |name: &str| {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a string; what is found is not called.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
    };
    let has_one = RUNTIMES.iter().any(|name| is_there(name));
    // SAFETY: the message that a name is missing is not the program's, which has not begun.
    unsafe { libc::dlerror() };
    has_one
}

/// True if this program's file lies below a folder.
fn is_below(folder: &Path) -> bool {
    fs::read_link("/proc/self/exe").is_ok_and(|program| program.starts_with(folder))
}
