//! Functions that call no hook: which get a branch at their beginning, whether those of libraries are recorded where they are called, and
//! what became of them.
//!
//! Not here: how that is done (`rftrace-frontend`).

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rftrace_frontend::bank::Bank;
use rftrace_frontend::{Config, Tracer, patchable_entries};

/// Which functions are hooked.
#[derive(Debug)]
pub(crate) struct Branches {
    /// `RFTRACE_RECORD_BRANCHES`: a pattern a line. None, if this program does not lie below `RFTRACE_RECORD_BRANCHES_WITHIN`.
    patterns: Vec<String>,
    /// `RFTRACE_RECORD_BRANCHES_EXCEPT`: a file with symbols of functions that get none, one a line.
    exceptions: Option<PathBuf>,
    /// `RFTRACE_RECORD_PATCHABLE`: whether the functions are recorded that compilers have left room in, if this program has such.
    is_patchable: bool,
    /// `RFTRACE_RECORD_LIBCALLS`: whether calls of libraries' functions are recorded.
    has_library_calls: bool,
    /// `RFTRACE_RECORD_BRANCHES_TOLD`: where to say what became of them.
    told: PathBuf,
}

impl Branches {
    /// Reads the environment.
    pub(crate) fn read() -> Self {
        let within = env::var_os("RFTRACE_RECORD_BRANCHES_WITHIN").map(PathBuf::from);
        let is_within = within.is_none_or(|folder| is_below(&folder));
        let patterns = env::var("RFTRACE_RECORD_BRANCHES").ok().filter(|_| is_within).unwrap_or_default();
        let is_set = |name| env::var(name).is_ok_and(|wanted| wanted == "1");
        Self {
            is_patchable: is_set("RFTRACE_RECORD_PATCHABLE") && patchable_entries("/proc/self/exe".as_ref()) > 0,
            patterns: patterns.lines().map(str::to_owned).collect(),
            exceptions: env::var_os("RFTRACE_RECORD_BRANCHES_EXCEPT").map(PathBuf::from),
            has_library_calls: is_set("RFTRACE_RECORD_LIBCALLS"),
            told: env::var_os("RFTRACE_RECORD_BRANCHES_TOLD").unwrap_or_default().into(),
        }
    }

    /// Whether none is.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty() && !self.is_patchable && !self.has_library_calls
    }

    /// Adds what is wanted. `Err` says why that cannot be read.
    pub(crate) fn choose(&self, config: Config) -> Result<Config, String> {
        let config = config.library_calls(self.has_library_calls).patchable_entries(self.is_patchable);
        let config = self.patterns.iter().fold(config, |config, pattern| config.entry_branches(pattern));
        let Some(path) = self.exceptions.as_ref().filter(|_| !self.patterns.is_empty()) else {
            return Ok(config);
        };
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(config.entry_exceptions(text.lines().map(str::to_owned)))
    }

    /// Tells `rftrace record` how many functions were hooked, and which were not, if any were wanted. It may be gone, or not be for this
    /// user.
    pub(crate) fn tell(&self, tracer: &Tracer, bank: Option<&Bank>) {
        if self.is_empty() {
            return;
        }
        let text = told(tracer);
        // In one piece: others write there too.
        let file = File::options().append(true).open(&self.told);
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
        bank.into_iter().for_each(Bank::describe_hooked);
    }
}

/// What became of functions that were to be hooked, as `rftrace record` reads it.
pub(super) fn told(tracer: &Tracer) -> String {
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    tracer.entry_branches().lines(&program.to_string_lossy())
}

/// Whether this program's file lies below a folder.
fn is_below(folder: &Path) -> bool {
    fs::read_link("/proc/self/exe").is_ok_and(|program| program.starts_with(folder))
}
