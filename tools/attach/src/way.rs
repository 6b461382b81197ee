//! Attaching with the library, if the dynamic GNU C library can load it, and without it otherwise.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rftrace_frontend::bank::folder_of;
use rftrace_frontend::{Function, Selected};

use super::attached::{self, Attached as ByLibrary, Files, State};
use super::bank::BankPlaces;
use super::branches::{NoBranch, OwnBranches};
use super::outside::{Mapped, Outside};
use super::process::OtherRoot;
use super::refusal;
use super::started::Started;
use super::wanted::Wanted;

const ASKED: &str = "the tracer's library in the process handles this request itself";

/// An attached process, which is recorded.
#[derive(Debug)]
pub struct Attached(Way);

#[derive(Debug)]
enum Way {
    Library(Box<ByLibrary>),
    Outside(Box<Outside>),
}

/// Returns the PID of the living recorder of a process, if it has one.
///
/// # Errors
///
/// A sentence: the process does not exist, cannot be attached to, or was started to be recorded.
pub fn owner(pid: u32) -> Result<Option<u32>> {
    let (process, maps) = attached::open(pid.cast_signed())?;
    refusal::owner(&process, &maps)
}

impl Attached {
    /// Attaches to a process, which then records into files. `prepare` gets the empty files, sets them up, and returns
    /// the layout of the first.
    ///
    /// # Errors
    ///
    /// A sentence: the process cannot be attached to, or an operation failed. The process goes on unchanged.
    pub fn begin(pid: u32, wanted: &Wanted, prepare: impl FnOnce(Files) -> Result<BankPlaces>) -> Result<Self> {
        let (process, maps) = attached::open(pid.cast_signed())?;
        refusal::check_owner(&process, &maps)?;
        let begin = |wanted: &Wanted| {
            Ok(Self(if refusal::has_library(&maps) {
                drop(process);
                Way::Library(Box::new(ByLibrary::begin(pid, wanted, |files| prepare(files).map(drop))?))
            } else {
                Way::Outside(Box::new(Outside::begin(process, wanted, prepare)?))
            }))
        };
        begin_within(pid, wanted, begin)
    }

    /// Attaches to a program that is held at its beginning and loads no library. It then records into the bank whose
    /// file has this path, and is still held. `None` if it has ended before.
    ///
    /// # Errors
    ///
    /// A sentence: the program cannot be recorded, or an operation failed.
    pub fn begin_started(
        started: &mut Started,
        wanted: &Wanted,
        path: &str,
        places: &BankPlaces,
    ) -> Result<Option<Self>> {
        let pid = started.pid().cast_unsigned();
        let begun = begin_within(pid, wanted, |wanted| Outside::begin_started(started, wanted, path, places));
        Ok(begun?.map(|outside| Self(Way::Outside(Box::new(outside)))))
    }

    /// Returns the addresses in the process, unless the library in it reports them.
    #[must_use]
    pub fn mapped(&self) -> Option<Mapped> {
        match &self.0 {
            Way::Library(_) => None,
            Way::Outside(outside) => Some(outside.mapped()),
        }
    }

    /// Returns whether each of the [optional rules](rftrace_frontend::Filter::optional_rules) has an effect, unless the
    /// library in the process reports that.
    #[must_use]
    pub fn rules_in_effect(&self) -> Vec<bool> {
        match &self.0 {
            Way::Library(_) => Vec::new(),
            Way::Outside(outside) => outside.rules_in_effect(),
        }
    }

    /// Returns true if values are read only from memory that exists for sure, as the program may have, or get, a filter
    /// that forbids other system calls. False if the library in the process handles that.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        match &self.0 {
            Way::Library(_) => false,
            Way::Outside(outside) => outside.is_confined(),
        }
    }

    /// Returns the number of threads that could not be recorded, unless the library in the process reports it.
    #[must_use]
    pub fn n_untraced_threads(&self) -> u32 {
        match &self.0 {
            Way::Library(_) => 0,
            Way::Outside(outside) => outside.n_untraced_threads(),
        }
    }

    /// Returns the functions for resources that a module calls in other ways than through slots that can be changed,
    /// each with that module.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        match &self.0 {
            Way::Library(library) => library.left_out(),
            Way::Outside(_) => &[],
        }
    }

    /// Returns the process's root directory, if it differs from that of this process.
    #[must_use]
    pub fn other_root(&self) -> Option<OtherRoot> {
        match &self.0 {
            Way::Library(library) => library.other_root(),
            Way::Outside(outside) => outside.other_root(),
        }
    }

    /// Lets threads go that slept where they could not be stopped and have stopped since. They wait for that.
    pub fn let_late_go(&mut self) {
        match &mut self.0 {
            Way::Library(library) => library.let_late_go(),
            Way::Outside(outside) => outside.let_late_go(),
        }
    }

    /// Maintains the process: libraries that were loaded since are recorded too.
    ///
    /// # Errors
    ///
    /// That is impossible now.
    pub fn look(&mut self) -> Result<State> {
        self.look_by(None)
    }

    /// Returns true if [`look_by`](Self::look_by) has work to do.
    #[must_use]
    pub fn is_other(&self) -> bool {
        match &self.0 {
            Way::Library(library) => library.is_other(),
            Way::Outside(outside) => outside.is_other(),
        }
    }

    /// Maintains the process like [`look`](Self::look), with a thread of it that this one traces and that was told to
    /// stop. The thread stays stopped. The system has to mark stops at system calls (`PTRACE_O_TRACESYSGOOD`).
    ///
    /// # Errors
    ///
    /// Those of [`look`](Self::look); this thread may be unfit.
    pub fn look_by(&mut self, lent: Option<u32>) -> Result<State> {
        match &mut self.0 {
            Way::Library(library) => library.look_by(lent),
            Way::Outside(outside) => Ok(outside.look()),
        }
    }

    /// Has a thread of the process answer the recorder's request in the bank.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, the process has ended, or no code in it can answer. It may have done nothing.
    pub fn answer(&mut self) -> Result<()> {
        match &mut self.0 {
            Way::Library(library) => library.answer(),
            Way::Outside(_) => bail!("the process has no tracer library to answer the request"),
        }
    }

    /// Switches recording on or off, or to the other state, in a process without code that could be asked.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, the process has ended, or it has such code.
    pub fn switch(&mut self, to: Option<bool>) -> Result<()> {
        match &mut self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.switch(to),
        }
    }

    /// Replaces the filter rules; an empty text records everything. Returns the result of the filter, if there are
    /// rules.
    ///
    /// # Errors
    ///
    /// Those of [`switch`](Self::switch); or the rules are malformed, or match nothing. The filter has not changed.
    pub fn set_rules(&mut self, rules: &str) -> Result<Option<Selected>> {
        match &mut self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.set_rules(rules),
        }
    }

    /// Returns the functions that can be recorded, and whether the rules in force choose them.
    ///
    /// # Errors
    ///
    /// The process has ended, or it has code that can be asked.
    pub fn functions(&self) -> Result<Vec<Function>> {
        match &self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.functions(),
        }
    }

    /// Ends the recording and detaches. Everything is as before, except for the tracer's code, which stays.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, some thread could not be stopped for removing branches, or the process has ended
    /// meanwhile.
    pub fn leave(self) -> Result<()> {
        match self.0 {
            Way::Library(library) => library.leave(),
            Way::Outside(outside) => outside.leave(),
        }
    }

    /// Returns the report on functions chosen for a hook, as [`EntriesLine`](rftrace_format::recording::EntriesLine)s.
    #[must_use]
    pub fn told(&self) -> &str {
        match &self.0 {
            Way::Library(library) => library.told(),
            Way::Outside(outside) => outside.branches().map_or("", |branches| &branches.told),
        }
    }

    /// Returns the program's path, if branches see the ends of its functions because its runtime reads return addresses.
    #[must_use]
    pub fn reader(&self) -> Option<&str> {
        match &self.0 {
            Way::Library(library) => library.reader(),
            Way::Outside(_) => None,
        }
    }

    /// Returns the functions, by address, that have no branch although the report says so.
    #[must_use]
    pub fn without_branch(&self) -> &[(u64, NoBranch)] {
        match &self.0 {
            Way::Library(library) => library.without_branch(),
            Way::Outside(outside) => outside.branches().map_or(&[], |branches| &branches.written.left_out),
        }
    }

    /// Returns the number of threads that were moved from the first instructions of functions into copies when those
    /// got their branches, and the time for which all threads were stopped.
    #[must_use]
    pub fn stopped(&self) -> (usize, Duration) {
        match &self.0 {
            Way::Library(library) => library.stopped(),
            Way::Outside(outside) => outside.branches().map_or((0, Duration::ZERO), OwnBranches::stopped),
        }
    }
}

/// Has `begin` do what is wanted of a process, but for branches if its program lies elsewhere than those are to be.
fn begin_within<T>(pid: u32, wanted: &Wanted, begin: impl FnOnce(&Wanted) -> Result<T>) -> Result<T> {
    let program = fs::read_link(folder_of(pid).join("exe")).unwrap_or_default();
    let Some(folder) = wanted.within.as_ref().filter(|folder| !program.starts_with(folder)) else {
        return begin(wanted);
    };
    let others = Wanted { branches: Vec::new(), ..wanted.clone() };
    begin(&others).with_context(|| {
        let (program, folder) = (program.display(), folder.display());
        format!("{program} is outside of {folder}, so its functions get no branches (--patch-within)")
    })
}

/// Detaches from a process that a recorder left without detaching. `library` and `of_resources` are the paths of the
/// libraries. Returns whether anything had to be done.
///
/// # Errors
///
/// Those of [`Attached::begin`].
pub fn leave(pid: u32, library: &Path, of_resources: &Path) -> Result<bool> {
    let (process, maps) = attached::open(pid.cast_signed())?;
    refusal::check_owner(&process, &maps)?;
    if refusal::has_library(&maps) {
        drop(process);
        return attached::leave(pid, library, of_resources);
    }
    let Some(outside) = Outside::find(process)? else { return Ok(false) };
    outside.leave()?;
    Ok(true)
}
