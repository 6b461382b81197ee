//! The choice of a module's functions for a branch, of this process or of another one.
//!
//! Not here: the making of the branches.

use std::collections::BTreeMap;

use rftrace_format::branches::Branch;

use super::examine::examine;
use super::exits::Exits;
use super::functions::{BRANCH_BYTES, Functions, is_linkage};
use super::rooms::Rooms;
use super::sleds::Sleds;
use super::stubs::{GoesOn, Wanted};
use super::unnamed::Unnamed;
use crate::elf::file::page_size;
use crate::elf::table::SymbolTable;
use crate::patch::entry_outcome::{Ends, EntryWay as Way, WholeReason};
use crate::patch::module::Image;
use crate::patch::named::{Function, Module, is_cold};
use crate::patch::wanted::Choice;

/// Criteria for the functions of each module.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) choice: &'a Choice,
    pub(super) way: Way,
    /// Calls of hooks, ascending.
    pub(super) call_sites: &'a [usize],
    /// Existing branches, by address.
    pub(super) known: &'a BTreeMap<usize, Branch>,
    /// Facts about functions without names, in the program.
    pub(super) unnamed: Option<&'a Unnamed>,
}

/// The chosen functions of a module.
#[derive(Default)]
pub(super) struct Chosen<'m> {
    /// Functions that get a branch, and its target.
    pub(super) functions: Vec<Function<'m>>,
    pub(super) wanted: Vec<Wanted>,
    /// Functions with an existing branch.
    pub(super) known: Vec<(Function<'m>, Branch)>,
    /// Functions that can have none.
    pub(super) left_out: Vec<(Function<'m>, WholeReason)>,
    /// The ends of the functions that get a branch, if these get one too.
    pub(super) exits: Option<Exits>,
}

impl Asked<'_> {
    /// Looks at all functions of a module, but for those with sleds.
    pub(super) fn of<'m>(&self, module: &'m Module<'_>, rooms: &Rooms, sleds: &Sleds) -> Chosen<'m> {
        let mut chosen = Chosen::default();
        if rooms.is_empty() && !self.choice.has_module(&module.name, module.is_program) {
            return chosen;
        }
        let image = module.image;
        let symbols = module.symbols.iter().flat_map(SymbolTable::symbols);
        let labels = symbols.map(|symbol| image.start() + symbol.address as usize);
        let functions = Functions::of(image, labels);
        for (start, end) in functions.ranges() {
            let function = Function { start, end, symbol: module.symbol(start) };
            if sleds.has(start) || !self.is_chosen(module, &function, rooms) {
                continue;
            }
            if let Some(&branch) = self.known.get(&start).filter(|branch| is_there(image, branch)) {
                chosen.known.push((function, branch));
                continue;
            }
            let examined = match self.way {
                Way::Outside if crosses_page(start, BRANCH_BYTES) => Err(WholeReason::Pages),
                _ if self.is_special(module, start) => Err(WholeReason::Special),
                _ => examine(module, &functions, &function, self.call_sites),
            };
            match examined {
                Ok(instructions) => {
                    chosen.wanted.push(Wanted { name: start, told: start, goes_on: GoesOn::Copy(instructions) });
                    chosen.functions.push(function);
                }
                Err(reason) => chosen.left_out.push((function, reason)),
            }
        }
        if self.choice.ends == Ends::Exits {
            chosen.exits = Some(Exits::find(module, &functions, &chosen.functions, &mut chosen.wanted));
        }
        chosen
    }

    /// Returns true for a function of the program that can have no branch, although no name shows it.
    fn is_special(&self, module: &Module<'_>, function: usize) -> bool {
        module.is_program && self.unnamed.is_some_and(|unnamed| unnamed.is_special(function))
    }

    /// True if a function was chosen.
    fn is_chosen(&self, module: &Module<'_>, function: &Function<'_>, rooms: &Rooms) -> bool {
        let image = module.image;
        let is_linkage = || function.symbol.is_none() && is_linkage(image, function.start);
        !is_cold(module, function)
            && !is_linkage()
            && !is_excepted(self.choice, module, function)
            && (rooms.has(image, function.start) || is_named(self.choice, module, function))
    }
}

/// True if a pattern matches a function.
pub(super) fn is_named(choice: &Choice, module: &Module<'_>, function: &Function<'_>) -> bool {
    choice.has(&module.name, module.is_program, || module.name_of(function))
}

/// True if a function is left out by its symbol.
pub(super) fn is_excepted(choice: &Choice, module: &Module<'_>, function: &Function<'_>) -> bool {
    module.raw_name(function).is_some_and(|symbol| choice.excepts(symbol))
}

/// Returns true if memory has the bytes for which a branch was prepared, with the branch or without it.
pub(super) fn is_there(image: &Image<'_>, branch: &Branch) -> bool {
    let start = branch.function as usize;
    let bytes = image.bytes(start..start + branch.displaced().len());
    bytes.is_some_and(|bytes| bytes == branch.displaced() || bytes == branch.branched())
}

/// True if so many bytes would lie in two pages. From outside only one page is written as a whole, however this process or the other one ends.
pub(super) fn crosses_page(start: usize, bytes: usize) -> bool {
    let page = usize::try_from(page_size()).unwrap_or(4096);
    start / page != (start + bytes - 1) / page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_two_pages() {
        let page = usize::try_from(page_size()).unwrap();
        assert!(!crosses_page(page - 11, 11) && crosses_page(page - 10, 11) && !crosses_page(page, 11));
    }
}
