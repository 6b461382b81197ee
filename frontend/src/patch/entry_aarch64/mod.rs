//! Functions without a hook, on aarch64.
//!
//! - Functions with room for a branch at their beginning are sites like calls of the hook: they are found, stubbed and
//!   switched by [`engine`](super::engine). `room_outcome` has their outcome.
//! - Others, chosen by name, get a branch in place of an instruction: `functions` finds this instruction, `relocate`
//!   makes a copy of it, and `stubs` makes the targets of the branches. This file goes through the modules, once in a
//!   program's life and while it has one thread: the replaced instruction may be of any kind, and only a few kinds may
//!   be changed into a branch while other threads run them. Later switches are in the stubs.
//!
//! **Invariant**: leave a function whole if anything about it is unsure.
//!
//! **Invariant**: records and filters name these by their own addresses, so only this module knows of stubs.

mod functions;
mod relocate;
mod room_outcome;
mod stubs;

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use self::functions::Functions;
use self::stubs::{Area, GoesOn, Wanted};
use super::control;
use super::entry_outcome::{EntryBranches, EntryWay as Way, WholeReason};
use super::installed::{self, Part};
pub(crate) use super::installed::{functions_in, sites};
use super::library::{Call, lead_calls};
use super::module::Image;
use super::named::{Function, Module, is_cold, with_others};
use super::poke::{Barrier, Pages, ProcMem, Writer, is_only_thread};
use super::sites::Site;
use super::switches::Switch;
pub(crate) use super::wanted::Choice;
use super::wanted::is_special;
use crate::elf::table::SymbolTable;
use crate::host;

unsafe extern "C" {
    safe fn rftrace_backend_keep_scalable();
}

/// Outcome of the first choice of functions without room.
static OUTCOME: OnceLock<EntryBranches> = OnceLock::new();

/// Gives the chosen functions their hooks.
pub(crate) fn install(choice: Choice, way: Way) {
    let _at_work = host::at_work();
    if choice.has_patchable {
        control::install_entries();
    }
    if (choice.names_functions() || choice.has_library_calls) && way == Way::Itself {
        OUTCOME.get_or_init(|| go_through_modules(&choice));
    }
}

/// Returns the outcome for the functions.
pub(crate) fn outcome() -> EntryBranches {
    let mut outcome = room_outcome::outcome();
    if let Some(made) = OUTCOME.get() {
        outcome.patched += made.patched;
        outcome.left_out.extend_from_slice(&made.left_out);
        outcome.library_calls = made.library_calls;
        outcome.calls_left_out.clone_from(&made.calls_left_out);
        outcome.refusal = outcome.refusal.or_else(|| made.refusal.clone());
    }
    outcome
}

/// A pass through the modules, and its results.
struct Pass<'c> {
    choice: &'c Choice,
    /// Calls of the hook and entries with room, by address within a module.
    known: Vec<Site>,
    part: Part,
    outcome: EntryBranches,
    switches: Vec<Switch>,
}

fn go_through_modules(choice: &Choice) -> EntryBranches {
    // SAFETY: asks for a number.
    if unsafe { libc::getauxval(libc::AT_HWCAP) } & libc::HWCAP_SVE != 0 {
        rftrace_backend_keep_scalable();
    }
    let mut known = control::sites();
    known.sort_unstable_by_key(|site| site.address);
    let (part, outcome) = (Part::default(), EntryBranches::nothing());
    let mut pass = Pass { choice, known, part, outcome, switches: Vec::new() };
    with_others(stubs::hook(), |image| pass.look_at(image));
    installed::add(pass.part);
    control::add_switches(pass.switches);
    pass.outcome
}

impl Pass<'_> {
    fn look_at(&mut self, image: &Image<'_>) {
        let module = Module::read(image);
        if self.choice.has_module(&module.name, image.name.is_empty()) {
            self.add_branches(&module);
        }
        if self.choice.has_library_calls && image.name.is_empty() {
            self.add_library_calls(&module);
        }
    }

    /// Gives the chosen functions of a module their branches.
    fn add_branches(&mut self, module: &Module<'_>) {
        let image = module.image;
        let symbols = module.symbols.iter().flat_map(SymbolTable::symbols);
        let labels = symbols.map(|symbol| image.start() + symbol.address as usize);
        let functions = Functions::of(image, &module.code(), labels);
        let (mut chosen, mut wanted) = (Vec::new(), Vec::new());
        for (start, end) in functions.ranges() {
            let function = Function { start, end, symbol: module.symbol(start) };
            if !self.is_chosen(module, &function) || self.has_room(&function) {
                continue;
            }
            match self.examine(module, &functions, &function) {
                Ok(function_wanted) => {
                    wanted.push(function_wanted);
                    chosen.push(function);
                }
                Err(reason) => self.leave(module, &function, reason),
            }
        }
        if wanted.is_empty() {
            return;
        }
        match make(image, &wanted) {
            Ok((are_made, area)) => {
                for (idx, (function, made)) in chosen.iter().zip(are_made).enumerate() {
                    if let Err(reason) = made {
                        self.leave(module, function, reason);
                        continue;
                    }
                    let Function { start, end, .. } = *function;
                    let site = Site { address: start, child_ip: start, module: image.start(), has_arguments: true };
                    self.switches.extend(area.switch(idx, site));
                    self.part.sites.push(site);
                    self.part.sizes.push(end - start);
                    self.outcome.patched += 1;
                }
            }
            Err((reason, error)) => {
                self.outcome.refusal = error.map(|error| error.to_string()).or(self.outcome.refusal.take());
                chosen.iter().for_each(|function| self.leave(module, function, reason));
            }
        }
    }

    /// Leads the program's slots for functions of other modules to stubs.
    fn add_library_calls(&mut self, module: &Module<'_>) {
        let make = |calls: &[Call], pages: &[Pages]| {
            let wanted =
                calls.iter().map(|call| Wanted { name: call.site.address, goes_on: GoesOn::Whole(call.function) });
            let area = make_stubs(module.image, &wanted.collect::<Vec<_>>(), pages)?;
            // Before any slot leads there.
            Barrier::prepare().pass();
            Ok(calls.iter().enumerate().map(|(idx, call)| area.call_stub(idx, call.site)).collect())
        };
        let switches = lead_calls(module, &mut self.part, &mut self.outcome, make);
        self.switches.extend(switches);
    }

    fn is_chosen(&self, module: &Module<'_>, function: &Function<'_>) -> bool {
        let name = || module.name_of(function);
        let is_excepted = || module.raw_name(function).is_some_and(|symbol| self.choice.excepts(symbol));
        !is_cold(module, function)
            && !is_excepted()
            && self.choice.has(&module.name, module.image.name.is_empty(), name)
    }

    /// The sites in a function.
    fn sites_of(&self, function: &Function<'_>) -> &[Site] {
        let [first, behind] =
            [function.start, function.end].map(|end| self.known.partition_point(|site| site.address < end));
        &self.known[first..behind.max(first)]
    }

    /// True if the function is recorded by its room.
    fn has_room(&self, function: &Function<'_>) -> bool {
        self.sites_of(function).iter().any(|site| site.has_arguments)
    }

    fn examine(
        &self,
        module: &Module<'_>,
        functions: &Functions,
        function: &Function<'_>,
    ) -> Result<Wanted, WholeReason> {
        let Function { start, end, .. } = *function;
        if module.raw_name(function).is_some_and(is_special) {
            return Err(WholeReason::Special);
        }
        if !self.sites_of(function).is_empty() {
            return Err(WholeReason::CallsHook);
        }
        let displaced = functions.displaced(module.image, start, end)?;
        module.check_unchanged(start..displaced.at + size_of::<u32>())?;
        Ok(Wanted { name: start, goes_on: GoesOn::Copy(displaced) })
    }

    fn leave(&mut self, module: &Module<'_>, function: &Function<'_>, reason: WholeReason) {
        self.outcome.left_out.push(module.left_out(function, reason));
    }
}

/// Makes the stubs, and then the branches. Returns for each function whether it has one, or the reason against it.
#[allow(clippy::type_complexity, reason = "who calls it takes it apart")]
fn make(
    image: &Image<'_>,
    wanted: &[Wanted],
) -> Result<(Vec<Result<(), WholeReason>>, Area), (WholeReason, Option<io::Error>)> {
    if !is_only_thread() && !has_one_thread_by_library() {
        return Err((WholeReason::Threads, None));
    }
    let not_writable = |error| (WholeReason::NotWritable, Some(error));
    let pages = Pages::all().map_err(not_writable)?;
    let area = make_stubs(image, wanted, &pages).map_err(|(reason, error)| (reason, Some(error)))?;
    let places = wanted.iter().filter_map(Wanted::branch_at);
    let text = places.clone().min().unwrap_or(0)..places.max().unwrap_or(0) + size_of::<u32>();
    let pages: Vec<Pages> = pages.iter().filter_map(|pages| pages.cut_to(&text)).collect();
    let is_writable = pages.iter().try_for_each(Pages::make_writable).is_ok();
    let file = if is_writable { None } else { Some(ProcMem::open().map_err(not_writable)?) };
    let writer = file.as_ref().map_or(Writer::Memory, Writer::File);
    let mut refusal = None;
    let mut write = |(idx, function): (usize, &Wanted)| {
        let at = function.branch_at().ok_or(WholeReason::Instruction)?;
        let branch = area.branch(idx, at).ok_or(WholeReason::Instruction)?;
        // SAFETY: code of a module that stays loaded, which was made writable and which no thread runs: this is the only one. Before and behind
        // it is the function's own.
        unsafe { writer.word(at, branch) }.map_err(|error| {
            refusal = Some(error);
            WholeReason::NotWritable
        })
    };
    let made: Vec<_> = wanted.iter().enumerate().map(&mut write).collect();
    pages.iter().for_each(|pages| pages.restore(&mut refusal));
    match refusal {
        Some(error) if !made.contains(&Ok(())) => Err(not_writable(error)),
        _ => Ok((made, area)),
    }
}

/// Makes stubs known to unwinders. `pages` are those of this process.
fn make_stubs(image: &Image<'_>, wanted: &[Wanted], pages: &[Pages]) -> Result<Area, (WholeReason, io::Error)> {
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let area = Area::new(&(image.start()..image.end()), wanted, &mapped);
    let area = area.map_err(|error| (WholeReason::NoStubs, error))?;
    area.register();
    Ok(area)
}

/// Returns true if the C library has begun no other thread (glibc 2.32). An emulator's own threads do not count.
fn has_one_thread_by_library() -> bool {
    // SAFETY: a string that ends with a NUL.
    let is_one = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.cast::<u8>();
    // SAFETY: a byte, which only the library writes.
    !is_one.is_null() && unsafe { is_one.read_volatile() } != 0
}
