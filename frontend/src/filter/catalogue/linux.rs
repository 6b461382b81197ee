//! The functions with calls of hooks in the running program, and in another process.

use std::cell::LazyCell;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::super::own;
use super::super::values::KnownValues;
use crate::elf::file;
use crate::elf::table::{self, Symbol, SymbolTable};
use crate::host::Known;
use crate::host::linux::modules::{self, Module};
use crate::patch::{self, Site};

/// The modules of the program with such functions. Results are kept: looking for calls takes a pass through all code,
/// and demangling takes long in programs without optimisation.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    modules: Vec<TracedModule>,
}

/// A module and its calls to the hooks.
#[derive(Debug)]
pub(crate) struct TracedModule {
    module: Module,
    /// The file's name, without folders.
    name: String,
    symbols: Option<SymbolTable>,
    /// The number of hooked functions at its reading.
    n_hooked: usize,
    /// Addresses by which hooks know functions: run-time addresses behind the calls, or those of functions with a
    /// branch; ascending.
    child_ips: Vec<u64>,
    /// By address.
    functions: Vec<Found>,
    /// The names of all functions, one behind the other.
    names: String,
}

/// A function with at least one such call.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// `None` if the file does not tell.
    symbol: Option<Symbol>,
    /// The end of its part of the module's `child_ips` and `names`; the beginning is the end of the part before.
    child_ips_end: usize,
    name_end: usize,
    /// At each of its sites.
    has_arguments: bool,
    is_own: bool,
}

/// A function that can be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedFunction<'c> {
    module: &'c TracedModule,
    found: Found,
    name: &'c str,
    child_ips: &'c [u64],
}

impl Catalogue {
    /// Updates it for the modules loaded now.
    pub(crate) fn refresh(&mut self, known: &Known) {
        let mut before = std::mem::take(&mut self.modules);
        let sites = LazyCell::new(patch::sites);
        self.modules = known
            .loaded()
            .into_iter()
            .map(|module| match before.iter().position(|old| old.is_still(&module)) {
                Some(place) => before.swap_remove(place),
                None => TracedModule::read(module, known, &sites),
            })
            .collect();
    }

    /// Returns the catalogue of the process with this folder in `/proc`, by its files and its memory. `hooks`: its
    /// functions called by others at their beginning, by their names; `branched`: the functions with a branch. An
    /// unreadable module has none.
    ///
    /// # Errors
    ///
    /// The errors of reading its map and opening its memory.
    pub(crate) fn of_process(process: &Path, hooks: &[(&str, u64)], branched: &[Range<u64>]) -> io::Result<Self> {
        let read = modules::memory_of(process)?;
        let modules = modules::modules_of_process(process)?.into_iter().filter_map(|mut module| {
            let path = module.file_in(process)?;
            let file = file::map_file(&path).ok()?;
            let mut sites = patch::sites_of_process(&file, &path, module.start, hooks, &read);
            let mut symbols = table::symbols_of(file, &path).ok()?;
            module.build_id = symbols.build_id().map(str::to_owned);
            let own = || branched.iter().filter(|function| (module.start..module.end).contains(&function.start));
            symbols.add_hooked(own().map(|function| (function.start - module.start, function.end - function.start)));
            sites.extend(own().map(|function| Site {
                address: function.start as usize,
                child_ip: function.start as usize,
                module: module.start as usize,
                has_arguments: true,
            }));
            sites.sort_by_key(|site| site.address);
            Some(TracedModule::new(module, Some(symbols), 0, &sites.iter().collect::<Vec<_>>()))
        });
        Ok(Self { modules: modules.collect() })
    }

    /// All of them, by module and address.
    pub(crate) fn functions(&self) -> impl Iterator<Item = TracedFunction<'_>> {
        self.modules.iter().flat_map(TracedModule::functions)
    }

    /// The names of all functions, including those without a hook.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = String> {
        let tables = self.modules.iter().filter_map(|module| module.symbols.as_ref());
        tables.flat_map(|table| table.symbols().iter().map(|symbol| table.name(symbol)))
    }

    /// The paths and build-ids of modules with functions that can be recorded.
    pub(crate) fn traced_modules(&self) -> impl Iterator<Item = (String, Option<String>)> {
        let traced = self.modules.iter().filter(|it| !it.child_ips.is_empty() && !it.module.is_recorders());
        traced.map(|it| (it.module.path.to_string_lossy().into_owned(), it.module.build_id.clone()))
    }

    /// The names of all modules, the program's first.
    pub(crate) fn module_names(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|module| &*module.name)
    }
}

impl TracedModule {
    fn read(module: Module, known: &Known, sites: &[Site]) -> Self {
        let file = known.file(&module).or_else(|| file::map_file(&module.file_path()).ok());
        let mut own_sites: Vec<&Site> = sites.iter().filter(|site| site.module as u64 == module.start).collect();
        own_sites.sort_by_key(|site| site.address);
        let mut symbols = file.and_then(|file| table::symbols_of(Arc::clone(&file), &module.path).ok());
        if let Some(table) = &mut symbols {
            table.add_hooked(patch::hooked_functions(module.start));
        }
        let n_hooked = patch::hooked_functions(module.start).count();
        Self::new(module, symbols, n_hooked, &own_sites)
    }

    /// One with these sites, by address.
    fn new(module: Module, symbols: Option<SymbolTable>, n_hooked: usize, sites: &[&Site]) -> Self {
        let name = module.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let child_ips = sites.iter().map(|site| site.child_ip as u64).collect();
        let mut this = Self { module, name, symbols, n_hooked, child_ips, functions: Vec::new(), names: String::new() };
        this.find_functions(sites);
        this
    }

    /// Returns true if the module is as it was read. Attaching to a program gives functions hooks later.
    fn is_still(&self, module: &Module) -> bool {
        self.module.is_same_load(module) && self.n_hooked == patch::hooked_functions(module.start).count()
    }

    /// Finds the functions around the sites, sorted by address.
    fn find_functions(&mut self, sites: &[&Site]) {
        for (place, site) in sites.iter().enumerate() {
            let address = site.address as u64 - self.module.start;
            let symbol = self.symbols.as_ref().and_then(|table| table.lookup(address)).copied();
            match self.functions.last_mut() {
                Some(last) if symbol.is_some() && last.symbol == symbol => {
                    last.child_ips_end = place + 1;
                    last.has_arguments &= site.has_arguments;
                }
                _ => {
                    let start = self.names.len();
                    if let (Some(table), Some(symbol)) = (&self.symbols, &symbol) {
                        table.append_name(symbol, &mut self.names);
                    }
                    self.functions.push(Found {
                        symbol,
                        child_ips_end: place + 1,
                        name_end: self.names.len(),
                        has_arguments: site.has_arguments,
                        is_own: own::is_own_name(&self.names[start..]),
                    });
                }
            }
        }
    }

    fn functions(&self) -> impl Iterator<Item = TracedFunction<'_>> {
        let (mut child_ips_start, mut name_start) = (0, 0);
        self.functions.iter().map(move |&found| {
            let child_ips = &self.child_ips[child_ips_start..found.child_ips_end];
            let name = &self.names[name_start..found.name_end];
            (child_ips_start, name_start) = (found.child_ips_end, found.name_end);
            TracedFunction { module: self, found, name, child_ips }
        })
    }
}

impl<'c> TracedFunction<'c> {
    /// Its name, as the trace shows it. Empty if it is unknown.
    pub(crate) fn name(&self) -> &'c str {
        self.name
    }

    /// The name of a C++ function with its parameters.
    pub(crate) fn name_with_parameters(&self) -> Option<String> {
        self.module.symbols.as_ref()?.name_with_parameters(self.found.symbol.as_ref()?)
    }

    /// The name of its module's file.
    pub(crate) fn module(&self) -> &'c str {
        &self.module.name
    }

    /// Returns its beginning; the address behind its call to the hook if that is unknown.
    pub(crate) fn address(&self) -> u64 {
        let known = self.found.symbol.map(|symbol| self.module.module.start + symbol.address);
        known.or(self.child_ips.first().copied()).unwrap_or(0)
    }

    /// Its size, if it is known.
    pub(crate) fn code_bytes(&self) -> Option<u64> {
        self.found.symbol.map(|symbol| symbol.size)
    }

    /// The addresses behind its calls to the hooks.
    pub(crate) fn child_ips(&self) -> &'c [u64] {
        self.child_ips
    }

    /// Returns true if its arguments can be recorded.
    pub(crate) fn has_arguments(&self) -> bool {
        self.found.has_arguments
    }

    /// Returns its values in `known`: the codes of its arguments and of its result.
    pub(crate) fn known_values<'k>(&self, known: &'k KnownValues) -> Option<(&'k [u16], &'k [u16])> {
        let module = &self.module.module;
        known.of((&module.path.to_string_lossy(), module.build_id.as_deref()), self.found.symbol?.address)
    }

    /// Returns true if `known` has its module.
    pub(crate) fn is_known(&self, known: &KnownValues) -> bool {
        let module = &self.module.module;
        known.has((&module.path.to_string_lossy(), module.build_id.as_deref()))
    }

    /// Returns true for the tracer's own functions.
    pub(crate) fn is_own(&self) -> bool {
        self.found.is_own
    }
}
