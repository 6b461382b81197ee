//! Attaching by the library, where the dynamic GNU C library loads it, and without it elsewhere.

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

const ASKED: &str = "it can be asked for that";

/// A process that is recorded.
#[derive(Debug)]
pub struct Attached(Way);

#[derive(Debug)]
enum Way {
    Library(Box<ByLibrary>),
    Outside(Box<Outside>),
}

/// The other process that records this one, if there is one that lives.
///
/// # Errors
///
/// Sentences: there is no such process, it cannot be attached to, or it was started to be recorded.
pub fn owner(pid: u32) -> Result<Option<u32>> {
    let (process, maps) = attached::open(pid.cast_signed())?;
    refusal::owner(&process, &maps)
}

impl Attached {
    /// Has a process record into what `prepare` makes of the empty files that it is given; that tells where things lie in the first.
    ///
    /// # Errors
    ///
    /// Sentences: the process cannot be attached to, or something went wrong; it goes on as it did.
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

    /// Has a program that is held at its beginning, and that no library is loaded into, record into the bank whose file is at this path. It is still held
    /// then. `None` if it has ended before.
    ///
    /// # Errors
    ///
    /// Sentences: it cannot be recorded, or something went wrong.
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

    /// Where things lie in it, if nothing in the process tells that.
    #[must_use]
    pub fn mapped(&self) -> Option<Mapped> {
        match &self.0 {
            Way::Library(_) => None,
            Way::Outside(outside) => Some(outside.mapped()),
        }
    }

    /// Returns for each of the [optional rules](rftrace_frontend::Filter::optional_rules) whether it has an effect, if nothing in the process tells
    /// that.
    #[must_use]
    pub fn rules_in_effect(&self) -> Vec<bool> {
        match &self.0 {
            Way::Library(_) => Vec::new(),
            Way::Outside(outside) => outside.rules_in_effect(),
        }
    }

    /// True if values are read only where memory is there for sure, as the program may have, or get, a filter of system calls that forbids more.
    /// False if something in the process finds that out itself.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        match &self.0 {
            Way::Library(_) => false,
            Way::Outside(outside) => outside.is_confined(),
        }
    }

    /// Threads that could not be recorded, if nothing in the process tells that.
    #[must_use]
    pub fn n_untraced_threads(&self) -> u32 {
        match &self.0 {
            Way::Library(_) => 0,
            Way::Outside(outside) => outside.n_untraced_threads(),
        }
    }

    /// Functions that give out something or take it back, each with a module that calls it otherwise than through slots that could be changed.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        match &self.0 {
            Way::Library(library) => library.left_out(),
            Way::Outside(_) => &[],
        }
    }

    /// Its root directory, if that is not the one of this process.
    #[must_use]
    pub fn other_root(&self) -> Option<OtherRoot> {
        match &self.0 {
            Way::Library(library) => library.other_root(),
            Way::Outside(outside) => outside.other_root(),
        }
    }

    /// Lets threads go that slept where they could not be stopped, and have stopped since. They wait for that.
    pub fn let_late_go(&mut self) {
        match &mut self.0 {
            Way::Library(library) => library.let_late_go(),
            Way::Outside(outside) => outside.let_late_go(),
        }
    }

    /// Looks after the process: libraries that were loaded since are redirected too.
    ///
    /// # Errors
    ///
    /// It cannot be done now.
    pub fn look(&mut self) -> Result<State> {
        self.look_by(None)
    }

    /// True if [`look_by`](Self::look_by) has anything to do.
    #[must_use]
    pub fn is_other(&self) -> bool {
        match &self.0 {
            Way::Library(library) => library.is_other(),
            Way::Outside(outside) => outside.is_other(),
        }
    }

    /// As [`look`](Self::look), by a thread of the process that this one traces and that was told to stop. It stays so. The system has to mark
    /// stops at system calls (`PTRACE_O_TRACESYSGOOD`).
    ///
    /// # Errors
    ///
    /// As of that; this thread may be at no place for it.
    pub fn look_by(&mut self, lent: Option<u32>) -> Result<State> {
        match &mut self.0 {
            Way::Library(library) => library.look_by(lent),
            Way::Outside(outside) => Ok(outside.look()),
        }
    }

    /// Has a thread look for what the recorder asks of the process by its bank, and answer there.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, or the process has ended: it may have done nothing of what it was asked. Or nothing in it could answer.
    pub fn answer(&mut self) -> Result<()> {
        match &mut self.0 {
            Way::Library(library) => library.answer(),
            Way::Outside(_) => bail!("nothing in it answers"),
        }
    }

    /// Switches recording on or off, or to the other one, where nothing in the process can be asked to.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, or the process has ended. Or it can be asked.
    pub fn switch(&mut self, to: Option<bool>) -> Result<()> {
        match &mut self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.switch(to),
        }
    }

    /// Puts rules in the place of those in force; none for everything. Returns what they choose, if they are rules.
    ///
    /// # Errors
    ///
    /// Nothing has changed: as of [`switch`](Self::switch), or the rules are wrong, or match nothing.
    pub fn set_rules(&mut self, rules: &str) -> Result<Option<Selected>> {
        match &mut self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.set_rules(rules),
        }
    }

    /// The functions that can be recorded, and whether the rules in force choose them.
    ///
    /// # Errors
    ///
    /// The process has ended. Or it can be asked.
    pub fn functions(&self) -> Result<Vec<Function>> {
        match &self.0 {
            Way::Library(_) => bail!(ASKED),
            Way::Outside(outside) => outside.functions(),
        }
    }

    /// Ends recording. Everything is as it was before, but for the tracer's code, which stays.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, not all could be stopped to take branches away, or the process has ended meanwhile.
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

    /// Functions among those that have a branch by that, and have none, by address.
    #[must_use]
    pub fn without_branch(&self) -> &[(u64, NoBranch)] {
        match &self.0 {
            Way::Library(library) => library.without_branch(),
            Way::Outside(outside) => outside.branches().map_or(&[], |branches| &branches.written.left_out),
        }
    }

    /// How many threads stood in the first instructions of functions when these got their branches, and went on in the copies of those; and
    /// for how long all threads were stopped for that.
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
        format!("{program} does not lie below {folder}, so its functions get no branches (--patch-within)")
    })
}

/// Leaves a process that a recorder has left in the middle of it; `library` and `of_resources` are the files of the libraries. Returns whether
/// there was anything to leave.
///
/// # Errors
///
/// As of [`Attached::begin`].
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
