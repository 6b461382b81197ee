//! Outcome for functions with room for a branch at their beginning.

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::PathBuf;

use crate::elf::table::{SymbolTable, read_symbols};
use crate::host::linux::modules::exe_path;
use crate::patch::control;
use crate::patch::engine::Engine;
use crate::patch::entry_outcome::{EntryBranches, LeftOut, WholeReason};
use crate::patch::outcome::PlainReason;
use crate::patch::sites::Site;

pub(super) fn outcome() -> EntryBranches {
    control::entries(outcome_of).unwrap_or_else(EntryBranches::nothing)
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
