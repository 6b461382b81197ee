//! Entry branches: functions without a hook get a jump to a stub in place of their first instructions. Library calls:
//! the program's slots for functions of other modules lead to stubs.
//!
//! - `functions` finds the functions with room for a branch, from `frames` with their unwind information, `examine`
//!   those that may have one, and `choosing` the chosen ones.
//! - `relocate` makes copies of the displaced instructions; `stubs` makes the targets of the branches.
//! - `exits` gives the ends of functions branches, so return addresses stay.
//! - `leads` gives functions branches to another hook.
//! - `sleds` uses compilers' room for XRay; functions with it need neither stub nor copy.
//! - `writing` makes the targets, and writes code.
//! - `unnamed` finds functions without names that can have no branch, by their conduct (`conduct`) and messages
//!   (`messages`).
//! - `outside` is for a process unable to make them itself.
//! - `rooms` are the functions with a compiler's room for a branch.
//!
//! This file goes through the modules: once in a program's life, while it has one thread, and writes the branches; or
//! in a running program, again and again, and leaves that to an outside writer able to stop its threads ([`Way`]). Not
//! here: the outcome (`entry_outcome`).
//!
//! **Invariant**: leave a function whole if anything about it is unsure: a trace lacks it then, and the program runs as
//! without the tracer.
//!
//! **Invariant**: records and filters name a function by its own address, so only this module knows of stubs.

mod choosing;
mod conduct;
mod examine;
mod exits;
mod functions;
mod leads;
mod messages;
mod outside;
mod relocate;
mod rooms;
mod sleds;
mod stubs;
mod unnamed;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rftrace_format::branches::{Branch, Place};

use self::choosing::{Asked, Chosen, crosses_page, is_excepted, is_named, is_there};
use self::exits::{Exits, MadeExits};
pub use self::leads::{Lead, lead_functions};
pub use self::messages::Llvm;
pub use self::outside::{OutsideArea, OutsideBranches, OutsideStubs};
use self::rooms::Rooms;
use self::sleds::{SLED_BYTES, Sleds, Thunks};
use self::stubs::{Area, GoesOn, Wanted, hook_with_ends};
pub use self::unnamed::{Libgcc, Unnamed, UnnamedUnwinder};
use self::writing::{Made, lead_sleds, make, make_stubs, make_thunks, write_branches};
use super::control;
use super::entry_outcome::{EntryBranches, EntryWay as Way, WholeReason};
use super::installed::{self, Part};
pub(crate) use super::installed::{functions_in, sites};
use super::library::{Call, lead_calls};
use super::module::Image;
use super::named::{Function, Module, with_others};
use super::poke::{Pages, is_only_thread};
use super::sites::Site;
use super::switches::Switch;
pub(crate) use super::wanted::Choice;
use crate::elf::sleds::{Sled, SledKind};
use crate::host;

/// Present choice, and its outcome.
#[derive(Debug, Default)]
struct Now {
    choice: Choice,
    way: Way,
    /// True if anything was ever chosen.
    is_chosen: bool,
    /// The examined modules: their places, and their names.
    modules: Vec<(usize, Vec<u8>)>,
    /// The functions that get a branch, and its stub. Only for other writers.
    wanted: Vec<(u64, u64)>,
    outcome: EntryBranches,
}

static NOW: Mutex<Now> = Mutex::new(Now::new());

/// Returns the present choice, locked. Callers are at work, so no fork comes between.
fn now() -> MutexGuard<'static, Now> {
    NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the chosen functions their hooks.
pub(crate) fn install(choice: Choice, way: Way) {
    let _at_work = host::at_work();
    let mut now = now();
    if way == Way::Itself && (now.is_chosen || choice.is_empty()) {
        return;
    }
    *now = Now { choice, way, is_chosen: true, ..Now::default() };
    now.go_through_modules();
}

/// Prepares branches for functions in newly loaded modules, for an outside writer.
pub fn prepare_branches() {
    let _at_work = host::at_work();
    let mut now = now();
    if now.way == Way::Outside {
        now.go_through_modules();
    }
}

/// Returns all branches ever prepared for an outside writer.
pub fn prepared_branches() -> Vec<Branch> {
    let _at_work = host::at_work();
    let now = now();
    let wanted = |branch: &Branch| now.wanted.binary_search(&(branch.function, branch.stub)).is_ok();
    let all = installed::parts().flat_map(|part| &part.branches);
    all.map(|branch| branch.wanted(wanted(branch))).collect()
}

/// Returns the outcome for the functions.
pub(crate) fn outcome() -> EntryBranches {
    let _at_work = host::at_work();
    now().outcome.clone()
}

/// Outcome at beginnings, the stubs of these, and the outcome at ends.
type AllMade = (Vec<Made>, Area, Option<MadeExits>);

/// A pass through the modules, and its results.
struct Pass<'n> {
    now: &'n mut Now,
    /// Calls of hooks, ascending.
    call_sites: Vec<usize>,
    /// Existing branches, by address: those at beginnings lead to the present hook.
    known: BTreeMap<usize, Branch>,
    /// All functions with a branch, or a slot, at any time.
    earlier: BTreeSet<usize>,
    part: Part,
    /// The switches of the new stubs and thunks.
    switches: Vec<Switch>,
}

impl Now {
    const fn new() -> Self {
        Self {
            choice: Choice::nothing(),
            way: Way::Itself,
            is_chosen: false,
            modules: Vec::new(),
            wanted: Vec::new(),
            outcome: EntryBranches::nothing(),
        }
    }

    fn go_through_modules(&mut self) {
        let mut call_sites: Vec<usize> = control::sites().iter().map(|site| site.address).collect();
        call_sites.sort_unstable();
        let ends = self.choice.ends;
        let leads_there = |part: &Part, branch: &Branch| match branch.place {
            Place::Function => part.ends == ends,
            Place::End | Place::Condition => false,
            Place::Entry | Place::TailCall | Place::Exit => true,
        };
        let known = installed::parts()
            .flat_map(|part| part.branches.iter().filter(move |branch| leads_there(part, branch)))
            .map(|branch| (branch.function as usize, *branch))
            .collect();
        let earlier = sites().map(|site| site.address).collect();
        let mut pass = Pass { now: self, call_sites, known, earlier, part: Part::new(ends), switches: Vec::new() };
        with_others(stubs::hook(), |image| pass.look_at(image));
        let Pass { mut part, switches, .. } = pass;
        part.own_ends.sort_unstable();
        part.late.sort_unstable();
        self.wanted.sort_unstable();
        installed::add(part);
        control::add_switches(switches);
    }
}

impl Pass<'_> {
    fn look_at(&mut self, image: &Image<'_>) {
        let id = (image.start(), image.name.to_bytes().to_vec());
        if self.now.modules.contains(&id) {
            return;
        }
        self.now.modules.push(id);
        let module = Module::read(image);
        let mut sleds = match &module.file {
            Some(file) => Sleds::of(image, file, |address| module.address(address)),
            None => Sleds::default(),
        };
        if self.now.way == Way::Outside {
            // The others are functions as all.
            sleds.retain_whole(|sled| self.is_prepared(image, sled) || self.can_be_prepared(&module, sled));
        }
        self.add_sleds(&module, &sleds);
        self.add_branches(&module, &sleds);
        if self.now.choice.has_library_calls && image.name.is_empty() {
            self.add_library_calls(&module);
        }
    }

    /// Gives the chosen functions with sleds their hooks.
    fn add_sleds(&mut self, module: &Module<'_>, sleds: &Sleds) {
        let image = module.image;
        let mut chosen = Vec::new();
        for (start, own) in sleds.functions() {
            let symbol = module.symbol(start);
            let last = own.iter().map(|sled| sled.address as usize + SLED_BYTES).max().unwrap_or(start);
            let end = symbol.map_or(last, |symbol| start + symbol.size as usize);
            let function = Function { start, end, symbol };
            let choice = &self.now.choice;
            let is_chosen = || choice.has_patchable || is_named(choice, module, &function);
            if is_excepted(choice, module, &function) || !is_chosen() {
                continue;
            }
            // Where the function ends in a way that was changed, that is not seen.
            let is_usable = |sled: &Sled| self.now.way == Way::Outside || is_untouched(module, sled);
            let own: Vec<Sled> = own.iter().copied().filter(is_usable).collect();
            match own.iter().find(|sled| sled.kind == SledKind::Entry).map(|sled| sled.address as usize) {
                Some(entry) => chosen.push((function, entry, own)),
                None => self.leave(module, &function, WholeReason::Changed),
            }
        }
        if chosen.is_empty() {
            return;
        }
        let all: Vec<Sled> = chosen.iter().flat_map(|(_, _, own)| own.iter().copied()).collect();
        let refused = |(reason, error)| (reason, Some(error));
        let made = match self.now.way {
            Way::Itself if !is_only_thread() => Err((WholeReason::Threads, None)),
            Way::Itself => {
                lead_sleds(image, &all).map(|(are_written, thunks)| (are_written, Some(thunks))).map_err(refused)
            }
            Way::Outside => {
                self.prepare_sleds(image, &all).map(|thunks| (vec![true; all.len()], thunks)).map_err(refused)
            }
        };
        match made {
            Ok((are_written, thunks)) => {
                let mut are_written = are_written.into_iter();
                for (function, entry, own) in chosen {
                    let is_written = own.iter().zip(are_written.by_ref());
                    // All are counted off.
                    let is_entered =
                        is_written.filter(|(sled, is_written)| sled.address as usize == entry && *is_written).count()
                            > 0;
                    if !is_entered {
                        self.leave(module, &function, WholeReason::NotWritable);
                        continue;
                    }
                    self.now.outcome.patched += 1;
                    let site = Site {
                        address: function.start,
                        child_ip: entry + SLED_BYTES,
                        module: image.start(),
                        has_arguments: true,
                    };
                    let thunks = thunks.iter();
                    self.switches.extend(thunks.flat_map(|thunks| thunks.switches(function.start as u64, site)));
                    if !self.known.contains_key(&entry) {
                        self.part.sites.push(site);
                        self.part.sizes.push(function.end - function.start);
                    }
                }
            }
            Err((reason, error)) => {
                self.now.outcome.refusal = error.map(|error| error.to_string());
                chosen.iter().for_each(|(function, ..)| self.leave(module, function, reason));
            }
        }
    }

    /// True if the hook of a sled was prepared earlier, for an outside writer.
    fn is_prepared(&self, image: &Image<'_>, sled: &Sled) -> bool {
        self.known.get(&(sled.address as usize)).is_some_and(|branch| is_there(image, branch))
    }

    /// True if the hook of a sled can be prepared.
    fn can_be_prepared(&self, module: &Module<'_>, sled: &Sled) -> bool {
        is_untouched(module, sled) && !crosses_page(sled.address as usize, SLED_BYTES)
    }

    /// Makes the targets of sleds, for an outside writer. Returns the new ones.
    fn prepare_sleds(&mut self, image: &Image<'_>, sleds: &[Sled]) -> Result<Option<Thunks>, (WholeReason, io::Error)> {
        let (known, new): (Vec<Sled>, Vec<Sled>) = sleds.iter().partition(|sled| self.is_prepared(image, sled));
        for branch in known.iter().filter_map(|sled| self.known.get(&(sled.address as usize))) {
            self.now.wanted.push((branch.function, branch.stub));
        }
        if new.is_empty() {
            return Ok(None);
        }
        let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error))?;
        let thunks = make_thunks(image, &new, Way::Outside, &pages)?;
        for sled in &new {
            let place = sled.address as usize;
            let bytes = image.bytes(place..place + SLED_BYTES).and_then(|bytes| bytes.first_chunk());
            if let Some(branch) = bytes.and_then(|bytes| thunks.prepared(sled, bytes)) {
                self.now.wanted.push((branch.function, branch.stub));
                self.part.branches.push(branch);
            }
        }
        Ok(Some(thunks))
    }

    /// Gives the chosen functions of a module their branches, or prepares them. Not those with sleds.
    fn add_branches(&mut self, module: &Module<'_>, sleds: &Sleds) {
        let image = module.image;
        let rooms = match &module.file {
            Some(file) if self.now.choice.has_patchable => Rooms::of(image, file, |address| module.address(address)),
            _ => Rooms::default(),
        };
        let Now { choice, way, .. } = &*self.now;
        let asked = Asked { choice, way: *way, call_sites: &self.call_sites, known: &self.known, unnamed: None };
        let Chosen { functions: chosen, wanted, known, left_out, exits } = asked.of(module, &rooms, sleds);
        for (function, branch) in known {
            self.now.wanted.push((branch.function, branch.stub));
            self.now.outcome.patched += 1;
            self.want_known_ends(module, &function);
        }
        left_out.iter().for_each(|(function, reason)| self.leave(module, function, *reason));
        if wanted.is_empty() {
            return;
        }
        let made = match self.now.way {
            Way::Itself if !is_only_thread() => Err((WholeReason::Threads, None)),
            _ => self.make_all(image, wanted, exits).map_err(|(reason, error)| (reason, Some(error))),
        };
        match made {
            Ok((are_made, area, exits)) => {
                for (idx, (function, made)) in chosen.iter().zip(are_made).enumerate() {
                    let Function { start, end, .. } = *function;
                    if let Err(reason) = made {
                        self.leave(module, function, reason);
                        continue;
                    }
                    self.now.outcome.patched += 1;
                    let site = Site { address: start, child_ip: start, module: image.start(), has_arguments: true };
                    if let Some(exits) = &exits {
                        // In this order: what begins is recorded when its end will be.
                        self.switches.extend(exits.switches(idx, site));
                        self.part
                            .own_ends
                            .extend(exits.branches(idx).map(|branch| (start, (branch.function, branch.stub))));
                        if exits.is_late(idx) {
                            self.part.late.push(start);
                            self.now.outcome.late.push(module.left_out(function, WholeReason::LateEnd));
                        }
                    }
                    self.switches.extend(area.switch(idx, site));
                    // Where another module lay before, or with another hook, it may be there already.
                    if !self.earlier.contains(&start) {
                        self.part.sites.push(site);
                        self.part.sizes.push(end - start);
                    }
                }
            }
            Err((reason, error)) => {
                if let Some(error) = error {
                    self.now.outcome.refusal = Some(error.to_string());
                }
                chosen.iter().for_each(|function| self.leave(module, function, reason));
            }
        }
    }

    /// Requests the existing branches at a function's ends, together with its beginning.
    fn want_known_ends(&mut self, module: &Module<'_>, function: &Function<'_>) {
        let ends = self.part.ends;
        for part in installed::parts().filter(|part| part.ends == ends) {
            let from = part.own_ends.partition_point(|&(its, _)| its < function.start);
            let own = part.own_ends[from..].iter().take_while(|&&(its, _)| its == function.start);
            self.now.wanted.extend(own.map(|&(_, end)| end));
            if part.late.binary_search(&function.start).is_ok() {
                self.now.outcome.late.push(module.left_out(function, WholeReason::LateEnd));
            }
        }
    }

    /// Makes stubs, and branches to them or the data for an outside writer: at beginnings, and at ends if requested.
    fn make_all(
        &mut self,
        image: &Image<'_>,
        mut wanted: Vec<Wanted>,
        exits: Option<Exits>,
    ) -> Result<AllMade, (WholeReason, io::Error)> {
        let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error))?;
        let hook = if exits.is_some() { hook_with_ends() } else { stubs::hook() };
        let laid = exits.map(|exits| exits.lay(image, &mut wanted, &pages)).transpose()?;
        let (made, area) = match self.now.way {
            Way::Itself => make(image, &wanted, hook)?,
            Way::Outside => self.prepare(image, &wanted, hook)?,
        };
        let exits = laid.map(|laid| {
            laid.make(image, &made, |branches| match self.now.way {
                Way::Itself => write_branches(branches, &pages),
                Way::Outside => self.prepare_ends(branches),
            })
        });
        Ok((made, area, exits))
    }

    /// Requests branches at ends. Returns for each whether it will be written.
    fn prepare_ends(&mut self, branches: &[Option<Branch>]) -> Vec<bool> {
        let mut prepare = |branch: &Branch| {
            self.now.wanted.push((branch.function, branch.stub));
            self.part.branches.push(*branch);
        };
        let can_be = |branch: &&Branch| !crosses_page(branch.function as usize, branch.n_changed());
        branches.iter().map(|branch| branch.as_ref().filter(can_be).map(&mut prepare).is_some()).collect()
    }

    /// Makes stubs, for an outside writer of the branches. Returns for each function whether it has one, or the reason
    /// against it.
    fn prepare(
        &mut self,
        image: &Image<'_>,
        wanted: &[Wanted],
        hook: usize,
    ) -> Result<(Vec<Made>, Area), (WholeReason, io::Error)> {
        let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error))?;
        let area = make_stubs(image, wanted, hook, &pages)?;
        let prepare = |(idx, function): (usize, &Wanted)| {
            area.stubs.branch(idx, image.bytes(function.name..function.name + function.n_displaced())?)
        };
        let branches: Vec<Option<Branch>> = wanted.iter().enumerate().map(prepare).collect();
        let made = branches.iter().map(|branch| branch.map(drop).ok_or(WholeReason::Instruction)).collect();
        for branch in branches.into_iter().flatten() {
            self.now.wanted.push((branch.function, branch.stub));
            self.part.branches.push(branch);
        }
        Ok((made, area))
    }

    /// Leads the program's slots for functions of other modules to stubs.
    fn add_library_calls(&mut self, module: &Module<'_>) {
        let make = |calls: &[Call], pages: &[Pages]| {
            let wanted = calls.iter().map(|&Call { site: Site { address: name, .. }, function }| Wanted {
                name,
                told: name,
                goes_on: GoesOn::Whole(function),
            });
            let area = make_stubs(module.image, &wanted.collect::<Vec<_>>(), stubs::hook(), pages)?;
            Ok(calls.iter().enumerate().map(|(idx, call)| area.call_stub(idx, call.site)).collect())
        };
        let switches = lead_calls(module, &mut self.part, &mut self.now.outcome, make);
        self.switches.extend(switches);
    }

    fn leave(&mut self, module: &Module<'_>, function: &Function<'_>, reason: WholeReason) {
        self.now.outcome.left_out.push(module.left_out(function, reason));
    }
}

/// True if a sled is as the compiler has left it, and its file says so.
fn is_untouched(module: &Module<'_>, sled: &Sled) -> bool {
    let place = sled.address as usize;
    let is_as_in_file = || {
        let bytes = module.image.bytes(place..place + SLED_BYTES);
        bytes.is_some_and(|bytes| module.is_as_in_file(place, bytes) == Some(true))
    };
    sleds::is_whole(module.image, sled) && is_as_in_file()
}
