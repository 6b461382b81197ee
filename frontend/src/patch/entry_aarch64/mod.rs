//! Functions that call no hook, on aarch64.
//!
//! - Those with room for a branch at their beginning are sites as calls of the hook are: they are found, stubbed and switched by
//!   [`engine`](super::engine). `room_outcome` says what became of them.
//! - Others that were chosen by name get a branch in place of an instruction: `functions` says which one, `relocate` makes a copy of it, and `stubs` are what the
//!   branches jump to. This file goes through the modules, once in a program's life and while it has one thread: the instruction may be any, and only a few may be
//!   changed into a branch while others run them. What is switched later is in the stubs.
//!
//! **Invariant**: a function is left whole where anything about it is unsure.
//!
//! **Invariant**: records and filters name these by their own addresses, so nobody but this module knows of stubs.

mod functions;
mod relocate;
mod room_outcome;
mod stubs;

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use self::functions::Functions;
use self::stubs::{Area, Wanted};
use super::control;
use super::entry_outcome::{EntryBranches, EntryWay as Way, WholeReason};
use super::module::Image;
use super::named::{Function, Module, is_cold, with_others};
use super::poke::{Pages, ProcMem, Writer, is_only_thread};
use super::sites::Site;
use super::switches::Switch;
pub(crate) use super::wanted::Choice;
use super::wanted::is_special;
use crate::elf::table::SymbolTable;
use crate::host;

unsafe extern "C" {
    safe fn rftrace_backend_keep_scalable();
}

/// What was made by the first choice that names functions.
#[derive(Debug)]
struct Made {
    sites: Vec<Site>,
    /// The sizes of their functions.
    sizes: Vec<usize>,
    outcome: EntryBranches,
}

static MADE: OnceLock<Made> = OnceLock::new();

/// Whether any [`Choice`] had library calls.
static ARE_LIBRARY_CALLS_WANTED: AtomicBool = AtomicBool::new(false);

/// Gives the chosen functions their hooks.
pub(crate) fn install(choice: Choice, way: Way) {
    let _at_work = host::at_work();
    ARE_LIBRARY_CALLS_WANTED.fetch_or(choice.has_library_calls, Relaxed);
    if choice.has_patchable {
        control::install_entries();
    }
    if choice.names_functions() && way == Way::Itself {
        MADE.get_or_init(|| go_through_modules(&choice));
    }
}

/// What became of the functions.
pub(crate) fn outcome() -> EntryBranches {
    let mut outcome = room_outcome::outcome();
    if let Some(Made { outcome: made, .. }) = MADE.get() {
        outcome.patched += made.patched;
        outcome.left_out.extend_from_slice(&made.left_out);
        outcome.refusal = outcome.refusal.or_else(|| made.refusal.clone());
    }
    if ARE_LIBRARY_CALLS_WANTED.load(Relaxed) {
        outcome.refusal = Some("library calls: x86-64 Linux only so far".to_owned());
    }
    outcome
}

/// The functions with branches that had no room for one, as call sites: a filter chooses them by their addresses.
pub(crate) fn sites() -> impl Iterator<Item = Site> {
    MADE.get().into_iter().flat_map(|made| made.sites.iter().copied())
}

/// The same in the module that was mapped at `start`, relative to that: address and size.
pub(crate) fn functions_in(start: u64) -> impl Iterator<Item = (u64, u64)> {
    let all = MADE.get().into_iter().flat_map(|made| made.sites.iter().zip(&made.sizes));
    let own = all.filter(move |(site, _)| site.module as u64 == start);
    own.map(move |(site, &bytes)| (site.address as u64 - start, bytes as u64))
}

/// What goes through the modules, and what it has found.
struct Pass<'c> {
    choice: &'c Choice,
    /// Calls of the hook and entries with room, by address within a module.
    known: Vec<Site>,
    made: Made,
    switches: Vec<Switch>,
}

fn go_through_modules(choice: &Choice) -> Made {
    // SAFETY: asks for a number.
    if unsafe { libc::getauxval(libc::AT_HWCAP) } & libc::HWCAP_SVE != 0 {
        rftrace_backend_keep_scalable();
    }
    let made = Made { sites: Vec::new(), sizes: Vec::new(), outcome: EntryBranches::nothing() };
    let mut known = control::sites();
    known.sort_unstable_by_key(|site| site.address);
    let mut pass = Pass { choice, known, made, switches: Vec::new() };
    with_others(stubs::hook(), |image| pass.look_at(image));
    control::add_switches(pass.switches);
    pass.made
}

impl Pass<'_> {
    /// Gives the chosen functions of a module their branches.
    fn look_at(&mut self, image: &Image<'_>) {
        let module = Module::read(image);
        if !self.choice.has_module(&module.name, image.name.is_empty()) {
            return;
        }
        let symbols = module.symbols.iter().flat_map(SymbolTable::symbols);
        let labels = symbols.map(|symbol| image.start() + symbol.address as usize);
        let functions = Functions::of(image, labels);
        let (mut chosen, mut wanted) = (Vec::new(), Vec::new());
        for (start, end) in functions.ranges() {
            let function = Function { start, end, symbol: module.symbol(start) };
            if !self.is_chosen(&module, &function) || self.has_room(&function) {
                continue;
            }
            match self.examine(&module, &functions, &function) {
                Ok(function_wanted) => {
                    wanted.push(function_wanted);
                    chosen.push(function);
                }
                Err(reason) => self.leave(&module, &function, reason),
            }
        }
        if wanted.is_empty() {
            return;
        }
        match make(image, &wanted) {
            Ok((are_made, area)) => {
                for (idx, (function, made)) in chosen.iter().zip(are_made).enumerate() {
                    if let Err(reason) = made {
                        self.leave(&module, function, reason);
                        continue;
                    }
                    let Function { start, end, .. } = *function;
                    let site = Site { address: start, child_ip: start, module: image.start(), has_arguments: true };
                    self.switches.extend(area.switch(idx, site));
                    self.made.sites.push(site);
                    self.made.sizes.push(end - start);
                    self.made.outcome.patched += 1;
                }
            }
            Err((reason, error)) => {
                self.made.outcome.refusal = error.map(|error| error.to_string()).or(self.made.outcome.refusal.take());
                chosen.iter().for_each(|function| self.leave(&module, function, reason));
            }
        }
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

    /// Whether it is recorded by the room that it has.
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
        Ok(Wanted { name: start, displaced })
    }

    fn leave(&mut self, module: &Module<'_>, function: &Function<'_>, reason: WholeReason) {
        self.made.outcome.left_out.push(module.left_out(function, reason));
    }
}

/// Makes the stubs, and then the branches. Returns which functions have one.
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
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let area = Area::new(&(image.start()..image.end()), wanted, &mapped)
        .map_err(|error| (WholeReason::NoStubs, Some(error)))?;
    area.register();
    let places = wanted.iter().map(|function| function.displaced.at);
    let text = places.clone().min().unwrap_or(0)..places.max().unwrap_or(0) + size_of::<u32>();
    let pages: Vec<Pages> = pages.iter().filter_map(|pages| pages.cut_to(&text)).collect();
    let is_writable = pages.iter().try_for_each(Pages::make_writable).is_ok();
    let file = if is_writable { None } else { Some(ProcMem::open().map_err(not_writable)?) };
    let writer = file.as_ref().map_or(Writer::Memory, Writer::File);
    let mut refusal = None;
    let mut write = |(idx, function): (usize, &Wanted)| {
        let branch = area.branch(idx, function.displaced.at).ok_or(WholeReason::Instruction)?;
        // SAFETY: code of a module that stays loaded, which was made writable and which no thread runs: this is the only one. Before and behind
        // it is the function's own.
        unsafe { writer.word(function.displaced.at, branch) }.map_err(|error| {
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

/// Whether the C library has begun no other thread (glibc 2.32). An emulator has threads of its own, which are none of the program's.
fn has_one_thread_by_library() -> bool {
    // SAFETY: a string that ends with a NUL.
    let is_one = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.cast::<u8>();
    // SAFETY: a byte, which only the library writes.
    !is_one.is_null() && unsafe { is_one.read_volatile() } != 0
}
