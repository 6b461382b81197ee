//! Entry branches: functions that call no hook get a jump to a stub in place of their first instructions. Library calls: the slots by
//! which the program calls functions of other modules lead to stubs.
//!
//! - `frames` finds functions by their unwind information; `functions` says which have room for a branch.
//! - `relocate` makes copies of the displaced instructions; `stubs` are what the branches jump to.
//! - `library` says which slots may lead to stubs; `pointers` what becomes of their contents.
//! - `wanted` is which functions are to have one, and `rooms` in which a compiler has left room for it; `outcome` is what the API shows.
//!
//! This file goes through the modules, once in a program's life and while it has one thread.
//!
//! **Invariant**: a function is left whole where anything about it is unsure: a trace lacks it then, and the program runs as it
//! does without.
//!
//! **Invariant**: records and filters name a function by its own address, so nobody but this module knows of stubs.

mod frames;
mod functions;
mod library;
mod outcome;
mod pointers;
mod relocate;
mod rooms;
mod stubs;
mod wanted;

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;

use self::functions::{BRANCH_BYTES, Functions};
pub use self::outcome::{EntryBranches, LeftOut, WholeReason};
use self::rooms::Rooms;
use self::stubs::{Area, GoesOn, Wanted};
pub(crate) use self::wanted::Choice;
use super::module::{Image, with_modules};
use super::poke::{Pages, ProcMem, is_only_thread};
use super::redirect;
use super::sites::Site;
use super::stubs::distance;
use super::unwind::{self, Reader};
use super::{control, debugger};
use crate::elf::code::Code;
use crate::elf::file::map_file;
use crate::elf::imports::{Import, SLOT_BYTES, imports_of};
use crate::elf::table::{Symbol, SymbolTable, symbols_of};
use crate::host::linux::modules::exe_path;

/// What was done, once it is.
static DONE: OnceLock<Done> = OnceLock::new();

#[derive(Debug, Default)]
struct Done {
    sites: Vec<Site>,
    /// The sizes of the functions of `sites`.
    sizes: Vec<usize>,
    /// Slots of the program that lead to stubs.
    slots: Vec<Slot>,
    outcome: EntryBranches,
}

/// A slot through which the program calls a function of another module.
#[derive(Debug)]
struct Slot {
    place: usize,
    stub: usize,
    function: usize,
}

/// Gives the chosen functions their hooks, the first time; later choices change nothing.
pub(crate) fn install(choice: &Choice) {
    DONE.get_or_init(|| {
        let mut call_sites: Vec<usize> = control::sites().iter().map(|site| site.address).collect();
        call_sites.sort_unstable();
        let mut done = Done::default();
        // SAFETY: asks for numbers.
        let skipped = unsafe { [libc::getauxval(libc::AT_SYSINFO_EHDR), libc::getauxval(libc::AT_BASE)] };
        let skipped = skipped.map(|address| address as usize);
        with_modules(|info| {
            // SAFETY: in the callback, and not used behind it.
            let image = unsafe { Image::new(info) }?;
            let is_own = image.contains(stubs::hook());
            if !is_own && !skipped.iter().any(|&address| address != 0 && image.contains(address)) {
                let module = Module::read(&image);
                done.add_branches(&module, choice, &call_sites);
                if choice.has_library_calls && image.name.is_empty() {
                    done.add_library_calls(&module);
                }
            }
            None::<()>
        });
        done
    });
}

/// Has the slots of library calls lead to their stubs again, also where the dynamic linker has written meanwhile. Returns how many do.
///
/// # Errors
///
/// The system does not let a slot be changed. Others may have been.
pub fn hook_library_calls() -> io::Result<usize> {
    fill_slots(|slot| (slot.function, slot.stub))
}

/// Makes them what they were.
///
/// # Errors
///
/// The system does not let a slot be changed: it is tried again the next time.
pub fn release_library_calls() -> io::Result<()> {
    fill_slots(|slot| (slot.stub, slot.function)).map(drop)
}

/// Writes the second address that `of` tells of a slot into those that hold the first one. Returns how many hold the second then.
fn fill_slots(of: impl Fn(&Slot) -> (usize, usize)) -> io::Result<usize> {
    let Some(done) = DONE.get().filter(|done| !done.slots.is_empty()) else { return Ok(0) };
    let pages = Pages::all()?;
    let mut n_filled = 0;
    for slot in &done.slots {
        let (before, after) = of(slot);
        let held = redirect::value(slot.place).load(SeqCst);
        // What is neither is somebody else's.
        if held == before {
            redirect::store(&pages, slot.place, after)?;
        }
        n_filled += usize::from(held == before || held == after);
    }
    Ok(n_filled)
}

/// The functions with a branch, and slots of library calls, as call sites: a filter chooses them by their addresses.
pub(crate) fn sites() -> &'static [Site] {
    DONE.get().map_or(&[], |done| &done.sites)
}

/// The same in the module that was mapped at `start`, relative to that: address and size.
pub(crate) fn functions_in(start: u64) -> impl Iterator<Item = (u64, u64)> {
    let done = DONE.get().into_iter();
    let all = done.flat_map(|done| done.sites.iter().zip(&done.sizes));
    let own = all.filter(move |(site, _)| site.module as u64 == start);
    own.map(move |(site, &bytes)| (site.address as u64 - start, bytes as u64))
}

/// What became of the functions.
pub(crate) fn outcome() -> EntryBranches {
    DONE.get().map(|done| done.outcome.clone()).unwrap_or_default()
}

/// A module and what its file tells.
struct Module<'a> {
    image: &'a Image<'a>,
    name: String,
    file: Option<Arc<Mmap>>,
    symbols: Option<SymbolTable>,
    code: Option<Code>,
}

/// A function that was chosen.
struct Function<'m> {
    start: usize,
    end: usize,
    symbol: Option<&'m Symbol>,
}

impl<'a> Module<'a> {
    fn read(image: &'a Image<'a>) -> Self {
        let (path, shown) = if image.name.is_empty() {
            ("/proc/self/exe".into(), exe_path().unwrap_or_default())
        } else {
            let path = std::path::PathBuf::from(image.name.to_string_lossy().into_owned());
            (path.clone(), path)
        };
        let file: Option<Arc<Mmap>> = map_file(&path).ok();
        let symbols = file.clone().and_then(|file| symbols_of(file, &path).ok());
        let code = file.clone().and_then(|file| Code::of(file, &path).ok().flatten());
        let name = shown.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { image, name, file, symbols, code }
    }

    /// The symbol of the function that begins at `address`.
    fn symbol(&self, address: usize) -> Option<&Symbol> {
        let relative = (address - self.image.start()) as u64;
        self.symbols.as_ref()?.lookup(relative).filter(|symbol| symbol.address == relative)
    }

    /// A function's name, as the trace shows it.
    fn name_of(&self, function: &Function<'_>) -> String {
        match (&self.symbols, function.symbol) {
            (Some(table), Some(symbol)) => table.name(symbol),
            _ => SymbolTable::name_of_unnamed(self.link_address(function.start)),
        }
    }

    /// Its symbol, as it stands in the file.
    fn raw_name(&self, function: &Function<'_>) -> Option<&[u8]> {
        self.symbols.as_ref().zip(function.symbol).map(|(table, symbol)| table.raw_name(symbol))
    }

    /// The address as in the file.
    fn link_address(&self, address: usize) -> u64 {
        let link_address = self.symbols.as_ref().map_or(0, SymbolTable::link_address);
        (address - self.image.start()) as u64 + link_address
    }

    /// Where in memory something lies that has this address in the file.
    fn address(&self, link_address: u64) -> Option<usize> {
        let relative = link_address.checked_sub(self.link_address(self.image.start()))?;
        self.image.start().checked_add(usize::try_from(relative).ok()?)
    }

    /// Whether the file has these bytes where they are in memory.
    fn is_as_in_file(&self, start: usize, bytes: &[u8]) -> Option<bool> {
        let told = self.code.as_ref()?.bytes(self.link_address(start), bytes.len())?;
        Some(told == bytes)
    }
}

impl Done {
    /// Gives the chosen functions of a module their branches.
    fn add_branches(&mut self, module: &Module<'_>, choice: &Choice, call_sites: &[usize]) {
        let image = module.image;
        let rooms = match &module.file {
            Some(file) if choice.has_patchable => Rooms::of(image, file, |address| module.address(address)),
            _ => Rooms::default(),
        };
        if rooms.is_empty() && !choice.has_module(&module.name, image.name.is_empty()) {
            return;
        }
        let symbols = module.symbols.iter().flat_map(SymbolTable::symbols);
        let labels = symbols.map(|symbol| image.start() + symbol.address as usize);
        let functions = Functions::of(image, labels);
        let mut chosen: Vec<Function<'_>> = Vec::new();
        let mut wanted = Vec::new();
        for (start, end) in functions.ranges() {
            let function = Function { start, end, symbol: module.symbol(start) };
            let is_none =
                is_cold(module, &function) || function.symbol.is_none() && functions::is_linkage(image, start);
            let is_none = is_none || module.raw_name(&function).is_some_and(|symbol| choice.excepts(symbol));
            let is_wanted = || {
                rooms.has(image, start) || choice.has(&module.name, image.name.is_empty(), || module.name_of(&function))
            };
            if is_none || !is_wanted() {
                continue;
            }
            match examine(module, &functions, &function, call_sites) {
                Ok(instructions) => {
                    wanted.push(Wanted { name: start, goes_on: GoesOn::Copy(instructions) });
                    chosen.push(function);
                }
                Err(reason) => self.leave(module, &function, reason),
            }
        }
        if wanted.is_empty() {
            return;
        }
        let refused = if is_only_thread() {
            match make(image, &wanted) {
                Ok(branches) => {
                    for (function, is_there) in chosen.iter().zip(branches) {
                        if is_there {
                            let Function { start, end, .. } = *function;
                            self.sites.push(Site { address: start, child_ip: start, module: image.start() });
                            self.sizes.push(end - start);
                            self.outcome.patched += 1;
                        } else {
                            self.leave(module, function, WholeReason::Instruction);
                        }
                    }
                    return;
                }
                Err((reason, error)) => {
                    self.outcome.refusal = Some(error.to_string());
                    reason
                }
            }
        } else {
            WholeReason::Threads
        };
        chosen.iter().for_each(|function| self.leave(module, function, refused));
    }

    /// Has the program's slots for functions of other modules lead to stubs.
    fn add_library_calls(&mut self, module: &Module<'_>) {
        let image = module.image;
        let Some(file) = &module.file else { return };
        let mut imports = imports_of(file);
        imports.retain(|import| !wanted::is_of_runtime(import.name));
        let link_address = module.link_address(image.start());
        let slot = |import: &Import<'_>| image.start() + import.address.saturating_sub(link_address) as usize;
        let (mut wanted, mut chosen) = (Vec::new(), Vec::new());
        for (import, function) in imports.iter().zip(library::examine(image, &imports, slot)) {
            match function {
                Ok(function) => {
                    wanted.push(Wanted { name: slot(import), goes_on: GoesOn::Whole(function) });
                    chosen.push((import, function));
                }
                Err(reason) => self.leave_call(module, import, reason),
            }
        }
        if wanted.is_empty() {
            return;
        }
        let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error));
        let made = pages.and_then(|pages| Ok((make_stubs(image, &wanted, &pages)?, pages)));
        for (idx, (import, function)) in chosen.into_iter().enumerate() {
            let place = wanted[idx].name;
            let filled = match &made {
                Err((reason, error)) => Err((*reason, error.to_string())),
                Ok((area, pages)) => {
                    let stub = area.stub(idx).unwrap_or(function);
                    let stored = redirect::store(pages, place, stub).map(|()| Slot { place, stub, function });
                    stored.map_err(|error| (WholeReason::NotWritable, error.to_string()))
                }
            };
            match filled {
                Ok(slot) => {
                    self.sites.push(Site { address: place, child_ip: place, module: image.start() });
                    self.sizes.push(SLOT_BYTES as usize);
                    self.slots.push(slot);
                    self.outcome.library_calls += 1;
                }
                Err((reason, error)) => {
                    self.outcome.refusal = Some(error);
                    self.leave_call(module, import, reason);
                }
            }
        }
    }

    fn leave_call(&mut self, module: &Module<'_>, import: &Import<'_>, reason: WholeReason) {
        self.outcome.calls_left_out.push(LeftOut {
            module: module.name.clone(),
            address: import.address,
            name: String::from_utf8_lossy(import.name).into_owned(),
            reason,
        });
    }

    fn leave(&mut self, module: &Module<'_>, function: &Function<'_>, reason: WholeReason) {
        self.outcome.left_out.push(LeftOut {
            module: module.name.clone(),
            address: module.link_address(function.start),
            name: module.name_of(function),
            reason,
        });
    }
}

/// Whether a compiler has moved this out of a function. Such a part is none of what a pattern names.
fn is_cold(module: &Module<'_>, function: &Function<'_>) -> bool {
    module.raw_name(function).is_some_and(|name| name.windows(5).any(|part| part == b".cold"))
}

/// The instructions that a branch takes the place of, or why it may not.
fn examine(
    module: &Module<'_>,
    functions: &Functions,
    function: &Function<'_>,
    call_sites: &[usize],
) -> Result<Vec<iced_x86::Instruction>, WholeReason> {
    let Function { start, end, .. } = *function;
    if module.raw_name(function).is_some_and(wanted::is_special) {
        return Err(WholeReason::Special);
    }
    let first = call_sites.partition_point(|&site| site < start);
    if call_sites.get(first).is_some_and(|&site| site < end) {
        return Err(WholeReason::CallsHook);
    }
    let room = functions.room(module.image, start, end)?;
    let displaced: usize = room.instructions.iter().map(iced_x86::Instruction::len).sum();
    let bytes = module.image.bytes(start..start + displaced.max(BRANCH_BYTES)).ok_or(WholeReason::Unreadable)?;
    match module.is_as_in_file(start, bytes) {
        None => Err(WholeReason::Unreadable),
        Some(false) => Err(WholeReason::Changed),
        Some(true) => Ok(room.instructions),
    }
}

/// Makes the stubs and then the branches. Returns which functions have one.
fn make(image: &Image<'_>, wanted: &[Wanted]) -> Result<Vec<bool>, (WholeReason, io::Error)> {
    let not_writable = |error| (WholeReason::NotWritable, error);
    let pages = Pages::all().map_err(not_writable)?;
    let area = make_stubs(image, wanted, &pages)?;
    let text = wanted.first().map_or(0, |first| first.name)..wanted.last().map_or(0, |last| last.name + BRANCH_BYTES);
    let pages: Vec<Pages> = pages.iter().filter_map(|pages| pages.cut_to(&text)).collect();
    let is_writable = pages.iter().try_for_each(Pages::make_writable);
    let file = if is_writable.is_err() { Some(ProcMem::open().map_err(not_writable)?) } else { None };
    let mut done = Vec::with_capacity(wanted.len());
    let mut failed = None;
    for (idx, function) in wanted.iter().enumerate() {
        let written = area.stub(idx).is_some_and(|stub| {
            let mut branch = [0xe9; BRANCH_BYTES];
            branch[1..].copy_from_slice(&distance(function.name + BRANCH_BYTES, stub).to_le_bytes());
            let result = match &file {
                Some(file) => file.write(function.name, &branch),
                None => {
                    // SAFETY: code of a module that stays loaded, which was made writable and which no thread runs: this is the
                    // only one. It lies within the function, or in what is unused behind it.
                    unsafe {
                        std::ptr::copy_nonoverlapping(branch.as_ptr(), function.name as *mut u8, BRANCH_BYTES);
                    }
                    Ok(())
                }
            };
            result.map_err(|error| failed = Some(error)).is_ok()
        });
        done.push(written);
    }
    let mut refusal = None;
    pages.iter().for_each(|pages| pages.restore(&mut refusal));
    match failed {
        Some(error) if !done.contains(&true) => Err(not_writable(error)),
        _ => Ok(done),
    }
}

/// Makes stubs that unwinders and debuggers know. `pages` are those of this process.
fn make_stubs(image: &Image<'_>, wanted: &[Wanted], pages: &[Pages]) -> Result<Area, (WholeReason, io::Error)> {
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let module = image.start()..image.end();
    let area = Area::new(&module, wanted, &mapped).map_err(|error| (WholeReason::NoStubs, error))?;
    let (frames, descriptions) = area.frames(Reader::Unwinder);
    unwind::register_section(area.stubs().start, frames, &descriptions);
    debugger::register(&area.stubs(), &(area.stubs().start..area.stubs().start), &area.frames(Reader::Debugger).0);
    Ok(area)
}
