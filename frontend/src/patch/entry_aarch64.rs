//! What becomes of functions with room for a branch at their beginning, on aarch64: they are sites as calls of the hook are, so they are
//! found, stubbed and switched by [`engine`](super::engine). Functions without room have no branch, and no slot leads to a stub.

use std::collections::HashMap;
use std::ffi::CStr;
use std::iter;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::control;
use super::engine::Engine;
use super::entry_outcome::{EntryBranches, EntryWay, LeftOut, WholeReason};
use super::outcome::PlainReason;
use super::sites::Site;
use crate::Error;
use crate::elf::table::{SymbolTable, read_symbols};
use crate::host::linux::modules::exe_path;

/// What was to be recorded.
pub(crate) struct Choice {
    has_patchable: bool,
    /// Whether functions without room were named, or library calls.
    has_others: bool,
}

impl Choice {
    pub(crate) fn parse<'p>(mut patterns: impl Iterator<Item = &'p str>, _except: Vec<String>) -> Result<Self, Error> {
        Ok(Self { has_patchable: false, has_others: patterns.next().is_some() })
    }

    pub(crate) fn patchable(self, has_patchable: bool) -> Self {
        Self { has_patchable, ..self }
    }

    pub(crate) fn library_calls(self, has_library_calls: bool) -> Self {
        Self { has_others: self.has_others || has_library_calls, ..self }
    }
}

/// Whether any [`Choice`] had others.
static ARE_OTHERS_WANTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn install(choice: Choice, _way: EntryWay) {
    ARE_OTHERS_WANTED.fetch_or(choice.has_others, Relaxed);
    if choice.has_patchable {
        control::install_entries();
    }
}

pub(crate) fn outcome() -> EntryBranches {
    let mut outcome = control::entries(outcome_of).unwrap_or_else(EntryBranches::nothing);
    if ARE_OTHERS_WANTED.load(Relaxed) {
        let words = "functions without room for a branch (-fpatchable-function-entry), and library calls: x86-64 Linux only so far";
        outcome.refusal = Some(words.to_owned());
    }
    outcome
}

fn outcome_of(engine: &Engine) -> EntryBranches {
    let mut outcome = EntryBranches::nothing();
    let mut files = HashMap::new();
    for (name, site, reason) in engine.entries() {
        match reason {
            None => outcome.patched += 1,
            Some(reason) => {
                let (path, symbols) = files.entry(name).or_insert_with(|| symbols_of(name));
                outcome.left_out.push(left_out(path, symbols.as_ref(), site, reason));
            }
        }
    }
    outcome.refusal = engine.refusal().filter(|_| !outcome.left_out.is_empty());
    outcome
}

/// The file of a module, and its symbols.
fn symbols_of(name: &CStr) -> (PathBuf, Option<SymbolTable>) {
    if name.is_empty() {
        return (exe_path().unwrap_or_default(), read_symbols("/proc/self/exe".as_ref()).ok());
    }
    let path = PathBuf::from(&*name.to_string_lossy());
    let symbols = read_symbols(&path).ok();
    (path, symbols)
}

fn left_out(path: &std::path::Path, symbols: Option<&SymbolTable>, site: Site, reason: PlainReason) -> LeftOut {
    let relative = (site.address - site.module) as u64;
    let address = symbols.map_or(0, SymbolTable::link_address) + relative;
    let symbol = symbols.and_then(|table| Some((table, table.lookup(relative)?)));
    LeftOut {
        module: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        address,
        name: symbol.map_or_else(|| SymbolTable::name_of_unnamed(address), |(table, symbol)| table.name(symbol)),
        reason: match reason {
            PlainReason::NoStubs => WholeReason::NoStubs,
            PlainReason::NotWritable => WholeReason::NotWritable,
            PlainReason::NoBarrier => WholeReason::Threads,
            _ => WholeReason::Changed,
        },
    }
}

/// What was hooked that does not call the tracer, in the module that begins at an address: named as what calls it is.
pub(crate) fn functions_in(_module: u64) -> impl Iterator<Item = (u64, u64)> {
    iter::empty()
}

/// Those beside what [`control`] knows.
pub(crate) fn sites() -> impl Iterator<Item = Site> {
    iter::empty()
}
