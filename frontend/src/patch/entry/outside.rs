//! Entry branches of a process unable to make them itself, without this crate: the tracer alone was put there from
//! outside. Its recorder finds the functions here, by the process's files and memory, and writes the result there.
//!
//! Not here: the writing (`rftrace-attach`).

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rftrace_format::branches::Branch;

use super::choosing::{Asked, Chosen};
use super::relocate;
use super::rooms::Rooms;
use super::sleds::Sleds;
use super::stubs::{GoesOn, Stubs, Wanted, most_bytes};
use super::unnamed::Unnamed;
use crate::Error;
use crate::elf::file::{map_file, page_size};
use crate::host::linux::modules::{self, Module as Loaded};
use crate::patch::entry_outcome::{EntryBranches, EntryWay, WholeReason};
use crate::patch::finding::calls_of;
use crate::patch::memory::places;
use crate::patch::module::Image;
use crate::patch::named::{Function, Module};
use crate::patch::stubs::REACH;
use crate::patch::unwind::Reader;
use crate::patch::wanted::Choice;

/// The functions that get a branch in a process with the tracer alone.
#[derive(Debug, Default)]
pub struct OutsideBranches {
    areas: Vec<OutsideArea>,
    known: Vec<Branch>,
    /// All of them: filters choose among these.
    functions: Vec<Range<u64>>,
    outcome: EntryBranches,
}

/// The functions of one module with new stubs.
#[derive(Debug)]
pub struct OutsideArea {
    module: Range<usize>,
    wanted: Vec<Wanted>,
    /// The bytes replaced by the branches.
    displaced: Vec<Vec<u8>>,
}

/// The stubs of one module at their address.
#[derive(Debug)]
pub struct OutsideStubs {
    /// Whole pages of code, behind the pages with the switches.
    pub code: Vec<u8>,
    /// The branches to the stubs.
    pub branches: Vec<Branch>,
    /// The addresses of functions with first instructions that refer to memory out of reach of the stubs.
    pub unreachable: Vec<u64>,
    /// The unwind information of the stubs: a section `.eh_frame` for any address.
    pub frames: Vec<u8>,
}

/// Inputs of the search through all modules.
struct Looked<'a> {
    choice: &'a Choice,
    hooks: &'a [(&'static str, u64)],
    known: &'a BTreeMap<usize, Branch>,
    unnamed: Option<&'a Unnamed>,
}

impl OutsideBranches {
    /// Looks for functions in a process.
    ///
    /// - `process`: the process's folder in `/proc`.
    /// - the patterns: those of [`Config::entry_branches`](crate::Config::entry_branches); functions with one of the
    ///   symbols `exceptions` are left out.
    /// - `hooks`: the names of hook functions of the process, called by other functions at their beginning.
    /// - `linker`: an address in its dynamic linker, or 0.
    /// - `known`: another recorder's prepared branches there that are not in the code.
    /// - `unnamed`: facts about the functions of a program without symbol table.
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] for a malformed pattern; [`Error::Read`] if the process has ended.
    pub fn look_up(
        process: &Path,
        (patterns, exceptions): (&[String], &[String]),
        hooks: &[(&'static str, u64)],
        linker: u64,
        known: &[Branch],
        unnamed: Option<&Unnamed>,
    ) -> Result<Self, Error> {
        let choice = Choice::parse(patterns.iter().map(String::as_str), exceptions.to_vec())?;
        let known = known.iter().map(|branch| (branch.function as usize, *branch)).collect();
        let looked = Looked { choice: &choice, hooks, known: &known, unnamed };
        let mut this = Self::default();
        this.go_through(process, linker, &looked).map_err(|source| Error::Read { path: process.to_owned(), source })?;
        Ok(this)
    }

    fn go_through(&mut self, process: &Path, linker: u64, looked: &Looked<'_>) -> io::Result<()> {
        let read = modules::memory_of(process)?;
        for loaded in modules::modules_of_process(process)? {
            let name = loaded.path.file_name().unwrap_or_default().to_string_lossy();
            let is_linker = linker != 0 && (loaded.start..loaded.end).contains(&linker);
            if is_linker || loaded.is_recorders() || !looked.choice.has_module(&name, loaded.is_main) {
                continue;
            }
            self.look_at(process, &loaded, looked, &read);
        }
        Ok(())
    }

    /// Examines the functions of a module; an unreadable one has none.
    fn look_at(
        &mut self,
        process: &Path,
        loaded: &Loaded,
        looked: &Looked<'_>,
        read: impl Fn(Range<usize>) -> Vec<u8>,
    ) -> Option<()> {
        let path = loaded.file_in(process)?;
        let file = map_file(&path).ok()?;
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        let image = Image::of_process(&file, loaded.start as usize, &name, read)?;
        let module = Module::of(&image, Some(file), &path, &loaded.path, loaded.is_main);
        let hooks = looked.hooks;
        let mut call_sites: Vec<usize> = calls_of(&image, hooks).into_iter().map(|site| site.address).collect();
        // They become jumps themselves.
        call_sites.extend(hooks.iter().map(|&(_, address)| address as usize));
        call_sites.sort_unstable();
        let asked = Asked {
            choice: looked.choice,
            way: EntryWay::Outside,
            call_sites: &call_sites,
            known: looked.known,
            unnamed: looked.unnamed,
        };
        let Chosen { functions, wanted, known, left_out, exits: _ } =
            asked.of(&module, &Rooms::default(), &Sleds::default());
        let outcome = &mut self.outcome;
        outcome.left_out.extend(left_out.iter().map(|(function, reason)| module.left_out(function, *reason)));
        let range = |function: &Function<'_>| function.start as u64..function.end as u64;
        self.functions.extend(known.iter().map(|(function, _)| range(function)));
        self.known.extend(known.iter().map(|&(_, branch)| branch));
        outcome.patched += known.len();
        let mut area = OutsideArea { module: image.start()..image.end(), wanted: Vec::new(), displaced: Vec::new() };
        for (function, wanted) in functions.iter().zip(wanted) {
            let displaced = image.bytes(wanted.name..wanted.name + wanted.n_displaced());
            match displaced.filter(|_| can_move(&wanted)) {
                Some(displaced) => {
                    area.displaced.push(displaced.to_vec());
                    area.wanted.push(wanted);
                    self.functions.push(range(function));
                }
                None => outcome.left_out.push(module.left_out(function, WholeReason::Instruction)),
            }
        }
        outcome.patched += area.wanted.len();
        if !area.wanted.is_empty() {
            self.areas.push(area);
        }
        Some(())
    }

    /// Returns the functions with new stubs, by module.
    #[must_use]
    pub fn areas(&self) -> &[OutsideArea] {
        &self.areas
    }

    /// Returns the branches with existing stubs.
    #[must_use]
    pub fn known(&self) -> &[Branch] {
        &self.known
    }

    /// Returns the result for the functions, provided that all stubs are made.
    #[must_use]
    pub fn outcome(&self) -> &EntryBranches {
        &self.outcome
    }

    /// Returns the address ranges of all functions.
    #[must_use]
    pub fn functions(&self) -> &[Range<u64>] {
        &self.functions
    }
}

impl OutsideArea {
    /// Returns the number of functions. Each has a switch of one byte.
    #[must_use]
    pub fn n_functions(&self) -> usize {
        self.wanted.len()
    }

    /// Returns the addresses of the functions.
    pub fn functions(&self) -> impl Iterator<Item = u64> {
        self.wanted.iter().map(|function| function.name as u64)
    }

    /// Returns the address range of the module.
    #[must_use]
    pub fn module(&self) -> Range<u64> {
        self.module.start as u64..self.module.end as u64
    }

    /// Returns the maximum size in bytes of the stubs and their unwind information.
    #[must_use]
    pub fn most_bytes(&self) -> usize {
        // The unwind information is no larger than the stubs.
        4 * most_bytes(self.wanted.len())
    }

    /// Returns free places within reach of the module for `n_bytes` bytes plus the stubs and their unwind information.
    /// `mapped` lists the mapped ranges of the process, ascending.
    #[must_use]
    pub fn places(&self, n_bytes: usize, mapped: &[Range<usize>]) -> Vec<usize> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        places(&self.module, n_bytes + self.most_bytes(), mapped, (page, REACH))
    }

    /// Returns the stubs for the address `start`, with switches at the address `switches`, and with `hook` as their
    /// target.
    #[must_use]
    pub fn lay(&self, switches: usize, start: usize, hook: usize) -> OutsideStubs {
        let (stubs, code) = Stubs::new(switches, start, &self.wanted, hook);
        let branches = self.displaced.iter().enumerate().map(|(idx, displaced)| stubs.branch(idx, displaced));
        let (mut found, mut unreachable) = (Vec::new(), Vec::new());
        for (function, branch) in self.wanted.iter().zip(branches) {
            match branch {
                Some(branch) => found.push(branch),
                None => unreachable.push(function.name as u64),
            }
        }
        OutsideStubs { code, branches: found, unreachable, frames: stubs.frames(Reader::Unwinder).0 }
    }
}

/// True if its first instructions can run elsewhere at all.
fn can_move(function: &Wanted) -> bool {
    match &function.goes_on {
        GoesOn::Copy(instructions) => relocate::copy(instructions, function.name, function.name).is_some(),
        GoesOn::Whole(_) => true,
    }
}
